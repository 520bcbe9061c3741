"""The flow gate: 001 BR-008 and BR-009, first come first served, timeouts, and the naive model."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seriatim.core.publishing.flow import TICKETS, Expired, FlowControl, FlowGate, TicketEvent, TicketState
from seriatim.errors import FlowControlTimeout, IllegalTransition, InvalidArgument, Status
from tests.core.publishing.naive_publisher import NaiveGate, dump

TOO_MANY_MESSAGES = "Flow control: max outstanding messages exceeded"
TOO_MANY_BYTES = "Flow control: max outstanding bytes exceeded"


def gate(messages: int | None = None, size: int | None = None, timeout: float | None = None) -> FlowGate[Any]:
    return FlowGate(FlowControl(max_outstanding_messages=messages, max_outstanding_bytes=size, timeout=timeout))


def plain(expired: Expired[Any]) -> tuple[list[tuple[Any, str]], list[Any]]:
    return [(ticket, error.message) for ticket, error in expired.timed_out], list(expired.admitted)


# Options


def test_by_default_nothing_is_limited():
    assert FlowControl() == FlowControl(max_outstanding_messages=None, max_outstanding_bytes=None, timeout=None)
    machine = gate()
    assert all(machine.request(ticket, 10**9, now=0) for ticket in range(1000))
    assert (machine.outstanding_messages, machine.outstanding_bytes, machine.waiting) == (1000, 10**12, 0)


def test_the_lowest_allowed_limits_are_1_message_1_byte_and_0_seconds():
    options = FlowControl(1, 1, 0)
    assert (options.max_outstanding_messages, options.max_outstanding_bytes, options.timeout) == (1, 1, 0)


@pytest.mark.parametrize("name", ["max_outstanding_messages", "max_outstanding_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, math.inf, "1"])
def test_limits_that_are_not_whole_or_below_1_are_refused(name, value):
    with pytest.raises(InvalidArgument) as error:
        FlowControl(**{name: value})
    assert error.value.message == f"{name} must be a whole number of 1 or more, not {value!r}"


@pytest.mark.parametrize("value", [-0.001, True, math.nan, math.inf, "1"])
def test_a_timeout_that_is_not_finite_or_negative_is_refused(value):
    with pytest.raises(InvalidArgument) as error:
        FlowControl(timeout=value)
    assert error.value.message == f"timeout must be a finite number of 0 or more, not {value!r}"


def test_options_and_effects_are_frozen():
    with pytest.raises(AttributeError):
        FlowControl().timeout = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Expired((), ()).admitted = ()  # type: ignore[misc]


# Who is admitted (BR-008, BR-009)


def test_br_008_message_11_of_10_waits_until_an_earlier_one_is_released():
    machine = gate(messages=10)
    assert [machine.request(ticket, 1, now=0) for ticket in range(1, 12)] == [True] * 10 + [False]
    assert (machine.outstanding_messages, machine.outstanding_bytes, machine.waiting) == (10, 10, 1)
    assert machine.release(4) == (11,)
    assert (machine.outstanding_messages, machine.outstanding_bytes, machine.waiting) == (10, 10, 0)
    assert machine.release(11) == ()
    assert (machine.outstanding_messages, machine.outstanding_bytes) == (9, 9)


def test_br_009_bytes_up_to_the_limit_are_admitted_and_one_more_waits():
    machine = gate(size=10)
    assert machine.request("a", 4, now=0)
    assert machine.request("b", 6, now=0)
    assert not machine.request("c", 1, now=0)
    assert machine.outstanding_bytes == 10
    assert machine.release("a") == ("c",)
    assert machine.outstanding_bytes == 7


def test_br_009_at_the_limit_even_an_empty_message_waits_until_it_is_below():
    machine = gate(size=10)
    machine.request("a", 9, now=0)
    assert machine.request("empty", 0, now=0)
    machine.request("b", 1, now=0)
    assert not machine.request("empty too", 0, now=0)
    assert machine.release("empty") == ()
    assert machine.release("b") == ("empty too",)


def test_a_release_admits_all_who_fit_in_the_order_in_which_they_asked():
    machine = gate(messages=3, size=10)
    machine.request("a", 10, now=0)
    for ticket in "bcde":
        assert not machine.request(ticket, 2, now=0)
    assert machine.release("a") == ("b", "c", "d")
    assert machine.release("c") == ("e",)


def test_a_small_message_never_overtakes_a_waiting_large_one():
    machine = gate(size=10)
    machine.request("a", 8, now=0)
    assert not machine.request("large", 5, now=0)
    assert not machine.request("small", 1, now=0)
    assert machine.release("a") == ("large", "small")


def test_an_oversized_message_is_admitted_alone():
    machine = gate(size=10)
    machine.request("a", 1, now=0)
    machine.request("b", 1, now=0)
    assert not machine.request("giant", 11, now=0)
    assert machine.release("a") == ()
    assert machine.release("b") == ("giant",)
    assert machine.outstanding_bytes == 11
    assert not machine.request("empty", 0, now=0)
    assert machine.release("giant") == ("empty",)
    assert machine.outstanding_bytes == 0


def test_an_oversized_message_is_admitted_at_once_when_nothing_is_outstanding():
    assert gate(size=10).request("giant", 11, now=0)


def test_a_negative_size_is_refused_and_changes_nothing():
    machine = gate()
    before = dump(machine)
    with pytest.raises(InvalidArgument) as error:
        machine.request("a", -1, now=0)
    assert error.value.message == "size must be a whole number of 0 or more, not -1"
    assert dump(machine) == before


# Giving up


def test_a_cancelled_ticket_gives_up_its_place_and_those_behind_it_move_up():
    machine = gate(size=10)
    machine.request("a", 8, now=0)
    for ticket, size in [("large", 5), ("b", 1), ("c", 1), ("d", 1)]:
        assert not machine.request(ticket, size, now=0)
    assert machine.cancel("c") == ()
    assert machine.cancel("large") == ("b", "d")
    assert machine.outstanding_bytes == 10


def test_a_waiting_ticket_times_out_exactly_at_its_deadline():
    machine = gate(messages=1, timeout=2)
    assert machine.next_deadline() is None
    machine.request("a", 1, now=0)
    assert machine.next_deadline() is None
    machine.request("b", 1, now=5.0)
    machine.request("c", 1, now=6.0)
    assert machine.next_deadline() == 7.0
    assert machine.expire(6.999) == Expired((), ())
    assert plain(machine.expire(7.0)) == ([("b", TOO_MANY_MESSAGES)], [])
    assert machine.next_deadline() == 8.0
    assert machine.release("a") == ("c",)


def test_without_a_timeout_tickets_wait_for_ever():
    machine = gate(messages=1)
    machine.request("a", 1, now=0)
    machine.request("b", 1, now=0)
    assert machine.next_deadline() is None
    assert machine.expire(1e12) == Expired((), ())


def test_the_timeout_error_names_the_limit_and_is_resource_exhausted():
    machine = gate(size=10, timeout=1)
    machine.request("a", 10, now=0)
    machine.request("b", 1, now=0)
    ((ticket, error),) = machine.expire(1).timed_out
    assert (ticket, type(error), error.code) == ("b", FlowControlTimeout, Status.RESOURCE_EXHAUSTED)
    assert error.message == TOO_MANY_BYTES


@pytest.mark.parametrize(
    ("messages", "size", "text"),
    [(2, 11, TOO_MANY_MESSAGES), (3, 10, TOO_MANY_BYTES), (2, 10, TOO_MANY_MESSAGES)],
    ids=["messages", "bytes", "both"],
)
def test_when_both_limits_hold_a_message_back_the_error_names_messages(messages, size, text):
    machine = gate(messages, size, timeout=1)
    machine.request("a", 5, now=0)
    machine.request("b", 5, now=0)
    machine.request("c", 1, now=0)
    assert plain(machine.expire(1)) == ([("c", text)], [])


def test_room_that_a_timed_out_ticket_leaves_goes_to_those_behind_before_they_time_out():
    machine = gate(size=10, timeout=1)
    machine.request("a", 8, now=0)
    machine.request("large", 5, now=0)
    machine.request("small", 1, now=0)
    assert plain(machine.expire(1)) == ([("large", TOO_MANY_BYTES)], ["small"])


def test_a_late_call_decides_like_one_in_time():
    machine, late = gate(messages=3, size=10, timeout=2), gate(messages=3, size=10, timeout=2)
    for each in (machine, late):
        for moment, size in enumerate([8, 5, 1, 9, 1, 1]):
            each.request(moment, size, now=moment)
    one_by_one = [plain(machine.expire(now)) for now in range(20)]
    timed_out = [entry for entries, _ in one_by_one for entry in entries]
    admitted = [ticket for _, tickets in one_by_one for ticket in tickets]
    assert plain(late.expire(20)) == (timed_out, admitted)
    assert timed_out == [(1, TOO_MANY_BYTES), (3, TOO_MANY_BYTES), (5, TOO_MANY_MESSAGES)]
    assert admitted == [2, 4]
    assert dump(machine) == dump(late)


def test_with_a_timeout_of_0_a_message_without_room_is_refused_at_once_and_changes_nothing():
    machine = gate(messages=1, timeout=0)
    assert machine.request("a", 1, now=0)
    before = dump(machine)
    with pytest.raises(FlowControlTimeout) as error:
        machine.request("b", 1, now=0)
    assert error.value.message == TOO_MANY_MESSAGES
    assert dump(machine) == before
    machine.release("a")
    assert machine.request("b", 1, now=0)


# New options


def test_wider_limits_admit_those_who_wait_at_once():
    machine = gate(messages=1)
    for ticket in "abcd":
        machine.request(ticket, 1, now=0)
    assert machine.set_options(FlowControl(max_outstanding_messages=3), now=0) == Expired((), ("b", "c"))
    assert machine.waiting == 1


def test_narrower_limits_take_no_room_back_but_admit_nobody_until_below_them():
    machine = gate(messages=3)
    for ticket in "abcd":
        machine.request(ticket, 1, now=0)
    assert machine.set_options(FlowControl(max_outstanding_messages=1), now=0) == Expired((), ())
    assert [machine.release(ticket) for ticket in "abc"] == [(), (), ("d",)]


def test_a_new_timeout_counts_from_the_request_and_applies_at_once():
    machine = gate(messages=1)
    for moment, ticket in enumerate("abc"):
        machine.request(ticket, 1, now=moment)
    result = machine.set_options(FlowControl(max_outstanding_messages=1, timeout=3), now=4)
    assert plain(result) == ([("b", TOO_MANY_MESSAGES)], [])
    assert machine.next_deadline() == 5


# The table


def reach(state: TicketState) -> FlowGate[Any]:
    """A gate in which ticket t is in a state."""
    machine = gate(messages=1)
    machine.request("other" if state is TicketState.WAITING else "t", 1, now=0)
    if state is TicketState.WAITING:
        machine.request("t", 1, now=0)
    if state is TicketState.NEW:
        machine.release("t")
    assert machine.state("t") is state
    return machine


COMMANDS = {
    TicketEvent.REQUEST: lambda machine: machine.request("t", 1, now=0),
    TicketEvent.RELEASE: lambda machine: machine.release("t"),
    TicketEvent.CANCEL: lambda machine: machine.cancel("t"),
}
LEGAL = {(state, event) for state, event, _ in TICKETS}


@pytest.mark.parametrize("state", [TicketState.NEW, TicketState.WAITING, TicketState.ADMITTED])
@pytest.mark.parametrize("event", COMMANDS)
def test_an_illegal_event_raises_and_changes_nothing(state, event):
    machine = reach(state)
    before = dump(machine)
    if (state, event) in LEGAL:
        COMMANDS[event](machine)
        assert dump(machine) != before
    else:
        with pytest.raises(IllegalTransition) as error:
            COMMANDS[event](machine)
        assert f"'{event.value}' is not possible while '{state.value}'" in error.value.message
        assert dump(machine) == before


def test_an_illegal_event_is_told_with_what_is_possible():
    with pytest.raises(IllegalTransition) as error:
        gate().release("t")
    assert error.value.message == "flow control ticket: 'release' is not possible while 'new'; possible now: request"


def test_a_finished_ticket_is_forgotten_and_new_again():
    machine = gate(messages=1, timeout=1)
    untouched = dump(machine)
    machine.request("a", 1, now=0)
    machine.request("b", 1, now=0)
    machine.request("c", 1, now=0)
    machine.cancel("b")
    machine.expire(1)
    machine.release("a")
    assert dump(machine) == untouched
    assert [machine.state(ticket) for ticket in "abc"] == [TicketState.NEW] * 3
    assert machine.request("a", 1, now=0)


# The naive model

OPTIONS = st.builds(
    FlowControl,
    max_outstanding_messages=st.none() | st.integers(1, 4),
    max_outstanding_bytes=st.none() | st.integers(1, 12),
    timeout=st.sampled_from([None, 0, 1, 2.5, 6]),
)
TICKET_NAMES = st.integers(0, 12)


def answer(machine: FlowGate[int] | NaiveGate, ticket: int, size: int, now: float) -> bool | str:
    """Whether a ticket is admitted, or why it may not even wait."""
    try:
        return machine.request(ticket, size, now)
    except FlowControlTimeout as refusal:
        return refusal.message


class GateAgainstModel(RuleBasedStateMachine):
    @initialize(options=OPTIONS)
    def start(self, options):
        self.machine: FlowGate[int] = FlowGate(options)
        self.model = NaiveGate(options)
        self.now = 0.0

    def state(self, ticket: int) -> TicketState:
        if any(entry[0] == ticket for entry in self.model.queue):
            return TicketState.WAITING
        known = any(entry[0] == ticket for entry in self.model.admitted)
        return TicketState.ADMITTED if known else TicketState.NEW

    @rule(ticket=TICKET_NAMES, size=st.integers(0, 14))
    def request(self, ticket, size):
        if self.state(ticket) is not TicketState.NEW:
            with pytest.raises(IllegalTransition):
                self.machine.request(ticket, size, self.now)
            return
        assert answer(self.machine, ticket, size, self.now) == answer(self.model, ticket, size, self.now)

    @rule(ticket=TICKET_NAMES)
    def release(self, ticket):
        if self.state(ticket) is TicketState.ADMITTED:
            assert list(self.machine.release(ticket)) == self.model.release(ticket)
        else:
            with pytest.raises(IllegalTransition):
                self.machine.release(ticket)

    @rule(ticket=TICKET_NAMES)
    def cancel(self, ticket):
        if self.state(ticket) is TicketState.WAITING:
            assert list(self.machine.cancel(ticket)) == self.model.cancel(ticket)
        else:
            with pytest.raises(IllegalTransition):
                self.machine.cancel(ticket)

    @rule(seconds=st.sampled_from([0.5, 1, 3]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        assert plain(self.machine.expire(self.now)) == self.model.settle(self.now)

    @precondition(lambda self: self.model.next_deadline() is not None)
    @rule()
    def wait_for_the_next_deadline(self):
        self.now = max(self.now, self.model.next_deadline() or 0)
        assert plain(self.machine.expire(self.now)) == self.model.settle(self.now)

    @rule(options=OPTIONS)
    def set_options(self, options):
        assert plain(self.machine.set_options(options, self.now)) == self.model.set_options(options, self.now)

    @invariant()
    def looks_the_same(self):
        if not hasattr(self, "model"):
            return
        assert self.machine.outstanding_messages == len(self.model.admitted)
        assert self.machine.outstanding_bytes == self.model.bytes()
        assert self.machine.waiting == len(self.model.queue)
        assert self.machine.next_deadline() == self.model.next_deadline()
        assert [self.machine.state(ticket) for ticket in range(13)] == [self.state(ticket) for ticket in range(13)]


TestGateAgainstModel = GateAgainstModel.TestCase
