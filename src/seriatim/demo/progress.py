"""The progress of a job, step by step. A display reads the steps when it likes, and is notified when one begins or ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class DemoStep:
    """One part of a job, perhaps concurrent with others."""

    title: str
    total: int | None = None
    count: int = 0
    note: str = ""
    begun: float | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long it has taken so far; None before it begins."""
        if self.begun is None:
            return None
        return (time.monotonic() if self.ended is None else self.ended) - self.begun


class Steps:
    """The steps of a job, in the order in which they were added."""

    def __init__(self, on_change: Callable[[DemoStep], None] = lambda _: None) -> None:
        self.all: list[DemoStep] = []
        self._on_change = on_change

    def add(self, title: str, total: int | None = None) -> DemoStep:
        step = DemoStep(title, total)
        self.all.append(step)
        return step

    def progress(self) -> list[tuple[int, bool]]:
        return [(step.count, step.ended is not None) for step in self.all]

    def begin(self, step: DemoStep) -> None:
        step.begun = time.monotonic()
        self._on_change(step)

    def end(self, step: DemoStep) -> None:
        step.ended = time.monotonic()
        self._on_change(step)

    @contextmanager
    def at_work(self, step: DemoStep) -> Iterator[DemoStep]:
        """The step begins with the block, and ends with it unless it raises."""
        self.begin(step)
        yield step
        self.end(step)
