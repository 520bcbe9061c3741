"""The sessions of an edge node: births and deaths, and which messages belong to which of them."""

from __future__ import annotations

import pytest

from seriatim.core.resequencing.options import LedgerEntry, OnEpoch
from seriatim.core.sparkplug.edge_node import MAX_DEATHS
from seriatim.core.sparkplug.messages import (
    Flag,
    Ordered,
    Status,
)
from tests.core.sparkplug.edge_script import Script, dbirth, ddata, nbirth, ndata, ndeath


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


@pytest.mark.parametrize(
    ("policy", "released", "ledger"),
    [
        (OnEpoch.RELEASE, ["ndata 129", "ndata 130", "nbirth 0"], [("lost", (1, 1))]),
        (OnEpoch.DISCARD, ["nbirth 0"], [("discarded", "ndata 129"), ("discarded", "ndata 130")]),
    ],
)
def test_what_waited_when_the_node_died_is_of_the_session_that_ended(policy, released, ledger):
    """129 is half the circle ahead of 1, so nobody knows of which session it is. The next birth's stamp tells."""
    script = Script(on_session_end=policy)
    script.send(nbirth(0, bd=0, at=100))
    for seq in range(2, 129):
        assert script.send(ndata(seq, at=100 + seq)) == []
    assert script.send(ndata(129, at=229), ndata(130, at=230)) == []
    script.wait(0.1)
    assert script.send(ndeath(0))[-1] == "ndeath"
    script.wait(0.1)
    assert script.send(nbirth(0, bd=1, at=300)) == released
    assert [entry for entry in script.ledger if entry in ledger] == ledger
    assert script.send(ndata(1, at=301)) == ["ndata 1"]


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


# -- what a birth takes along, and what it leaves to the session before it -------------------------------------------------


def test_what_is_held_without_a_stamp_stays_in_the_session_that_ends():
    script = Script()
    script.send(nbirth(100, 0, 10), ddata(103))
    assert script.send(nbirth(105, 1, 12)) == ["ddata 103", "nbirth 105"]
    assert script.ledger == [("lost", (101, 102))]


@pytest.mark.parametrize(
    ("living", "held", "birth", "is_taken_along"),
    [
        (255, 2, 1, True),
        (254, 2, 0, True),
        (133, 135, 136, False),
        (254, 0, 253, False),
        (200, 203, 201, True),
        (200, 203, 200, False),
    ],
)
def test_with_the_stamp_of_the_birth_what_is_held_belongs_to_the_number_that_is_nearer(
    living: int, held: int, birth: int, is_taken_along: bool
):
    script = Script()
    script.send(nbirth(living, 0, 10), ndata(held, 12))
    script.send(nbirth(birth, 1, 12))
    script.wait(2)
    epochs = {effect.message.body: effect.epoch for effect in script.effects if isinstance(effect, Ordered)}
    assert epochs[f"ndata {held}"] == (2 if is_taken_along else 1)


@pytest.mark.parametrize(
    ("living", "held", "birth", "released"),
    [
        (nbirth(254, 0, 10), ndata(0, 8), nbirth(255, 0, 8), ["nbirth 255", "ndata 0"]),
        (nbirth(200, 1, 11), ndata(202, 12), nbirth(200, 1, 5), ["ndata 202", "nbirth 200"]),
    ],
)
def test_after_a_clock_was_set_back_the_number_alone_tells_what_belongs_to_the_birth(living, held, birth, released):
    script = Script()
    script.send(living, held)
    assert script.send(birth) == released


def test_a_birth_with_the_stamp_of_what_was_released_last_is_not_of_a_clock_that_was_set_back():
    """So what is stamped after it is taken along, although its number is nearer to the session before."""
    script = Script()
    script.send(ddata(130, 12), ddata(132, 14))
    assert script.send(nbirth(133, 2, 12)) == ["nbirth 133"]
    assert [held.message.body for held in script.node.snapshot().waiting] == ["ddata 132"]


def test_the_gap_before_what_a_birth_took_along_has_the_time_of_its_arrival():
    script = Script()
    script.send(nbirth(254, 0, 10))
    script.wait(1)
    script.send(ndata(2, 12))
    script.wait(0.5)
    assert script.send(nbirth(0, 0, 12)) == ["nbirth 0"]
    assert script.node.deadline == 3.5, "it is waited for since the birth"


def test_a_death_that_is_repeated_keeps_out_nobody_who_was_stamped_after_its_session():
    script = Script()
    script.send(nbirth(0, 0, 10), ndeath(0), ndeath(0))
    assert script.send(nbirth(2, 0, 14)) == ["nbirth 2"]


def test_a_birth_of_number_0_whose_session_has_ended_is_entered_under_its_number():
    script = Script()
    script.send(ndeath(0), nbirth(0, 0, 5))
    entries = [effect for effect in script.effects if isinstance(effect, LedgerEntry)]
    assert [(entry.first, entry.last, entry.detail) for entry in entries] == [(0, 0, "its session has already ended")]


# -- what is left over from the session before -----------------------------------------------------------------------------

LEFT_OVER = "stamped before the birth of the session"


def left_over(script: Script) -> list[tuple[str, float, str]]:
    entries = [effect for effect in script.effects if isinstance(effect, LedgerEntry) and effect.message]
    return [(entry.message.body, entry.time, entry.detail) for entry in entries if entry.message]


def test_what_is_held_is_left_over_once_a_message_stamped_like_the_birth_shows_that_its_clock_was_right():
    script = Script()
    script.send(nbirth(0, 0, 10), ndata(2, 9))
    script.wait(1)
    script.send(ndata(5, 10))
    assert left_over(script) == [("ndata 2", 1.0, LEFT_OVER)]
    assert [message.body for message in script.node.held()] == ["ndata 5"]


def test_a_message_that_comes_with_the_stamp_of_the_birth_is_not_left_over():
    script = Script()
    script.send(nbirth(0, 0, 10), ndata(1, 11), ndata(3, 10))
    assert (left_over(script), script.send(ndata(2, 12))) == ([], ["ndata 2", "ndata 3"])


def test_what_is_left_over_and_comes_late_is_entered_with_its_time():
    script = Script()
    script.wait(5)
    script.send(nbirth(6, 2, 16), dbirth(7, 16), ndata(4, 15))
    assert left_over(script) == [("ndata 4", 5.0, LEFT_OVER)]


def test_what_waited_for_a_birth_and_was_stamped_before_it_is_left_over_whenever_that_was():
    script = Script()
    script.wait(5)
    script.send(dbirth(1, 11))
    assert script.send(nbirth(200, 0, 13)) == ["nbirth 200"]
    assert script.send(dbirth(201, 14)) == ["dbirth 201"]
    assert left_over(script) == [("dbirth 1", 5.0, LEFT_OVER)]


def test_a_message_is_left_over_up_to_the_very_end_of_the_timeout():
    script = Script()
    script.send(nbirth(0, 0, 10), ndata(1, 11))
    script.wait(2)
    script.send(ndata(4, 6))
    assert left_over(script) == [("ndata 4", 2.0, LEFT_OVER)]
    script.wait(0.5)
    assert script.send(ndata(4, 6)) == []
    assert [message.body for message in script.node.held()] == ["ndata 4"]


def test_a_stamp_that_is_older_than_one_released_before_is_not_the_newest():
    script = Script()
    script.send(nbirth(0, 1, 13), ndata(104, 12))
    script.wait(5)
    assert script.node.bookmark().newest == 13
