"""Ranges of a log: how much of it one batch reads, and how it is divided among tasks. Pure: spans in, offsets out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from seriatim.store.base import Span


@dataclass(frozen=True, slots=True)
class Range:
    """The messages from offset ``first`` to below ``end``; ``messages`` is how many there were when it was planned."""

    first: int
    end: int
    messages: int


def end_of(spans: Iterable[Span], end: int, limit: int) -> int:
    """Where a range ends that begins with the spans and takes at most ``limit`` messages: at most at ``end``.

    Where a span with holes must be cut, it may take fewer: offsets are counted then, not messages. It always takes one.
    """
    for span in spans:
        if span.messages > limit:
            return span.first + limit
        limit -= span.messages
    return end


def divide(spans: Iterable[Span], first: int, end: int, *, size: int, max_tasks: int) -> list[Range]:
    """Divide a range among tasks: about ``size`` messages each, but not more than ``max_tasks`` tasks.

    Packs stay whole where they are not large, because each is read as a whole.
    """
    spans = list(spans)
    total = sum(span.messages for span in spans)
    tasks = max(1, min(max_tasks, -(-total // size)))
    cuts, sizes, taken = [first], list[int](), 0
    for span in _pieces(spans, max(1, -(-total // tasks))):
        if taken * tasks >= total and taken:
            cuts.append(span.first)
            sizes.append(taken)
            taken = 0
        taken += span.messages
    return [Range(*part) for part in zip(cuts, [*cuts[1:], end], [*sizes, taken], strict=True)]


def _pieces(spans: Iterable[Span], size: int) -> Iterator[Span]:
    """The spans, where large ones without holes are cut into pieces."""
    for span in spans:
        if span.messages <= size or span.messages != span.last - span.first + 1:
            yield span
            continue
        for low in range(span.first, span.last + 1, size):
            high = min(low + size - 1, span.last)
            yield Span(low, high, high - low + 1)
