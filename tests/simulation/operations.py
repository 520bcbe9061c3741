"""What operators did, and from when to when it may have taken effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from seriatim.errors import SeriatimError, StoreError


@dataclass(slots=True)
class Operation:
    """One call of an operator: it took effect at some moment between its two stamps, or never if it did not end well."""

    what: str
    sub: str
    key: str | None = None
    value: Any = None
    """What was asked for."""
    began: float = -1
    ended: float = inf
    result: Any = None

    def overlaps(self, since: float, until: float) -> bool:
        """Whether it may have taken effect between two stamps."""
        return self.began < until and self.ended > since


class Operations:
    """All of them, in the order in which they began."""

    def __init__(self, stamp: Callable[[], int]) -> None:
        self._stamp = stamp
        self._all: list[Operation] = []

    @contextmanager
    def begun(self, what: str, sub: str, key: str | None = None, value: Any = None) -> Iterator[Operation]:
        """Write an operation down. One that is refused changes nothing; whether one that fails does, nobody knows."""
        operation = self.add(Operation(what, sub, key, value, self._stamp()))
        try:
            yield operation
        except SeriatimError as error:
            if not isinstance(error, StoreError):
                self._all.remove(operation)
            raise
        operation.ended = self._stamp()

    def add(self, operation: Operation) -> Operation:
        self._all.append(operation)
        return operation

    def of(self, sub: str, *what: str) -> list[Operation]:
        return [operation for operation in self._all if operation.sub == sub and operation.what in what]

    def on_key(self, sub: str, key: str | None, *what: str) -> list[Operation]:
        return [operation for operation in self.of(sub, *what) if operation.key == key]

    def is_paused(self, sub: str, at: int) -> bool:
        """Whether a subscription was paused for certain."""
        return _holds(self.of(sub, "pause"), self.of(sub, "resume"), at)

    def is_key_paused(self, sub: str, key: str | None, at: int) -> bool:
        """Whether a key was paused for certain, by an operator."""
        return _holds(self.on_key(sub, key, "pause_key"), self.on_key(sub, key, "resume_key"), at)

    def ack_deadlines(self, sub: str, first: float, at: int) -> set[float]:
        """Which deadlines may have been in force."""
        changes = [Operation("ack_deadline", sub, value=first, ended=-1), *self.of(sub, "ack_deadline")]
        done = [change for change in changes if change.ended < at]
        return {
            change.value
            for change in changes
            if change.began < at and not any(later.began > change.ended for later in done)
        }


def _holds(doing: Sequence[Operation], undoing: Sequence[Operation], at: int) -> bool:
    """Whether something was done before a stamp, and certainly not undone since."""
    return any(done.ended < at and not any(undone.overlaps(done.began, at) for undone in undoing) for done in doing)
