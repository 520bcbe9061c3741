"""An edge node that counts elsewhere than expected: what waits for its birth, and how the node is followed without one."""

from __future__ import annotations

import pytest

from seriatim.core.resequencing.options import LedgerEntry, OnEpoch, Reason
from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import (
    Flag,
    HeldMessage,
    NodeOrdering,
    OnTimeout,
    Ordered,
    ReleasedBy,
    Status,
)
from tests.core.sparkplug.edge_script import Script, dbirth, ddata, ddeath, nbirth, ndata, ndeath


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


# -- in detail --------------------------------------------------------------------------------------------------------------


def said_by(script: Script) -> list[tuple[str, ReleasedBy]]:
    return [(effect.message.body, effect.released_by) for effect in script.effects if isinstance(effect, Ordered)]


def test_what_is_missing_before_any_birth_is_entered_under_the_name_of_the_node():
    script = Script()
    script.send(ndata(201), ddata(204))
    script.wait(2)
    entries = [effect for effect in script.effects if isinstance(effect, LedgerEntry)]
    assert [(entry.key, entry.reason, entry.first, entry.last) for entry in entries] == [("g/n", Reason.LOST, 202, 203)]


def test_what_is_behind_the_first_data_of_a_node_that_was_never_born_is_late():
    script = Script()
    script.send(ddata(0), ndata(205))
    assert script.ledger == [("late", "ndata 205")]
    assert "restart" not in next(e.detail for e in script.effects if isinstance(e, LedgerEntry))


def test_where_others_have_stamps_what_has_none_does_not_join_those_that_wait():
    script = Script()
    script.send(ndata(3, 12), ndata(205, 14), ndata(206))
    assert [held.message.body for held in script.node.snapshot().waiting] == ["ndata 205"]
    assert script.ledger == [("late", "ndata 206")]


def test_without_stamps_the_next_number_joins_those_that_wait_also_across_the_end_of_the_circle():
    script = Script()
    script.send(nbirth(255, 1))
    script.node = EdgeNode.resume(script.node.bookmark(), NodeOrdering(reorder_timeout=2.0), "g/n")
    assert script.send(ndata(255), ndata(0)) == []
    assert [held.message.body for held in script.node.snapshot().waiting] == ["ndata 255", "ndata 0"]


def test_a_resumed_node_that_counts_elsewhere_is_named_in_its_entries():
    script = Script()
    script.send(nbirth(0))
    script.node = EdgeNode.resume(script.node.bookmark(), NodeOrdering(reorder_timeout=2.0), "g/n")
    script.send(ndata(3))
    script.wait(2)
    entries = [effect for effect in script.effects if isinstance(effect, LedgerEntry)]
    assert [(entry.key, entry.first, entry.last) for entry in entries] == [("g/n", 1, 2)]


def test_what_waits_for_a_birth_after_a_death_waits_since_it_came():
    script = Script()
    script.wait(1)
    script.send(nbirth(254, 0, 10), ndeath(0), ndata(2, 13))
    assert script.node.snapshot().waiting == (HeldMessage(ndata(2, 13), 1.0),)


def test_what_waited_with_a_number_missing_is_released_with_it_by_the_timeout():
    script = Script()
    script.send(dbirth(204), ddata(3))
    script.wait(2)
    assert said_by(script) == [("dbirth 204", ReleasedBy.TIMEOUT), ("ddata 3", ReleasedBy.TIMEOUT)]
    assert script.ledger == [("lost", (205, 2))]


def test_what_is_missing_among_what_waited_is_no_reason_for_a_rebirth_when_the_option_is_off():
    script = Script(send_rebirth_when_timeout=False)
    script.send(dbirth(204), ddata(3))
    script.wait(2)
    assert (script.bodies(), script.requests) == (["dbirth 204", "ddata 3"], [])


def test_a_gap_that_is_held_for_ever_is_a_reason_for_a_rebirth():
    script = Script(on_timeout=OnTimeout.HOLD)
    script.send(nbirth(254, 0, 10), ndata(2, 12))
    script.wait(2)
    assert [request.reason for request in script.requests] == ["messages are missing"]


