"""Message ids: opaque text outside the engine, offsets inside it. This module is where one becomes the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from seriatim.core.validation import MAX_INTEGER, shown
from seriatim.errors import InvalidArgument

_MAX_DIGITS = len(str(MAX_INTEGER))


class MessageIds(Sequence[str]):
    """The ids of messages that were published together. An id is created when it is read, because most callers read none."""

    __slots__ = ("_offsets",)

    def __init__(self, offsets: range) -> None:
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> MessageIds: ...
    def __getitem__(self, index: int | slice) -> str | MessageIds:
        found = self._offsets[index]
        return str(found) if isinstance(found, int) else MessageIds(found)

    def __iter__(self) -> Iterator[str]:
        return map(str, self._offsets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return repr(list(self))


def last_page(earliest: int | None, next_offset: int | None, size: int) -> str:
    """The id at which the last ``size`` messages of a log begin."""
    return str(max(earliest or 0, (next_offset or 0) - size))


def offset_of(message_id: object) -> int:
    """The offset that an id stands for."""
    if isinstance(message_id, str) and message_id.isascii() and message_id.isdigit() and len(message_id) <= _MAX_DIGITS:
        offset = int(message_id)
        if offset <= MAX_INTEGER:
            return offset
    raise InvalidArgument(
        f"{shown(message_id)} is not the id of a message: ids are whole numbers as text, such as '17'"
    )
