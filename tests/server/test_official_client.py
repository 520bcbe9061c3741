"""google-cloud-pubsub from PyPI, as programs use it."""

from __future__ import annotations

import threading
from concurrent.futures import TimeoutError as FutureTimeout

import pytest
from google.api_core.exceptions import AlreadyExists, InvalidArgument, NotFound
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.protobuf import field_mask_pb2

from tests.server.served import DEAD, PATIENCE, SUBSCRIPTION, TOPIC, Clients, Inbox


@pytest.fixture
def ready(clients: Clients):
    """A publisher and a subscriber with an ordered subscription."""
    publisher, subscriber = clients.publisher(), clients.subscriber()
    publisher.create_topic(name=TOPIC)
    subscriber.create_subscription(request={"name": SUBSCRIPTION, "topic": TOPIC, "enable_message_ordering": True})
    return publisher, subscriber


def publish_all(publisher, *data: str, key: str = "k") -> None:
    for future in [publisher.publish(TOPIC, one.encode(), ordering_key=key) for one in data]:
        future.result(PATIENCE)


def test_messages_of_a_key_come_in_order(ready, clients: Clients):
    publisher, _ = ready
    inbox = Inbox()

    def work(message):
        inbox.add(message)
        message.ack()

    pulling = clients.subscribe(work)
    numbers = [str(number) for number in range(30)]
    publish_all(publisher, *numbers)
    assert inbox.wait(30) == numbers
    first = inbox.got[0]
    assert (first.ordering_key, first.message_id, first.delivery_attempt) == ("k", "0", None)
    pulling.cancel()
    pulling.result(PATIENCE)


def test_a_nacked_message_comes_again_before_those_behind_it(ready, clients: Clients):
    publisher, _ = ready
    inbox, refused = Inbox(), list[object]()

    def work(message):
        inbox.add(message)
        if message.data == b"3" and not refused:
            refused.append(message)
            message.nack()
        else:
            message.ack()

    clients.subscribe(work)
    publish_all(publisher, *map(str, range(10)))
    assert inbox.wait(11) == ["0", "1", "2", "3", "3", "4", "5", "6", "7", "8", "9"]


def test_two_subscribers_share_the_keys_and_each_key_stays_in_order(ready, clients: Clients):
    publisher, _ = ready
    inbox, busy, lock = Inbox(), set(), threading.Lock()

    def work(message):
        with lock:
            assert message.ordering_key not in busy, "two messages of a key were out at once"
            busy.add(message.ordering_key)
        inbox.add(message)
        with lock:
            busy.remove(message.ordering_key)
        message.ack()

    for _ in range(2):
        clients.subscribe(work)
    for number in range(20):
        for key in "abcde":
            publisher.publish(TOPIC, f"{key}{number}".encode(), ordering_key=key)
    inbox.wait(100)
    for key in "abcde":
        assert [data for data in inbox.data if data[0] == key] == [f"{key}{number}" for number in range(20)]


def test_a_dead_letter_leaves_and_unblocks_its_key(clients: Clients):
    publisher, subscriber = clients.publisher(), clients.subscriber()
    for topic in (TOPIC, DEAD):
        publisher.create_topic(name=topic)
    subscriber.create_subscription(name=f"{SUBSCRIPTION}-graves", topic=DEAD)
    subscriber.create_subscription(
        request={
            "name": SUBSCRIPTION,
            "topic": TOPIC,
            "enable_message_ordering": True,
            "dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 5},
        }
    )
    inbox, graves = Inbox(), Inbox()

    def work(message):
        inbox.add(message)
        message.nack() if message.data == b"poison" else message.ack()

    clients.subscribe(work)
    clients.subscribe(graves.add, f"{SUBSCRIPTION}-graves")
    publish_all(publisher, "before", "poison", "after")
    assert inbox.wait(7) == ["before", *["poison"] * 5, "after"]
    assert [message.delivery_attempt for message in inbox.got[1:6]] == [1, 2, 3, 4, 5]
    assert graves.wait(1) == ["poison"]
    attributes = graves.got[0].attributes
    assert attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"
    assert attributes["CloudPubSubDeadLetterSourceSubscription"] == "work"
    assert attributes["CloudPubSubDeadLetterSourceSubscriptionProject"] == "demo"
    assert attributes["CloudPubSubDeadLetterSourceTopicPublishTime"].startswith("20")


def test_exactly_once_an_ack_is_confirmed_and_a_late_one_refused(clients: Clients):
    publisher, subscriber = clients.publisher(), clients.subscriber()
    publisher.create_topic(name=TOPIC)
    subscriber.create_subscription(request={"name": SUBSCRIPTION, "topic": TOPIC, "enable_exactly_once_delivery": True})
    inbox = Inbox()
    clients.subscribe(inbox.add)
    publish_all(publisher, "one", "two", key="")
    inbox.wait(2)
    kept, lost = inbox.got
    assert kept.ack_with_response().result(PATIENCE) is AcknowledgeStatus.SUCCESS
    lost.nack_with_response().result(PATIENCE)
    inbox.wait(3)
    with pytest.raises(AcknowledgeError) as refused:
        lost.ack_with_response().result(PATIENCE)
    assert refused.value.error_code is AcknowledgeStatus.INVALID_ACK_ID
    assert inbox.got[2].ack_with_response().result(PATIENCE) is AcknowledgeStatus.SUCCESS


def test_resources_are_made_changed_listed_and_deleted(clients: Clients):
    publisher, subscriber = clients.publisher(), clients.subscriber()
    publisher.create_topic(request={"name": TOPIC, "labels": {"team": "blue"}})
    with pytest.raises(AlreadyExists):
        publisher.create_topic(name=TOPIC)
    assert publisher.get_topic(topic=TOPIC).labels == {"team": "blue"}
    made = subscriber.create_subscription(
        request={
            "name": SUBSCRIPTION,
            "topic": TOPIC,
            "filter": 'attributes.kind = "order"',
            "ack_deadline_seconds": 30,
        }
    )
    assert made == subscriber.get_subscription(subscription=SUBSCRIPTION)
    changed = subscriber.update_subscription(
        subscription={"name": SUBSCRIPTION, "ack_deadline_seconds": 60, "labels": {"team": "red"}},
        update_mask=field_mask_pb2.FieldMask(paths=["labels"]),
    )
    assert (changed.ack_deadline_seconds, changed.labels) == (30, {"team": "red"})
    assert [one.name for one in publisher.list_topics(project="projects/demo")] == [TOPIC]
    assert list(publisher.list_topic_subscriptions(topic=TOPIC)) == [SUBSCRIPTION]
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    publisher.delete_topic(topic=TOPIC)
    with pytest.raises(NotFound):
        publisher.get_topic(topic=TOPIC)


def test_a_key_that_is_too_long_is_refused(ready):
    publisher, _ = ready
    with pytest.raises(InvalidArgument, match="Ordering key exceeds maximum length"):
        publisher.publish(TOPIC, b"x", ordering_key="x" * 1025).result(PATIENCE)


def test_a_subscriber_hears_that_its_subscription_is_deleted(ready, clients: Clients):
    _, subscriber = ready
    pulling = clients.subscribe(lambda _: None)
    with pytest.raises(FutureTimeout):
        pulling.result(0.5)
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    with pytest.raises(NotFound):
        pulling.result(PATIENCE)
