"""What an operation costs does not depend on how much is held, nor on how many other keys there are. Nothing is timed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from seriatim.core.resequencing.options import ResequenceOptions, Start
from seriatim.core.resequencing.pool import ResequencerPool
from seriatim.core.resequencing.resequencer import Resequencer

OPTIONS = ResequenceOptions(gap_timeout=10, capacity=50_000)
GATHERING = ResequenceOptions(start=Start.lowest_within(10), capacity=50_000)
Operation = Callable[[Any], object]


def calls(operation: Operation, machine: Any) -> int:
    """How many functions, of Python and of C, the operation calls."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # what tests before left behind must not be cleared away, and counted, here
    sys.setprofile(note)
    try:
        operation(machine)
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def holding(messages: int) -> Resequencer[int]:
    """Number 0 was released; 1 to 2 are missing; then every other number is held."""
    machine: Resequencer[int] = Resequencer(OPTIONS)
    machine.push(0, 0, 0)
    for n in range(messages):
        machine.push(2 * n + 3, n, 0)
    return machine


def among(keys: int) -> ResequencerPool[int]:
    """Every other key holds a message, too; the key "k" holds 3."""
    machine: ResequencerPool[int] = ResequencerPool(OPTIONS, total_capacity=100_000)
    for key in ["k", *range(keys)]:
        machine.push(key, 0, 0, 0)
        machine.push(key, 3, 0, 1 if key == "k" else 2)
    return machine


ONE_KEY: dict[str, Operation] = {
    "a message ahead": lambda m: m.push(10**6, 0, 1),
    "a message inside a gap": lambda m: m.push(4, 0, 1),
    "a message that closes a gap": lambda m: m.push(2, 0, 1),
    "the expected message": lambda m: m.push(1, 0, 1),
    "a duplicate of a held message": lambda m: m.push(3, 0, 1),
    "a duplicate of a released message": lambda m: m.push(0, 0, 1),
    "an advance with nothing due": lambda m: m.advance(9),
    "a skip": lambda m: m.skip(1),
    "a look at the deadline": lambda m: m.deadline,
}
MANY_KEYS: dict[str, Operation] = {
    "the first message of a key": lambda m: m.push("new", 0, 0, 1),
    "the expected message": lambda m: m.push("k", 1, 0, 1),
    "a message ahead": lambda m: m.push("k", 9, 0, 1),
    "an advance with nothing due": lambda m: m.advance(10),
    "an advance with one gap due": lambda m: m.advance(11),
    "a skip": lambda m: m.skip("k", 1),
    "a clear": lambda m: m.clear("k", 1),
    "a look at the next deadline": lambda m: m.next_deadline(),
}


@pytest.mark.parametrize("operation", ONE_KEY.values(), ids=ONE_KEY)
def test_no_operation_costs_more_because_much_is_held(operation: Operation) -> None:
    assert calls(operation, holding(10_000)) == calls(operation, holding(10)) > 0


@pytest.mark.parametrize("operation", MANY_KEYS.values(), ids=MANY_KEYS)
def test_no_operation_costs_more_because_there_are_many_other_keys(operation: Operation) -> None:
    assert calls(operation, among(10_000)) == calls(operation, among(10)) > 0


class NeverLookedThrough(dict[int, Any]):
    """A dict that may be asked for one number at a time only."""

    def __iter__(self) -> Any:
        raise AssertionError("everything that is held was looked through")

    items = values = keys = __iter__


@pytest.mark.parametrize("options", [OPTIONS, GATHERING], ids=["holding", "gathering"])
def test_no_message_makes_a_key_look_through_what_it_holds(options: ResequenceOptions) -> None:
    machine: Resequencer[int] = Resequencer(options)
    for n in (10, 14, 18):
        machine.push(n, n, 0)
    backlog = machine._backlog
    assert backlog is not None
    backlog.held = NeverLookedThrough(backlog.held)
    for n in (16, 14, 9, 20, 13):
        machine.push(n, n, 1)
    machine.advance(5)
    assert machine.held_count >= 5
