"""Small rules that every store follows."""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt

from seriatim.core.ranges import Range
from seriatim.errors import FailedPrecondition, InvalidArgument
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


def end_of(batches: Sequence[Range]) -> int:
    """One past the highest number that a writer has claimed."""
    return batches[-1][1] + 1 if batches else 0


def require_position(writer: str, found: int, start: int, end: int) -> None:
    """Refuse to move a writer that stands elsewhere, or to move it back."""
    if found != start:
        raise FailedPrecondition(
            f"writer {writer!r} stands at {found} and not at {start}: another program writes under this name, "
            "or this one has to ask again where it stands"
        )
    if end < start:
        raise InvalidArgument(f"writer {writer!r} can't go back from {start} to {end}")
