"""A queue of offsets: eight bytes a message, however long it gets.

Offsets rise from front to back. Messages come in at the back and leave at the front; a returned or redriven message goes back
to its place near the front; any one may be removed. The array keeps free room in front of its first element, so that
putting one back moves only the elements between its place and the nearer end, and removed offsets stay in the array as
tombstones until they reach the front or outnumber the living. No operation looks at the rest of the queue.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from seriatim.errors import InvalidArgument


class OffsetQueue:
    """A sorted queue of unique integers."""

    __slots__ = ("_array", "_first", "_removed")

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._array = array("q", offsets)
        self._first = 0
        self._removed: set[int] | None = None

    def __len__(self) -> int:
        return len(self._array) - self._first - (len(self._removed) if self._removed else 0)

    def __contains__(self, offset: int) -> bool:
        index = bisect_left(self._array, offset, lo=self._first)
        found = index < len(self._array) and self._array[index] == offset
        return found and not (self._removed and offset in self._removed)

    def __iter__(self) -> Iterator[int]:
        removed = self._removed or ()
        return (offset for offset in self._array[self._first :] if offset not in removed)

    def push(self, offset: int) -> None:
        """Add at the back."""
        queue = self._array
        if len(queue) > self._first and offset <= queue[-1]:
            raise InvalidArgument(f"offset {offset} must be above {queue[-1]}, the last one in the queue")
        queue.append(offset)

    def peek(self) -> int | None:
        """The front offset, or None when the queue is empty."""
        return self._array[self._first] if self._first < len(self._array) else None

    def pop(self) -> int:
        """Remove and return the front offset."""
        offset = self._array[self._first]
        self._first += 1
        if self._removed or self._first * 2 > len(self._array):
            self._tidy_front()
        return offset

    def insert(self, offset: int) -> None:
        """Put one back at its place; cheap near both ends."""
        if self._removed and offset in self._removed:
            self._removed.discard(offset)
            return
        index = bisect_left(self._array, offset, lo=self._first)
        if index < len(self._array) and self._array[index] == offset:
            raise InvalidArgument(f"offset {offset} is in the queue already")
        if 2 * index >= self._first + len(self._array):
            self._array.insert(index, offset)
            return
        if not self._first:
            index += self._make_room_in_front()
        first = self._first
        self._array[first - 1 : index - 1] = self._array[first:index]
        self._array[index - 1] = offset
        self._first = first - 1

    def remove(self, offset: int) -> bool:
        """Take one out, wherever it is; False when it is not there."""
        if offset not in self:
            return False
        if self._removed is None:
            self._removed = set()
        self._removed.add(offset)
        if len(self._removed) > len(self):
            self._array = array("q", self)
            self._first, self._removed = 0, None
        else:
            self._tidy_front()
        return True

    def _tidy_front(self) -> None:
        """Keep the front alive, so that ``peek`` need not search, and free the room before it when it gets large."""
        while self._removed and self._array[self._first] in self._removed:
            self._removed.discard(self._array[self._first])
            self._first += 1
        if self._first * 2 > len(self._array):
            del self._array[: self._first]
            self._first = 0

    def _make_room_in_front(self) -> int:
        room = len(self._array) // 2 + 1
        self._array[:0] = array("q", bytes(8 * room))
        self._first = room
        return room
