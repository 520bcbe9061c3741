"""The checker of the nemesis, with one planted anomaly of each kind: it finds that one, and nothing in a clean history."""

from __future__ import annotations

import json
import time
from copy import deepcopy

import pytest

from tests.nemesis.checker import Promises, check
from tests.nemesis.history import Event, Recorder, read_all


class History:
    """Builds a history step by step; each step takes a second."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, what: str, number: int = -1, **fields) -> History:
        fields = {"who": "a", "key": "k", **fields}
        if what not in ("publish", "published", "refused"):
            fields.setdefault("sub", "s")
        self.events.append(Event(at=float(len(self.events)), what=what, number=number, **fields))
        return self

    def publish(self, *numbers: int) -> History:
        for number in numbers:
            self("publish", number)("published", number, id=f"{number}")
        return self

    def deliver(self, number: int, lease: int = 0, **fields) -> History:
        return self("delivered", number, lease=lease or number, **{"attempt": 1, **fields})

    def ack(self, number: int, lease: int = 0, **fields) -> History:
        lease = lease or number
        return self("ack", number, lease=lease, **fields)("acked", number, lease=lease, **fields)

    def handle(self, *numbers: int) -> History:
        for number in numbers:
            self.deliver(number).ack(number)
        return self


def kinds(history: History, dead=(), **promises) -> list[str]:
    return [anomaly.kind for anomaly in check(history.events, Promises("s", **promises), dead)]


def test_a_clean_history_has_no_anomaly() -> None:
    assert kinds(History().publish(1, 2, 3).handle(1, 2, 3)) == []


def test_a_redelivery_before_the_ack_is_fine() -> None:
    assert (
        kinds(History().publish(1, 2).deliver(1)("nack", 1, lease=1).deliver(1, 9, attempt=2).ack(1, 9).handle(2)) == []
    )


def test_a_confirmed_publish_that_never_comes_is_lost() -> None:
    assert kinds(History().publish(1, 2).handle(1)) == ["lost"]


def test_what_waits_is_not_lost_while_nothing_was_drained() -> None:
    assert kinds(History().publish(1, 2).handle(1), is_drained=False) == []


def test_a_publish_of_unknown_outcome_may_come_or_not() -> None:
    assert kinds(History()("publish", 1).publish(2).handle(2)) == []
    assert kinds(History()("publish", 1).publish(2).handle(1, 2)) == []


def test_a_refused_publish_that_is_delivered_is_a_ghost() -> None:
    assert kinds(History()("publish", 1)("refused", 1).handle(1)) == ["ghost"]


def test_what_nobody_published_is_a_ghost() -> None:
    assert kinds(History().handle(1)) == ["ghost"]


def test_one_publish_that_comes_as_two_messages_is_duplicated() -> None:
    history = History().publish(1).deliver(1, id="1").ack(1).deliver(1, 7, id="2").ack(1, 7)
    assert "duplicated" in kinds(history, is_stored_once=True)
    assert kinds(History().publish(1).deliver(1, id="3").ack(1), is_stored_once=True) == ["duplicated"]


def test_one_message_that_was_published_again_with_its_id_and_is_there_twice_is_stored_twice() -> None:
    def repeated() -> History:
        return History()("publish", 1, dedup_id="k 1")("again", 1)("published", 1, id="1").deliver(1, id="1").ack(1)

    assert kinds(repeated(), is_stored_once=True) == []
    assert kinds(repeated()("again", 1)("published", 1, id="2"), is_stored_once=True) == ["stored twice"]
    delivered_twice = repeated().deliver(1, 7, id="2").ack(1, 7)
    assert "stored twice" in kinds(delivered_twice, is_stored_once=True)


def test_the_place_of_a_message_that_was_never_confirmed_is_promised_unless_a_network_is_between() -> None:
    history = History()("publish", 1).publish(2).handle(2, 1)
    assert kinds(history) == ["reordered"]
    assert kinds(history, orders_unconfirmed=False) == []
    confirmed = History().publish(1, 2).handle(2, 1)
    assert kinds(confirmed, orders_unconfirmed=False) == ["reordered"]


def test_a_delivery_past_an_unsettled_message_is_reordered() -> None:
    assert kinds(History().publish(1, 2).deliver(2).ack(2).handle(1)) == ["reordered"]
    assert kinds(History().publish(1, 2).deliver(1).deliver(2).ack(2).ack(1)) == ["reordered", "two in flight"]


def test_other_keys_may_pass() -> None:
    history = History().publish(1)
    history("publish", 1, key="other")("published", 1, key="other", id="9")
    history("delivered", 1, key="other", lease=5, attempt=1)("ack", 1, key="other", lease=5).handle(1)
    assert kinds(history) == []


def test_a_delivery_after_a_confirmed_ack_is_repeated() -> None:
    assert kinds(History().publish(1).handle(1)("returned", 1).deliver(1, 7, attempt=2)) == ["repeated"]


def test_a_handler_of_an_old_lease_that_began_just_after_its_message_was_acked_is_no_anomaly_unless_it_settles_something() -> (
    None
):
    history = History().publish(1).handle(1).deliver(1, 7, attempt=2)
    assert kinds(history) == []
    assert kinds(history.ack(1, 7)) == ["repeated", "stale accepted"]


def test_a_delivery_after_an_ack_of_unknown_outcome_is_fine() -> None:
    assert kinds(History().publish(1).deliver(1)("ack", 1, lease=1).deliver(1, 7, attempt=2).ack(1, 7)) == []


def test_a_handler_that_began_too_late_to_know_is_no_anomaly_when_its_ack_is_refused() -> None:
    history = History().publish(1).handle(1).deliver(1, 7, attempt=2)("ack", 1, lease=7)("stale", 1, lease=7)
    assert kinds(history) == []


def test_a_handler_right_after_its_client_was_continued_is_no_anomaly_unless_it_settles_something() -> None:
    history = History().publish(1).handle(1)
    history("continued", who="b", key="").events.append(
        Event(at=history.events[-1].at + 0.1, who="b", what="delivered", key="k", number=1, sub="s", attempt=2, lease=7)
    )
    assert kinds(history) == []
    assert "repeated" in kinds(history.ack(1, 7, who="b"))


def test_a_handler_in_a_client_that_is_cut_off_is_no_anomaly_unless_it_settles_something() -> None:
    history = History().publish(1).handle(1)("impaired", who="b", key="").deliver(1, 7, who="b", attempt=2)
    assert kinds(history) == []
    assert "repeated" in kinds(history.ack(1, 7, who="b"))


def test_a_handler_counts_once_its_client_was_connected_again_for_longer_than_it_was_cut_off() -> None:
    cut = History().publish(1).handle(1)("impaired", who="b", key="").publish(2)("continued", who="b", key="")
    late = deepcopy(cut).handle(2).publish(3).handle(3)
    assert kinds(cut.deliver(1, 7, who="b", attempt=2), is_drained=False) == []
    assert "repeated" in kinds(late.deliver(1, 7, who="b", attempt=2))


def test_a_handler_in_a_client_that_got_no_processor_is_no_anomaly_unless_it_settles_something() -> None:
    acked = History().publish(1).deliver(1).ack(1)

    def late(body: str = "6.0", who: str = "a") -> History:
        history = deepcopy(acked)
        for _ in range(5):
            history("waiting")
        return history.deliver(1, 9)("stalled", body=body, who=who)

    assert kinds(late()) == []
    assert kinds(late(body="0.5")) == ["repeated"]  # it had been at work before
    assert kinds(late(who="b")) == ["repeated"]
    assert "repeated" in kinds(late().ack(1, 9))
    again = late()
    for _ in range(9):
        again("waiting")
    assert kinds(again.deliver(1, 10)) == ["repeated"]  # by then it must have known


def test_an_ack_whose_refusal_may_come_from_its_own_repetition_may_have_settled_the_message() -> None:
    history = History().publish(1, 2).deliver(1)("ack", 1, lease=1)("unsure", 1, lease=1).handle(2)
    assert kinds(history) == []


def test_two_confirmed_acks_of_one_message_are_a_stale_ack_accepted() -> None:
    history = History().publish(1).deliver(1).deliver(1, 7, who="b", attempt=2).ack(1, 7, who="b").ack(1)
    assert "stale accepted" in kinds(history)


def test_overlapping_handlers_whose_acks_both_hold_are_two_in_flight() -> None:
    history = History().publish(1, 2).deliver(1)("ack", 1, lease=1)
    overlapping = History()
    overlapping.events = history.events
    overlapping.deliver(1, 8, who="b", attempt=2).deliver(2)("acked", 1, lease=1).ack(2).ack(1, 8, who="b")
    assert "two in flight" in kinds(overlapping)


def test_messages_of_a_batch_begin_together_and_nothing_else_of_their_key_does() -> None:
    batch = History().publish(1, 2, 3).deliver(1, 7).deliver(2, 7)
    assert kinds(deepcopy(batch).ack(1, 7).ack(2, 7).handle(3)) == []
    assert kinds(deepcopy(batch).deliver(3, 8).ack(1, 7).ack(2, 7).ack(3, 8)) == ["reordered", "two in flight"]
    behind = History().publish(1, 2, 3).deliver(2, 7).deliver(3, 7).ack(2, 7).ack(3, 7).handle(1)
    assert kinds(behind) == ["reordered", "reordered"]


def test_messages_of_a_batch_that_are_not_in_order_or_leave_one_out_are_reordered() -> None:
    backwards = History().publish(1, 2).deliver(2, 7).deliver(1, 7).ack(1, 7).ack(2, 7)
    assert kinds(backwards) == ["reordered"]
    without_2 = History().publish(1, 2, 3).deliver(1, 7).deliver(3, 7).ack(1, 7).ack(3, 7).handle(2)
    assert kinds(without_2) == ["reordered"]
    in_another = History().publish(1, 2, 3).deliver(1, 7).deliver(2, 7)("nack", 1, lease=7)
    in_another.deliver(1, 8).deliver(2, 9).deliver(3, 9).ack(1, 8).ack(2, 9).ack(3, 9)
    assert kinds(in_another) == ["reordered", "two in flight"]


def test_two_leases_of_a_key_that_share_a_message_are_two_in_flight_when_acks_of_both_hold() -> None:
    batches = History().publish(1, 2).deliver(1, 7).deliver(2, 7).deliver(2, 8, who="b").ack(1, 7).ack(2, 8, who="b")
    assert kinds(batches) == ["two in flight"]


def test_more_attempts_than_promised() -> None:
    history = History().publish(1).deliver(1).deliver(1, 8, attempt=2).deliver(1, 9, attempt=3).ack(1, 9)
    assert kinds(history, max_attempts=3) == []
    assert kinds(history, max_attempts=2) == ["attempts"]


def test_a_dead_letter_is_not_lost() -> None:
    history = History().publish(1, 2).deliver(1)("nack", 1, lease=1).handle(2)
    assert kinds(history) == ["lost", "reordered"]
    assert kinds(history, dead=[("k", 1)]) == []


def test_what_an_operator_took_out_is_not_lost() -> None:
    taken = History().publish(1, 2)("take-out")("taken-out", id="1").handle(2)
    assert kinds(taken) == []


def test_a_delivery_after_a_confirmed_take_out_is_brought_back() -> None:
    taken = History().publish(1, 2)("take-out")("taken-out", id="1").handle(2)
    assert kinds(taken.deliver(1, 7, id="1")) == ["brought back"]


def test_what_was_under_way_when_it_was_taken_out_may_still_be_handled_but_not_be_acked() -> None:
    taken = History().publish(1)("take-out")("taken-out", id="1").deliver(1, 7, id="1")
    patient = {"noticed_after_s": 1.5}
    assert kinds(taken, **patient) == []
    assert kinds(taken.ack(1, 7), **patient) == ["brought back", "settled twice"]


def test_a_delivery_after_a_later_message_was_acked_goes_back() -> None:
    """The first ack was never answered. It may have been accepted, and the delivery of the second shows that it was."""
    history = History().publish(1, 2).deliver(1)("ack", 1, lease=1).handle(2)
    assert kinds(history) == []
    assert kinds(history("returned", 2).deliver(1, 7, attempt=2)) == ["went back"]
    unconfirmed = (
        History()("publish", 1).publish(2).deliver(1)("ack", 1, lease=1).handle(2)("returned", 2).deliver(1, 7)
    )
    assert kinds(unconfirmed) == ["went back"]
    assert kinds(unconfirmed, orders_unconfirmed=False) == [], "through a network it may have come after the second"


def test_a_handler_of_an_old_lease_that_began_just_after_a_later_ack_is_no_anomaly_unless_it_settles_something() -> (
    None
):
    history = History().publish(1, 2).deliver(1)("ack", 1, lease=1).handle(2).deliver(1, 7, attempt=2)
    assert kinds(history) == []
    assert kinds(history.ack(1, 7)) == ["went back"]


def test_an_ack_and_a_dead_letter_of_one_message_are_settled_twice() -> None:
    assert kinds(History().publish(1).handle(1), dead=[("k", 1)]) == ["settled twice"]


def test_an_ack_and_a_take_out_of_one_message_are_settled_twice() -> None:
    history = History().publish(1).deliver(1, id="1")("take-out")("ack", 1, lease=1)("taken-out", id="1")
    assert kinds(history) == []
    assert kinds(history("acked", 1, lease=1)) == ["settled twice"]


def test_two_take_outs_of_one_message_are_settled_twice() -> None:
    history = History().publish(1)("take-out")("taken-out", id="1")
    assert kinds(history, dead=[("k", 1)]) == [], "the operator made it a dead letter"
    assert kinds(history("take-out", who="b")("taken-out", id="1", who="b")) == ["settled twice"]


def test_a_dead_letter_that_was_appended_again_is_a_message_of_its_own() -> None:
    """Its topic's other subscriptions get it a second time, long after later messages, and so does its own."""
    history = History().publish(1, 2)
    for number in (1, 2):
        history.deliver(number, id=f"{number}").ack(number)
    copy = history.deliver(1, 7, id="50").ack(1, 7)
    assert kinds(copy) == []
    assert kinds(copy, dead=[("k", 1)]) == [], "either of the two may be the dead letter"
    assert kinds(copy("returned", 1).deliver(1, 8, id="50")) == ["repeated"]


