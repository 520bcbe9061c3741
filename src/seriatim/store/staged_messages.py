"""Staged messages: packs that wait to be appended, written by processes that do not own the store.

They wait in files, or in the database of the store (``postgres/staging.py``), where every machine reaches them.

The process that stages does the expensive part (packing); the owner only assigns offsets and the time.

Rules
    - A file appears under its name when it is complete, and never changes. It need not survive a crash of the machine: until
      its messages are appended, they can be staged again.
    - A damaged or truncated file is refused before anything of it is appended.

Layout::

    file   mark, then packs one after another
    pack   size of the head (4 bytes), size of the data (4 bytes), head, data; offsets consecutive, all at time 0
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from seriatim.errors import DamagedStore, FailedPrecondition
from seriatim.store.base import Pack
from seriatim.store.pack import PackHead

MARK = b"SERIATIM STAGED 1\n"

IN_DATABASE = "staged:"
"""How the name of what is staged in the database begins; other names are paths of files."""

_SIZES = struct.Struct("<II")


def write_staged(path: Path, packs: Iterable[Pack]) -> None:
    """Write a staged file, under another name until it is complete."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(MARK)
        for head, data in packs:
            file.write(_SIZES.pack(len(head), len(data)))
            file.write(head)
            file.write(data)
    partial.rename(path)


def read_staged(path: Path) -> Iterator[Pack]:
    """The packs of a staged file."""
    try:
        with path.open("rb") as file:
            if file.read(len(MARK)) != MARK:
                raise DamagedStore(f"'{path}' is not a staged file of this version")
            while sizes := file.read(_SIZES.size):
                head_size, data_size = _SIZES.unpack(sizes.ljust(_SIZES.size, b"\0"))
                pack = Pack(file.read(head_size), file.read(data_size))
                if (len(pack.head), len(pack.data)) != (head_size, data_size):
                    raise DamagedStore(f"the staged file '{path}' was cut off")
                yield pack
    except (OSError, ValueError) as error:  # no path at all, with a zero byte for example
        why = getattr(error, "strerror", error)
        raise FailedPrecondition(
            f"the staged file {str(path)!r} can't be read here ({why}): stage in a folder that every machine sees"
        ) from error


def check_staged(path: Path, messages: int) -> None:
    """Raise unless a staged file is complete and holds ``messages`` messages."""
    require_messages(str(path), _verified_heads(path), messages)


def _verified_heads(path: Path) -> Iterator[bytes]:
    for head, data in read_staged(path):
        PackHead(head).verify(data)
        yield head


def require_messages(name: str, heads: Iterable[bytes], messages: int) -> None:
    """Raise unless packs with these heads can be appended, and hold ``messages`` messages."""
    found = 0
    for head in heads:
        pack = PackHead(head)
        pack.stamped(0, 0.0)
        found += pack.count
    if found != messages:
        raise DamagedStore(f"'{name}' holds {found} staged messages, and should hold {messages}: stage them again")
