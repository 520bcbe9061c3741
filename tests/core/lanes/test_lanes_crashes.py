"""What a crash leaves, and lanes that are loaded from it."""

from __future__ import annotations

from math import inf

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import (
    Counts,
    Delivery,
    LaneView,
    Redriven,
    RetryMode,
    Returned,
)
from tests.core.lanes.crashes import SavedLanes, SavedMessage, crashed, saved
from tests.core.lanes.given import fails, lanes_of, offsets, retrying, take, view_of


def test_what_is_saved_is_what_a_crash_would_leave() -> None:
    lanes = lanes_of("a", "a", "b", "c", "d", "e", None, delivery=Delivery(window=2))
    lanes.advance(3)
    lanes.pause("e")
    lanes.dead_letter("d")
    lanes.dead_letter("c", "no use")
    lanes.confirm(4)
    leases = {lease.offset: lease.token for lease in take(lanes, now=3)}
    lanes.settle(leases[1])
    lanes.give_back(leases[3], 3, delay=2, error="boom")
    lanes.give_back(leases[7], 3, delay=2, error="boom")
    assert saved(lanes) == SavedLanes(
        now=3,
        next_token=5,
        messages=(
            SavedMessage("a", 1, failures=1),
            SavedMessage("a", 2, failures=1),
            SavedMessage("b", 3, 1, 5, "boom"),
            SavedMessage("d", 5),
            SavedMessage("e", 6),
            SavedMessage(None, 7, 1, 5, "boom", steps_aside=True),
        ),
        paused=("e",),
        returnable=(("c", 4),),
    )
    assert saved(lanes, count_leases=False).messages[:2] == (SavedMessage("a", 1), SavedMessage("a", 2))
    assert saved(crashed(lanes)) == saved(lanes)


def test_a_redrive_that_was_not_durable_did_not_happen() -> None:
    lanes = lanes_of("b", "a", delivery=Delivery())
    for key, offset in (("a", 2), ("b", 1)):
        lanes.dead_letter(key)
        lanes.confirm(offset)
    lanes.redrive("a", 2)
    left = saved(lanes)
    assert (left.messages, left.returnable) == ((), (("b", 1), ("a", 2)))
    lanes = crashed(lanes)
    assert lanes.redrive("a", 2) == Redriven("a", 2)
    lanes.confirm(2)
    assert offsets(take(lanes)) == [2]


def test_a_restart_forgets_no_trouble() -> None:
    lanes = lanes_of("a", delivery=retrying(min_backoff=5, max_attempts=3))
    fails(lanes, 1)
    lanes.push("b", 2, now=0)
    lanes = crashed(lanes)
    assert view_of(lanes, "a") == LaneView("a", "delayed", 1, 0, 1, 1, 5, "boom")
    assert lanes.counts() == Counts(2, 1, 0, 1, 0)
    lanes.advance(5)
    leases = take(lanes)
    assert leases[1][2:4] == (1, 2)
    assert lanes.give_back(leases[1].token, 5) == [Returned("a", 1, 2, 15, None)]


def test_an_overtaken_message_whose_time_has_come_is_ready_after_a_restart() -> None:
    lanes = lanes_of("a", delivery=retrying(mode=RetryMode.OVERTAKE, min_backoff=5))
    fails(lanes, 1)
    lanes.advance(5)
    assert offsets(take(crashed(lanes), now=5)) == [1]


def test_a_restored_message_without_trouble_costs_no_more_than_a_new_one() -> None:
    lanes = crashed(lanes_of("a", "a", None))
    assert not lanes.has_troubles
    assert offsets(take(lanes)) == [1, 3]


def test_new_lanes_have_seen_no_time() -> None:
    assert saved(Lanes()) == SavedLanes(now=-inf, next_token=1, messages=(), paused=(), returnable=())
