"""The batcher: 001 BR-001 to BR-007 and BR-010, order per key, and the naive model."""

from __future__ import annotations

import math
import sys
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seriatim.core.publishing import batching
from seriatim.core.publishing.batching import LINES, Batch, Batcher, Batching, LineEvent, LineState, Outstanding
from seriatim.errors import IllegalTransition, InvalidArgument, NotFound, PublishingPaused
from tests.core.publishing.naive_publisher import NaiveBatcher, dump

PATIENT = Batching(max_messages=1000, max_milliseconds=10_000, max_bytes=10 * 1024 * 1024)
ALONE = Batching(max_messages=1, max_milliseconds=0, max_bytes=1)


def batcher(**options: Any) -> Batcher[str]:
    return Batcher(Batching(**options))


def contents(batches: tuple[Batch[str], ...]) -> list[str]:
    """Each batch as its messages run together: 'ab' holds a and b."""
    return ["".join(batch.messages) for batch in batches]


def add_all(machine: Batcher[str], key: str | None, messages: str, size: int = 1, now: float = 0) -> list[str]:
    """Add messages named by single letters; the batches that were to be sent, in order."""
    return [text for message in messages for text in contents(machine.add(key, message, size, now))]


# Options


def test_the_defaults_are_100_messages_10_milliseconds_and_one_mebibyte():
    assert Batching() == Batching(max_messages=100, max_milliseconds=10, max_bytes=1_048_576)


def test_the_lowest_allowed_thresholds_are_1_message_0_milliseconds_and_1_byte():
    assert (ALONE.max_messages, ALONE.max_milliseconds, ALONE.max_bytes) == (1, 0, 1)


def test_milliseconds_may_be_a_fraction():
    assert Batching(max_milliseconds=0.5).max_milliseconds == 0.5