def test_more_than_half_the_circle_behind_a_gap_is_judged_by_number_and_released_by_the_timeout():
    script = Script()
    script.send(ndata(255, 11), ndata(127, 14), ndata(128, 16))
    script.wait(5)
    assert said_by(script)[1:] == [("ndata 127", ReleasedBy.TIMEOUT), ("ndata 128", ReleasedBy.TIMEOUT)]
    assert script.ledger == [("lost", (0, 126))]


def test_sync_is_lost_although_something_was_held_that_does_not_lead_up_to_what_waits():
    script = Script()
    script.send(ndata(1, 12), ddata(131, 15), ndata(3, 14))
    assert script.wait(2) == ["ndata 3", "ddata 131"]
    assert script.ledger == [("lost", (2, 2)), ("sync-lost", (131, 131)), ("lost", (4, 130))]


def test_what_was_held_and_leads_up_to_what_waits_shows_that_sync_is_not_lost_when_a_birth_ends_the_session():
    script = Script()
    script.send(nbirth(255, 0, 10), dbirth(127, 12), ndata(128, 12))
    assert script.send(nbirth(200, 1, 13)) == ["dbirth 127", "ndata 128", "nbirth 200"]
    assert said_by(script)[1:3] == [("dbirth 127", ReleasedBy.SESSION_END), ("ndata 128", ReleasedBy.SESSION_END)]
    assert script.ledger == [("lost", (0, 126))]


def test_what_is_held_and_what_waits_elsewhere_are_both_released_by_the_end_of_their_session():
    script = Script()
    script.send(nbirth(254, 0, 10), ndata(0, 12), ndata(142, 15))
    assert script.send(nbirth(0, 1, 17)) == ["ndata 0", "ndata 142", "nbirth 0"]
    assert said_by(script)[1:3] == [("ndata 0", ReleasedBy.SESSION_END), ("ndata 142", ReleasedBy.SESSION_END)]
    assert script.ledger == [("lost", (255, 255)), ("sync-lost", (142, 142)), ("lost", (1, 141))]


def test_what_waits_is_dropped_in_the_order_of_its_numbers_as_seen_from_the_first():
    script = Script(on_timeout=OnTimeout.DROP)
    script.send(nbirth(254, 0, 10), ndata(201, 12), ndata(73, 14))
    script.wait(5)
    assert script.ledger[:2] == [("sync-lost", (73, 73)), ("lost", (255, 72))]
    assert script.ledger[2:] == [("discarded", "ndata 73"), ("discarded", "ndata 201")]
    assert script.node.expected == 202


def test_a_cleared_device_leaves_the_rest_of_its_node_under_the_same_options():
    script = Script()
    script.send(nbirth(254, 0, 10), dbirth(2, 14))
    script.node.clear_device("d", 0.0)
    assert script.node.deadline == 2.0
    script.wait(2)
    assert script.node.expected == 3


def waiting_in(script: Script) -> list[str]:
    return [held.message.body for held in script.node.snapshot().waiting]


def resume(script: Script) -> None:
    """Go on from the bookmark, as after a restart."""
    script.node = EdgeNode.resume(script.node.bookmark(), NodeOrdering(reorder_timeout=2.0), "g/n")


@pytest.mark.parametrize(
    ("birth", "run", "next_one", "is_new"),
    [
        (nbirth(100, 0), [ndata(10, 50), ndata(11, 51), ndata(12, 52)], ndata(13, 53), True),
        (nbirth(100, 0, 10), [ndata(10), ndata(11), ndata(12)], ndata(13), True),
        (nbirth(100, 0, 10), [ndata(10, 5), ndata(11, 6), ndata(12, 7)], ndata(13), False),
    ],
    ids=["stamps of the birth are missing", "stamps of the run are missing", "stamps say that it is old"],
)
def test_three_in_a_row_behind_are_a_new_count_unless_their_stamps_say_otherwise(birth, run, next_one, is_new):
    script = Script()
    script.send(birth, *run)
    assert [reason for reason, _ in script.ledger] == ["late", "late", "late", "sync-lost"]
    script.send(next_one)
    assert waiting_in(script) == (["ndata 13"] if is_new else [])


