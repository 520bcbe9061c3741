"""Paged lists. A page token is the last name of the previous page, so that resources created or deleted in between do not shift
the others. The broker is asked only for as much as a page needs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from seriatim.errors import InvalidArgument
from seriatim.wire.names import Names

MAX_PAGE_SIZE = 1000


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)
N_co = TypeVar("N_co", bound=Named, covariant=True)


class Fetch(Protocol[N_co]):
    """A paged list of the broker."""

    async def __call__(self, *, prefix: str, after: str | None, limit: int) -> Sequence[N_co]: ...


async def page_of_project(names: Names, project: str, request: Any, fetch: Fetch[N]) -> tuple[list[N], str]:
    """One page of a project's resources, in order of resource name, and the token of the next page, empty at the end."""
    limit, found = _limit(request), list[N]()
    for prefix, after in names.ranges(project, request.page_token):
        found += await _first(names, project, fetch, prefix, after, limit + 1)
    found.sort(key=lambda info: names.of(info.name))
    return found[:limit], names.of(found[limit - 1].name) if len(found) > limit else ""


async def _first(names: Names, project: str, fetch: Fetch[N], prefix: str, after: str | None, count: int) -> list[N]:
    """The first resources of a project with a prefix, after a name."""
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
    return min(request.page_size or MAX_PAGE_SIZE, MAX_PAGE_SIZE)


def page(names: Sequence[str], request: Any, label: Callable[[str], str]) -> tuple[list[str], str]:
    """One page of names, which are in order of ``label``, and the token of the next page, empty if there is none."""
    limit = _limit(request)
    start = bisect_right(names, request.page_token, key=label) if request.page_token else 0
    end = start + limit
    found = list(names[start:end])
    return found, label(found[-1]) if end < len(names) else ""
