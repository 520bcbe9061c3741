"""Names in order, so that a page of them is found without a scan."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from seriatim.core.validation import require_whole


class NameIndex:
    """A set of names, sorted by their characters' code points."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = sorted(names)

    def add(self, name: str) -> None:
        insort(self._names, name)

    def remove(self, name: str) -> None:
        del self._names[bisect_left(self._names, name)]

    def page(self, prefix: str = "", after: str | None = None, limit: int | None = None) -> list[str]:
        """The first names that begin with ``prefix`` and come after ``after``, at most ``limit`` of them."""
        if limit is not None:
            require_whole("limit", limit, 0)
        start = bisect_left(self._names, prefix)
        if after is not None:
            start = max(start, bisect_right(self._names, after))
        end = len(self._names) if limit is None else min(start + limit, len(self._names))
        if end > start and not self._names[end - 1].startswith(prefix):
            # Names with a prefix stand together, so the end of them can be searched for, too.
            end = bisect_right(self._names, False, start, end, key=lambda name: not name.startswith(prefix))
        return self._names[start:end]