def test_what_is_held_and_stamped_after_what_waits_joins_it_with_the_time_of_its_arrival():
    script = Script()
    script.send(nbirth(1, 0, 10), ndata(6, 14))
    script.wait(1)
    script.send(ndata(255, 13))
    assert script.node.snapshot().waiting == (HeldMessage(ndata(255, 13), 1.0), HeldMessage(ndata(6, 14), 0.0))
    assert script.node.held_count == 2


def test_what_stays_held_when_others_join_what_waits_keeps_its_time():
    script = Script()
    script.send(nbirth(0, 0, 11), ddata(74, 12))
    script.wait(1)
    script.send(ndata(75, 18), ndata(73, 14), ndata(129, 15))
    assert waiting_in(script) == ["ndata 129", "ndata 75"]
    assert script.node.snapshot().held == (HeldMessage(ndata(73, 14), 1.0), HeldMessage(ddata(74, 12), 0.0))
    assert script.node.deadline == 2.0


def test_a_gap_that_was_reported_before_others_joined_what_waits_is_not_reported_again():
    script = Script(on_timeout=OnTimeout.HOLD, rebirth_attempts=1)
    script.send(nbirth(254, 0, 8), ndata(1, 14))
    script.wait(2)
    script.send(ndata(2, 19), ndata(200, 17))
    assert (waiting_in(script), script.node.held()[0].body) == (["ndata 200", "ndata 2"], "ndata 1")
    assert script.node.deadline == 4.0


def test_with_half_a_circle_between_the_living_session_and_a_birth_what_is_held_stays_where_it_was():
    script = Script()
    script.send(nbirth(128, 0, 13), ndata(0, 16))
    assert script.send(nbirth(128, 128, 12)) == ["ndata 0", "nbirth 128"]


@pytest.mark.parametrize("number", [255, 0, 1])
def test_without_stamps_what_follows_a_number_waits_with_it(number: int):
    script = Script()
    script.send(nbirth(number))
    resume(script)
    script.send(ndata(number), ndata((number + 1) % 256))
    assert waiting_in(script) == [f"ndata {number}", f"ndata {(number + 1) % 256}"]


def test_what_waits_of_a_session_that_went_on_is_late_when_a_birth_ends_it():
    script = Script()
    script.send(ndata(1, 17), ndata(255, 18), ddata(2, 16))
    script.wait(1)
    assert script.send(nbirth(2, 1, 19)) == ["nbirth 2"]
    entries = [(e.reason, e.message, e.time) for e in script.effects if isinstance(e, LedgerEntry)]
    assert entries == [(Reason.LATE, ndata(255, 18), 1.0)]


def test_what_waits_with_the_expected_number_is_released_by_the_end_of_its_session():
    script = Script()
    script.send(nbirth(0, 0, 10), ndata(255, 14), ndata(1, 18))
    assert script.send(nbirth(2, 1, 19)) == ["ndata 1", "nbirth 2"]
    assert said_by(script)[1] == ("ndata 1", ReleasedBy.SESSION_END)
    assert script.ledger == [("late", "ndata 255")]


@pytest.mark.parametrize(("copies", "is_in_sync"), [([9, 10], True), ([8, 9, 10], False)])
def test_up_to_two_without_stamps_before_the_expected_number_are_taken_for_copies(copies: list[int], is_in_sync: bool):
    script = Script()
    script.send(nbirth(10))
    script.node.disconnect()
    script.send(*map(ndata, copies), ndata(11))
    script.wait(2)
    assert ("sync-lost" in dict(script.ledger)) is not is_in_sync
    assert script.bodies()[1:] == (["ndata 11"] if is_in_sync else [f"ndata {number}" for number in [*copies, 11]])


def test_a_copy_and_what_follows_it_in_any_order_are_in_sync_after_a_restart():
    script = Script()
    script.send(nbirth(254, 0, 8))
    resume(script)
    script.send(ndata(254, 11), ndata(0, 16), ndata(255, 16))
    assert script.wait(2) == ["ndata 255", "ndata 0"]
    assert script.ledger == [("duplicate", "ndata 254")]