@pytest.mark.parametrize("name", ["max_messages", "max_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, math.nan, "1", None])
def test_counts_that_are_not_whole_or_below_1_are_refused(name, value):
    with pytest.raises(InvalidArgument) as error:
        Batching(**{name: value})
    assert error.value.message == f"{name} must be a whole number of 1 or more, not {value!r}"


@pytest.mark.parametrize("value", [-0.001, False, math.nan, math.inf, "1", None])
def test_a_delay_that_is_not_finite_or_negative_is_refused(value):
    with pytest.raises(InvalidArgument) as error:
        Batching(max_milliseconds=value)
    assert error.value.message == f"max_milliseconds must be a finite number of 0 or more, not {value!r}"


def test_options_and_batches_are_frozen():
    with pytest.raises(AttributeError):
        ALONE.max_messages = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Batch(1, None, (), 0).number = 2  # type: ignore[misc]


# When a batch is sent (BR-001, BR-003, BR-004, BR-005, BR-010)


def test_br_001_messages_gather_until_a_threshold_is_reached():
    machine: Batcher[str] = Batcher(PATIENT)
    assert add_all(machine, None, "abc") == []
    assert machine.outstanding() == Outstanding(waiting=3, in_flight=0)


def test_br_003_a_batch_is_due_exactly_max_milliseconds_after_its_first_message():
    machine = batcher(max_milliseconds=10)
    assert machine.next_deadline() is None
    machine.add(None, "a", 1, now=5.0)
    assert machine.next_deadline() == 5.01
    assert machine.due(5.0099) == ()
    assert machine.due(5.01) == (Batch(1, None, ("a",), 1),)
    assert machine.due(5.02) == ()
    assert machine.next_deadline() is None


def test_br_003_later_messages_never_extend_the_time():
    machine = batcher(max_milliseconds=1000)
    for moment, message in enumerate("abcd"):
        machine.add("k", message, 1, now=moment / 4)
    assert machine.next_deadline() == 1.0
    assert contents(machine.due(1.0)) == ["abcd"]


def test_br_003_only_the_batches_whose_time_has_come_are_sent_in_order_of_opening():
    machine = batcher(max_milliseconds=1000)
    for moment, key in enumerate(["k", None, "l"]):
        add_all(machine, key, "ab", now=moment)
    assert machine.next_deadline() == 1.0
    assert machine.due(2.0) == (Batch(1, "k", ("a", "b"), 2), Batch(2, None, ("a", "b"), 2))
    assert machine.next_deadline() == 3.0


def test_br_004_the_100th_message_sends_the_batch_at_once():
    machine = batcher()
    for number in range(99):
        assert machine.add(None, str(number), 1, now=0) == ()
    (batch,) = machine.add(None, "99", 1, now=0)
    assert batch == Batch(1, None, tuple(map(str, range(100))), 100)
    assert machine.next_deadline() is None
    assert machine.add(None, "100", 1, now=7) == ()
    assert machine.next_deadline() == 7.01


@pytest.mark.parametrize("key", [None, "k"])
def test_br_005_a_message_that_would_exceed_max_bytes_sends_the_open_batch_first(key):
    machine = batcher(max_bytes=10)
    assert machine.add(key, "a", 6, now=0) == ()
    assert machine.add(key, "b", 5, now=3) == (Batch(1, key, ("a",), 6),)
    assert machine.next_deadline() == 3.01
    machine.confirm(1)
    assert machine.flush() == (Batch(2, key, ("b",), 5),)


def test_br_005_reaching_max_bytes_exactly_sends_at_once():
    machine = batcher(max_bytes=1024)
    assert machine.add(None, "a", 512, now=0) == ()
    assert machine.add(None, "b", 512, now=0) == (Batch(1, None, ("a", "b"), 1024),)
    assert machine.add(None, "c", 512, now=0) == ()


def test_br_005_one_byte_below_max_bytes_waits():
    machine = batcher(max_bytes=10)
    assert add_all(machine, None, "abc", size=3) == []
    assert contents(machine.add(None, "d", 1, now=0)) == ["abcd"]


def test_an_oversized_message_goes_alone_after_what_was_open_before_it():
    machine = batcher(max_bytes=10)
    machine.add(None, "a", 1, now=0)
    assert machine.add(None, "b", 11, now=0) == (Batch(1, None, ("a",), 1), Batch(2, None, ("b",), 11))
    assert machine.add(None, "c", 1, now=0) == ()


def test_an_oversized_message_of_a_key_goes_alone_in_its_turn():
    machine = batcher(max_bytes=10)
    machine.add("k", "a", 1, now=0)
    assert machine.add("k", "b", 11, now=0) == (Batch(1, "k", ("a",), 1),)
    assert machine.add("k", "c", 1, now=0) == ()
    assert machine.confirm(1) == (Batch(2, "k", ("b",), 11),)
    assert machine.flush() == ()
    assert machine.confirm(2) == (Batch(3, "k", ("c",), 1),)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(
    "alone", [ALONE, Batching(max_messages=1), Batching(max_milliseconds=0), Batching(max_bytes=1)]
)
def test_br_010_a_threshold_of_1_or_no_delay_publishes_at_once(key, alone):
    machine: Batcher[str] = Batcher(alone)
    assert machine.add(key, "a", 3, now=0) == (Batch(1, key, ("a",), 3),)
    assert machine.next_deadline() is None
    machine.confirm(1)
    assert machine.add(key, "b", 3, now=0) == (Batch(2, key, ("b",), 3),)
    assert machine.outstanding() == (0, 1)


def test_an_empty_message_counts_as_a_message_of_0_bytes():
    machine = batcher(max_messages=2, max_bytes=1)
    assert machine.add(None, "a", 0, now=0) == ()
    assert machine.add(None, "b", 0, now=0) == (Batch(1, None, ("a", "b"), 0),)


def test_a_negative_size_is_refused_and_changes_nothing():
    machine = batcher()
    before = dump(machine)
    with pytest.raises(InvalidArgument) as error:
        machine.add("k", "a", -1, now=0)
    assert error.value.message == "size must be a whole number of 0 or more, not -1"
    assert dump(machine) == before


# Flush (BR-006)


def test_br_006_flush_sends_everything_open_in_order_of_opening():
    machine: Batcher[str] = Batcher(PATIENT)
    add_all(machine, "k", "a")
    add_all(machine, None, "bc")
    add_all(machine, "l", "d")
    add_all(machine, "k", "e")
    assert machine.flush() == (Batch(1, "k", ("a", "e"), 2), Batch(2, None, ("b", "c"), 2), Batch(3, "l", ("d",), 1))
    assert machine.outstanding() == (0, 5)
    assert machine.next_deadline() is None


def test_ac_010_a_flush_of_nothing_sends_nothing():
    assert batcher().flush() == ()


def test_br_006_a_flushed_batch_behind_one_in_flight_follows_its_confirmation():
    machine: Batcher[str] = Batcher(PATIENT)
    add_all(machine, "k", "a")
    machine.flush()
    add_all(machine, "k", "b")
    assert machine.flush() == ()
    assert machine.next_deadline() is None
    assert machine.confirm(1) == (Batch(2, "k", ("b",), 1),)


# Order per key (BR-007) and failure


def test_br_007_each_key_has_a_batch_of_its_own_and_keyless_messages_share_one():
    machine = batcher(max_messages=2)
    assert add_all(machine, "user-1", "a") == []
    assert add_all(machine, "user-2", "b") == []
    assert add_all(machine, None, "c") == []
    assert add_all(machine, "user-1", "d") == ["ad"]
    assert add_all(machine, None, "e") == ["ce"]
    assert add_all(machine, "user-2", "f") == ["bf"]


def test_full_batches_of_a_key_wait_until_the_one_in_flight_is_confirmed():
    machine = batcher(max_messages=2)
    assert add_all(machine, "k", "abcdefg") == ["ab"]
    assert machine.outstanding() == (5, 2)
    assert machine.state("k") is LineState.BACKLOGGED
    assert machine.confirm(1) == (Batch(2, "k", ("c", "d"), 2),)
    assert machine.outstanding() == (3, 2)
    assert machine.confirm(2) == (Batch(3, "k", ("e", "f"), 2),)
    assert machine.confirm(3) == ()
    assert machine.state("k") is LineState.FILLING
    assert machine.due(0.01) == (Batch(4, "k", ("g",), 1),)
    assert machine.state("k") is LineState.SENDING
    assert machine.confirm(4) == ()
    assert machine.state("k") is LineState.IDLE
    assert machine.outstanding() == (0, 0)


def test_one_keys_batch_in_flight_holds_up_no_other_key():
    machine = batcher(max_messages=1)
    assert add_all(machine, "k", "ab") == ["a"]
    assert add_all(machine, "l", "c") == ["c"]
    assert add_all(machine, None, "d") == ["d"]


def test_a_ripe_batch_behind_one_in_flight_goes_on_filling_until_its_turn():
    machine = batcher(max_messages=3, max_milliseconds=0)
    assert add_all(machine, "k", "a") == ["a"]
    assert add_all(machine, "k", "bc") == []
    assert contents(machine.confirm(1)) == ["bc"]
    assert add_all(machine, "k", "defg") == []
    assert contents(machine.confirm(2)) == ["def"]
    assert contents(machine.confirm(3)) == ["g"]


def test_a_batch_ripe_by_time_behind_one_in_flight_follows_its_confirmation():
    machine = batcher(max_messages=2)
    assert add_all(machine, "k", "ab") == ["ab"]
    add_all(machine, "k", "c", now=1)
    assert machine.next_deadline() == 1.01
    assert machine.due(1.01) == ()
    assert machine.next_deadline() is None
    assert contents(machine.confirm(1)) == ["c"]
    add_all(machine, "k", "d", now=2)
    assert machine.next_deadline() == 2.01  # the next batch starts its own time
    assert machine.confirm(2) == ()


def test_any_number_of_keyless_batches_are_in_flight_and_confirmed_in_any_order():
    machine = batcher(max_messages=1)
    assert add_all(machine, None, "abc") == ["a", "b", "c"]
    assert machine.outstanding() == (0, 3)
    assert [machine.confirm(number) for number in (3, 1, 2)] == [(), (), ()]
    assert machine.outstanding() == (0, 0)


def test_a_failed_keyless_batch_pauses_nothing_and_refuses_nothing():
    machine = batcher(max_messages=2)
    add_all(machine, None, "abc")
    assert machine.fail(1) == ()
    assert machine.paused_keys() == ()
    assert machine.outstanding() == (1, 0)
    assert add_all(machine, None, "d") == ["cd"]


def test_a_failed_batch_pauses_its_key_and_refuses_all_messages_behind_it_in_order():
    machine = batcher(max_messages=2)
    add_all(machine, "k", "abcdefg")
    add_all(machine, "l", "x", now=1)
    add_all(machine, None, "y", now=2)
    assert machine.fail(1) == ("c", "d", "e", "f", "g")
    assert machine.state("k") is LineState.PAUSED
    assert machine.outstanding() == (2, 0)
    assert machine.next_deadline() == 1.01  # of l
    assert machine.flush() == (Batch(2, "l", ("x",), 1), Batch(3, None, ("y",), 1))


def test_a_failed_batch_with_nothing_behind_it_refuses_nothing():
    machine = batcher(max_messages=1)
    add_all(machine, "k", "a")
    assert machine.fail(1) == ()
    assert machine.paused_keys() == ("k",)


def test_a_paused_key_refuses_messages_and_says_what_to_do():
    machine = batcher(max_messages=1)
    add_all(machine, "user-1", "a")
    machine.fail(1)
    before = dump(machine)
    with pytest.raises(PublishingPaused) as error:
        machine.add("user-1", "b", 1, now=0)
    assert error.value.message == "Key 'user-1' is paused by a failed publish; call resume_publishing('user-1') first"
    assert dump(machine) == before


def test_a_paused_key_holds_up_no_other_key():
    machine = batcher(max_messages=1)
    add_all(machine, "k", "a")
    machine.fail(1)
    assert add_all(machine, "l", "b") == ["b"]
    assert add_all(machine, None, "c") == ["c"]


def test_a_resumed_key_starts_afresh():
    machine = batcher(max_messages=1)
    add_all(machine, "k", "ab")
    machine.fail(1)
    machine.resume("k")
    assert machine.state("k") is LineState.IDLE
    assert machine.add("k", "c", 1, now=0) == (Batch(2, "k", ("c",), 1),)
    assert machine.confirm(2) == ()


def test_a_key_that_is_paused_from_outside_sends_what_it_has_and_refuses_what_comes():
    machine = batcher(max_messages=2)
    add_all(machine, "k", "abc")  # two in flight, one behind them
    machine.pause("k")
    with pytest.raises(PublishingPaused, match="resume_publishing"):
        machine.add("k", "d", 1, 0)
    assert machine.confirm(1) == ()
    assert contents(machine.flush()) == ["c"]
    assert machine.state("k") is LineState.SENDING
    assert machine.confirm(2) == ()
    assert machine.state("k") is LineState.PAUSED
    machine.resume("k")
    assert machine.state("k") is LineState.IDLE


def test_a_key_may_be_resumed_before_what_it_has_is_sent():
    machine = batcher(max_messages=2)
    add_all(machine, "k", "ab")
    machine.pause("k")
    assert machine.paused_keys() == ("k",)
    machine.resume("k")
    add_all(machine, "k", "cd")
    assert contents(machine.confirm(1)) == ["cd"]


def test_paused_keys_are_listed_in_order_of_pausing():
    machine = batcher(max_messages=1)
    for key in "abc":
        machine.add(key, key, 1, now=0)
    for number in (3, 1, 2):
        machine.fail(number)
    assert machine.paused_keys() == ("c", "a", "b")
    machine.resume("a")
    assert machine.paused_keys() == ("c", "b")


def test_resuming_a_key_that_is_not_paused_is_illegal():
    with pytest.raises(IllegalTransition) as error:
        batcher().resume("k")
    assert error.value.message == "publishing line: 'resume' is not possible while 'idle'; possible now: open, pause"


@pytest.mark.parametrize("settle", [Batcher.confirm, Batcher.fail])
@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_a_batch_that_is_not_in_flight_can_neither_be_confirmed_nor_fail(settle, number):
    machine = batcher(max_messages=1)
    add_all(machine, "k", "abcd")
    machine.confirm(1)
    machine.confirm(2)
    before = dump(machine)
    with pytest.raises(NotFound) as error:
        settle(machine, number)
    expected = f"Batch {number} is not in flight; confirm or fail each batch that was sent exactly once"
    assert error.value.message == expected
    assert dump(machine) == before


def test_idle_keys_cost_nothing():
    machine = batcher(max_messages=2)
    untouched = dump(batcher(max_messages=2))
    for number in range(100):
        add_all(machine, f"key {number % 7}", "abcd")
        add_all(machine, None, "ab")
    while machine.outstanding().in_flight:
        for number in list(machine._flights):
            machine.confirm(number)
    machine._last_number = 0
    assert dump(machine) == untouched


# New options


def test_new_thresholds_send_the_open_batches_that_they_make_full():
    machine: Batcher[str] = Batcher(PATIENT)
    add_all(machine, "k", "ab")
    add_all(machine, "l", "cde")
    add_all(machine, None, "f", size=9)
    assert machine.set_options(Batching(max_messages=3, max_milliseconds=10_000, max_bytes=9), now=0) == (
        Batch(1, "l", ("c", "d", "e"), 3),
        Batch(2, None, ("f",), 9),
    )
    assert machine.outstanding() == (2, 4)
    assert add_all(machine, "k", "g") == ["abg"]


def test_a_batch_beyond_the_new_thresholds_is_sent_whole():
    machine: Batcher[str] = Batcher(PATIENT)
    add_all(machine, None, "abc")
    assert machine.set_options(ALONE, now=0) == (Batch(1, None, ("a", "b", "c"), 3),)


def test_a_new_delay_counts_from_the_opening_of_the_batch():
    machine: Batcher[str] = Batcher(PATIENT)
    add_all(machine, "k", "a", now=1)
    add_all(machine, "l", "b", now=2)
    assert machine.set_options(Batching(max_milliseconds=500), now=1.5) == (Batch(1, "k", ("a",), 1),)
    assert machine.next_deadline() == 2.5
    assert machine.set_options(Batching(max_milliseconds=3000), now=2.4) == ()
    assert machine.next_deadline() == 5.0


def test_new_thresholds_seal_a_ripe_batch_behind_one_in_flight():
    machine: Batcher[str] = Batcher(PATIENT)
    add_all(machine, "k", "a")
    machine.flush()
    add_all(machine, "k", "bcd")
    machine.flush()
    assert machine.set_options(Batching(max_messages=2), now=0) == ()
    assert add_all(machine, "k", "e") == []
    assert contents(machine.confirm(1)) == ["bcd"]
    assert machine.confirm(2) == ()
    assert contents(machine.due(0.01)) == ["e"]


# The table


def reach(state: LineState) -> Batcher[str]:
    """A batcher whose key k is in a state, and whose batch 1 is the last of k that was sent."""
    machine = batcher(max_messages=2)
    add_all(machine, "k", "abc" if state is LineState.BACKLOGGED else "ab")
    if state in (LineState.IDLE, LineState.FILLING):
        machine.confirm(1)
    if state is LineState.FILLING:
        add_all(machine, "k", "c")
    if state is LineState.PAUSED:
        machine.fail(1)
    assert machine.state("k") is state
    return machine


COMMANDS = {
    LineEvent.OPEN: lambda machine: machine.add("k", "z", 1, 0),
    LineEvent.CONFIRM: lambda machine: machine.confirm(1),
    LineEvent.FAIL: lambda machine: machine.fail(1),
    LineEvent.REPEAT: lambda machine: machine.repeat(1, 0),
    LineEvent.PAUSE: lambda machine: machine.pause("k"),
    LineEvent.RESUME: lambda machine: machine.resume("k"),
}
LEGAL = {(state, event) for state, event, _ in LINES} | {(LineState.FILLING, LineEvent.OPEN)}  # the message joins


@pytest.mark.parametrize("state", LineState)
@pytest.mark.parametrize("event", COMMANDS)
def test_an_illegal_event_raises_and_changes_nothing(state, event):
    machine = reach(state)
    before = dump(machine)
    if (state, event) in LEGAL:
        COMMANDS[event](machine)
        assert dump(machine) != before
    else:
        with pytest.raises((IllegalTransition, NotFound, PublishingPaused)):
            COMMANDS[event](machine)
        assert dump(machine) == before


class WatchedLine(batching._Line[str]):
    """A line that notes every change of its state, and the event that brought it about."""

    EVENTS: ClassVar = {
        "add": LineEvent.OPEN,
        "_send": LineEvent.SEND,
        "confirm": LineEvent.CONFIRM,
        "fail": LineEvent.FAIL,
    }
    seen: ClassVar[set[Any]] = set()
    _state: LineState

    @property
    def state(self) -> LineState:
        return self._state

    @state.setter
    def state(self, target: LineState) -> None:
        caller = sys._getframe(1).f_code.co_name
        was, event = (LINES.start, "add") if caller == "__init__" else (self._state, caller)
        self.seen.add((was, self.EVENTS[event], target))
        self._state = target


def test_every_transition_of_the_table_happens_and_no_other(monkeypatch):
    monkeypatch.setattr(batching, "_Line", WatchedLine)
    seen = WatchedLine.seen = set[Any]()
    machine: Batcher[str] = Batcher(Batching(max_messages=2))
    for message in "abcdefg":
        machine.add("k", message, 1, 0)
    for number in (1, 2, 3):
        machine.confirm(number)
    machine.flush()
    machine.confirm(4)
    for _ in range(2):  # fails once with messages behind it, once without
        machine.add("k", "h", 1, 0)
        (batch,) = machine.flush()
        if batch.number == 5:
            machine.add("k", "i", 1, 0)
        machine.fail(batch.number)
        machine.resume("k")
    for state in (LineState.IDLE, LineState.FILLING, LineState.SENDING, LineState.BACKLOGGED):
        paused = reach(state)
        paused.pause("k")
        seen.add((state, LineEvent.PAUSE, paused.state("k")))
    for state in (LineState.SENDING, LineState.BACKLOGGED):
        repeated = reach(state)
        assert repeated.repeat(1, 0) is not None
        seen.add((state, LineEvent.REPEAT, repeated.state("k")))
    watched: Batcher[str] = Batcher(Batching(max_messages=1))
    watched.add("k", "a", 1, 0)
    watched.pause("k")
    watched.confirm(1)
    seen.add((LineState.PAUSED, LineEvent.RESUME, LineState.IDLE))  # a paused key has no line to move
    assert seen == set(LINES)


# The naive model

KEYS = ["a", "b", "c"]
OPTIONS = st.builds(
    Batching,
    max_messages=st.integers(1, 5),
    max_milliseconds=st.sampled_from([0, 1, 2, 3.5, 8]),
    max_bytes=st.integers(1, 20),
)


def plain(batches: tuple[Batch[int], ...]) -> list[tuple[Any, ...]]:
    return [(batch.number, batch.key, batch.messages, batch.size) for batch in batches]


class BatcherAgainstModel(RuleBasedStateMachine):
    @initialize(options=OPTIONS)
    def start(self, options):
        self.machine: Batcher[int] = Batcher(options)
        self.model = NaiveBatcher(options)
        self.now = 0.0
        self.message = 0

    @rule(key=st.sampled_from([*KEYS, None]), size=st.integers(0, 22), copies=st.integers(1, 4))
    def add(self, key, size, copies):
        for _ in range(copies):
            self.message += 1
            if key in self.model.paused:
                with pytest.raises(PublishingPaused):
                    self.machine.add(key, self.message, size, self.now)
            else:
                sent = self.machine.add(key, self.message, size, self.now)
                assert plain(sent) == self.model.add(key, self.message, size, self.now)

    @rule(milliseconds=st.sampled_from([0.5, 1, 3, 10, 60_000]))
    def time_passes(self, milliseconds):
        self.now += milliseconds / 1000

    @precondition(lambda self: any(batch.number for batch in self.model.batches))
    @rule(data=st.data(), times=st.integers(1, 8))
    def repeat(self, data, times):
        number = data.draw(st.sampled_from([batch.number for batch in self.model.batches if batch.number]))
        for _ in range(times):
            assert self.machine.repeat(number, self.now) == self.model.repeat(number, self.now)

    @rule()
    def send_what_is_due(self):
        assert plain(self.machine.due(self.now)) == self.model.due(self.now)

    @precondition(lambda self: self.model.next_deadline() is not None)
    @rule()
    def wait_for_the_next_deadline(self):
        self.now = max(self.now, self.model.next_deadline() or 0)
        assert plain(self.machine.due(self.now)) == self.model.due(self.now)

    @rule()
    def flush(self):
        assert plain(self.machine.flush()) == self.model.flush()

    @rule(options=OPTIONS)
    def set_options(self, options):
        assert plain(self.machine.set_options(options, self.now)) == self.model.set_options(options, self.now)

    @precondition(lambda self: any(batch.number for batch in self.model.batches))
    @rule(data=st.data(), confirmed=st.sampled_from([True, True, False]))
    def settle(self, data, confirmed):
        number = data.draw(st.sampled_from([batch.number for batch in self.model.batches if batch.number]))
        if confirmed:
            assert plain(self.machine.confirm(number)) == self.model.confirm(number)
        else:
            assert list(self.machine.fail(number)) == self.model.fail(number)

    @rule(key=st.sampled_from(KEYS))
    def pause(self, key):
        if key in self.model.paused:
            with pytest.raises(IllegalTransition):
                self.machine.pause(key)
        else:
            self.machine.pause(key)
            self.model.paused.append(key)

    @rule(key=st.sampled_from(KEYS))
    def resume(self, key):
        if key in self.model.paused:
            self.machine.resume(key)
            self.model.paused.remove(key)
        else:
            with pytest.raises(IllegalTransition):
                self.machine.resume(key)

    @invariant()
    def looks_the_same(self):
        if not hasattr(self, "model"):
            return
        assert self.machine.outstanding() == self.model.outstanding()
        assert self.machine.next_deadline() == self.model.next_deadline()
        assert list(self.machine.paused_keys()) == self.model.paused
        assert [self.machine.state(key) for key in KEYS] == [self.model.state(key) for key in KEYS]
        assert all(len(self.model.flying(key)) <= 1 for key in KEYS)


TestBatcherAgainstModel = BatcherAgainstModel.TestCase


def test_a_batch_whose_outcome_is_unknown_is_repeated_after_longer_and_longer_pauses_for_two_minutes():
    machine: Batcher[str] = Batcher(Batching(max_messages=1))
    assert [machine.add(key, "1", 1, 0)[0].number for key in ("k", None)] == [1, 2]
    assert machine.add("k", "2", 1, 0) == ()
    assert [machine.repeat(1, 7) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert machine.repeat(2, 100) == 0.1, "each batch has pauses of its own"
    assert machine.repeat(1, 126.9) == 5
    assert machine.repeat(1, 127) is None
    assert machine.flush() == (), "nothing of its key overtakes it"
    assert [batch.number for batch in machine.confirm(1)] == [3]
    assert machine.repeat(3, 127) == 0.1
    machine.fail(3)
    with pytest.raises(NotFound):
        machine.repeat(3, 127)


def test_a_batch_that_somebody_else_sent_is_in_flight_like_any_other():
    batcher: Batcher[str] = Batcher(Batching())
    assert batcher.is_idle({"k", "other"})
    sent = batcher.note_sent("k", ["1", "2"], 2)
    batcher.note_sent(None, ["x"], 1)
    assert (sent.key, sent.messages, sent.size, batcher.state("k")) == ("k", ("1", "2"), 2, LineState.SENDING)
    assert batcher.outstanding() == (0, 3)
    assert batcher.is_idle({"other"})
    assert not batcher.is_idle({"k", "other"})
    assert batcher.add("k", "3", 1, 0.0) == batcher.flush() == ()
    assert [batch.messages for batch in batcher.confirm(sent.number)] == [("3",)]
    assert batcher.fail(sent.number + 2) == ()
    assert not batcher.is_idle({"k"}), "it is paused"
