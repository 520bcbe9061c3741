"""Files of a store: private to their user, and under their final name only when complete.

Rules
    - A file that we create has mode 0600, whatever the umask; SQLite gives its write-ahead log and its shared memory the mode
      of the database. The mode of an existing file is left alone.
    - What takes long to write has a temporary name until it is complete. It never replaces a file created in the meantime.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE = 0o600


def make_private(path: Path) -> None:
    """Create an empty file unless it exists."""
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE))


@contextmanager
def unfinished(goal: Path) -> Iterator[Path]:
    """An empty file beside ``goal`` to write into, removed at the end with everything that SQLite leaves beside it."""
    file, name = tempfile.mkstemp(prefix=".seriatim-", suffix=".partial", dir=goal.parent)
    os.close(file)
    try:
        yield Path(name)
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{name}{suffix}").unlink(missing_ok=True)


def put_in_place(finished: Path, goal: Path) -> None:
    """Give a finished file its final name, durably; FileExistsError if the name is taken."""
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
    """Flush a file, or the entries of a folder, to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
