"""Staged files: messages that wait to be appended, already packed, written by processes that do not own the store.

Whoever stages does the expensive part (packing) where it runs; the owner only gives the packs their offsets and their time.

Rules
    - A file appears under its name when it is complete, and is never changed. It need not survive a crash of the machine: until
      its messages are appended, whoever staged them can stage them again.
    - What was damaged or cut off is refused before anything of it is appended.

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
    except OSError as error:
        raise FailedPrecondition(
            f"the staged file '{path}' can't be read here ({error.strerror}): stage in a folder that every machine sees"
        ) from error


def check_staged(path: Path, messages: int) -> None:
    """Raise unless a staged file is whole and holds so many messages."""
    found = 0
    for head, data in read_staged(path):
        pack = PackHead(head)
        pack.verify(data)
        pack.stamped(0, 0.0)
        found += pack.count
    if found != messages:
        raise DamagedStore(f"the staged file '{path}' holds {found} messages, and should hold {messages}")