def test_a_dead_letter_that_was_never_delivered_before_it_was_appended_keeps_the_place_of_neither() -> None:
    history = History().publish(1, 2)("take-out")("taken-out", id="1").deliver(2, id="2").ack(2)
    assert kinds(history.deliver(1, 7, id="50").ack(1, 7)) == []


def test_a_refused_ack_settles_nothing() -> None:
    history = History().publish(1, 2).deliver(1)("take-out").deliver(2)("ack", 1, lease=1)("stale", 1, lease=1).ack(2)
    assert kinds(history) == [], "the operator may have taken it out"
    history.events = [event for event in history.events if event.what != "take-out"]
    assert kinds(history) == ["lost", "reordered"]


@pytest.mark.parametrize(("begun", "found"), [(0, ["lost", "lost", "reordered"]), (1, ["lost", "reordered"]), (2, [])])
def test_an_operator_who_heard_nothing_excuses_one_message_each_time(begun: int, found: list[str]) -> None:
    history = History().publish(1, 2, 3)
    for _ in range(begun):
        history("take-out")
    assert kinds(history.handle(3)) == found


def test_a_long_history_costs_little_more_than_sorting_it() -> None:
    """Anything quadratic would take hours here: one key, with refused acks, operators in doubt and dead letters."""
    history = History()
    for number in range(10_000):
        history.publish(number).deliver(number, 3 * number + 1)
        if number % 3 == 0:
            history("ack", number, lease=3 * number + 1)("stale", number, lease=3 * number + 1)
            history.deliver(number, 3 * number + 2, attempt=2)("take-out")
        else:
            history.ack(number, 3 * number + 1)
    dead = [("k", number) for number in range(0, 10_000, 3)]
    begun = time.monotonic()
    assert kinds(history, dead) == []
    assert time.monotonic() - begun < 30


def test_a_history_survives_its_recorder(tmp_path) -> None:
    record = Recorder(tmp_path, "a")
    record("publish", key="k", number=1)
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(json.dumps({"half": "a line"}).encode())
    (event,) = read_all(tmp_path)
    assert (event.who, event.what, event.key, event.number) == ("a", "publish", "k", 1)
