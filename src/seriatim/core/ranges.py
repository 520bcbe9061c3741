"""Sets of integers kept as ranges: small when the integers are dense, as sequence numbers almost always are.

Rules
    - Ranges are inclusive at both ends, sorted, and never touch: 1–3 and 4–6 become 1–6.
    - An empty range (``hi < lo``) is refused: it is always an error of the caller.

Theory of operation
    Two parallel lists, the starts and the ends. Both are sorted because the ranges are disjoint, so one binary search in
    each finds the run of ranges that an operation touches, and one slice assignment replaces that run. Searching costs
    O(log n) in the number of ranges; the slice assignment moves at most n machine words.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from seriatim.errors import InvalidArgument

Range = tuple[int, int]


class RangeSet:
    """A mutable set of integers, as sorted disjoint inclusive ranges."""

    __slots__ = ("_ends", "_starts")
    __hash__ = None  # type: ignore[assignment]  # mutable, and compared by value

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for lo, hi in ranges:
            self.add(lo, hi)

    def add(self, lo: int, hi: int | None = None) -> None:
        """Add ``lo`` alone, or everything from ``lo`` to ``hi``."""
        hi = _checked_end(lo, hi)
        # Widened by one on both sides, so that a neighbour that merely touches is merged too.
        first, after = self._touched(lo - 1, hi + 1)
        if first < after:
            lo = min(lo, self._starts[first])
            hi = max(hi, self._ends[after - 1])
        self._replace(first, after, [(lo, hi)])

    def discard(self, lo: int, hi: int | None = None) -> None:
        """Remove ``lo`` alone, or everything from ``lo`` to ``hi``, if present."""
        hi = _checked_end(lo, hi)
        first, after = self._touched(lo, hi)
        if first == after:
            return
        head = (self._starts[first], lo - 1)
        tail = (hi + 1, self._ends[after - 1])
        self._replace(first, after, [part for part in (head, tail) if part[0] <= part[1]])

    def pop_first(self) -> Range:
        """Remove and return the lowest range."""
        if not self._starts:
            raise IndexError("pop from an empty RangeSet")
        return self._starts.pop(0), self._ends.pop(0)

    def first(self) -> Range | None:
        """The lowest range, or None when the set is empty."""
        return (self._starts[0], self._ends[0]) if self._starts else None

    def last(self) -> Range | None:
        """The highest range, or None when the set is empty."""
        return (self._starts[-1], self._ends[-1]) if self._starts else None

    def gaps(self, lo: int, hi: int) -> Iterator[Range]:
        """The ranges between ``lo`` and ``hi`` that are missing; none when ``hi < lo``.

        Found while iterating, so the set must not change meanwhile.
        """
        missing = lo
        for index in range(bisect_left(self._ends, lo), bisect_right(self._starts, hi)):
            if missing < self._starts[index]:
                yield missing, self._starts[index] - 1
            missing = self._ends[index] + 1
        if missing <= hi:
            yield missing, hi

    def count(self) -> int:
        """The number of integers in the set."""
        return sum(self._ends) - sum(self._starts) + len(self._starts)

    def __contains__(self, number: int) -> bool:
        index = bisect_left(self._ends, number)
        return index < len(self._starts) and self._starts[index] <= number

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """The number of *ranges* in the set, which its memory depends on."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def _touched(self, lo: int, hi: int) -> Range:
        """The run of range indexes, as ``first`` and one past the last, that share a number with ``lo`` to ``hi``."""
        return bisect_left(self._ends, lo), bisect_right(self._starts, hi)

    def _replace(self, first: int, after: int, ranges: list[Range]) -> None:
        self._starts[first:after] = [lo for lo, _ in ranges]
        self._ends[first:after] = [hi for _, hi in ranges]


def _checked_end(lo: int, hi: int | None) -> int:
    if hi is None:
        return lo
    if hi < lo:
        raise InvalidArgument(f"a range from {lo} to {hi} is empty: the end must not be below the start")
    return hi
