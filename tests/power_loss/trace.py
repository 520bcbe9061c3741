"""What happens to a disk, in order. Files and folders are known by number, as inodes are; the root is number 0."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

ROOT = 0


class New(NamedTuple):
    """A file or folder (by its mode) without a name. Its entry follows."""

    node: int
    mode: int


class Write(NamedTuple):
    node: int
    offset: int
    data: bytes


class Resize(NamedTuple):
    node: int
    size: int


class Entry(NamedTuple):
    """A name in a folder, and what it stands for from now on; None: nothing."""

    folder: int
    name: str
    node: int | None


class Rename(NamedTuple):
    """Changes of entries that happen together or not at all: of a rename two, otherwise one."""

    entries: tuple[Entry, ...]


class Sync(NamedTuple):
    node: int


class Said(NamedTuple):
    """Not for the disk: what the program at work said at this moment, what was acknowledged for example."""

    text: str


Event: TypeAlias = New | Write | Resize | Rename | Sync | Said
Trace: TypeAlias = list[Event]
