"""The resequencer's transition table is exact: every transition in it happens, and no other does."""

from __future__ import annotations

from random import Random

import pytest

from seriatim.core.resequencing.options import OnEpoch, OnGap, OnOverflow, ResequenceOptions, Start
from seriatim.core.resequencing.resequencer import TABLE, Event, Resequencer, State
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import IllegalTransition

OPTIONS = [
    ResequenceOptions(gap_timeout=3),
    ResequenceOptions(start=Start.at(5), gap_timeout=3, on_gap=OnGap.REQUEST, max_requests=1, on_epoch=OnEpoch.DISCARD),
    ResequenceOptions(start=Start.lowest_within(2), gap_timeout=3, capacity=3),
    ResequenceOptions(start=Start.lowest_within(2), on_overflow=OnOverflow.DROP, on_epoch=OnEpoch.DISCARD),
    ResequenceOptions(space=SequenceSpace(16), gap_timeout=3, on_gap=OnGap.HOLD, on_overflow=OnOverflow.DROP),
    ResequenceOptions(gap_timeout=2, on_gap=OnGap.HOLD, on_overflow=OnOverflow.DROP, on_epoch=OnEpoch.DISCARD),
]
STEPS = 4_000


def walk(machine: Resequencer[int], space: SequenceSpace, random: Random) -> None:
    """Send whatever can be sent, at random; what is illegal is refused."""
    now = epoch = 0
    for step in range(STEPS):
        now += random.random() < 0.5
        epoch += random.random() < 0.05
        near = 5 if machine.expected is None else machine.expected
        number = space.wrap(near + random.choice([-1, 0, 0, 0, 1, 2, 3, 4]))
        match random.choices(["push", "advance", "skip", "flush", "clear", "make_room"], [60, 15, 5, 2, 2, 2])[0]:
            case "push":
                machine.push(number, step, now, epoch=epoch, room=random.random() < 0.7)
            case "advance":
                machine.advance(now)
            case command:
                try:
                    getattr(machine, command)(now)
                except IllegalTransition:
                    continue


def test_the_table_is_what_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    observed: set[tuple[State, Event, State]] = set()
    enter = Resequencer._enter

    def spy(machine: Resequencer[int], event: Event) -> None:
        before = machine.state
        enter(machine, event)
        observed.add((before, event, machine.state))

    monkeypatch.setattr(Resequencer, "_enter", spy)
    for seed, options in enumerate(OPTIONS):
        walk(Resequencer(options), options.space, Random(seed))
    assert observed == set(TABLE)
