"""Files of a store: for their user only, and under their name only when they are whole.

Rules
    - A file that we make has the mode 0600, whatever the umask is; SQLite gives its write-ahead log and its shared memory the
      mode of the database. The mode of a file that exists is its user's business, and stays as it is.
    - What takes long to write has a name of its own until it is whole. It never replaces a file that came meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE = 0o600


def make_private(path: Path) -> None:
    """Make an empty file, unless there is one."""
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE))


@contextmanager
def unfinished(goal: Path) -> Iterator[Path]:
    """An empty file beside ``goal`` to write into. It is gone in the end, with what SQLite leaves beside it."""
    file, name = tempfile.mkstemp(prefix=".seriatim-", suffix=".partial", dir=goal.parent)
    os.close(file)
    try:
        yield Path(name)
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{name}{suffix}").unlink(missing_ok=True)


def put_in_place(finished: Path, goal: Path) -> None:
    """Give a finished file its name, durably; FileExistsError when something else has it."""
    write_through(finished)
    try:
        os.link(finished, goal)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: reserve the name, and replace what is then our own
        os.close(os.open(goal, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        finished.replace(goal)
    write_through(goal.parent)


def write_through(path: Path) -> None:
    """Have a file, or what a folder lists, on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
