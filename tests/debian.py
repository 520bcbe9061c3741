"""Programs and libraries of Debian that some tests need: those of the machine, or fetched once where it has none.

They are fetched with ``apt-get download`` and unpacked below the user's cache folder, which needs no root.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin:/sbin"


class NotAvailable(Exception):
    """It is not installed and could not be fetched. The text says what to install."""


@dataclass(frozen=True, slots=True)
class Found:
    """A program, and where its libraries are if not where all are."""

    path: str
    libraries: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": self.libraries} if self.libraries else dict(os.environ)


@cache
def find_program(name: str, packages: tuple[str, ...], path: str) -> Found:
    """The program of this name, or the one at ``path`` of the packages, of which the first names the cache folder."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}")
    if found is not None:
        return Found(found)
    root = unpacked(packages)
    # Some are in a folder of their own, which only the path that a library was built with would name.
    folders = sorted({library.parent for library in root.rglob("*.so*") if "-linux-gnu" in str(library)})
    libraries = ":".join(map(str, folders))
    return Found(str(root / path), libraries)


def with_dependencies(package: str) -> tuple[str, ...]:
    """A package, and whatever it needs that this machine does not have."""
    command = ["apt-get", "-q", "--simulate", "--no-install-recommends", "install", package]
    try:
        planned = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NotAvailable(
            f"{package} is not installed and could not be found: apt install {package} ({error})"
        ) from error
    return tuple(dict.fromkeys([package, *re.findall(r"^Inst (\S+)", planned, re.MULTILINE)]))


def unpacked(packages: tuple[str, ...]) -> Path:
    """The folder that these packages are unpacked in."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seriatim-tests" / packages[0]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = folder / "root"
        if not root.exists():
            _fetch(packages, folder, root)
    return root


def _fetch(packages: tuple[str, ...], folder: Path, root: Path) -> None:
    new = folder / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        subprocess.run(["apt-get", "-q", "download", *packages], cwd=new, check=True, capture_output=True, timeout=120)
        for package in sorted(new.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(new / "root")], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        raise NotAvailable(
            f"{packages[0]} is not installed and could not be fetched: apt install {packages[0]} ({error} {said.decode()})"
        ) from error
    (new / "root").rename(root)
