"""One edge node: each sentence about ordering and about sessions is a test."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.edge_messages import (
    BeforeBirth,
    Bookmark,
    DeathIgnored,
    EdgeMessage,
    Flag,
    Kind,
    NodeOrdering,
    OnTimeout,
    Ordered,
    RebirthRequested,
    ReleasedBy,
    Status,
    StatusChanged,
)
from seriatim.core.edge_nodes import EdgeNodes
from seriatim.core.rebirth import RebirthBudget
from seriatim.core.resequencing import LedgerEntry, OnEpoch, Reason
from seriatim.core.sparkplug import MAX_DEATHS, EdgeNode, NodeState
from seriatim.errors import CapacityExceeded, InvalidArgument, InvalidSequence
from tests.core.edge_script import Script, dbirth, ddata, ddeath, nbirth, ndata, ndeath

# -- order ----------------------------------------------------------------------------------------------------------------


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


# -- sessions -------------------------------------------------------------------------------------------------------------


def test_the_expected_number_is_released_although_it_is_stamped_before_the_birth():
    script = Script()
    assert script.send(nbirth(0, at=100), ndata(1, at=99), ndata(2, at=101)) == ["nbirth 0", "ndata 1", "ndata 2"]
    assert (script.ledger, script.node.held_count) == ([], 0)


@pytest.mark.parametrize("left_over_first", [True, False])
def test_what_is_left_over_from_the_session_before_is_late_and_opens_no_gap(left_over_first):
    script = Script()
    script.send(nbirth(50, at=50), nbirth(0, bd=1, at=100))
    arrivals = [ndata(52, at=60), ndata(1, at=101)]
    assert script.send(*(arrivals if left_over_first else arrivals[::-1])) == ["ndata 1"]
    assert script.ledger == [("late", "ndata 52")]
    assert script.send(ndata(2, at=102)) == ["ndata 2"]
    script.wait(10)
    assert (script.ledger, script.requests) == ([("late", "ndata 52")], [])


def test_what_is_left_over_does_not_take_the_place_of_a_number_of_the_new_session():
    script = Script()
    script.send(nbirth(0, at=50), nbirth(0, bd=1, at=100), ndata(2, at=52))
    assert script.send(ndata(1, at=101), ndata(2, at=102)) == ["ndata 1", "ndata 2"]
    assert script.ledger == [("late", "ndata 2")]
    dead = Script()
    dead.send(nbirth(0, at=50), ndeath(0), ndata(1, at=51), ndata(1, at=101))
    dead.send(nbirth(0, bd=1, at=100))
    released = [effect.message.timestamp for effect in dead.effects if isinstance(effect, Ordered)]
    assert released == [50, None, 100, 101]


@pytest.mark.parametrize("expected", [6, 60, 200, 254])
def test_messages_of_a_coming_session_are_held_for_its_birth_wherever_the_living_one_counts(expected):
    script = Script()
    script.send(nbirth(expected - 1, bd=0, at=100))
    assert script.send(dbirth(1, at=201), ddata(2, at=202)) == []
    script.wait(1)
    assert script.send(nbirth(0, bd=1, at=200)) == ["nbirth 0", "dbirth 1", "ddata 2"]
    assert script.ledger == []
    assert script.requests == []


def test_messages_of_a_coming_session_are_held_for_its_birth_after_a_death():
    script = Script()
    script.send(nbirth(0, bd=0, at=100), ndeath(0))
    assert script.send(dbirth(1, at=201)) == []
    assert script.send(nbirth(0, bd=1, at=200)) == ["nbirth 0", "dbirth 1"]


def test_a_dbirth_ahead_of_the_first_birth_is_held_within_the_timeout():
    script = Script()
    assert script.send(dbirth(1), ddata(2)) == []
    assert script.send(nbirth(0)) == ["nbirth 0", "dbirth 1", "ddata 2"]


def test_a_node_that_counts_elsewhere_and_is_not_born_in_time_is_followed_and_a_rebirth_is_asked_for():
    script = Script()
    script.send(nbirth(59, at=100), ndata(1, at=201))
    assert script.wait(2) == ["ndata 1"]
    assert script.ledger == [("sync-lost", (1, 1)), ("lost", (60, 0))]
    assert [request.reason for request in script.requests] == ["messages waited for a birth that did not come"]
    assert (script.flags[-1], script.node.status, script.node.epoch) == (Flag.STALE, Status.STALE, 2)
    assert script.send(ndata(2, at=202)) == ["ndata 2"]


@pytest.mark.parametrize(
    ("policy", "released", "ledger"),
    [
        (OnEpoch.RELEASE, ["ndata 2"], [("lost", (1, 1))]),
        (OnEpoch.DISCARD, [], [("discarded", "ndata 2")]),
    ],
)
@pytest.mark.parametrize("end", [ndeath(0), nbirth(0, bd=1, at=200)])
def test_a_death_or_a_new_birth_settles_held_messages_by_policy_with_ledger_entries(policy, released, ledger, end):
    script = Script(on_session_end=policy)
    script.send(nbirth(0, at=100), ndata(2, at=102))
    assert script.send(end) == [*released, end.body]
    assert script.ledger == ledger
    assert script.requests == []


def test_a_birth_just_after_the_death_of_the_same_bdseq_does_not_revive_the_node():
    script = Script()
    script.send(nbirth(0, bd=3, at=100), ndeath(3))
    assert script.send(nbirth(0, bd=3, at=100)) == []
    assert script.node.status is Status.OFFLINE
    assert script.ledger == [("late", "nbirth 0")]


def test_a_death_ahead_of_its_own_birth_keeps_the_node_dead():
    script = Script()
    script.send(ndeath(3))
    assert script.send(nbirth(0, bd=3)) == []
    assert script.node.status is Status.OFFLINE


def test_a_node_that_does_not_count_its_sessions_is_taken_after_the_timeout():
    script = Script()
    script.send(nbirth(0, bd=0, at=100), ndeath(0))
    script.wait(3)
    assert script.send(nbirth(0, bd=0, at=200)) == ["nbirth 0"]
    assert script.node.status is Status.ONLINE


def test_an_in_session_rebirth_keeps_its_bdseq_and_restarts_the_numbers():
    script = Script()
    script.send(nbirth(0, bd=3, at=100), ndata(1, at=101))
    assert script.send(nbirth(0, bd=3, at=102), ndata(1, at=103)) == ["nbirth 0", "ndata 1"]
    assert (script.node.bd_seq, script.node.epoch) == (3, 2)
    assert script.send(ndeath(3)) == ["ndeath"]
    assert script.ledger == []


@pytest.mark.parametrize("other", [ndeath(2), ndeath(None)])
def test_a_death_of_another_session_or_of_none_is_ignored(other):
    script = Script()
    script.send(nbirth(0, bd=3))
    assert script.send(other) == []
    assert script.node.status is Status.ONLINE
    assert len(script.ignored_deaths) == 1


def test_a_repeated_death_is_ignored():
    script = Script()
    script.send(nbirth(0, bd=3))
    assert script.send(ndeath(3), ndeath(3)) == ["ndeath"]
    assert script.ignored_deaths == ["it ends session 3, and no session lives"]


def test_the_death_of_the_old_session_after_the_birth_of_the_new_one_is_ignored():
    script = Script()
    script.send(nbirth(0, bd=3, at=100), nbirth(0, bd=4, at=200), ndeath(3))
    assert script.node.status is Status.ONLINE
    assert script.node.bd_seq == 4


def test_a_session_announced_by_a_premature_death_of_its_number_can_begin():
    """A clean stop of pysparkplug says NDEATH with the number of the next session."""
    script = Script()
    script.send(nbirth(0, bd=3, at=100), ndeath(4))
    assert script.send(nbirth(0, bd=4, at=200)) == ["nbirth 0"]


def test_a_premature_death_does_not_keep_its_session_out_when_the_right_one_follows():
    script = Script()
    script.send(nbirth(0, bd=255, at=100), ndeath(0), ndeath(255))
    assert script.send(nbirth(0, bd=0, at=200)) == ["nbirth 0"]


@pytest.mark.parametrize("before", [[], [nbirth(0, bd=5, at=100)], [nbirth(0, bd=4, at=50), ndeath(4)]])
def test_deaths_ahead_of_their_births_keep_the_node_dead_however_many_there_are(before):
    script = Script()
    script.send(*before, ndeath(5), ndeath(6))
    assert script.send(nbirth(0, bd=5, at=100), nbirth(0, bd=6, at=200)) == []
    assert script.ledger == [("late", "nbirth 0")] * 2
    assert script.node.status is Status.OFFLINE
    assert script.send(nbirth(0, bd=7, at=300)) == ["nbirth 0"]


def test_a_birth_whose_death_was_seen_is_late_also_while_a_later_session_lives():
    script = Script()
    script.send(nbirth(0, bd=6), ndeath(5))
    assert script.send(nbirth(9, bd=5)) == []
    assert (script.node.bd_seq, script.ledger) == (6, [("late", "nbirth 9")])


def test_deaths_are_remembered_up_to_a_number_and_for_the_timeout_only():
    script = Script()
    script.send(*[ndeath(number) for number in range(1000)])
    assert [number for number, *_ in script.node.save().deaths] == list(range(1000 - MAX_DEATHS, 1000))
    script.wait(3)
    script.send(ndeath(7))
    assert script.node.save().deaths == ((7, 3.0, None),)


def test_data_stamped_in_the_same_millisecond_as_the_next_birth_survives_in_the_session_of_its_number():
    script = Script()
    script.send(nbirth(49, at=100), ndata(51, at=200), dbirth(1, at=200))
    assert script.send(nbirth(0, bd=1, at=200)) == ["ndata 51", "nbirth 0", "dbirth 1"]
    assert script.ledger == [("lost", (50, 50))]


def test_a_copy_of_the_living_birth_is_a_duplicate():
    script = Script()
    script.send(nbirth(0, bd=4, at=200), ndata(1, at=201))
    script.wait(2)
    assert script.send(nbirth(0, bd=4, at=200)) == []
    assert script.ledger == [("duplicate", "nbirth 0")]
    assert script.send(ndata(2, at=202)) == ["ndata 2"]


@pytest.mark.parametrize("stamp", [0, 1])
def test_a_node_whose_clock_stands_still_or_begins_at_0_whenever_it_is_switched_on_can_be_born_again(stamp):
    script = Script()
    script.send(nbirth(0, at=0), ndata(1, at=stamp), nbirth(0, at=0))
    assert script.ledger == [("duplicate", "nbirth 0")]
    script.wait(3)
    assert script.send(nbirth(0, at=0), ndata(1, at=stamp)) == ["nbirth 0", "ndata 1"]


@pytest.mark.parametrize("again", [nbirth(0, bd=7, at=5), nbirth(0, bd=0, at=5), nbirth(0, bd=8, at=5)])
@pytest.mark.parametrize("pause", [0, 100])
def test_a_birth_heals_whatever_its_stamp_and_its_bdseq(again, pause):
    script = Script()
    script.send(nbirth(0, bd=7, at=10**12), ndata(1, at=4))
    script.wait(pause)
    assert script.send(again, ndata(1, at=6), ndata(2, at=7)) == ["nbirth 0", "ndata 1", "ndata 2"]
    assert (script.ledger, script.node.bd_seq, script.node.status) == ([], again.bd_seq, Status.ONLINE)


def test_a_node_whose_clock_was_fast_at_its_birth_loses_nothing():
    script = Script()
    numbers = [*range(1, 51), 52, 51, *range(53, 151)]
    released = script.send(nbirth(0, at=10**12), *[ndata(number, at=1000 + number) for number in numbers])
    assert released == ["nbirth 0", *[f"ndata {number}" for number in range(1, 151)]]
    assert script.send(nbirth(0, at=5000), ndata(1, at=5001)) == ["nbirth 0", "ndata 1"]
    assert (script.ledger, script.requests) == ([], [])


def test_a_clock_that_is_set_back_within_a_session_shuts_nobody_out_for_longer_than_the_timeout():
    script = Script()
    script.send(nbirth(0, at=10**12), ndata(1, at=10**12 + 1))
    script.wait(3)
    assert script.send(*[ndata(number, at=number) for number in range(3, 20)]) == []
    assert script.wait(2) == [f"ndata {number}" for number in range(3, 20)]
    assert script.ledger == [("lost", (2, 2))]
    assert len(script.requests) == 1


def test_a_dead_node_that_reboots_with_an_earlier_clock_and_counts_its_sessions_from_0_is_taken():
    script = Script()
    script.send(nbirth(0, bd=7, at=10**12), ndeath(7))
    assert script.send(nbirth(0, bd=0, at=5), ndata(1, at=6)) == ["nbirth 0", "ndata 1"]
    assert (script.ledger, script.node.status) == ([], Status.ONLINE)


def test_a_restart_under_the_same_bdseq_is_taken_at_once_when_its_stamp_is_newer():
    script = Script()
    script.send(nbirth(0, bd=0, at=100), ndata(1, at=150), ndeath(0))
    assert script.send(nbirth(0, bd=0, at=150)) == [], "may be of the session that ended"
    assert script.send(nbirth(0, bd=0, at=151), ndata(1, at=152)) == ["nbirth 0", "ndata 1"]
    assert script.ledger == [("late", "nbirth 0")]
    assert script.send(nbirth(0, bd=0, at=100)) == [], "a copy of the first"
    assert script.node.status is Status.ONLINE


def test_a_restart_that_was_taken_for_the_session_that_ended_is_asked_for_its_birth():
    script = Script()
    script.send(nbirth(0, bd=0, at=10**12), ndeath(0))
    assert script.send(nbirth(0, bd=0, at=5), ndata(1, at=6)) == []
    assert script.wait(2) == ["ndata 1"]
    assert len(script.requests) == 1
    script.wait(0.5)
    assert script.send(nbirth(0, bd=0, at=7), ndata(1, at=8)) == ["nbirth 0", "ndata 1"]


def test_a_birth_that_was_overtaken_by_the_next_one_is_corrected_by_a_rebirth():
    """The price for taking every birth: nobody can tell this one from that of a node that was reset."""
    script = Script()
    script.send(nbirth(0, bd=4, at=200), ndata(1, at=201), nbirth(0, bd=3, at=100), ndata(2, at=202))
    script.wait(2)
    assert len(script.requests) == 1
    assert script.send(nbirth(0, bd=4, at=300), ndata(1, at=301)) == ["nbirth 0", "ndata 1"]
    assert script.node.bd_seq == 4


def test_what_is_held_stays_in_its_session_when_the_next_birth_has_an_earlier_clock():
    script = Script()
    script.send(nbirth(49, bd=3, at=10**9), ndata(51, at=10**9 + 2))
    assert script.send(nbirth(0, bd=0, at=5), ndata(1, at=6)) == ["ndata 51", "nbirth 0", "ndata 1"]
    assert script.ledger == [("lost", (50, 50))]
    assert script.node.held_count == 0


# -- lost sync ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 40, 60, 120])
@pytest.mark.parametrize("lost", [1, 127, 128, 200, 255])
def test_after_any_number_of_lost_messages_the_next_ones_are_released_and_the_loss_is_told(lost, count):
    script = Script()
    script.send(nbirth(0, at=0), *[ndata(number, at=number) for number in range(1, 11)])
    following = range(11 + lost, 11 + lost + count)
    released = script.send(*[ndata(number % 256, at=number) for number in following]) + script.wait(2)
    assert released == [f"ndata {number % 256}" for number in following]
    entries = [effect for effect in script.effects if isinstance(effect, LedgerEntry)]
    assert sum(entry.size for entry in entries if entry.reason is Reason.LOST) == lost
    assert {entry.reason for entry in entries} <= {Reason.LOST, Reason.SYNC_LOST}
    assert len(script.requests) == 1


@pytest.mark.parametrize("lost", [300, 600])
def test_a_loss_longer_than_the_modulus_is_told_as_at_least_so_many(lost):
    script = Script()
    script.send(nbirth(0, at=0), ndata((1 + lost) % 256, at=1 + lost))
    script.wait(2)
    (entry,) = [e for e in script.effects if isinstance(e, LedgerEntry) and e.reason is Reason.LOST]
    assert entry.size == lost % 256
    assert entry.detail.endswith(f"at least {lost % 256} missing: numbers repeat after 256")


def test_without_stamps_a_node_that_counts_elsewhere_is_followed_after_three_in_a_row():
    script = Script()
    script.send(nbirth(0), *[ndata(number) for number in range(1, 11)])
    sent = [ndata(number % 256) for number in range(211, 280)]
    assert script.send(*sent) == []
    assert script.wait(2) == [message.body for message in sent[3:]]
    assert [reason for reason, _ in script.ledger] == ["late", "late", "late", "sync-lost", "sync-lost", "lost"]
    assert script.ledger[-1] == ("lost", (11, 213))
    assert len(script.requests) == 1


def test_copies_in_a_row_are_duplicates_and_nobody_is_followed_to_them():
    script = Script()
    copies = [ndata(number, at=number) for number in range(1, 11)]
    script.send(nbirth(0, at=0), *copies)
    assert script.send(*copies) == []
    assert script.wait(10) == []
    assert {reason for reason, _ in script.ledger} == {"duplicate", "sync-lost"}
    assert script.send(ndata(11, at=11)) == ["ndata 11"]


def test_a_message_behind_with_a_mistaken_stamp_holds_up_nobody_who_is_in_sync():
    script = Script()
    script.send(nbirth(0, at=0), *[ndata(number, at=number) for number in range(1, 11)])
    assert script.send(ndata(5, at=10**15), ndata(11, at=11), ndata(12, at=12)) == ["ndata 11", "ndata 12"]
    assert script.wait(2) == []
    assert script.ledger == [("duplicate", "ndata 5")]
    assert script.send(ndata(13, at=13)) == ["ndata 13"]


def test_what_waits_with_the_expected_number_is_judged_by_its_number_when_no_birth_comes():
    script = Script()
    script.send(nbirth(0, at=0), *[ndata(number, at=number) for number in range(1, 11)])
    assert script.send(ndata(5, at=100), ndata(11, at=101), ndata(12, at=102)) == []
    assert script.wait(2) == ["ndata 11", "ndata 12"]
    assert script.ledger == [("duplicate", "ndata 5")]


def test_a_number_that_was_given_up_is_late_whatever_its_stamp():
    script = Script()
    script.send(nbirth(0, at=0), ndata(2, at=2))
    script.wait(2)
    script.send(ndata(1, at=10**9))
    assert (script.ledger, script.node.held_count) == ([("lost", (1, 1)), ("late", "ndata 1")], 0)


@pytest.mark.parametrize("lost", [[1], [1, 129]])
def test_a_node_that_says_more_than_half_the_circle_behind_a_gap_is_in_sync_when_a_birth_ends_the_wait(lost):
    script = Script()
    numbers = [number for number in range(1, 140) if number not in lost]
    script.send(nbirth(0, at=0), *(ndata(number, at=number) for number in numbers))
    assert script.send(nbirth(0, at=200)) == [*(f"ndata {number}" for number in numbers), "nbirth 0"]
    assert script.ledger == [("lost", (number, number)) for number in lost]
    assert (set(script.flags), script.node.epoch) == ({None}, 2)


def test_a_node_that_says_more_than_can_wait_behind_a_gap_is_in_sync():
    script = Script()
    released = script.send(nbirth(0, at=0), *(ndata(number % 256, at=number) for number in range(2, 300)))
    assert released == ["nbirth 0", *(f"ndata {number % 256}" for number in range(2, 300))]
    assert script.ledger == [("lost", (1, 1))]
    assert (set(script.flags), script.node.epoch, script.node.held_count) == ({None}, 1, 0)


@pytest.mark.parametrize(
    ("policy", "released", "entry"),
    [(OnTimeout.DROP, [], ("discarded", "ndata 1")), (OnTimeout.HOLD, [], None)],
)
def test_a_node_that_counts_elsewhere_is_settled_by_on_timeout(policy, released, entry):
    script = Script(on_timeout=policy)
    script.send(nbirth(59, at=100), ndata(61, at=101), ndata(1, at=201))
    assert script.wait(2) == released
    assert script.node.held_count == (2 if policy is OnTimeout.HOLD else 0)
    if entry:
        assert script.ledger[-1] == entry
        assert ("lost", (62, 0)) in script.ledger
        assert script.send(ndata(2, at=202)) == ["ndata 2"]


@pytest.mark.parametrize(
    ("policy", "released"), [(OnEpoch.RELEASE, ["ndata 1", "nbirth 0"]), (OnEpoch.DISCARD, ["nbirth 0"])]
)
def test_what_was_sent_elsewhere_before_a_birth_is_settled_by_on_session_end(policy, released):
    script = Script(on_session_end=policy)
    script.send(nbirth(59, at=100), ndata(1, at=201))
    assert script.send(nbirth(0, bd=1, at=300), ndata(1, at=301)) == [*released, "ndata 1"]
    expected = [("sync-lost", (1, 1)), ("lost", (60, 0))] if policy is OnEpoch.RELEASE else [("discarded", "ndata 1")]
    assert script.ledger == expected


def test_a_message_says_what_released_it():
    script = Script(capacity=2)
    script.send(nbirth(0, at=0), ndata(2, at=2), ndata(1, at=1), ndata(4, at=4))
    script.wait(2)
    script.send(ndata(6, at=6), ndata(8, at=8), ndata(10, at=10), nbirth(0, bd=1, at=20), ndeath(1), dbirth(1, at=31))
    script.send(nbirth(0, bd=2, at=30))
    said = [(e.message.body, str(e.released_by)) for e in script.effects if isinstance(e, Ordered)]
    assert said == [
        ("nbirth 0", "order"),
        ("ndata 1", "order"),
        ("ndata 2", "gap-filled"),
        ("ndata 4", "timeout"),
        ("ndata 6", "capacity"),
        ("ndata 8", "session-end"),
        ("ndata 10", "session-end"),
        ("nbirth 0", "order"),
        ("ndeath", "order"),
        ("nbirth 0", "order"),
        ("dbirth 1", "gap-filled"),
    ]


@pytest.mark.parametrize(
    "before", [[nbirth(0, at=10), ndeath(0)], [nbirth(59, at=10)], [ndata(59, at=10)]], ids=["dead", "born", "unborn"]
)
def test_what_waited_for_a_birth_in_vain_says_that_a_timeout_released_it(before):
    """Also where the number is not the one that the session before expected."""
    script = Script()
    script.send(*before)
    script.send(ndata(5, at=20))
    script.wait(2)
    said = [(e.message.body, str(e.released_by)) for e in script.effects if isinstance(e, Ordered)]
    assert said[len(before) :] == [("ndata 5", "timeout")]


def test_a_node_whose_clock_was_set_back_is_taken_when_its_session_is_new():
    script = Script()
    script.send(nbirth(0, bd=255, at=1_000_000))
    assert script.send(nbirth(0, bd=0, at=5), ndata(1, at=6)) == ["nbirth 0", "ndata 1"]


def test_a_birth_of_the_node_brings_no_device_back():
    script = Script()
    script.send(nbirth(0, at=1), dbirth(1, at=2), nbirth(0, at=3))
    assert script.node.devices == {"d": Status.STALE}
    script.send(dbirth(1, at=4))
    assert script.node.devices == {"d": Status.ONLINE}


def test_a_death_takes_node_and_devices_offline_by_the_hosts_time_and_a_device_by_its_own():
    script = Script()
    script.send(nbirth(0, at=1), dbirth(1, at=2), dbirth(2, at=3, device="e"), ddeath(3, at=4), ndeath(0))
    assert script.statuses[-3:] == [("d", "offline", 4), ("e", "offline", None), (None, "offline", None)]


def test_losing_the_broker_makes_everything_stale_and_a_rebirth_is_asked_for_when_it_is_back():
    script = Script()
    script.send(nbirth(0, at=1), dbirth(1, at=2))
    script.effects += script.node.disconnect()
    assert script.node.status is Status.STALE
    assert script.node.devices == {"d": Status.STALE}
    script.effects += script.node.reconnect(script.clock.now())
    assert len(script.requests) == 1
    assert script.send(ndata(2, at=3)) == ["ndata 2"]
    assert script.flags[-1] is Flag.STALE
    script.send(nbirth(0, at=4), ndata(1, at=5))
    assert script.flags[-1] is None


def test_without_stamps_a_run_behind_says_that_the_node_counts_elsewhere():
    script = Script()
    script.send(nbirth(99), ndata(1), ndata(2), ndata(3))
    assert [request.reason for request in script.requests] == ["the node counts elsewhere"]


# -- bounds and state -----------------------------------------------------------------------------------------------------


def test_what_waits_for_a_birth_is_bounded():
    script = Script(before_birth=BeforeBirth.HOLD, on_timeout=OnTimeout.HOLD, capacity=2)
    script.send(ndata(1))
    script.wait(2)
    script.send(ndata(2), ndata(3))
    assert script.ledger == [("overflow", "ndata 3")]
    released = Script(before_birth=BeforeBirth.HOLD, capacity=2)
    assert released.send(ndata(1), ndata(2), ndata(3)) == ["ndata 1", "ndata 2", "ndata 3"]


def test_what_is_held_behind_a_gap_is_bounded():
    script = Script(on_timeout=OnTimeout.HOLD, capacity=2)
    assert script.send(nbirth(0), ndata(2), ndata(4), ndata(6)) == ["nbirth 0"]
    assert script.ledger == [("overflow", "ndata 6")]
    assert script.send(ndata(1), ndata(3)) == ["ndata 1", "ndata 2", "ndata 3", "ndata 4"]


def test_a_bookmark_is_read_as_it_was_written():
    for bookmark in (Bookmark(7, 3, 5, 9, True, 11), Bookmark(7, 3, 0, 0, False), Bookmark(1, 1, 0, 0, True, 0)):
        assert Bookmark.unpack(bookmark.pack()) == bookmark


def test_a_resumed_node_goes_on_where_its_bookmark_left_it_and_repeats_nothing():
    script = Script()
    script.send(nbirth(200, bd=7, at=1), *[ndata(seq % 256, at=seq) for seq in range(201, 300)])
    bookmark = Bookmark.unpack(script.node.bookmark().pack())
    assert bookmark == Bookmark(100, 1, 7, 300 % 256, True, 299)
    script.node = EdgeNode.resume(bookmark, NodeOrdering(), "g/n")
    assert script.send(ndata(299 % 256, at=299), ndata(300 % 256, at=300)) == ["ndata 44"]
    assert script.ledger == [("duplicate", "ndata 43")]
    assert script.flags[-1] is Flag.STALE
    assert script.send(ndeath(7)) == ["ndeath"]
    assert script.node.bookmark().pack() > bookmark.pack()


def test_a_resumed_node_does_not_claim_to_know_whether_what_is_behind_is_a_copy_or_late():
    script = Script()
    script.send(nbirth(0, at=1), ndata(2, at=3))
    script.wait(2)
    script.node = EdgeNode.resume(script.node.bookmark(), NodeOrdering(), "g/n")
    script.effects = []
    script.send(ndata(1, at=2), ndata(2, at=3))
    details = [effect.detail for effect in script.effects if isinstance(effect, LedgerEntry)]
    assert details == ["behind what was released before a restart: a copy, or late"] * 2
    script.send(nbirth(0, at=9), nbirth(0, at=9), ndata(1, at=10), ndata(1, at=10))
    details = [effect.detail for effect in script.effects if isinstance(effect, LedgerEntry)][2:]
    assert details == ["this birth was seen before", "released before"]


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("unheard", [1, 100, 150, 250, 400])
def test_what_is_new_after_a_restart_or_a_lost_connection_is_not_called_a_duplicate(unheard, stamped):
    def data(number: int) -> EdgeMessage[str]:
        return ndata(number % 256, at=number if stamped else None)

    for restart in (True, False):
        script = Script()
        script.send(nbirth(0, at=0 if stamped else None), *map(data, range(1, 11)))
        if restart:
            script.node = EdgeNode.resume(script.node.bookmark(), NodeOrdering(), "g/n")
        else:
            script.node.disconnect()
            script.node.reconnect(script.clock.now())
        following = range(11 + unheard, 21 + unheard)
        released = script.send(*map(data, following)) + script.wait(2)
        assert released == [f"ndata {number % 256}" for number in following]
        assert {reason for reason, _ in script.ledger} <= {"lost", "sync-lost"}
        assert set(script.flags[-10:]) == {Flag.STALE}


def test_after_a_restart_one_or_two_without_stamps_before_the_expected_number_are_taken_for_copies():
    script = Script()
    script.send(nbirth(0), *[ndata(number) for number in range(1, 11)])
    script.node = EdgeNode.resume(script.node.bookmark(), NodeOrdering(), "g/n")
    assert script.send(ndata(9), ndata(10), ndata(11)) + script.wait(2) == ["ndata 11"]
    assert script.ledger == [("duplicate", "ndata 9"), ("duplicate", "ndata 10")]


def test_a_bookmark_of_an_earlier_version_is_read_without_a_stamp():
    packed = 7
    for value, bits in ((3, 32), (2**64 - 1, 64), (255, 8), (1, 1)):
        packed = packed << bits | value
    assert Bookmark.unpack(packed) == (7, 3, 2**64 - 1, 255, True, None)
    newer = Bookmark(7, 3, 2**64 - 1, 255, True, 2**64 - 1)
    assert Bookmark.unpack(newer.pack()) == newer
    assert newer.pack() > packed, "a place never goes back"


def test_the_bookmark_of_a_dead_node_does_not_revive_it():
    script = Script()
    script.send(nbirth(0, bd=7), ndeath(7))
    resumed: EdgeNode[str] = EdgeNode.resume(script.node.bookmark(), NodeOrdering(), "g/n")
    assert (resumed.status, resumed.state) == (Status.OFFLINE, NodeState.UNBORN)


def test_nodes_that_are_cleared_make_room_for_others():
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(max_nodes=2))
    for number in range(10):
        nodes.receive(number, nbirth(0), 0.0)
        nodes.clear(number, 0.0)
    assert len(nodes) == 2
    nodes.receive("a", nbirth(0), 0.0)
    nodes.receive("b", nbirth(0), 0.0)
    with pytest.raises(CapacityExceeded):
        nodes.receive("c", nbirth(0), 0.0)
    assert "a" in nodes


def test_a_cleared_node_that_speaks_again_is_not_forgotten_and_counts_on():
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(max_nodes=1))
    nodes.receive("a", nbirth(0), 0.0)
    nodes.clear("a", 0.0)
    nodes.receive("a", nbirth(0), 1.0)
    with pytest.raises(CapacityExceeded):
        nodes.receive("b", nbirth(0), 1.0)
    assert nodes["a"].epoch == 2


def test_clearing_a_node_is_no_way_around_the_backoff_of_its_rebirths():
    options = NodeOrdering(max_nodes=1, rebirth_backoff=5.0, rebirth_backoff_limit=10.0, rebirths_per_second=0.001)
    nodes: EdgeNodes[str] = EdgeNodes(options)
    assert [type(effect) for effect in nodes.receive("a", ndata(1), 0.0)] == [Ordered, RebirthRequested]
    nodes.clear("a", 0.0)
    with pytest.raises(CapacityExceeded):
        nodes.receive("b", ndata(1), 20.0)
    assert [type(effect) for effect in nodes.receive("a", ndata(1), 20.0)] == [Ordered], (
        "its request waits for its turn"
    )
    nodes.clear("a", 20.0)
    nodes.receive("b", nbirth(0), 50.0)
    assert list(nodes) == [nodes["b"]]
    assert nodes.advance(2000.0) == [], "nobody asks a node that was forgotten"


def test_the_number_of_nodes_is_bounded():
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(max_nodes=1))
    nodes.receive("a", nbirth(0), 0.0)
    with pytest.raises(CapacityExceeded, match="raise max_nodes"):
        nodes.receive("b", nbirth(0), 0.0)
    with pytest.raises(InvalidArgument):
        EdgeNodes(NodeOrdering()).receive("a", None, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        *(
            ({name: -1}, f"{name} must be a finite number of 0 or more, not -1")
            for name in ("reorder_timeout", "rebirth_backoff", "rebirth_backoff_limit", "rebirths_per_second")
        ),
        (
            {"capacity": 128},
            "capacity 128 is more than the 127 numbers that can be told to be ahead modulo 256; choose 127 or less",
        ),
        (
            {"rebirth_backoff": 10, "rebirth_backoff_limit": 5},
            "rebirth_backoff_limit must not be less than rebirth_backoff",
        ),
        ({"rebirths_per_second": 0}, "rebirths_per_second must be more than 0: it is a limit, not a switch"),
        ({"rebirth_attempts": 0}, "rebirth_attempts must be a whole number of 1 or more, not 0"),
        ({"max_nodes": 0}, "max_nodes must be a whole number of 1 or more, not 0"),
        ({"on_timeout": "skip"}, "on_timeout must be one of 'release', 'drop', 'hold', not 'skip'"),
        ({"before_birth": "drop"}, "before_birth must be one of 'release', 'hold', not 'drop'"),
        ({"on_session_end": None}, "on_session_end must be one of 'release', 'discard', not None"),
        ({"send_rebirth_when_timeout": "no"}, "send_rebirth_when_timeout must be a bool, not 'no'"),
    ],
)
def test_options_that_can_not_work_are_refused(wrong, text):
    with pytest.raises(InvalidArgument) as refusal:
        NodeOrdering(**wrong)
    assert refusal.value.message == text


def test_a_backoff_may_be_constant_and_one_attempt_and_one_node_are_enough():
    NodeOrdering(rebirth_backoff=5, rebirth_backoff_limit=5, rebirth_attempts=1, max_nodes=1)


def test_a_choice_may_be_given_as_text():
    script = Script(before_birth="hold", on_timeout="hold", on_session_end="discard")
    assert script.send(ndata(1)) == script.wait(10) == []
    assert script.send(nbirth(0), ndata(3), ndeath(0)) == ["nbirth 0", "ndata 1", "ndeath"]
    assert script.ledger == [("discarded", "ndata 3")]


def test_the_kinds_are_those_of_an_edge_node():
    assert set(Kind) == {"NBIRTH", "NDEATH", "NDATA", "DBIRTH", "DDEATH", "DDATA"}


# -- what is said about messages ------------------------------------------------------------------------------------------


def entries(effects: list[Any]) -> list[tuple[Any, ...]]:
    """Ledger entries with everything that they say, apart from numbers."""
    return [(e.key, e.reason.value, e.time, e.detail) for e in effects if isinstance(e, LedgerEntry)]


def test_entries_name_the_node_also_after_a_device_was_cleared_or_a_birth_took_out_what_it_brings():
    script = Script()
    script.send(nbirth(0, at=10), dbirth(1, at=11), ndata(3, at=13), ddata(5, at=15))
    script.node.clear_device("d", script.clock.now())
    script.wait(2)
    assert {key for key, *_ in entries(script.effects)} == {"g/n"}
    script = Script()
    script.send(nbirth(0, at=10), ndata(3, at=13), ndata(2, at=22), ndata(5, at=15))
    assert script.send(nbirth(1, bd=1, at=20)) == ["ndata 3", "ndata 5", "nbirth 1", "ndata 2"]
    assert {key for key, *_ in entries(script.effects)} == {"g/n"}
    assert script.ledger == [("lost", (1, 2)), ("lost", (4, 4))]


def test_what_waits_for_a_birth_when_a_node_is_cleared_is_reported_with_its_time():
    script = Script(before_birth=BeforeBirth.HOLD)
    script.send(ndata(1))
    assert entries(script.node.clear(1.5)) == [("g/n", "discarded", 1.5, "cleared")]


def test_a_cleared_device_is_reported_with_the_time():
    script = Script()
    script.send(nbirth(0), dbirth(1), ddata(3))
    assert entries(script.node.clear_device("d", 1.5)) == [("g/n", "discarded", 1.5, "its device was cleared")]


def test_what_is_discarded_with_its_session_is_reported_with_its_time():
    script = Script(on_session_end=OnEpoch.DISCARD)
    script.send(nbirth(59, at=100), ndata(1, at=201))
    script.clock.set(1.5)
    script.send(nbirth(0, bd=1, at=300))
    assert entries(script.effects) == [("g/n", "discarded", 1.5, "its session ended")]


def test_a_birth_of_a_session_that_has_ended_is_late():
    script = Script()
    script.send(nbirth(0, bd=3, at=10), ndeath(3))
    script.clock.set(1.5)
    assert script.send(nbirth(0, bd=3, at=10)) == []
    assert entries(script.effects) == [("g/n", "late", 1.5, "its session has ended already")]


def test_a_death_that_is_ignored_says_why_and_is_given_back():
    script = Script()
    for message in (ndeath(None), ndeath(7), nbirth(0, bd=3), ndeath(None), ndeath(7)):
        script.send(message)
    nobody = "it carries no bdSeq, so nobody can say which session ended"
    assert [effect for effect in script.effects if isinstance(effect, DeathIgnored)] == [
        DeathIgnored("g/n", nobody, ndeath(None)),
        DeathIgnored("g/n", "it ends session 7, and no session lives", ndeath(7)),
        DeathIgnored("g/n", nobody, ndeath(None)),
        DeathIgnored("g/n", "it ends session 7, and session 3 lives", ndeath(7)),
    ]


def test_without_a_broker_only_what_was_online_is_stale_and_nobody_is_asked():
    script = Script()
    script.send(nbirth(0), dbirth(1, device="a"), dbirth(2, device="b"), ddeath(3, device="b"), ndata(5))
    script.node.disconnect()
    assert script.node.devices == {"a": Status.STALE, "b": Status.OFFLINE}
    script.wait(100)
    assert script.requests == []
    script.effects += script.node.reconnect(script.clock.now())
    assert [request.attempt for request in script.requests] == [1]


def test_the_bookmark_of_a_node_that_never_spoke_is_empty():
    assert Script().node.bookmark() == Bookmark(0, 0, 0, 0, False, None)


def test_a_new_birth_makes_devices_stale_at_its_own_time():
    script = Script()
    script.send(nbirth(0, at=10), dbirth(1, at=11), nbirth(0, bd=1, at=20))
    assert script.statuses[-1] == ("d", "stale", 20)


def test_whatever_is_given_out_is_counted_in_the_bookmark():
    script = Script()
    script.send(ndeath(None), ndeath(7), nbirth(0, bd=3), ndeath(7), ndeath(8), ndata(1), ndata(1), ndata(3))
    script.wait(2)
    script.send(ndeath(3))
    given = [effect for effect in script.effects if isinstance(effect, Ordered | LedgerEntry | DeathIgnored)]
    assert script.node.bookmark().given == len(given) == 10


def test_a_death_is_the_last_message_of_its_session():
    script = Script()
    script.send(nbirth(0, bd=3), ndeath(3))
    assert script.effects[-1] == Ordered("g/n", 1, None, ndeath(3))


def test_a_birth_that_comes_after_its_death_is_late_for_as_long_as_a_message_may_be():
    for wait, released in ((2.0, []), (2.1, ["nbirth 0"])):
        script = Script()
        script.clock.set(5.0)
        script.send(nbirth(0, bd=3, at=10), ndeath(3))
        script.clock.set(5.0 + wait)
        assert script.send(nbirth(0, bd=3, at=10)) == released


def counts_elsewhere(**options: Any) -> Script:
    """A node with a device that is online and one that is dead, which was not followed when its numbers began anew."""
    script = Script(**options)
    script.send(nbirth(59, bd=3, at=100), dbirth(60, at=101), dbirth(61, at=101, device="e"))
    script.send(ddeath(62, at=102, device="e"), ndata(1, at=201), ndata(2, at=202))
    script.effects.clear()
    script.wait(2)
    return script


OUT_OF_SYNC = [
    LedgerEntry("g/n", 1, Reason.SYNC_LOST, 1, 1, 1, 2.0, "1 is behind 63, which is expected, and no birth came"),
    LedgerEntry(
        "g/n", 1, Reason.LOST, 63, 0, 194, 2.0, "sync was lost; at least 194 missing: numbers repeat after 256"
    ),
    StatusChanged("g/n", "d", Status.STALE, None),
    StatusChanged("g/n", None, Status.STALE, None),
]
NO_BIRTH = RebirthRequested("g/n", "messages waited for a birth that did not come", 1)


def test_a_node_that_is_followed_elsewhere_says_what_was_lost_and_goes_on_in_another_epoch():
    script = counts_elsewhere()
    assert script.effects == [
        *OUT_OF_SYNC,
        *(
            Ordered("g/n", 2, number, ndata(number, at=200 + number), Flag.STALE, ReleasedBy.TIMEOUT)
            for number in (1, 2)
        ),
        NO_BIRTH,
    ]
    assert script.node.bookmark() == Bookmark(8, 2, 3, 3, True, 202)
    assert script.send(ndata(3, at=203)) == ["ndata 3"]


def test_a_node_that_is_followed_elsewhere_without_what_waited_says_so_for_each_message():
    script = counts_elsewhere(on_timeout=OnTimeout.DROP)
    assert script.effects == [
        *OUT_OF_SYNC,
        *(
            LedgerEntry(
                "g/n", 2, Reason.DISCARDED, number, number, 1, 2.0, "no birth came", ndata(number, at=200 + number)
            )
            for number in (1, 2)
        ),
        NO_BIRTH,
    ]
    assert script.node.bookmark()[:5] == (8, 2, 3, 3, True)
    assert script.send(ndata(3, at=203)) == ["ndata 3"]


def test_what_finds_no_room_or_no_birth_is_reported_with_its_time():
    script = Script(before_birth=BeforeBirth.HOLD, on_timeout=OnTimeout.HOLD, capacity=1)
    script.clock.set(1.5)
    script.send(ndata(1), ndata(2))
    assert entries(script.effects) == [("g/n", "overflow", 1.5, "no room to wait for a birth")]
    script = Script(before_birth=BeforeBirth.HOLD, on_timeout=OnTimeout.DROP)
    script.send(ndata(1))
    script.wait(2)
    assert entries(script.effects) == [("g/n", "discarded", 2.0, "no birth came")]


def test_a_node_without_room_is_asked_for_a_rebirth_at_once():
    script = Script(capacity=1)
    script.send(nbirth(0), ndata(2), ndata(4))
    assert script.requests == [RebirthRequested("g/n", "messages are missing", 1)]
    unborn = Script(before_birth=BeforeBirth.HOLD, capacity=1)
    unborn.send(ndata(1), ndata(2))
    assert [effect.released_by for effect in unborn.effects if isinstance(effect, Ordered)] == ["capacity", "order"]
    assert unborn.requests == [NO_BIRTH]


def test_data_before_any_birth_is_released_in_order():
    script = Script()
    script.send(ndata(5))
    assert script.effects[0] == Ordered("g/n", 1, 5, ndata(5), Flag.BEFORE_BIRTH, ReleasedBy.ORDER)
