"""Small rules that every store follows."""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt

from seriatim.errors import InvalidArgument
from seriatim.store.base import Record


def require_rising(records: Sequence[Record], next_offset: int) -> None:
    """Refuse offsets that are not above everything that the log ever held."""
    offsets = [record.offset for record in records]
    require_new(offsets[0], next_offset)
    if not all(map(lt, offsets, offsets[1:])):
        raise InvalidArgument("offsets must rise within an append")


def require_new(offset: int, next_offset: int) -> None:
    """Refuse an offset that is not above everything that the log ever held."""
    if offset < next_offset:
        raise InvalidArgument(f"offset {offset} was given already: the next one is {next_offset}")


def lane_of(key: str | None) -> str:
    """A key as text that can tell no key from every key."""
    return "" if key is None else f":{key}"


def key_of(lane: str) -> str | None:
    """What ``lane_of`` was given."""
    return lane[1:] if lane else None
