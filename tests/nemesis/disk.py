"""A disk of its own for the store of a round: it can run full and be freed again, and it can be slow.

The disk is a small file system in memory (a tmpfs mount, which needs root). Full: a ballast file takes all that is left but a
few pages, so that the next transactions fail somewhere in the middle. Slow: strace holds up each fsync and fdatasync of a
program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.debian import NotAvailable, find_program
from tests.nemesis.fault import Fault
from tests.nemesis.program import WITH_ITS_PARENT, Program, Surroundings

PAGE_BYTES = 4096
STRACE = ("strace", "libunwind8")
DELAYS_S = (0.05, 0.3, 1.5)
LASTS_S = (0.5, 2.0, 5.0)
SYNCS = "fsync,fdatasync"


class Disk(Surroundings):
    """A small file system at ``folder``."""

    def __init__(self, folder: Path, megabytes: int, cleanup: ExitStack) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"
        folder.mkdir()
        _mount(folder, megabytes)
        cleanup.callback(self._unmount)

    def _unmount(self) -> None:
        """Keep what is on it, for those who look into findings."""
        self._ballast.unlink(missing_ok=True)
        shutil.copytree(self.folder, self.folder.with_name(f"{self.folder.name}-kept"), ignore=_ignore_sockets)
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True, timeout=30)

    @property
    def is_full(self) -> bool:
        return self._ballast.exists()

    def fill(self, pages_left: int) -> None:
        status = os.statvfs(self.folder)
        size = (status.f_bavail - pages_left) * status.f_frsize
        with self._ballast.open("wb") as ballast, suppress(OSError):  # somebody else may take what is left meanwhile
            os.posix_fallocate(ballast.fileno(), 0, max(size, PAGE_BYTES))

    def free(self) -> None:
        self._ballast.unlink()


def _ignore_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


class FullDisk(Fault):
    name, counted_as, weight = "full disk", "full disks", 2

    def missing(self) -> str | None:
        return why_no_mounts()

    def fits(self, program: Program) -> bool:
        disk = program.find(Disk)
        return disk is not None and not disk.is_full

    def apply(self, program: Program, random: Random) -> float:
        program.get(Disk).fill(random.choice([0, 1, 4, 16]))
        return random.choice(LASTS_S)

    def heal(self, program: Program) -> None:
        program.get(Disk).free()


class SlowDisk(Fault):
    """Each sync of the process, or of the processes that it has forked, takes longer."""

    name, counted_as, weight = "slow disk", "slow disks", 2

    def __init__(self) -> None:
        self._tracers: dict[Program, subprocess.Popen[bytes]] = {}

    def missing(self) -> str | None:
        return why_no_tracing()

    def fits(self, program: Program) -> bool:
        return program.find(Disk) is not None

    def apply(self, program: Program, random: Random) -> float:
        self._tracers[program] = _delay_syncs(_family(program.pid), random.choice(DELAYS_S))
        return random.choice(LASTS_S)

    def heal(self, program: Program) -> None:
        tracer = self._tracers.pop(program)
        tracer.terminate()
        tracer.wait(30)


def _family(process: int) -> list[int]:
    """The process and its children."""
    with suppress(FileNotFoundError):  # it has ended
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [process, *map(int, children)]
    return [process]


def _delay_syncs(processes: Sequence[int], seconds: float) -> subprocess.Popen[bytes]:
    program = find_program("strace", STRACE, "usr/bin/strace")
    delay = f"inject={SYNCS}:delay_enter={int(seconds * 1_000_000)}"
    attached = [f"--attach={process}" for process in processes]
    options = ["--follow-forks", *attached, f"--trace={SYNCS}", "-e", delay, "--output=/dev/null"]
    return subprocess.Popen(
        [*WITH_ITS_PARENT, program.path, *options],
        env=program.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@cache
def why_no_mounts() -> str | None:
    try:
        with TemporaryDirectory() as folder:
            _mount(Path(folder), 1)
            subprocess.run(["umount", folder], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        return f"no tmpfs mounts: {error} {said.decode().strip()}"
    return None


@cache
def why_no_tracing() -> str | None:
    try:
        program = find_program("strace", STRACE, "usr/bin/strace")
        subprocess.run(
            [program.path, "--output=/dev/null", f"--trace={SYNCS}", "-e", f"inject={SYNCS}:delay_enter=1", "true"],
            env=program.environment,
            check=True,
            capture_output=True,
            timeout=30,
        )
    except (NotAvailable, OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        return f"no strace: {error} {said.decode().strip()}"
    return None


def _mount(folder: Path, megabytes: int) -> None:
    options = f"size={megabytes}m,mode=0777"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "seriatim-nemesis", str(folder)],
        check=True,
        capture_output=True,
        timeout=30,
    )
