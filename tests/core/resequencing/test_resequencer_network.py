"""A bad line in front of a resequencer: what comes out is in order, and every message is accounted for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from seriatim.core.guarantees import Guarantee, Level
from seriatim.core.resequencing.options import LedgerEntry, OnGap, Reason, Released, ResequenceOptions, Start
from seriatim.core.resequencing.resequencer import Resequencer
from seriatim.core.sequence import SequenceSpace
from seriatim.core.traces import classify
from seriatim.testing import FaultyNetwork, ManualClock

SENT = range(2_000)


def transmit(network: FaultyNetwork[int], options: ResequenceOptions) -> tuple[list[int], list[Any]]:
    """Send a message each second through the network; return what arrived, and all that the resequencer made of it."""
    clock, machine = ManualClock(), Resequencer[int](options, "k")
    received: list[int] = []
    effects: list[Any] = []

    def arrive(messages: list[int]) -> None:
        for message in messages:
            effects.extend(machine.advance(clock.now()))
            effects.extend(machine.push(options.space.wrap(message), message, clock.now()))
        received.extend(messages)

    for message in SENT:
        network.send(message, clock.now())
        clock.advance(1)
        arrive(network.receive(clock.now()))
    arrive(network.drain())
    effects.extend(machine.flush(clock.now()))
    return received, effects


@pytest.mark.parametrize("space", [SequenceSpace(), SequenceSpace(256)], ids=["unbounded", "modulo 256"])
@pytest.mark.parametrize("on_gap", [OnGap.SKIP, OnGap.DEAD_LETTER])
@pytest.mark.parametrize("timeout", [0.5, 8, 100])
def test_whatever_the_network_does_the_order_is_strict_and_nothing_is_unaccounted_for(
    space: SequenceSpace, on_gap: OnGap, timeout: float
) -> None:
    network: FaultyNetwork[int] = FaultyNetwork(7, drop=0.05, duplicate=0.1, shuffle=6)
    options = ResequenceOptions(space=space, start=Start.at(0), gap_timeout=timeout, on_gap=on_gap)
    received, effects = transmit(network, options)
    released = [effect.message for effect in effects if isinstance(effect, Released)]
    ledger = [effect for effect in effects if isinstance(effect, LedgerEntry)]

    assert network.dropped > 0 < network.duplicated
    assert classify(received).guarantee & Guarantee.NO_INVERSION == Guarantee.NONE
    verdict = classify(released, sent=list(SENT))
    assert verdict.level is Level.STRICT
    assert (verdict.duplicates, verdict.reordered, verdict.phantoms) == (0, 0, 0)

    with_message = [entry.message for entry in ledger if entry.message is not None]
    assert Counter(released) + Counter(with_message) == Counter(received)
    numbers_lost = sum(entry.size for entry in ledger if entry.reason is Reason.LOST)
    came_late = sum(entry.reason is Reason.LATE for entry in ledger)
    assert numbers_lost - came_late == max(received) + 1 - len(set(received))


def test_with_time_enough_only_what_the_network_dropped_is_lost() -> None:
    network: FaultyNetwork[int] = FaultyNetwork(7, drop=0.05, duplicate=0.1, shuffle=6)
    received, effects = transmit(network, ResequenceOptions(start=Start.at(0), gap_timeout=100))
    assert [effect.message for effect in effects if isinstance(effect, Released)] == sorted(set(received))
