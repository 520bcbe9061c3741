"""What a run that was killed left behind: network namespaces and mounts. The next run removes them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.nemesis.network import PREFIX, ip, why_not


def remove_leftovers() -> None:
    """Folders are kept, because they may hold findings."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in filter(_is_left, mounts):
        subprocess.run(["umount", "--lazy", mount], check=True, timeout=30)
    if why_not() is None:
        for line in ip("netns", "list").splitlines():
            if _is_left(line.split()[0]):
                ip("netns", "delete", line.split()[0])


def _is_left(name: str) -> bool:
    """Whether this was made by a nemesis that has ended."""
    made = re.search(rf"{PREFIX}(\d+)-", name)
    return made is not None and not _is_alive(int(made[1]))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