def test_what_was_sent_again_with_a_newer_stamp_before_the_expected_number_is_no_copy():
    script = Script()
    script.send(ndata(255, 12), ndata(255, 14), ndata(0, 16))
    assert script.wait(2) == ["ndata 255", "ndata 0"]
    assert script.ledger == [("sync-lost", (255, 255)), ("lost", (0, 254))]


@pytest.mark.parametrize(
    ("held", "waits", "ledger"),
    [
        # What waits begins at 0, behind what is expected after what was held: 1.
        (
            [nbirth(254, 0, 10), ndata(0, 12)],
            [ndata(127, 15), ndata(0, 16)],
            [("lost", (255, 255)), ("sync-lost", (0, 0)), ("lost", (1, 255)), ("lost", (1, 126))],
        ),
        # What waits begins at 0, and that is what is expected.
        (
            [nbirth(253, 0, 10), ndata(255, 12)],
            [ndata(127, 15), ndata(0, 16)],
            [("lost", (254, 254)), ("lost", (1, 126))],
        ),
        # Half a circle apart: seen from 0, 128 is before it, and is still to come.
        (
            [nbirth(0, 0, 10), ndata(3, 11)],
            [ndata(0, 12), ndata(128, 14)],
            [("lost", (1, 2)), ("duplicate", "ndata 0"), ("lost", (4, 127))],
        ),
        # The same number once more, behind what is expected after what was held.
        (
            [nbirth(0, 0, 10), ndata(2, 11)],
            [ddata(129, 12), ndata(2, 13)],
            [("lost", (1, 1)), ("sync-lost", (2, 2)), ("lost", (3, 1)), ("lost", (3, 128))],
        ),
        # More than half the circle came behind a gap.
        (
            [nbirth(128, 128, 12), ndata(0, 11)],
            [ndata(125, 14)],
            [("lost", (129, 255)), ("lost", (1, 124))],
        ),
    ],
)
def test_sync_is_lost_unless_what_was_held_leads_up_to_what_waits(held, waits, ledger):
    script = Script()
    script.send(*held, *waits)
    assert waiting_in(script) == [message.body for message in waits]
    script.send(nbirth(200, 129, 20))
    assert script.ledger == ledger
    assert {by for _, by in said_by(script)[1:-1]} == {ReleasedBy.SESSION_END}


@pytest.mark.parametrize(
    ("policy", "last"), [(OnTimeout.RELEASE, ("lost", (129, 255))), (OnTimeout.DROP, ("discarded", "ndata 0"))]
)
def test_a_node_is_followed_to_the_first_number_as_seen_from_what_came_first(policy: OnTimeout, last):
    script = Script(on_timeout=policy)
    script.send(nbirth(0, 128, 11), ndata(0, 12), ndata(128, 14))
    released = script.wait(2)
    assert script.ledger[:2] == [("sync-lost", (128, 128)), ("lost", (1, 127))]
    assert script.ledger[-1] == last
    assert released == (["ndata 128", "ndata 0"] if policy is OnTimeout.RELEASE else [])
    assert script.node.expected == 1


def test_numbers_before_and_after_the_end_of_the_circle_are_followed_in_their_order():
    script = Script()
    script.send(ndata(1, 10), ndata(1, 12), ndata(0, 15))
    assert script.wait(2) == ["ndata 0", "ndata 1"]
    assert script.ledger == [("sync-lost", (0, 0)), ("lost", (2, 255))]


@pytest.mark.parametrize("policy", [OnTimeout.RELEASE, OnTimeout.DROP])
def test_a_node_that_begins_again_at_0_lost_everything_up_to_255(policy: OnTimeout):
    script = Script(on_timeout=policy)
    script.send(nbirth(0, 0, 10))
    script.node.disconnect()
    script.send(ndata(0))
    script.wait(2)
    assert script.ledger[:2] == [("sync-lost", (0, 0)), ("lost", (1, 255))]
    assert script.node.expected == 1


def test_behind_255_a_node_whose_messages_were_dropped_is_expected_at_0():
    script = Script(on_timeout=OnTimeout.DROP)
    script.send(nbirth(0, 0, 10), ndata(255, 13))
    script.wait(2)
    assert script.node.expected == 0


