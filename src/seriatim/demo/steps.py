"""How far a job is, step by step. Whoever shows it looks at the steps when it likes, and is told when one begins or ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Step:
    """One thing that is done, perhaps beside others."""

    title: str
    total: int | None = None
    count: int = 0
    note: str = ""
    begun: float | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long it has taken up to now; None before it begins."""
        if self.begun is None:
            return None
        return (time.monotonic() if self.ended is None else self.ended) - self.begun


class Steps:
    """The steps of a job, in the order in which they are told."""

    def __init__(self, told: Callable[[Step], None] = lambda _: None) -> None:
        self.all: list[Step] = []
        self._told = told

    def add(self, title: str, total: int | None = None) -> Step:
        step = Step(title, total)
        self.all.append(step)
        return step

    def how_far(self) -> list[tuple[int, bool]]:
        return [(step.count, step.ended is not None) for step in self.all]

    def begin(self, step: Step) -> None:
        step.begun = time.monotonic()
        self._told(step)

    def end(self, step: Step) -> None:
        step.ended = time.monotonic()
        self._told(step)

    @contextmanager
    def at_work(self, step: Step) -> Iterator[Step]:
        """The step has begun; it has ended at the end of the block, unless that raises."""
        self.begin(step)
        yield step
        self.end(step)
