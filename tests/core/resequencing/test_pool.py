"""The map of resequencers: keys that do not wait for each other, and one limit for all of them together."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seriatim.core.resequencing.options import (
    GapReported,
    LedgerEntry,
    OnDuplicate,
    OnGap,
    OnOverflow,
    Reason,
    Released,
    ResequenceOptions,
    Start,
)
from seriatim.core.resequencing.pool import ResequencerPool
from seriatim.core.resequencing.resequencer import State
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import CapacityExceeded, IllegalTransition, InvalidArgument, InvalidSequence, NotFound
from tests.core.resequencing.naive_resequencer import NaiveResequencer

NO_ROOM = "no room to hold more"


def many(total: int | None = None, **options: Any) -> ResequencerPool[str]:
    return ResequencerPool(ResequenceOptions(**options), total)


def push(to: ResequencerPool[str], *messages: str, now: float = 0, epoch: int = 0) -> list[Any]:
    """Push messages that are named after their key and number: a1, a2, b1, ..."""
    return [effect for name in messages for effect in to.push(name[0], int(name[1:]), name, now, epoch=epoch)]


def released(*messages: str, epoch: int = 0) -> list[Released[str]]:
    return [Released(name[0], epoch, int(name[1:]), name) for name in messages]


def lost(name: str, time: float, detail: str) -> Any:
    return LedgerEntry(name[0], 0, Reason.LOST, int(name[1:]), int(name[1:]), 1, time, detail, None)


# Keys


def test_one_keys_gap_never_holds_up_another_key():
    keys = many()
    push(keys, "a1", "b1", "a3")
    assert push(keys, "b2", "b3") == released("b2", "b3")
    assert push(keys, "a2") == released("a2", "a3")


def test_the_map_knows_the_keys_it_has_seen():
    keys: ResequencerPool[str] = ResequencerPool()
    assert (len(keys), list(keys), keys.held_count, keys.next_deadline()) == (0, [], 0, None)
    push(keys, "b1", "a1", "a3")
    assert (len(keys), list(keys), keys.held_count) == (2, ["b", "a"], 1)
    assert (keys["a"].key, keys["a"].state, keys["b"].state) == ("a", State.HOLDING, State.FLOWING)


def test_epoch_and_digest_reach_the_key():
    keys = many(on_duplicate=OnDuplicate.CONFLICT)
    push(keys, "a1", epoch=4)
    keys.push("a", 3, "x", 0, epoch=4, digest="x")
    [entry] = keys.push("a", 3, "y", 1, epoch=4, digest="y")
    assert entry == LedgerEntry("a", 4, Reason.CONFLICT, 3, 3, 1, 1, "another copy is held", "y")


@pytest.mark.parametrize("command", ["skip", "clear"])
def test_a_command_for_an_unknown_key_is_refused(command):
    with pytest.raises(NotFound) as error:
        getattr(many(), command)("a", 0)
    assert error.value.message == "key 'a' has not been seen"


# Time


def test_gaps_fall_due_earliest_first_whatever_the_order_of_the_keys():
    keys = many(gap_timeout=10)
    push(keys, "a1", "b1", "c1")
    push(keys, "b3", now=1)
    push(keys, "a3", "c3", now=2)
    assert keys.next_deadline() == 11
    assert keys.advance(10) == []
    assert keys.advance(12) == [
        lost("b2", 11, "gap timeout"),
        *released("b3"),
        lost("a2", 12, "gap timeout"),
        *released("a3"),
        lost("c2", 12, "gap timeout"),
        *released("c3"),
    ]
    assert (keys.next_deadline(), keys.held_count) == (None, 0)


def test_the_next_deadline_follows_the_head_gap_of_each_key():
    keys = many(gap_timeout=10)
    push(keys, "a1", "a3")
    push(keys, "b1", "b3", now=4)
    push(keys, "a5", now=6)
    assert keys.next_deadline() == 10
    push(keys, "a2", now=7)
    assert keys.next_deadline() == 14
    push(keys, "b2", now=8)
    assert keys.next_deadline() == 16
    push(keys, "a4", now=9)
    assert keys.next_deadline() is None


def test_a_key_that_still_waits_after_an_advance_is_scheduled_again():
    keys = many(gap_timeout=10)
    push(keys, "a1", "a3")
    push(keys, "a5", now=4)
    keys.advance(10)
    assert keys.next_deadline() == 14
    assert keys.advance(14) == [lost("a4", 14, "gap timeout"), *released("a5")]


def test_a_reported_gap_has_no_deadline():
    keys = many(gap_timeout=10, on_gap=OnGap.HOLD)
    push(keys, "a1", "a3")
    assert keys.advance(10) == [GapReported("a", 0, ((2, 2),))]
    assert keys.next_deadline() is None
    assert keys.advance(99) == []
    assert keys.skip("a", 100) == [lost("a2", 100, "skipped by an operator"), *released("a3")]
    assert keys.held_count == 0


def test_gathering_keys_have_a_deadline_too():
    keys = many(start=Start.lowest_within(5))
    push(keys, "a2", "a1")
    assert (keys.next_deadline(), keys.held_count) == (5, 2)
    assert keys.advance(5) == released("a1", "a2")
    assert (keys.next_deadline(), keys.held_count) == (None, 0)


# Commands


def test_skip_gives_up_the_head_gap_of_one_key():
    keys = many(gap_timeout=10)
    push(keys, "a1", "b1", "a3", "b3")
    assert keys.skip("a", 1) == [lost("a2", 1, "skipped by an operator"), *released("a3")]
    assert (keys.held_count, keys.next_deadline(), keys["b"].missing()) == (1, 10, ((2, 2),))
    with pytest.raises(IllegalTransition):
        keys.skip("a", 2)


def test_flush_releases_what_every_key_holds_the_longest_holding_first():
    keys = many(gap_timeout=10)
    push(keys, "a1", "b1", "c1", "b3", "a3")
    assert keys.flush(4) == [lost("b2", 4, "flushed"), *released("b3"), lost("a2", 4, "flushed"), *released("a3")]
    assert (len(keys), keys.held_count, keys.next_deadline()) == (3, 0, None)
    assert keys.flush(5) == []


def test_clear_forgets_one_key():
    keys = many(gap_timeout=10)
    push(keys, "a1", "b1", "a3", "b3")
    assert keys.clear("a", 4) == [LedgerEntry("a", 0, Reason.DISCARDED, 3, 3, 1, 4, "cleared", "a3")]
    assert (list(keys), keys.held_count, keys.next_deadline()) == (["b"], 1, 10)
    assert keys.clear("b", 4) == [LedgerEntry("b", 0, Reason.DISCARDED, 3, 3, 1, 4, "cleared", "b3")]
    assert (len(keys), keys.held_count, keys.next_deadline()) == (0, 0, None)
    assert push(keys, "a7") == released("a7")


# The limit for all keys together


def test_by_default_the_key_that_has_been_holding_the_longest_gives_up_first():
    keys = many(total=2)
    push(keys, "a1", "b1", "c1", "b3", "a3")
    assert push(keys, "c3", now=6) == [lost("b2", 6, NO_ROOM), *released("b3")]
    assert push(keys, "b5", now=7) == [lost("a2", 7, NO_ROOM), *released("a3")]
    assert push(keys, "a5", now=8) == [lost("c2", 8, NO_ROOM), *released("c3")]
    assert keys.held_count == 2


def test_a_key_that_holds_more_keeps_its_turn():
    keys = many(total=3)
    push(keys, "a1", "b1", "a3", "b3", "a4")
    assert push(keys, "b4", now=6) == [lost("a2", 6, NO_ROOM), *released("a3", "a4")]


def test_a_key_gives_up_its_own_gap_when_it_alone_holds_messages():
    keys = many(total=1)
    push(keys, "a1", "a3")
    assert push(keys, "a5", now=6) == [lost("a2", 6, NO_ROOM), *released("a3")]
    assert (keys["a"].missing(), keys.held_count) == (((4, 4),), 1)


def test_exactly_total_capacity_messages_can_be_held():
    keys = many(total=3)
    push(keys, "a1", "b1")
    assert push(keys, "a3", "b3", "b4") == []
    assert keys.held_count == 3


def test_a_message_that_need_not_be_held_needs_no_room():
    keys = many(total=1, on_overflow=OnOverflow.RAISE)
    push(keys, "a1", "b1", "a3")
    assert push(keys, "b2", "c1", "a2") == released("b2", "c1", "a2", "a3")


def test_a_gathering_key_makes_room_by_starting():
    keys = many(total=1, start=Start.lowest_within(5))
    push(keys, "a1")
    assert push(keys, "b1", now=1) == released("a1")
    assert (keys.held_count, keys.next_deadline()) == (1, 6)


def test_overflow_can_drop_the_message():
    keys = many(total=1, on_overflow=OnOverflow.DROP)
    push(keys, "a1", "b1", "a3")
    assert push(keys, "b3", now=6) == [LedgerEntry("b", 0, Reason.OVERFLOW, 3, 3, 1, 6, "no room to hold it", "b3")]
    assert keys.held_count == 1


def test_overflow_can_refuse_the_message_and_then_nothing_is_changed():
    keys = many(total=1, on_overflow=OnOverflow.RAISE)
    push(keys, "a1", "b1", "a3")
    before = keys.save()
    with pytest.raises(CapacityExceeded):
        push(keys, "b3", now=6)
    assert keys.save() == before


@pytest.mark.parametrize("on_overflow", OnOverflow)
def test_a_new_session_takes_the_room_that_the_old_one_frees(on_overflow):
    keys = many(total=1, start=Start.at(1), on_overflow=on_overflow)
    push(keys, "a3")
    assert push(keys, "a4", now=6, epoch=1)[1:] == released("a3")
    assert (keys["a"].epoch, keys["a"].missing(), keys.held_count) == (1, ((1, 3),), 1)


def test_a_refused_message_leaves_no_trace_of_its_key():
    keys = many(total=1, start=Start.at(1), on_overflow=OnOverflow.RAISE)
    push(keys, "a3")
    with pytest.raises(CapacityExceeded):
        push(keys, "b3", now=6)
    with pytest.raises(InvalidSequence):
        keys.push("b", "3", "x", 6)  # type: ignore[arg-type]
    assert (list(keys), keys.held_count) == (["a"], 1)


@pytest.mark.parametrize("total", [0, -1, True, 1.5, "9"])
def test_a_total_capacity_must_be_a_whole_number_of_1_or_more(total):
    with pytest.raises(InvalidArgument) as error:
        many(total)
    assert error.value.message == f"total_capacity must be a whole number of 1 or more, not {total!r}"


# Restarts


def test_a_restored_map_goes_on_where_the_saved_one_was():
    options = ResequenceOptions(gap_timeout=10)
    keys: ResequencerPool[str] = ResequencerPool(options, 3)
    push(keys, "a1", "b1", "c1", "d1")
    push(keys, "c3", now=1)
    push(keys, "b3", now=2)
    push(keys, "a3", now=3)
    again = ResequencerPool.restore(keys.save(), options, 3)
    assert again.save() == keys.save()
    assert (set(again), again.held_count, again.next_deadline()) == (set("abcd"), 3, 11)
    assert again["d"].key == "d"
    assert push(again, "d3", now=4) == [lost("c2", 4, NO_ROOM), *released("c3")]
    assert again.advance(12) == [lost("b2", 12, "gap timeout"), *released("b3")]


def test_a_restart_does_not_change_which_key_gives_up_first():
    options = ResequenceOptions()
    keys: ResequencerPool[str] = ResequencerPool(options, 2)
    push(keys, "a1", "b1", "c1", "a3", "b3", now=1)
    push(keys, "a5", "a2", now=2)
    for same in (keys, ResequencerPool.restore(keys.save(), options, 2)):
        assert push(same, "c3", now=3) == [lost("a4", 3, NO_ROOM), *released("a5")]


def test_a_map_is_restored_with_default_options_and_no_limit():
    keys: ResequencerPool[str] = ResequencerPool()
    push(keys, "a1", "a3")
    again = ResequencerPool.restore(keys.save())
    assert again.held_count == 1
    assert push(again, "b1", "b3", "a2") == released("b1", "a2", "a3")


def restored_with_a_limit_of_1(**options: Any) -> ResequencerPool[str]:
    keys = many(**options)
    push(keys, "a1", "b1", "c1", "a3", "b3")
    return ResequencerPool.restore(keys.save(), ResequenceOptions(**options), 1)


def test_a_lower_limit_holds_from_the_next_message_that_must_wait():
    keys = restored_with_a_limit_of_1()
    assert push(keys, "c3", now=6) == [lost("a2", 6, NO_ROOM), *released("a3"), lost("b2", 6, NO_ROOM), *released("b3")]
    assert keys.held_count == 1


def test_a_lower_limit_never_makes_a_key_give_up_when_messages_are_to_be_dropped():
    keys = restored_with_a_limit_of_1(on_overflow=OnOverflow.DROP)
    assert [effect.reason for effect in push(keys, "c3", now=6)] == [Reason.OVERFLOW]
    assert keys.held_count == 2


# Properties

KEYS = "abc"
options_of_maps = st.builds(
    ResequenceOptions,
    space=st.sampled_from([SequenceSpace(), SequenceSpace(16)]),
    start=st.sampled_from([Start.first_seen(), Start.at(5), Start.lowest_within(2)]),
    gap_timeout=st.sampled_from([1, 3]),
    on_gap=st.sampled_from([OnGap.SKIP, OnGap.DEAD_LETTER, OnGap.REQUEST]),
    capacity=st.sampled_from([None, 2]),
    on_overflow=st.sampled_from([OnOverflow.GIVE_UP, OnOverflow.DROP]),
)
commands = st.lists(
    st.tuples(
        st.sampled_from(["push"] * 6 + ["advance", "advance", "skip", "flush", "clear", "restart"]),
        st.sampled_from(KEYS),
        st.integers(0, 15),
        st.sampled_from([0, 0, 1, 2]),
    ),
    max_size=60,
)


def by_key(effects: list[Any]) -> dict[str, list[Any]]:
    """Within a key the order of effects is fixed; between keys it is the map's business."""
    return {key: [effect for effect in effects if effect.key == key] for key in KEYS}


