"""One process owns a store: a lock file beside it, and a refusal of file systems on which locks can't be trusted.

Rules
    - The lock is the operating system's (``flock``): it ends with the process, however that ends. The file itself stays; what
      it says (process and host) is for people.
    - The lock does not pass to a forked child: a child that lived on would keep the store from everybody.
    - Whoever only asks who the owner is takes no lock, not even for a moment: somebody who opens the store just then would be
      refused. So the owner also holds a lock of the kind that can be asked about (an open file description lock).
    - The lock file is a plain file of its own. A symbolic link in its place is refused: what it points to is not ours to empty.
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
            raise StoreOwned(f"the store is owned by {owner}: reach it there, or end that process") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": self._pid, "host": socket.gethostname()}).encode(), 0)
        _show_lock(self._file)
        _held.add(self)

    def release(self) -> None:
        """Let others have it; in a forked child this does nothing, because the lock is not its own."""
        if self._pid == os.getpid():
            self._close()

    def forget_in_child(self) -> None:
        """Called in a forked child: closing its copy of the file leaves the lock with the parent."""
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


_held: WeakSet[OwnerLock] = WeakSet()


def _forget_locks_in_child() -> None:
    for lock in list(_held):
        lock.forget_in_child()


os.register_at_fork(after_in_child=_forget_locks_in_child)


def _open(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except FileNotFoundError:
        raise StoreFailed(f"the folder '{path.parent}' does not exist: make it first") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StoreFailed(f"the lock file '{path}' is a symbolic link: remove it") from None
        raise StoreFailed(f"the lock file '{path}' can't be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StoreFailed(f"'{path}' is not a plain file and is in the way of the lock file: move it elsewhere")
    return file


# -- the lock itself ----------------------------------------------------------------------------------------------------

CAN_ASK = hasattr(fcntl, "F_OFD_GETLK")
"""Whether the operating system (Linux) can be asked about a lock without taking it."""

LOCKING_SECONDS = 0.5
"""How long an opening waits where it can't be told whether the lock is the owner's or that of somebody who only asks."""

_WHOLE_FILE = struct.Struct("hhqqi4x")  # type, whence, start, length, process


def _lock(file: int) -> None:
    """Take the lock of the owner; BlockingIOError when somebody has it."""
    deadline = monotonic() + LOCKING_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if CAN_ASK or monotonic() > deadline:
                raise
        sleep(0.001)


def _show_lock(file: int) -> None:
    """Let those who ask see that the lock is taken."""
    if CAN_ASK:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _write_lock())


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
    """Whoever holds the lock of a store, as the lock file says; nothing is known of one whose file says nothing."""

    process: int | None = None
    host: str | None = None

    def __str__(self) -> str:
        return "another process" if self.process is None else f"process {self.process} on {self.host}"


def owner_of(path: Path) -> Owner | None:
    """Who owns the store in a file; None when nobody does."""
    try:
        file = os.open(f"{path}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # nobody can own a store with such a lock file
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
    """Raise when the operating system says that ``path`` lies on another machine."""
    if (kind := file_system(path, mounts)) in NETWORK_FILE_SYSTEMS:
        raise NotAStore(
            f"'{path}' is on a network file system ({kind}), where locks can't be trusted: use a local disk"
        )


def file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The kind of file system that a path lies on; None where the operating system does not tell."""
    try:
        text = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:  # no such list on this system
        return None
    return _file_system_in(path.resolve(), text)


def network_file_system(path: Path, mounts: str) -> str | None:
    """The kind of network file system that an absolute path lies on, by the text of /proc/mounts; None when on none."""
    kind = _file_system_in(path, mounts)
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def _file_system_in(path: Path, mounts: str) -> str | None:
    return max(_mounts_above(path, mounts), default=(0, 0, None))[2]


def _mounts_above(path: Path, mounts: str) -> list[tuple[int, int, str]]:
    """Depth, place in the list, and kind of every mount that ``path`` is under: the deepest, then the last, counts."""
    above = []
    for place, line in enumerate(mounts.splitlines()):
        _, point, kind, *_ = [*line.split(" "), "", "", ""]
        folder = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point))
        if path.is_relative_to(folder):
            above.append((len(folder.parts), place, kind))
    return above
