"""Lists, page by page. A page token is the last name of the page before, so that what is made or deleted in between does not
move the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from seriatim.errors import InvalidArgument

LONGEST_PAGE = 1000


def page(names: Sequence[str], request: Any, label: Callable[[str], str]) -> tuple[list[str], str]:
    """The names of one page, out of those in the order of ``label``; and the token of the next, empty when there is none."""
    if request.page_size < 0:
        raise InvalidArgument(f"page_size can't be {request.page_size}")
    start = bisect_right(names, request.page_token, key=label) if request.page_token else 0
    end = start + min(request.page_size or LONGEST_PAGE, LONGEST_PAGE)
    found = list(names[start:end])
    return found, label(found[-1]) if end < len(names) else ""
