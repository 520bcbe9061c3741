"""The resequencer does exactly what the naive reference model does, whatever arrives, whenever, and over restarts."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seriatim.core.resequencing.options import (
    LedgerEntry,
    OnDuplicate,
    OnEpoch,
    OnGap,
    OnLate,
    OnOverflow,
    Released,
    ResequenceOptions,
    Start,
)
from seriatim.core.resequencing.resequencer import TABLE, Event, Resequencer, State
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import CapacityExceeded, IllegalTransition, LateMessage
from tests.core.resequencing.naive_resequencer import NaiveResequencer

SPACES = [SequenceSpace(), SequenceSpace(increment=3), SequenceSpace(16), SequenceSpace(9), SequenceSpace(20, 2)]


@st.composite
def resequencing(draw: st.DrawFn) -> ResequenceOptions:
    space = draw(st.sampled_from(SPACES))
    on_gap = draw(st.sampled_from(OnGap))
    timeouts: list[float | None] = [2, 5] if on_gap is OnGap.REQUEST else [None, 0, 2, 5]
    overflows = [policy for policy in OnOverflow if not (on_gap is OnGap.HOLD and policy is OnOverflow.GIVE_UP)]
    starts = [Start.first_seen(), Start.at(5), Start.lowest_within(0), Start.lowest_within(3)]
    return ResequenceOptions(
        space=space,
        start=draw(st.sampled_from(starts)),
        gap_timeout=draw(st.sampled_from(timeouts)),
        on_gap=on_gap,
        max_requests=draw(st.integers(1, 2)),
        on_late=draw(st.sampled_from(OnLate)),
        on_duplicate=draw(st.sampled_from(OnDuplicate)),
        on_epoch=draw(st.sampled_from(OnEpoch)),
        capacity=draw(st.sampled_from([None, 1, 2, 4])),
        on_overflow=draw(st.sampled_from([None, *overflows])),
        remember=draw(st.sampled_from([1, 2, 100])),
        resync_after=draw(st.sampled_from([None, 2, 3])),
    )


class ResequencerAgainstModel(RuleBasedStateMachine):
    @initialize(options=resequencing())
    def begin(self, options: ResequenceOptions) -> None:
        self.options = options
        self.machine: Resequencer[int] = Resequencer(options, "k")
        self.model: NaiveResequencer[int] = NaiveResequencer(options, "k")
        self.now = 0.0
        self.sent = 0
        self.epoch = 0
        self.released: list[tuple[int, int]] = []
        self.accounted: list[Any] = []

    @rule(
        distance=st.integers(-7, 9),
        epoch=st.sampled_from([0, 0, 0, 0, 0, 0, 0, -1, 1]),
        room=st.sampled_from([1, 1, 1, 0]),
    )
    def message_arrives(self, distance: int, epoch: int, room: bool) -> None:
        space = self.options.space
        near = self.model.expected if self.model.expected is not None else 5
        sequence = space.wrap(near + distance * space.increment)
        self.epoch = max(self.epoch, self.epoch + epoch)
        epoch = self.epoch + min(epoch, 0)
        digest = self.sent % 2
        self.sent += 1
        before = self.machine.save()
        try:
            expected = self.model.push(sequence, self.sent, self.now, epoch, digest, bool(room))
        except (LateMessage, CapacityExceeded) as error:
            with pytest.raises(type(error)):
                self.machine.push(sequence, self.sent, self.now, epoch=epoch, digest=digest, room=bool(room))
            assert self.machine.save() == before
            self.sent -= 1
            return
        self.check(
            self.machine.push(sequence, self.sent, self.now, epoch=epoch, digest=digest, room=bool(room)), expected
        )

    @rule(seconds=st.sampled_from([0, 0.5, 1, 2, 3, 5, 20]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.check(self.machine.advance(self.now), self.model.advance(self.now))

    @rule(seconds=st.sampled_from([1, 4]))
    def clock_goes_back(self, seconds: float) -> None:
        self.now -= seconds

    @rule()
    def operator_skips(self) -> None:
        if self.model.missing:
            self.check(self.machine.skip(self.now), self.model.skip(self.now))
        else:
            before = self.machine.save()
            with pytest.raises(IllegalTransition):
                self.machine.skip(self.now + 100)
            assert self.machine.save() == before

    @rule()
    def source_ends(self) -> None:
        self.check(self.machine.flush(self.now), self.model.flush(self.now))

    @rule()
    def session_is_cleared(self) -> None:
        self.check(self.machine.clear(self.now), self.model.clear(self.now))
        self.released.clear()

    @precondition(lambda self: self.options.overflow is OnOverflow.GIVE_UP)
    @rule()
    def room_is_needed(self) -> None:
        if self.model.held:
            self.check(self.machine.make_room(self.now), self.model.make_room(self.now))
        else:
            with pytest.raises(IllegalTransition):
                self.machine.make_room(self.now)

    @rule()
    def process_restarts(self) -> None:
        self.machine = Resequencer.restore(self.machine.save(), self.options, "k")

    def check(self, effects: list[Any], expected: list[Any]) -> None:
        assert effects == expected
        for effect in effects:
            if isinstance(effect, Released):
                self.released.append((effect.epoch, effect.sequence))
            if isinstance(effect, Released) or (isinstance(effect, LedgerEntry) and effect.message is not None):
                self.accounted.append(effect.message)

    @invariant()
    def both_look_the_same(self) -> None:
        if not hasattr(self, "machine"):
            return
        machine, model, space = self.machine, self.model, self.options.space
        assert [sequence for sequence, _ in machine.held()] == model.held_numbers()
        assert machine.held_count == len(model.held)
        assert machine.missing() == model.missing_ranges()
        assert machine.deadline == model.deadline()
        assert machine.epoch == model.epoch
        assert machine.expected == (None if model.expected is None else space.wrap(model.expected))
        assert machine.held_count <= self.options.held_limit

    @invariant()
    def nothing_is_released_backwards_or_twice(self) -> None:
        if hasattr(self, "machine") and self.options.space.modulus is None:
            assert self.released == sorted(set(self.released))

    @invariant()
    def every_message_is_released_held_or_in_the_ledger_exactly_once(self) -> None:
        if hasattr(self, "machine"):
            held = [item.message for _, item in self.machine.held()]
            assert sorted(self.accounted + held) == list(range(1, self.sent + 1))


TestResequencerAgainstModel = ResequencerAgainstModel.TestCase


def test_the_transition_table_knows_every_state() -> None:
    assert {state for state, _, _ in TABLE} == set(State)
    assert {event for _, event, _ in TABLE} == set(Event)
