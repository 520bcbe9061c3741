"""A queue of offsets: eight bytes a message, however long it gets.

Offsets rise from front to back. Messages are added at the back and leave at the front; a returned or redriven message
goes back to its place near the front; any message may be removed. The front is stored separately, and the rest in an
array that most queues never need. The array keeps free space before its first element, so that an insertion moves only
the elements between its place and the nearer end, and removed offsets stay in the array as tombstones until they reach
the front or outnumber the live ones. No operation scans the rest of the queue.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from seriatim.errors import InvalidArgument


class OffsetQueue:
    """A sorted queue of unique integers. ``front`` is the first one, None if the queue is empty."""

    __slots__ = ("_array", "_first", "_removed", "front")

    def __init__(self, offsets: Iterable[int] | None = None) -> None:
        self.front: int | None = None
        self._array: array[int] | None = None  # the offsets after the front, from ``_first`` on
        self._first = 0
        self._removed: set[int] | None = None
        if offsets is not None:
            for offset in offsets:
                self.push(offset)

    def __len__(self) -> int:
        if self.front is None:
            return 0
        behind = len(self._array) - self._first if self._array else 0
        return 1 + behind - (len(self._removed) if self._removed else 0)

    def __contains__(self, offset: int) -> bool:
        return offset == self.front or (self._index(offset) >= 0 and not (self._removed and offset in self._removed))

    def _index(self, offset: int) -> int:
        """The index of an offset in the array, even of a removed one; -1 if it is not there."""
        behind = self._array
        index = bisect_left(behind, offset, lo=self._first) if behind else 0
        return index if behind and index < len(behind) and behind[index] == offset else -1

    def __iter__(self) -> Iterator[int]:
        if self.front is not None:
            yield self.front
        removed = self._removed or ()
        yield from (offset for offset in (self._array or ())[self._first :] if offset not in removed)

    def push(self, offset: int) -> None:
        """Add at the back."""
        behind = self._array
        if self.front is None:
            self.front = offset
        elif offset <= (behind[-1] if behind else self.front):
            last = behind[-1] if behind else self.front
            raise InvalidArgument(f"offset {offset} must be above {last}, the last one in the queue")
        elif behind is None:
            self._array = array("q", (offset,))
        else:
            behind.append(offset)

    def pop(self) -> int:
        """Remove and return the front offset."""
        offset, behind = self.front, self._array
        assert offset is not None
        if behind:
            first = self._first
            self.front = behind[first]
            self._first = first = first + 1
            if self._removed or first * 2 > len(behind):
                self._tidy_front(behind)
        else:
            self.front = None
        return offset

    def insert(self, offset: int) -> None:
        """Put an offset back in its place; cheap near both ends."""
        if self.front is None:
            self.front = offset
            return
        if self._removed and offset in self._removed:
            self._removed.discard(offset)
            return
        if offset == self.front or self._index(offset) >= 0:
            raise InvalidArgument(f"offset {offset} is in the queue already")
        if offset < self.front:
            offset, self.front = self.front, offset
        behind = self._array = self._array or array("q")
        index, first = bisect_left(behind, offset, lo=self._first), self._first
        if 2 * index >= first + len(behind):
            behind.insert(index, offset)
            return
        if not first:
            first = len(behind) // 2 + 1
            behind[:0] = array("q", bytes(8 * first))
            index += first
        behind[first - 1 : index - 1] = behind[first:index]
        behind[index - 1] = offset
        self._first = first - 1

    def remove(self, offset: int) -> bool:
        """Remove an offset, wherever it is; False if it is not there."""
        if offset == self.front:
            self.pop()
            return True
        if offset not in self:
            return False
        self._removed = self._removed or set()
        self._removed.add(offset)
        if len(self._removed) > len(self):
            _, *living = self
            self._array, self._first, self._removed = array("q", living), 0, None
        return True

    def _tidy_front(self, behind: array[int]) -> None:
        """Skip tombstones at the front, and free the space before the first element when it gets large."""
        while self._removed and self.front in self._removed:
            self._removed.discard(self.front)
            self.front = behind[self._first] if self._first < len(behind) else None
            self._first += 1
        if self._first * 2 > len(behind):
            del behind[: self._first]
            self._first = 0
