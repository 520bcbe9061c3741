"""One process owns a store: it holds a lock on a file beside it. File systems with unreliable locks are refused.

Rules
    - The lock is the operating system's (``flock``): it ends with the process, however that ends. The file stays; its content
      (process and host) is for people.
    - A forked child does not inherit the lock: a child that outlived its parent would block the store.
    - Asking who the owner is takes no lock, not even for a moment: an opening at that moment would be refused. So the owner
      also holds a lock that can be queried (an open file description lock).
    - The lock file is a regular file. A symbolic link in its place is refused, because its target would be truncated.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import stat
import struct
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple
from weakref import WeakSet

from seriatim.errors import NotAStore, StoreFailed, StoreOwned

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"),
        *("nfs", "nfs4", "ocfs2", "panfs", "pvfs2", "smb3", "smbfs", "fuse.ceph", "fuse.cephfs", "fuse.glusterfs"),
        *("fuse.rclone", "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs"),
    }
)


class OwnerLock:
    """The right to write to the store at a path, until ``release``."""

    def __init__(self, path: Path) -> None:
        self._pid = os.getpid()
        self._file: int | None = _open(path)
        try:
            _lock(self._file)
        except BlockingIOError:
            owner = read_owner(self._file)
            self._close()
            raise StoreOwned(
                f"the store is owned by {owner}: use it through that process, or stop the process"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": self._pid, "host": socket.gethostname()}).encode(), 0)
        if CAN_ASK:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _write_lock())
        _held.add(self)

    def release(self) -> None:
        """Give the lock up; in a forked child, which does not own it, this does nothing."""
        if self._pid == os.getpid():
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


_held: WeakSet[OwnerLock] = WeakSet()


def _forget_locks_in_child() -> None:
    """A forked child closes its copies of the files, which leaves the locks with the parent."""
    for lock in list(_held):
        lock._close()  # noqa: SLF001


os.register_at_fork(after_in_child=_forget_locks_in_child)


def _open(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StoreFailed(f"the lock file '{path}' is a symbolic link: remove it") from None
        if error.errno == errno.ENOENT and not path.parent.exists():
            raise StoreFailed(f"the folder '{path.parent}' does not exist: create it first") from None
        raise StoreFailed(
            f"the lock file '{path}' can't be opened ({error.strerror}): choose another place for the store, or correct "
            "the permissions of its folder"
        ) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StoreFailed(f"'{path}' is not a plain file and is in the way of the lock file: move it elsewhere")
    return file


# -- the lock itself ----------------------------------------------------------------------------------------------------

CAN_ASK = hasattr(fcntl, "F_OFD_GETLK")
"""Whether the operating system (Linux) can be asked about a lock without taking it."""

LOCKING_SECONDS = 0.5
"""How long opening waits on systems where a lock may belong to the owner or to a process that only asks."""

_WHOLE_FILE = struct.Struct("hhqqi4x")  # type, whence, start, length, process


def _lock(file: int) -> None:
    """Take the owner's lock; BlockingIOError if it is taken."""
    deadline = monotonic() + LOCKING_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if CAN_ASK or monotonic() > deadline:
                raise
        sleep(0.001)


def _is_locked(file: int) -> bool:
    """Whether an owner has the lock."""
    if CAN_ASK:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _write_lock())
        return bool(_WHOLE_FILE.unpack(found)[0] != fcntl.F_UNLCK)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until the file is closed
    except BlockingIOError:
        return True
    return False


def _write_lock() -> bytes:
    return _WHOLE_FILE.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class Owner(NamedTuple):
    """The holder of a store's lock, according to the lock file; empty if the file does not say."""

    process: int | None = None
    host: str | None = None

    def __str__(self) -> str:
        return "another process" if self.process is None else f"process {self.process} on {self.host}"


def owner_of(path: Path) -> Owner | None:
    """Who owns the store in a file; None if it has no owner."""
    try:
        file = os.open(f"{path}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a store with such a lock file can't be owned
            return None
        raise StoreFailed(f"the lock file '{path}.lock' can't be read: {error.strerror}") from error
    try:
        return read_owner(file) if _is_locked(file) else None
    finally:
        os.close(file)


def read_owner(file: int) -> Owner:
    """What an open lock file says."""
    try:
        found = json.loads(os.pread(file, 4096, 0))
        return Owner(found["pid"], found["host"])
    except (ValueError, TypeError, KeyError):
        return Owner()


MOUNTS = Path("/proc/mounts")


def refuse_network_file_system(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise if ``path`` is on a network file system."""
    if (kind := file_system(path, mounts)) in NETWORK_FILE_SYSTEMS:
        raise NotAStore(
            f"'{path}' is on a network file system ({kind}), where locks can't be trusted: use a local disk"
        )


def file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system of a path; None where the operating system does not tell."""
    try:
        text = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:  # no such list on this system
        return None
    path, depth, found = path.resolve(), 0, None
    for line in text.splitlines():
        _, point, kind, *_ = [*line.split(" "), "", "", ""]
        folder = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point))
        if (
            path.is_relative_to(folder) and len(folder.parts) >= depth
        ):  # of two mounts at one point, the last one counts
            depth, found = len(folder.parts), kind
    return found
