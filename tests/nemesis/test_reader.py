"""What readers of a topic recorded: redeliveries are no second message, and whatever was read once is still there later."""

from __future__ import annotations

from tests.nemesis.history import Event
from tests.nemesis.reader import check_same, messages_read, subscription_of


def read(*ids: str, reader: str = "live", key: str = "k") -> list[Event]:
    sub = subscription_of(reader, "t")
    return [Event(float(at), "r", "read", key=key, sub=sub, id=id_) for at, id_ in enumerate(ids)]


def test_a_message_that_is_delivered_again_is_read_once_where_it_was_first() -> None:
    events = [*read("1", "2", "1", "3"), *read("9", reader="audit")]
    assert [event.id for event in messages_read(events, "live", "t")] == ["1", "2", "3"]


def test_two_readers_of_the_same_messages_agree_whatever_the_order_of_the_keys() -> None:
    one = [*read("1", "2"), *read("3", key="other")]
    other = [*read("3", key="other"), *read("1", "2")]
    assert check_same(one, other, "t") == []


def test_a_message_that_is_gone_or_elsewhere_later_has_changed_the_topic() -> None:
    assert [anomaly.kind for anomaly in check_same(read("1", "2"), read("1"), "t")] == ["changed"]
    assert [anomaly.kind for anomaly in check_same(read("1", "2"), read("2", "1"), "t")] == ["changed"]
    assert [anomaly.kind for anomaly in check_same(read("1"), [], "t")] == ["changed"]
