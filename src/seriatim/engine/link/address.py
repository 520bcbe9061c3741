"""The socket beside a store: where it is, who may use it, and whose it is.

Rules
    - It is ``<store>.sock``, and accessible to its user only (mode 0600) from the moment it is created. The operating system is
      also asked for the peer's user: only the same user and root are admitted.
    - Only the owner of the store, which holds its lock, creates a socket. It removes a socket that a dead owner left, but no
      other kind of file.
    - A socket is removed only by the process that created it, which knows it by its inode.
    - A forked child closes every socket of the link: callers would wait for ever at a copy of a listening socket.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from weakref import WeakSet

from seriatim.errors import StoreFailed

MAX_ADDRESS_BYTES = 104
"""How many bytes an address may have; Linux takes 107, others fewer."""

MAX_NAME_BYTES = 80
"""A longer file name would not fit into an address together with the way around long folders."""

CONNECT_TIMEOUT_S = 1.0
"""How long a caller waits in line when many connect at once; without a limit it could wait for ever."""

_CREDENTIALS = struct.Struct("3i")  # process, user, group
_open: WeakSet[socket.socket] = WeakSet()


def socket_path(store: Path) -> Path:
    """Where the socket of the store in a file is. A name that is too long for an address is replaced by its hash."""
    name = f"{store.name}.sock"
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        name = f".{sha256(os.fsencode(store.name)).hexdigest()[:32]}.sock"
    return store.absolute().with_name(name)


class Listener:
    """A listening socket, until ``close``. Its creator holds the lock of the store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _remove_socket(path)
        self.socket = _new_socket()
        try:
            # Linux makes the file with the mode of the socket; elsewhere it is changed right after.
            with suppress(OSError):
                os.fchmod(self.socket.fileno(), 0o600)
            with _address(path) as address:
                self.socket.bind(address)
            path.chmod(0o600)
            self.socket.listen(128)
            self._inode = _inode(path)
        except OSError as error:
            self.socket.close()
            raise StoreFailed(f"the socket '{path}' can't be made: {error.strerror}") from error

    def close(self) -> None:
        """Remove it. Called while the lock is still held, so that no new owner can have replaced it."""
        self.socket.close()
        if _inode(self.path) == self._inode:
            self.path.unlink()


def connect(path: Path) -> socket.socket:
    """A connection to the socket at a path. Raises OSError if no process listens there."""
    connection = _new_socket()
    connection.settimeout(CONNECT_TIMEOUT_S)
    try:
        with _address(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    connection.setblocking(False)
    return connection


def close_in_children(connection: socket.socket) -> None:
    """Close a socket in every forked child."""
    _open.add(connection)


def is_allowed(peer: socket.socket) -> bool:
    """Whether a connection comes from our user or from root."""
    user = peer_user(peer)
    return user is None or user in {0, os.geteuid()}


def peer_user(peer: socket.socket) -> int | None:
    """The user at the other end; None if the system can't tell, so that only the mode of the file protects it."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return int(user)


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    _open.add(made)
    return made


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """An address for a path of any length: a long one goes through its folder, opened as a file."""
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _remove_socket(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StoreFailed(f"'{path}' is in the way of the store's socket: move it elsewhere")
        path.unlink()


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _close_in_child() -> None:
    for inherited in list(_open):
        inherited.close()


os.register_at_fork(after_in_child=_close_in_child)
