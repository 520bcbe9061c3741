"""One edge node: each sentence about the order of its messages is a test."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.resequencing.options import LedgerEntry, OnEpoch
from seriatim.core.sparkplug.edge_node import NodeState
from seriatim.core.sparkplug.messages import (
    BeforeBirth,
    DeathIgnored,
    EdgeMessage,
    Flag,
    NodeOrdering,
    OnTimeout,
    Ordered,
    Status,
)
from seriatim.core.sparkplug.pool import EdgeNodes
from seriatim.core.sparkplug.rebirth import RebirthBudget, RebirthGovernor
from seriatim.errors import InvalidArgument, InvalidSequence
from tests.core.sparkplug.edge_script import Script, dbirth, ddata, ddeath, nbirth, ndata, ndeath


def test_the_counter_belongs_to_the_edge_node_and_its_devices_share_it():
    script = Script()
    script.send(nbirth(0), dbirth(1, device="a"), dbirth(2, device="b"))
    assert script.send(ddata(4, device="b"), ndata(5)) == []
    assert script.send(ddata(3, device="a")) == ["ddata 3", "ddata 4", "ndata 5"]
    assert script.ledger == []


@pytest.mark.parametrize("start", [0, 1, 77, 255])
def test_a_birth_may_start_at_any_number_and_sets_what_is_expected_next(start):
    script = Script()
    after = (start + 1) % 256
    assert script.send(nbirth(start), ndata(after)) == [f"nbirth {start}", f"ndata {after}"]
    assert script.wait(10) == []
    assert (script.ledger, script.requests) == ([], [])


@pytest.mark.parametrize("make", [dbirth, ddeath, ndata, ddata])
def test_every_numbered_message_is_ordered(make):
    script = Script()
    script.send(nbirth(0))
    assert script.send(make(2)) == []
    released = script.send(ndata(1))
    assert [text.split()[1] for text in released] == ["1", "2"]


def test_order_is_distance_from_the_expected_value_modulo_256():
    script = Script()
    script.send(nbirth(253))
    assert script.send(ndata(1), ndata(0), ndata(255)) == []
    assert script.send(ndata(254)) == ["ndata 254", "ndata 255", "ndata 0", "ndata 1"]


def test_a_gap_has_one_timer_and_traffic_does_not_extend_it():
    script = Script()
    script.send(nbirth(0), ndata(2))
    script.wait(1.5)
    assert script.send(ndata(3)) == []
    assert script.wait(0.5) == ["ndata 2", "ndata 3"]
    assert script.ledger == [("lost", (1, 1))]


def test_a_message_that_arrives_in_time_stops_the_timer_and_no_rebirth_is_asked_for():
    script = Script()
    script.send(nbirth(0), ndata(2))
    script.wait(1.9)
    assert script.send(ndata(1)) == ["ndata 1", "ndata 2"]
    script.wait(1000)
    assert (script.requests, script.ledger) == ([], [])


def test_one_rebirth_request_is_outstanding_however_many_gaps():
    script = Script(rebirth_backoff=60)
    script.send(nbirth(0), ndata(2), ndata(4), ndata(6))
    script.wait(30)
    script.send(ndata(9))
    script.wait(20)
    assert [request.attempt for request in script.requests] == [1]
    assert script.requests[0].reason == "messages are missing"


def test_a_request_without_an_answer_is_repeated_with_backoff_and_then_given_up():
    script = Script(rebirth_backoff=5, rebirth_backoff_limit=20, rebirth_attempts=4)
    script.send(nbirth(0), ndata(2))
    times = []
    for _ in range(200):
        before = len(script.requests)
        script.wait(1)
        times += [script.clock.now()] * (len(script.requests) - before)
    assert times == [2, 7, 17, 37]


def test_a_birth_answers_the_request_but_does_not_end_the_backoff():
    script = Script(rebirth_backoff=10)
    script.send(nbirth(0), ndata(2))
    script.wait(2)
    script.send(nbirth(0), ndata(2))
    script.wait(2)
    assert len(script.requests) == 1, "the second gap waits for the backoff"
    script.wait(8)
    assert [request.attempt for request in script.requests] == [1, 1]


def test_new_trouble_after_the_last_attempt_makes_one_request_more():
    script = Script(rebirth_backoff=1, rebirth_backoff_limit=1, rebirth_attempts=1)
    script.send(nbirth(0), ndata(2))
    script.wait(20)
    assert len(script.requests) == 1
    script.send(ndata(4))
    script.wait(20)
    assert [request.attempt for request in script.requests] == [1, 2]


def test_a_quiet_time_begins_the_backoff_anew():
    script = Script(rebirth_backoff=5, rebirth_backoff_limit=20, rebirth_attempts=3)
    for _ in range(2):
        script.send(nbirth(0), ndata(2))
        script.wait(2)
        before = len(script.requests)
        script.wait(5)
        assert len(script.requests) == before + 1, "the second request follows after the first backoff"
        script.send(nbirth(0))
        script.wait(100)


@pytest.mark.parametrize(("quiet", "backoff"), [(40, 10), (40.5, 5)])
def test_the_backoff_begins_anew_once_the_quiet_time_has_passed(quiet, backoff):
    governor = RebirthGovernor(NodeOrdering(rebirth_backoff=5, rebirth_backoff_limit=20))
    governor.want("messages are missing")
    governor.ask(0)
    governor.end()
    governor.want("messages are missing")
    governor.ask(5 + quiet)
    assert governor.due == 5 + quiet + backoff


def test_a_dead_node_is_not_asked_any_more():
    script = Script()
    script.send(nbirth(0), ndata(2))
    script.wait(2)
    script.send(ndeath(0))
    script.wait(1000)
    assert len(script.requests) == 1
    assert not script.node.rebirth_outstanding


def test_a_limit_on_storms_holds_over_all_nodes():
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(reorder_timeout=0, rebirths_per_second=2, rebirth_attempts=1))
    asked = []
    for number in range(6):
        asked += [effect for effect in nodes.receive(number, ndata(5), 0.0) if hasattr(effect, "attempt")]
    assert [request.key for request in asked] == [0, 1]
    assert nodes.next_deadline == 0.5
    later = [(tick / 2, e.key) for tick in range(1, 8) for e in nodes.advance(tick / 2) if hasattr(e, "attempt")]
    assert later == [(0.5, 2), (1.0, 3), (1.5, 4), (2.0, 5)]
    assert nodes.next_deadline is None


def test_a_postponed_request_of_a_node_that_was_born_meanwhile_is_not_sent():
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(rebirths_per_second=1))
    for key in "ab":
        nodes.receive(key, ndata(5), 0.0)
    nodes.receive("b", nbirth(0), 0.1)
    assert [effect for effect in nodes.advance(3.0) if hasattr(effect, "attempt")] == []


def test_a_bucket_never_holds_more_than_one_second():
    budget = RebirthBudget(2.0)
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    assert [budget.take(100.0) for _ in range(3)] == [True, True, False]
    assert budget.next == 100.5


@pytest.mark.parametrize(
    ("policy", "released", "ledger"),
    [
        (OnTimeout.RELEASE, ["ndata 2", "ndata 3"], [("lost", (1, 1))]),
        (OnTimeout.DROP, [], [("lost", (1, 1)), ("dead-letter", "ndata 2"), ("dead-letter", "ndata 3")]),
        (OnTimeout.HOLD, [], []),
    ],
)
def test_after_a_timeout_held_messages_are_released_in_order_dropped_or_kept_until_the_next_birth(
    policy, released, ledger
):
    script = Script(on_timeout=policy)
    script.send(nbirth(0), ndata(3), ndata(2))
    assert script.wait(2) == released
    assert script.ledger == ledger
    assert len(script.requests) == 1
    kept = ["ndata 2", "ndata 3"] if policy is OnTimeout.HOLD else []
    assert script.send(nbirth(0)) == [*kept, "nbirth 0"]


def test_late_messages_are_never_emitted_backwards():
    script = Script()
    script.send(nbirth(0), ndata(2))
    script.wait(2)
    assert script.send(ndata(1), ndata(3)) == ["ndata 3"]
    assert ("late", "ndata 1") in script.ledger


def test_duplicates_are_emitted_once():
    script = Script()
    assert script.send(nbirth(0), ndata(1), ndata(1)) == ["nbirth 0", "ndata 1"]
    assert script.send(ndata(3), ndata(3), ndata(2)) == ["ndata 2", "ndata 3"]
    assert script.ledger == [("duplicate", "ndata 1"), ("duplicate", "ndata 3")]


@pytest.mark.parametrize("make", [nbirth, dbirth, ddeath, ndata, ddata])
def test_an_absent_seq_is_not_a_zero(make):
    script = Script()
    script.send(nbirth(255))
    with pytest.raises(InvalidSequence, match="must be an integer, not NoneType"):
        script.send(make(0)._replace(seq=None))
    assert script.node.expected == 0


def test_data_before_any_birth_is_released_and_flagged_and_a_rebirth_is_asked_for():
    script = Script()
    assert script.send(ndata(7), ndata(9)) == ["ndata 7"]
    assert script.send(ndata(8)) == ["ndata 8", "ndata 9"]
    assert script.flags == [Flag.BEFORE_BIRTH] * 3
    assert [request.reason for request in script.requests] == ["data of a node that was never born"]
    assert script.node.status is Status.OFFLINE
    script.send(nbirth(0))
    assert script.flags[-1] is None


def test_data_before_any_birth_is_held_for_the_birth_by_policy():
    script = Script(before_birth=BeforeBirth.HOLD)
    assert script.send(ndata(1), ndata(2)) == []
    assert script.requests == []
    assert script.send(nbirth(0)) == ["nbirth 0", "ndata 1", "ndata 2"]
    assert script.flags == [None] * 3


@pytest.mark.parametrize(
    ("policy", "released", "ledger"),
    [
        (OnTimeout.RELEASE, ["ndata 255", "ndata 0", "ndata 2"], [("lost", (1, 1))]),
        (OnTimeout.DROP, [], [("discarded", "ndata 0"), ("discarded", "ndata 2"), ("discarded", "ndata 255")]),
        (OnTimeout.HOLD, [], []),
    ],
)
def test_what_was_held_for_a_birth_that_does_not_come_is_settled_by_policy_and_a_rebirth_is_asked_for(
    policy, released, ledger
):
    script = Script(before_birth=BeforeBirth.HOLD, on_timeout=policy)
    script.send(ndata(0), ndata(2), ndata(255))
    assert script.wait(2) == released
    assert script.ledger == ledger
    assert len(script.requests) == 1
    assert script.node.held_count == (3 if policy is OnTimeout.HOLD else 0)


def test_no_rebirth_is_asked_for_after_a_timeout_when_the_option_is_off():
    script = Script(send_rebirth_when_timeout=False, before_birth=BeforeBirth.HOLD)
    script.send(ndata(5))
    script.wait(5)
    script.send(nbirth(0), ndata(2))
    script.wait(5)
    assert script.requests == []


def test_a_timeout_of_zero_waits_for_nothing():
    script = Script(reorder_timeout=0)
    assert script.send(nbirth(0), ndata(2)) == ["nbirth 0", "ndata 2"]
    assert script.ledger == [("lost", (1, 1))]
    assert len(script.requests) == 1


def test_clearing_a_node_returns_what_was_held_and_says_so():
    script = Script()
    script.send(nbirth(0), dbirth(1), ndata(4), ndata(3), ndata(200, at=5))
    script.effects = script.node.clear(script.clock.now())
    assert script.ledger == [("discarded", "ndata 3"), ("discarded", "ndata 4")]
    assert script.statuses == [("d", "offline", None), (None, "offline", None)]
    assert script.node.state is NodeState.UNBORN
    assert (script.node.held_count, script.node.deadline, dict(script.node.devices)) == (0, None, {})


def test_clearing_a_device_discards_what_is_held_of_it_and_takes_it_offline():
    script = Script()
    script.send(nbirth(0), dbirth(1), ndata(3), ddata(4), ddata(5, device="other"), ddata(6))
    script.effects = script.node.clear_device("d", script.clock.now())
    assert script.ledger == [("discarded", "ddata 4"), ("discarded", "ddata 6")]
    assert script.statuses == [("d", "offline", None)]
    assert [message.body for message in script.node.held()] == ["ndata 3", "ddata 5"]
    assert (script.node.held_count, "d" in script.node.devices) == (2, False)
    assert script.node.clear_device("d", script.clock.now()) == []


def test_nobody_waits_for_the_numbers_of_a_device_that_was_cleared():
    script = Script()
    script.send(nbirth(0), ddata(2), ddata(3, device="other"))
    script.effects = script.node.clear_device("d", script.clock.now())
    assert script.send(ndata(1)) == ["ndata 1", "ddata 3"]
    assert script.ledger == [("discarded", "ddata 2")], "once, and nothing is lost"
    script.wait(10)
    assert script.requests == []
    assert script.send(ndata(4), ddata(5)) == ["ndata 4", "ddata 5"]


def test_a_held_birth_or_death_of_a_device_that_was_cleared_changes_no_status():
    script = Script()
    script.send(nbirth(0), dbirth(2), dbirth(3, device="other"))
    script.node.clear_device("d", script.clock.now())
    script.effects = []
    script.send(ndata(1))
    assert script.statuses == [("other", "online", None)]


@pytest.mark.parametrize(
    "options", [{}, {"on_timeout": OnTimeout.DROP}, {"on_timeout": OnTimeout.HOLD}, {"on_session_end": OnEpoch.DISCARD}]
)
@pytest.mark.parametrize("settle", ["timeout", "death", "birth", "clear"])
def test_what_was_discarded_with_its_device_is_entered_once_however_the_rest_is_settled(
    options: dict[str, Any], settle: str
):
    script = Script(**options)
    script.send(nbirth(0), ddata(2), ddata(3))
    script.effects = script.node.clear_device("d", script.clock.now())
    given = script.node.bookmark().given
    if settle == "timeout":
        script.wait(10)
    elif settle == "clear":
        script.effects += script.node.clear(script.clock.now())
    else:
        script.send(ndeath(0) if settle == "death" else nbirth(0, bd=1))
    assert [entry for entry in script.ledger if entry[0] != "lost"] == [
        ("discarded", "ddata 2"),
        ("discarded", "ddata 3"),
    ]
    assert not any("ddata" in body for body in script.bodies())
    told = [e for e in script.effects if isinstance(e, Ordered | LedgerEntry | DeathIgnored)]
    assert script.node.bookmark().given == given + len(told) - 2


def test_what_waits_for_a_birth_is_discarded_with_its_device_and_its_numbers_are_not_missed():
    script = Script(before_birth=BeforeBirth.HOLD)
    script.send(dbirth(1), ddata(2), ndata(3))
    script.effects = script.node.clear_device("d", script.clock.now())
    assert script.ledger == [("discarded", "dbirth 1"), ("discarded", "ddata 2")]
    assert script.send(nbirth(0)) == ["nbirth 0", "ndata 3"]
    script.wait(10)
    assert len(script.ledger) == 2
    assert script.requests == []


NOT_A_MESSAGE = "an edge node's message must be an EdgeMessage, not "
NOT_A_STAMP = "timestamp must be a whole number from 0 to 18446744073709551615, not "
NOT_A_SESSION = "bdSeq must be a whole number from 0 to 18446744073709551615, not "


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (None, NOT_A_MESSAGE + "NoneType"),
        ("NDATA", NOT_A_MESSAGE + "str"),
        (("NDATA", "x", 1, None, None, None), NOT_A_MESSAGE + "tuple"),
        (ndata(256), "sequence 256 is outside 0 to 255 (modulus 256)"),
        (ndata(-1), "sequence -1 is outside 0 to 255 (modulus 256)"),
        (ndata(True), "a sequence must be an integer, not bool True"),
        (ndata("1"), "a sequence must be an integer, not str '1'"),  # type: ignore[arg-type]
        (ndata(1, at=-1), NOT_A_STAMP + "-1"),
        (ndata(1, at=2**64), NOT_A_STAMP + "18446744073709551616"),
        (ndata(1, at=1.5), NOT_A_STAMP + "1.5"),  # type: ignore[arg-type]
        (ndata(1, at=True), NOT_A_STAMP + "True"),
        (ndata(1)._replace(device="d"), "NDATA with device 'd': D messages name a device, N messages none"),
        (ddata(1, device=""), "DDATA with device '': D messages name a device, N messages none"),
        (ddata(1)._replace(device=None), "DDATA with device None: D messages name a device, N messages none"),
        (ddata(1)._replace(device=5), "DDATA with device 5: D messages name a device, N messages none"),  # type: ignore[arg-type]
        (nbirth(0)._replace(bd_seq=None), NOT_A_SESSION + "None"),
        (ndeath(-1), NOT_A_SESSION + "-1"),
        (ndata(1)._replace(bd_seq=2**64), NOT_A_SESSION + "18446744073709551616"),
        (
            EdgeMessage("NDATA", "x", 1),  # type: ignore[arg-type]
            "the kind of a message must be one of NBIRTH, NDEATH, NDATA, DBIRTH, DDEATH, DDATA, not 'NDATA'",
        ),
    ],
    ids=repr,
)
def test_none_or_a_wrong_type_raises_and_changes_nothing(wrong: Any, text: str):
    script = Script()
    script.send(nbirth(0), ndata(2))
    before = (script.node.bookmark(), script.node.held_count, script.node.deadline)
    with pytest.raises(InvalidArgument) as refusal:
        script.node.receive(wrong, 100.0)
    assert refusal.value.message == text
    assert (script.node.bookmark(), script.node.held_count, script.node.deadline) == before


def test_stamps_and_sessions_reach_from_0_to_the_largest_of_64_bits():
    script = Script()
    assert script.send(nbirth(0, bd=0, at=0), ndeath(0)) == ["nbirth 0", "ndeath"]
    last = 2**64 - 1
    assert script.send(nbirth(0, bd=last, at=last), ndeath(last)) == ["nbirth 0", "ndeath"]


def test_state_changes_of_devices_take_effect_in_sequence_order_not_in_arrival_order():
    script = Script()
    script.send(nbirth(0, at=10), ddeath(2, at=12))
    assert "d" not in script.node.devices
    script.send(dbirth(1, at=11))
    assert script.statuses == [(None, "online", 10), ("d", "online", 11), ("d", "offline", 12)]
    assert script.node.devices == {"d": Status.OFFLINE}
