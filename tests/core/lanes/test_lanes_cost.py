"""No command costs more because a backlog is long or because there are many other keys: calls are counted, not seconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import Delivery, ReleaseAfter, RetryMode, RetryPolicy


def calls_of(command: Callable[[], Any]) -> int:
    """How many functions, in Python or C, a command calls."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # what tests before left behind must not be cleared away, and counted, here
    sys.setprofile(count)
    try:
        command()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def loaded(delivery: Delivery, backlog: int, others: int) -> tuple[Lanes, int]:
    """Lanes with a backlog of key "a" at the head of the ring, other keys behind it, and the next free offset."""
    lanes = Lanes(delivery)
    lanes.advance(0)
    for offset in range(1, backlog + 1):
        lanes.push("a", offset, now=0)
    for other in range(others):
        lanes.push(f"other {other}", backlog + 1 + other, now=0)
    return lanes, backlog + others + 1


def costs(delivery: Delivery, backlog: int, others: int) -> dict[str, int]:
    lanes, free = loaded(delivery, backlog, others)
    cost: dict[str, int] = {}

    def run(name: str, command: Callable[[], Any]) -> None:
        cost[name] = calls_of(command)

    def confirm(name: str, offset: int) -> None:
        if delivery.release is ReleaseAfter.DURABLE:
            run(name, lambda: lanes.confirm(offset))

    run("push", lambda: lanes.push("a", free, 0))
    run("push with delay", lambda: lanes.push("a", free + 1, 0, delay=5))
    run("take", lambda: lanes.take(0, 10))
    run("extend", lambda: lanes.extend(1, 0, 20))
    run("settle", lambda: lanes.settle(1))
    confirm("confirm an ack", 1)
    run("remove from the middle", lambda: lanes.remove("a", backlog // 2))
    confirm("confirm a removal", backlog // 2)
    run("dead-letter the head", lambda: lanes.dead_letter("a"))
    confirm("confirm a dead letter", 2)
    run("redrive", lambda: lanes.redrive("a", 2))
    confirm("confirm a redrive", 2)
    run("pause", lambda: lanes.pause("a"))
    run("resume", lambda: lanes.resume("a"))
    lanes.take(0, 10, others + 1)
    token = next(lease.token for lease in lanes.leases() if lease.key == "a")
    run("give back", lambda: lanes.give_back(token, 0, delay=1))
    run("advance", lambda: lanes.advance(1))
    run("counts", lanes.counts)
    run("view", lambda: lanes.view("a"))
    run("next deadline", lanes.next_deadline)
    return cost


@pytest.mark.parametrize("release", ReleaseAfter)
@pytest.mark.parametrize("mode", RetryMode)
def test_no_command_costs_more_because_of_a_long_backlog_or_many_other_keys(
    release: ReleaseAfter, mode: RetryMode
) -> None:
    delivery = Delivery(RetryPolicy.immediate(mode=mode), release=release)
    small = costs(delivery, backlog=10, others=10)
    assert costs(delivery, backlog=100_000, others=10) == small
    assert costs(delivery, backlog=10, others=10_000) == small
    assert len(small) >= 14
    assert all(small.values())


def test_a_take_costs_no_more_because_many_ready_keys_are_with_other_consumers() -> None:
    def cost(others: int) -> int:
        lanes = Lanes(Delivery(window=2))
        for number in range(others):
            lanes.push_all([(f"other {number}", 2 * number), (f"other {number}", 2 * number + 1)])
        for number in range(others):
            lanes.take(0, 10, 1, f"consumer {number % 7}")
        lanes.push_all([("a", 2 * others)])
        return calls_of(lambda: lanes.take(0, 10, 1, "me"))

    assert cost(10) == cost(10_000)