def test_what_is_held_is_settled_before_what_waits_is_dropped_for_lack_of_room():
    script = Script(on_timeout=OnTimeout.DROP, capacity=1)
    script.send(nbirth(255, 0, 10), ndata(253, 14), ndata(1, 13), ndata(255, 15))
    assert [reason for reason, _ in script.ledger] == ["lost", "dead-letter", "sync-lost", "lost", "discarded"]
    assert [message.body for message in script.node.held()] == ["ndata 255"]


def test_where_what_waits_is_dropped_sync_is_not_lost_either_if_what_was_held_leads_up_to_it():
    """There is no room for more to wait, so what is held is settled before its time."""
    script = Script(on_timeout=OnTimeout.DROP, capacity=1)
    script.wait(1)
    script.send(nbirth(255, 0, 10), dbirth(127, 12), ndata(128, 14))
    assert script.send(ndata(129, 15)) == ["ndata 128", "ndata 129"]
    assert script.ledger == [("lost", (0, 126)), ("dead-letter", "dbirth 127")]
    assert {effect.time for effect in script.effects if isinstance(effect, LedgerEntry)} == {1.0}
    assert script.node.status is Status.ONLINE
    assert said_by(script)[1] == ("ndata 128", ReleasedBy.TIMEOUT)
    assert script.send(ndata(131, 17)) == []
    assert script.node.order_deadline == 3.0, "time goes on as before"
    script.wait(2)
    assert {effect.key for effect in script.effects if isinstance(effect, LedgerEntry)} == {"g/n"}


def test_what_is_behind_those_that_were_dropped_is_late():
    script = Script(on_timeout=OnTimeout.DROP, capacity=1)
    script.send(nbirth(0))
    script.node = EdgeNode.resume(
        script.node.bookmark(), NodeOrdering(reorder_timeout=2.0, on_timeout=OnTimeout.DROP, capacity=1), "g/n"
    )
    script.send(ndata(255), ndata(254))
    assert script.ledger[-2:] == [("discarded", "ndata 255"), ("late", "ndata 254")]
    assert waiting_in(script) == []


def test_half_a_circle_behind_what_was_released_before_a_restart_nobody_knows_a_copy_from_what_is_late():
    script = Script()
    script.send(nbirth(255, 0, 13))
    resume(script)
    script.send(ndata(128, 11))
    assert script.ledger == [("duplicate", "ndata 128")]


def test_what_is_dropped_behind_a_cleared_message_is_still_entered():
    script = Script(on_timeout=OnTimeout.DROP)
    script.send(nbirth(254), ddata(0), ndata(2))
    script.effects += script.node.clear_device("d", 0.0)
    script.wait(2)
    assert [reason for reason, _ in script.ledger] == ["discarded", "lost", "lost", "dead-letter"]


def test_a_session_that_went_on_once_while_messages_waited_is_in_sync():
    script = Script()
    script.send(nbirth(0, 0, 11), ddata(130, 12), ndata(1), ndata(126, 11))
    assert script.wait(2) == ["ndata 126"]
    assert [message.body for message in script.node.held()] == ["ddata 130"]
    assert script.ledger == [("lost", (2, 125))]


def test_after_a_death_the_birth_of_the_session_before_says_nothing_about_stamps():
    script = Script(capacity=1)
    script.send(nbirth(0, 0, 100), ndeath(0), ndata(5, 50))
    assert script.send(ndata(6, 51)) == ["ndata 5", "ndata 6"]
    assert script.send(ndata(8, 40)) == []
    assert [message.body for message in script.node.held()] == ["ndata 8"]


@pytest.mark.parametrize(("ended", "is_taken"), [(0, True), (1, False)])
def test_a_death_up_to_127_sessions_ahead_of_the_living_one_keeps_its_birth_in(ended: int, is_taken: bool):
    script = Script()
    script.send(nbirth(0, 129, 15), ndeath(ended))
    assert script.send(nbirth(2, ended, 16)) == (["nbirth 2"] if is_taken else [])
