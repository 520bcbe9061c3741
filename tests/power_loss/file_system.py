"""A file system in memory that records a trace of everything that would have to be written to a disk.

It runs in a process of its own (``python -m tests.power_loss.file_system MOUNT_POINT TRACE``) until it is unmounted,
and needs root, ``/dev/fuse`` and Debian's libfuse3. What is written to ``.said`` goes to the trace as ``Said``, and to
no disk.
"""

from __future__ import annotations

import errno
import os
import pickle
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.debian import NotAvailable, unpacked
from tests.needs import lacking
from tests.power_loss.trace import ROOT, Entry, Event, New, Rename, Resize, Said, Sync, Trace, Write

NAME = "forgetful"
SAID = ".said"
SAID_NODE = 1
LIBRARY = "libfuse3.so.3"
MOUNTING_S = 20.0


class RecordingFileSystem:
    """What FUSE calls. One call at a time, so that the trace has an order."""

    use_ns = True

    def __init__(self) -> None:
        self.trace: Trace = []
        self._files: dict[int, bytearray] = {SAID_NODE: bytearray()}
        self._folders: dict[int, dict[str, int]] = {ROOT: {}}
        self._modes = {ROOT: stat.S_IFDIR | 0o755, SAID_NODE: stat.S_IFREG | 0o600}

    def _record(self, event: Event) -> None:
        self.trace.append(event)

    # -- names
    # ----------------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> int:
        node = ROOT
        for name in path.strip("/").split("/"):
            if name == SAID:
                return SAID_NODE
            if name:
                if node not in self._folders:
                    raise OSError(errno.ENOTDIR, path)
                if name not in self._folders[node]:
                    raise OSError(errno.ENOENT, path)
                node = self._folders[node][name]
        return node

    def _place(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return self._find(folder), name

    def _enter(self, *entries: Entry) -> None:
        for folder, name, node in entries:
            self._folders[folder].pop(name, None)
            if node is not None:
                self._folders[folder][name] = node
        self._record(Rename(entries))

    def _make(self, path: str, mode: int) -> int:
        node = len(self._modes)
        self._modes[node] = mode
        if stat.S_ISDIR(mode):
            self._folders[node] = {}
        else:
            self._files[node] = bytearray()
        self._record(New(node, mode))
        self._enter(Entry(*self._place(path), node))
        return node

    def create(self, path: str, mode: int, flags: int) -> int:
        return SAID_NODE if path == f"/{SAID}" else self._make(path, stat.S_IFREG | mode)

    def mkdir(self, path: str, mode: int) -> int:
        self._make(path, stat.S_IFDIR | mode)
        return 0

    def mknod(self, path: str, mode: int, dev: int) -> int:
        self._make(path, mode)
        return 0

    def unlink(self, path: str) -> int:
        self._enter(Entry(*self._place(path), None))
        return 0

    def rmdir(self, path: str) -> int:
        if self._folders[self._find(path)]:
            raise OSError(errno.ENOTEMPTY, path)
        return self.unlink(path)

    def rename(self, old: str, new: str) -> int:
        self._enter(Entry(*self._place(old), None), Entry(*self._place(new), self._find(old)))
        return 0

    def link(self, target: str, source: str) -> int:
        self._enter(Entry(*self._place(target), self._find(source)))
        return 0

    # -- content
    # --------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        return self._find(path)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._files[fh][offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        if fh == SAID_NODE:
            self._record(Said(data.decode()))
            return len(data)
        content = self._files[fh]
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data
        self._record(Write(fh, offset, data))
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        node = self._find(path) if fh is None else fh
        content = self._files[node]
        del content[length:]
        content.extend(bytes(length - len(content)))
        if node != SAID_NODE:
            self._record(Resize(node, length))
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._record(Sync(fh))
        return 0

    def opendir(self, path: str) -> int:
        return self._find(path)

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._record(Sync(fh))
        return 0

    # -- the rest: seen by programs, and of no importance after a crash
    # -------------------------------------------------

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        node = self._find(path) if fh is None else fh
        size = len(self._files.get(node, b""))
        return {"st_mode": self._modes[node], "st_nlink": 1, "st_size": size, "st_ino": node + 2, "st_blksize": 4096}

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        names = {".": fh, "..": fh, **self._folders[fh]}
        return [(name, {"st_ino": node + 2, "st_mode": self._modes[node]}, 0) for name, node in names.items()]

    def chmod(self, path: str, mode: int) -> int:
        node = self._find(path)
        self._modes[node] = stat.S_IFMT(self._modes[node]) | stat.S_IMODE(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1 << 20, "f_bfree": 1 << 20, "f_bavail": 1 << 20}


def serve(mount_point: str, trace: str) -> None:
    from mfusepy import FUSE

    files = RecordingFileSystem()
    # What is in the page cache is right, because nobody else writes: SQLite's shared memory stays mapped.
    with suppress(RuntimeError):  # that a signal ended it, as is meant
        FUSE(files, mount_point, foreground=True, nothreads=True, kernel_cache=True, use_ino=True, fsname=NAME)
    Path(trace).write_bytes(pickle.dumps(files.trace))


# -- for those who work on it
# -------------------------------------------------------------------------------------------


class Mounted:
    """A forgetful disk at ``folder``. ``trace`` is complete once it is unmounted."""

    def __init__(self, folder: Path, server: int) -> None:
        self.folder, self.server = folder, server
        self.trace: Trace = []
        self._said = os.open(folder / SAID, os.O_WRONLY | os.O_CREAT, 0o600)

    def say(self, text: str) -> None:
        os.pwrite(self._said, text.encode(), 0)

    def close(self) -> None:
        os.close(self._said)


@contextmanager
def mounted(scratch: Path) -> Iterator[Mounted]:
    """A forgetful disk below an empty folder, until the end of the block."""
    clear_leftovers()
    folder, trace = scratch / "disk", scratch / "trace"
    folder.mkdir()
    command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", __spec__.name, str(folder), str(trace)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, env={**os.environ, "FUSE_LIBRARY_PATH": _library()}) as server:
        try:
            _wait_until_mounted(folder, server)
            disk = Mounted(folder, server.pid)
            try:
                yield disk
            finally:
                disk.close()
        finally:
            server.terminate()  # it unmounts itself, and writes the trace
            server.wait(30)
    disk.trace = pickle.loads(trace.read_bytes())


def clear_leftovers() -> None:
    """Unmount disks whose file system is gone, because the tests that used it were killed."""
    for line in Path("/proc/mounts").read_text().splitlines():
        device, folder, *_ = line.split()
        if device == NAME:
            try:
                list(Path(folder).iterdir())
            except OSError as error:
                if error.errno == errno.ENOTCONN:
                    subprocess.run(["umount", "--lazy", folder], check=False, timeout=30, capture_output=True)


def _wait_until_mounted(folder: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + MOUNTING_S
    while not folder.is_mount():
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the forgetful disk was not mounted (status {server.poll()})")
        time.sleep(0.01)


def _library() -> str:
    for root in (Path("/usr/lib"), Path("/lib")):
        if found := next(root.glob(f"*-linux-gnu/{LIBRARY}"), None):
            return str(found)
    return str(next(unpacked(("libfuse3-3",)).rglob(LIBRARY)))


def require_fuse() -> None:
    """Skip the test, or fail it in continuous integration, where there can be no file system of our own."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        lacking("a file system in user space needs root and /dev/fuse")
    try:
        _library()
    except NotAvailable as error:
        lacking(str(error))


if __name__ == "__main__":
    serve(*sys.argv[1:])