class ModelOfMap:
    """One naive resequencer for each key, all of them told about every command that is not for one key."""

    def __init__(self, options: ResequenceOptions) -> None:
        self.options = options
        self.keys: dict[str, NaiveResequencer[int]] = {}

    def push(self, key: str, number: int, message: int, now: float) -> list[Any]:
        naive = self.keys.setdefault(key, NaiveResequencer(self.options, key))
        return naive.push(number, message, now, 0, None, room=True)

    def each(self, command: str, now: float) -> list[Any]:
        return [effect for naive in self.keys.values() for effect in getattr(naive, command)(now)]

    def one(self, command: str, key: str, now: float) -> list[Any]:
        effects: list[Any] = getattr(self.keys[key], command)(now)
        if command == "clear":
            del self.keys[key]
        return effects

    def has(self, command: str, key: str) -> bool:
        return key in self.keys and (command == "clear" or bool(self.keys[key].missing))


@given(options_of_maps, commands)
def test_the_map_does_what_one_naive_resequencer_for_each_key_does(options, trace):
    keys: ResequencerPool[int] = ResequencerPool(options)
    model, now = ModelOfMap(options), 0
    for step, (command, key, number, seconds) in enumerate(trace):
        now += seconds
        effects: list[Any] = []
        expected: list[Any] = []
        match command:
            case "push":
                effects, expected = keys.push(key, number, step, now), model.push(key, number, step, now)
            case "advance" | "flush":
                effects, expected = getattr(keys, command)(now), model.each(command, now)
            case "restart":
                keys = ResequencerPool.restore(keys.save(), options)
            case _ if model.has(command, key):
                effects, expected = getattr(keys, command)(key, now), model.one(command, key, now)
        assert by_key(effects) == by_key(expected)
        assert keys.held_count == sum(len(naive.held) for naive in model.keys.values())
        deadlines = [due for naive in model.keys.values() if (due := naive.deadline()) is not None]
        assert keys.next_deadline() == min(deadlines, default=None)
        assert set(keys) == set(model.keys)


@given(options_of_maps, commands, st.integers(1, 4))
def test_no_more_than_the_total_capacity_is_ever_held(options, trace, total):
    keys: ResequencerPool[int] = ResequencerPool(options, total)
    now = 0
    for step, (command, key, number, seconds) in enumerate(trace):
        now += seconds
        if command == "push":
            keys.push(key, number, step, now)
        elif command == "restart":
            keys = ResequencerPool.restore(keys.save(), options, total)
        elif command == "advance":
            keys.advance(now)
        assert keys.held_count == sum(keys[known].held_count for known in keys) <= total
