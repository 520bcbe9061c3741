"""What the tests of the resequencer share: short ways to build, push and expect."""

from __future__ import annotations

from typing import Any

from seriatim.core.resequencing.options import (
    DeadLettered,
    LedgerEntry,
    Reason,
    Released,
    ResequenceOptions,
)
from seriatim.core.resequencing.resequencer import Resequencer
from seriatim.core.sequence import SequenceSpace

CIRCLE = SequenceSpace(256)


GIVEN_UP = "its gap was given up"


BEFORE = "before the start, or older than what is remembered"


STRANDED = "stranded behind a gap that was given up"


def machine(**options: Any) -> Resequencer[str]:
    return Resequencer(ResequenceOptions(**options), "k")


def push(to: Resequencer[str], *sequences: int, now: float = 0, epoch: int = 0, **more: Any) -> list[Any]:
    """Push the messages m1, m2, ... for the numbers 1, 2, ..."""
    return [effect for n in sequences for effect in to.push(n, f"m{n}", now, epoch=epoch, **more)]


def released(*sequences: int, epoch: int = 0) -> list[Released[str]]:
    return [Released("k", epoch, n, f"m{n}") for n in sequences]


def entry(reason: Reason, sequence: int, time: float, detail: str, message: str | None = "", epoch: int = 0) -> Any:
    """The ledger entry of one message; m1 for the number 1 unless told otherwise."""
    message = f"m{sequence}" if message == "" else message
    return LedgerEntry("k", epoch, reason, sequence, sequence, 1, time, detail, message)


def lost(first: int, last: int, size: int, time: float, detail: str = "gap timeout", epoch: int = 0) -> Any:
    return LedgerEntry("k", epoch, Reason.LOST, first, last, size, time, detail, None)


def dead_letters(*sequences: int, time: float) -> list[Any]:
    pairs = [(DeadLettered("k", 0, n, f"m{n}"), entry(Reason.DEAD_LETTER, n, time, STRANDED)) for n in sequences]
    return [effect for pair in pairs for effect in pair]


def look(at: Resequencer[str]) -> tuple[Any, ...]:
    return at.state, at.expected, [n for n, _ in at.held()], at.missing(), at.deadline


# A new machine
