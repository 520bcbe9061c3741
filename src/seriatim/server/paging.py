"""Lists, page by page. A page token is the last name of the page before, so that what is made or deleted in between does not
move the others. The broker is asked for as much as a page needs, however much there is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from seriatim.errors import InvalidArgument
from seriatim.wire.names import Names

LONGEST_PAGE = 1000


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)
N_co = TypeVar("N_co", bound=Named, covariant=True)


class Fetch(Protocol[N_co]):
    """A list of the broker, page by page."""

    async def __call__(self, *, prefix: str, after: str | None, limit: int) -> Sequence[N_co]: ...


async def page_of_project(names: Names, project: str, request: Any, fetch: Fetch[N]) -> tuple[list[N], str]:
    """One page of what belongs to a project, in the order of resource names; and the token of the next, empty at the end."""
    limit, found = _limit(request), list[N]()
    for prefix, after in names.ranges(project, request.page_token):
        found += await _first(names, project, fetch, prefix, after, limit + 1)
    found.sort(key=lambda info: names.of(info.name))
    return found[:limit], names.of(found[limit - 1].name) if len(found) > limit else ""


async def _first(names: Names, project: str, fetch: Fetch[N], prefix: str, after: str | None, count: int) -> list[N]:
    """The first things with a prefix after a name that belong to a project. What does not is passed over."""
    found: list[N] = []
    while len(found) < count:
        chunk = await fetch(prefix=prefix, after=after, limit=count)
        found += [
            info for info in chunk if names.is_in(project, info.name) and names.is_whole(info.name) == bool(prefix)
        ]
        if len(chunk) < count:
            break
        after = names.next_after(prefix, chunk[-1].name)
    return found[:count]


def _limit(request: Any) -> int:
    if request.page_size < 0:
        raise InvalidArgument(f"page_size can't be {request.page_size}")
    return min(request.page_size or LONGEST_PAGE, LONGEST_PAGE)


def page(names: Sequence[str], request: Any, label: Callable[[str], str]) -> tuple[list[str], str]:
    """The names of one page, out of those in the order of ``label``; and the token of the next, empty when there is none."""
    limit = _limit(request)
    start = bisect_right(names, request.page_token, key=label) if request.page_token else 0
    end = start + limit
    found = list(names[start:end])
    return found, label(found[-1]) if end < len(names) else ""
