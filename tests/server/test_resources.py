"""Topics, subscriptions and snapshots over the wire: what is kept, what may change, what is refused with which status."""

from __future__ import annotations

import time
from dataclasses import replace

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from seriatim.core.lanes.types import OnExhausted, ReleaseAfter, RetryPolicy
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from tests.server.conftest import publish
from tests.server.served import DEAD, PROJECT, SUBSCRIPTION, TOPIC, ServerThread, server_in_thread

SNAPSHOT = f"{PROJECT}/snapshots/then"
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
LONG = "x" * 300


def status_of(call, **fields) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as refused:
        call(**fields)
    return refused.value.code()


def take(raw, count: int = 10, subscription: str = SUBSCRIPTION) -> list[str]:
    """Pull what there is, and ack it."""
    pulled = raw.Pull(subscription=subscription, max_messages=count).received_messages
    raw.Acknowledge(subscription=subscription, ack_ids=[one.ack_id for one in pulled])
    return [one.message.data.decode() for one in pulled]


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_everything_that_a_client_says_of_a_subscription_survives_a_restart(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with server_in_thread(url) as server:
        raw = server.clients.raw()
        raw.CreateTopic(name=TOPIC, labels={"a": "1"}, message_retention_duration={"seconds": 3600}, kms_key_name="key")
        raw.CreateTopic(name=DEAD)
        topic = raw.GetTopic(topic=TOPIC)
        subscription = raw.CreateSubscription(
            name=SUBSCRIPTION,
            topic=TOPIC,
            ack_deadline_seconds=20,
            retain_acked_messages=True,
            message_retention_duration={"seconds": 1200},
            labels={"b": "2"},
            enable_message_ordering=True,
            expiration_policy={"ttl": {"seconds": 86400}},
            filter='hasPrefix(attributes.kind, "or")',
            dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": 7},
            retry_policy={"minimum_backoff": {"seconds": 11}, "maximum_backoff": {"seconds": 12, "nanos": 500000000}},
            enable_exactly_once_delivery=True,
        )
        snapshot = raw.CreateSnapshot(name=SNAPSHOT, subscription=SUBSCRIPTION, labels={"c": "3"})
    assert dict(topic.labels) == {"a": "1"}
    assert subscription.retry_policy.maximum_backoff.nanos == 500000000
    with server_in_thread(url) as server:
        raw = server.clients.raw()
        assert raw.GetTopic(topic=TOPIC) == topic
        assert raw.GetSubscription(subscription=SUBSCRIPTION) == subscription
        assert raw.GetSnapshot(snapshot=SNAPSHOT) == snapshot
        assert dict(snapshot.labels) == {"c": "3"}


def test_what_embedded_programs_make_is_seen_in_the_home_project(server: ServerThread, raw):
    server.run(server.engine.create_topic("orders"))
    server.run(
        server.engine.create_subscription("orders", "billing", SubscriptionOptions(message_ordering=True, window=4))
    )
    server.run(server.engine.create_topic("no id: it has spaces"))
    home = "projects/seriatim"
    assert [topic.name for topic in raw.ListTopics(project=home).topics] == [f"{home}/topics/orders"]
    found = raw.GetSubscription(subscription=f"{home}/subscriptions/billing")
    assert (found.topic, found.enable_message_ordering) == (f"{home}/topics/orders", True)
    raw.CreateTopic(name=f"{home}/topics/calls")
    raw.CreateTopic(name=TOPIC)
    assert {info.name for info in server.run(server.engine.list_topics())} >= {"calls", TOPIC}


def test_what_embedded_programs_said_survives_an_update(server: ServerThread, raw):
    topic = TopicOptions(retention=77, retain_settled=88)
    server.run(server.engine.create_topic("orders", topic))
    retry = RetryPolicy.immediate(max_attempts=3, on_exhausted=OnExhausted.PAUSE)
    options = SubscriptionOptions(
        message_ordering=True, window=4, retry=retry, release=ReleaseAfter.RECEIPT, ack_deadline=1.5
    )
    server.run(server.engine.create_subscription("orders", "billing", options))
    home, mask = "projects/seriatim", {"paths": ["labels"]}
    name = f"{home}/subscriptions/billing"
    assert dict(raw.GetSubscription(subscription=name).labels) == {"seriatim-window": "4"}
    raw.UpdateTopic(topic={"name": f"{home}/topics/orders", "labels": {"a": "b"}}, update_mask=mask)
    untouched = {"name": name, "expiration_policy": {}}
    raw.UpdateSubscription(subscription=untouched, update_mask={"paths": ["expiration_policy"]})
    changed = server.run(server.engine.describe_subscription("billing")).options
    assert replace(changed, resource=None) == options
    assert replace(server.run(server.engine.describe_topic("orders")).options, resource=None) == topic


def test_an_update_changes_what_its_mask_names_and_nothing_else(ordered):
    wanted = {
        "name": SUBSCRIPTION,
        "labels": {"new": "1"},
        "ack_deadline_seconds": 50,
        "retry_policy": {"minimum_backoff": {"seconds": 20}},
    }
    changed = ordered.UpdateSubscription(subscription=wanted, update_mask={"paths": ["labels", "retry_policy"]})
    assert (dict(changed.labels), changed.ack_deadline_seconds) == ({"new": "1"}, 10)
    assert (changed.retry_policy.minimum_backoff.seconds, changed.retry_policy.maximum_backoff.seconds) == (20, 600)
    assert changed.enable_message_ordering
    cleared = ordered.UpdateSubscription(
        subscription={"name": SUBSCRIPTION}, update_mask={"paths": ["labels", "retry_policy"]}
    )
    assert not cleared.labels
    assert not cleared.HasField("retry_policy")
    topic = ordered.UpdateTopic(
        topic={"name": TOPIC, "message_retention_duration": {"seconds": 600}},
        update_mask={"paths": ["message_retention_duration"]},
    )
    assert topic.message_retention_duration.seconds == 600


def test_lists_come_in_pages(raw):
    names = [f"{PROJECT}/topics/topic-{number}" for number in range(5)]
    for name in names:
        raw.CreateTopic(name=name)
    raw.CreateTopic(name="projects/other/topics/elsewhere")
    found, token = [], ""
    for _ in range(3):
        page = raw.ListTopics(project=PROJECT, page_size=2, page_token=token)
        found += [topic.name for topic in page.topics]
        token = page.next_page_token
    assert (found, token) == (names, "")
    for name in names:
        raw.CreateSubscription(name=name.replace("topics", "subscriptions"), topic=names[0])
    first = raw.ListTopicSubscriptions(topic=names[0], page_size=4)
    rest = raw.ListTopicSubscriptions(topic=names[0], page_size=4, page_token=first.next_page_token)
    assert len(first.subscriptions) + len(rest.subscriptions) == 5
    assert len(raw.ListSubscriptions(project=PROJECT).subscriptions) == 5


def test_subscriptions_outlive_their_topic_with_what_they_have(ordered):
    publish(ordered, "0")
    ordered.DeleteTopic(topic=TOPIC)
    assert ordered.GetSubscription(subscription=SUBSCRIPTION).topic == "_deleted-topic_"
    assert status_of(ordered.Publish, topic=TOPIC, messages=[{"data": b"x"}]) is NOT_FOUND
    assert take(ordered) == ["0"]
    ordered.DeleteSubscription(subscription=SUBSCRIPTION)
    assert [topic.name for topic in ordered.ListTopics(project=PROJECT).topics] == [DEAD]


def test_a_filter_keeps_messages_away(raw):
    raw.CreateTopic(name=TOPIC)
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, filter='attributes.kind = "order"')
    publish(raw, "no", kind="call")
    publish(raw, "yes", kind="order")
    assert take(raw) == ["yes"]


# -- snapshots and seek ------------------------------------------------------------------------------------------------


def test_seek_goes_back_to_a_snapshot_and_to_a_time(ordered):
    publish(ordered, "0")
    assert take(ordered) == ["0"]
    ordered.CreateSnapshot(name=SNAPSHOT, subscription=SUBSCRIPTION)
    assert list(ordered.ListTopicSnapshots(topic=TOPIC).snapshots) == [SNAPSHOT]
    publish(ordered, "1")
    assert take(ordered) == ["1"]
    ordered.Seek(subscription=SUBSCRIPTION, snapshot=SNAPSHOT)
    assert take(ordered) == ["1"]
    later = Timestamp()
    later.FromSeconds(int(time.time()) + 60)
    publish(ordered, "2")
    ordered.Seek(subscription=SUBSCRIPTION, time=later)
    assert not ordered.Pull(subscription=SUBSCRIPTION, max_messages=1, return_immediately=True).received_messages
    ordered.DeleteSnapshot(snapshot=SNAPSHOT)
    assert status_of(ordered.GetSnapshot, snapshot=SNAPSHOT) is NOT_FOUND


def test_retained_messages_come_again_after_their_acks(raw):
    raw.CreateTopic(name=TOPIC)
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True, retain_acked_messages=True)
    publish(raw, "0", "1")
    assert take(raw) + take(raw) == ["0", "1"]
    raw.Seek(subscription=SUBSCRIPTION, time=Timestamp(seconds=1))
    assert take(raw) + take(raw) == ["0", "1"]


def test_what_was_published_before_the_first_subscription_stays_for_the_topics_retention(server: ServerThread, raw):
    raw.CreateTopic(name=TOPIC)
    publish(raw, "0", "1")
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True)
    server.run(server.engine.clean_up())
    raw.Seek(subscription=SUBSCRIPTION, time=Timestamp(seconds=1))
    assert take(raw) + take(raw) == ["0", "1"]
    raw.CreateTopic(name=f"{TOPIC}-short", message_retention_duration={"seconds": 600})
    assert server.run(server.engine.describe_topic(f"{TOPIC}-short")).options.retention == 600


def test_a_topic_keeps_what_is_acked_as_long_as_a_subscription_wants_it(server: ServerThread, raw):
    def kept() -> float | None:
        return server.run(server.engine.describe_topic(TOPIC)).options.retain_settled

    raw.CreateTopic(name=TOPIC, message_retention_duration={"seconds": 700})
    raw.CreateSubscription(
        name=SUBSCRIPTION, topic=TOPIC, retain_acked_messages=True, message_retention_duration={"seconds": 900}
    )
    assert kept() == 900
    wanted = {"name": TOPIC, "message_retention_duration": {"seconds": 600}}
    raw.UpdateTopic(topic=wanted, update_mask={"paths": ["message_retention_duration"]})
    assert kept() == 900
    raw.UpdateSubscription(subscription={"name": SUBSCRIPTION}, update_mask={"paths": ["retain_acked_messages"]})
    assert kept() == 600


def test_a_snapshot_without_a_name_gets_one_and_can_be_relabelled(ordered):
    snapshot = ordered.CreateSnapshot(subscription=SUBSCRIPTION)
    assert snapshot.name.startswith(f"{PROJECT}/snapshots/snapshot-")
    changed = ordered.UpdateSnapshot(
        snapshot={"name": snapshot.name, "labels": {"a": "b"}}, update_mask={"paths": ["labels"]}
    )
    assert (dict(changed.labels), changed.expire_time) == ({"a": "b"}, snapshot.expire_time)
    assert ordered.ListSnapshots(project=PROJECT).snapshots == [changed]


def test_pages_hold_what_belongs_to_the_project_and_nothing_else(server: ServerThread, raw):
    """The home project has short names in the store, between which those of others stand."""
    home = "projects/seriatim"
    ids = ["abc", "prince", "projects-of-mine", "projects0", "queue"]
    for name in [
        *ids,
        "no id: it has spaces",
        "a",
        f"{home}/topics/whole",
        *(f"projects/x/topics/log{n}" for n in range(9)),
    ]:
        server.run(server.engine.create_topic(name))

    def pages(project: str, size: int) -> list[list[str]]:
        found, token = [], ""
        while True:
            page = raw.ListTopics(project=project, page_size=size, page_token=token)
            found.append([topic.name.rpartition("/")[2] for topic in page.topics])
            token = page.next_page_token
            if not token:
                return found

    assert pages(home, 2) == [["abc", "prince"], ["projects-of-mine", "projects0"], ["queue", "whole"]]
    assert pages(home, 100) == [sorted([*ids, "whole"])]
    assert pages("projects/x", 4) == [["log0", "log1", "log2", "log3"], ["log4", "log5", "log6", "log7"], ["log8"]]
    assert pages("projects/nobody", 4) == [[]]
    after = raw.ListTopics(project=home, page_token="projects/zzz")
    assert list(after.topics) == []


def test_creating_a_subscription_does_not_look_at_the_others(server: ServerThread, raw, monkeypatch):
    raw.CreateTopic(name=TOPIC)

    async def refuse(**_: object) -> None:
        raise AssertionError("all of them were asked for")

    monkeypatch.setattr(server.engine, "list_subscriptions", refuse)
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC)
    raw.CreateSubscription(name=f"{SUBSCRIPTION}-2", topic=TOPIC, retain_acked_messages=True)
    raw.UpdateSubscription(subscription={"name": SUBSCRIPTION, "labels": {"a": "b"}}, update_mask={"paths": ["labels"]})
    raw.DeleteSubscription(subscription=SUBSCRIPTION)
    assert server.run(server.engine.describe_topic(TOPIC)).options.retain_settled == 7 * 24 * 3600


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("", "orders", "projects/demo/topics/", "projects/demo/topics/ab", "projects/demo/topics/1abc"),
        *("projects/demo/topics/googles", f"projects/demo/topics/{LONG}", "projects/demo/subscriptions/abc"),
        *("projects/demo/topics/a b c", "projects/demo/topics/abc/def", "projects/demo/topics/abc\n"),
        "projects//topics/abc",
    ],
)
def test_names_that_are_none(raw, name):
    assert status_of(raw.CreateTopic, name=name) is INVALID


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"ack_deadline_seconds": 601}, INVALID),
        ({"ack_deadline_seconds": -1}, INVALID),
        ({"filter": "nonsense"}, INVALID),
        ({"labels": {"Upper": "x"}}, INVALID),
        ({"labels": {"a": LONG}}, INVALID),
        ({"labels": {f"l{number}": "" for number in range(65)}}, INVALID),
        ({"labels": {"seriatim-window": "many"}}, INVALID),
        ({"labels": {"seriatim-window": "0"}}, INVALID),
        ({"labels": {"seriatim-keep": "some"}}, INVALID),
        ({"labels": {"seriatim-windw": "3"}}, INVALID),
        ({"message_retention_duration": {"seconds": 10}}, INVALID),
        ({"retry_policy": {"minimum_backoff": {"seconds": 601}}}, INVALID),
        ({"retry_policy": {"minimum_backoff": {"seconds": 9}, "maximum_backoff": {"seconds": 8}}}, INVALID),
        ({"dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 4}}, INVALID),
        ({"dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 101}}, INVALID),
        ({"dead_letter_policy": {"dead_letter_topic": f"{DEAD}-2", "max_delivery_attempts": 5}}, NOT_FOUND),
        ({"dead_letter_policy": {"dead_letter_topic": TOPIC, "max_delivery_attempts": 5}}, INVALID),
        ({"topic": f"{TOPIC}-2"}, NOT_FOUND),
        ({"topic": "orders"}, INVALID),
        ({"bigquery_config": {"table": "t"}}, grpc.StatusCode.UNIMPLEMENTED),
        ({"cloud_storage_config": {"bucket": "b"}}, grpc.StatusCode.UNIMPLEMENTED),
        ({"message_transforms": [{"disabled": True}]}, grpc.StatusCode.UNIMPLEMENTED),
        ({"name": SUBSCRIPTION}, grpc.StatusCode.ALREADY_EXISTS),
    ],
)
def test_subscriptions_that_can_not_be(ordered, fields, status):
    wanted = {"name": f"{SUBSCRIPTION}-2", "topic": TOPIC, **fields}
    assert status_of(ordered.CreateSubscription, **wanted) is status


@pytest.mark.parametrize(
    "paths",
    [
        *([], ["nonsense"], ["labels.team"], ["name"], ["topic"], ["filter"], ["enable_message_ordering"]),
        *(["retry_policy.x"], ["labels", "detached"], [""], ["."]),
    ],
)
def test_masks_that_can_not_be(ordered, paths):
    before = ordered.GetSubscription(subscription=SUBSCRIPTION)
    wanted = {"name": SUBSCRIPTION, "labels": {"a": "b"}, "topic": DEAD}
    assert status_of(ordered.UpdateSubscription, subscription=wanted, update_mask={"paths": paths}) is INVALID
    assert ordered.GetSubscription(subscription=SUBSCRIPTION) == before


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("GetTopic", {"topic": f"{PROJECT}/topics/none"}),
        ("DeleteTopic", {"topic": f"{PROJECT}/topics/none"}),
        ("UpdateTopic", {"topic": {"name": f"{PROJECT}/topics/none"}, "update_mask": {"paths": ["labels"]}}),
        ("ListTopicSubscriptions", {"topic": f"{PROJECT}/topics/none"}),
        ("ListTopicSnapshots", {"topic": f"{PROJECT}/topics/none"}),
        ("Publish", {"topic": f"{PROJECT}/topics/none", "messages": [{"data": b"x"}]}),
        ("DetachSubscription", {"subscription": f"{PROJECT}/subscriptions/none"}),
        ("GetSubscription", {"subscription": f"{PROJECT}/subscriptions/none"}),
        ("DeleteSubscription", {"subscription": f"{PROJECT}/subscriptions/none"}),
        ("Pull", {"subscription": f"{PROJECT}/subscriptions/none", "max_messages": 1}),
        ("Acknowledge", {"subscription": f"{PROJECT}/subscriptions/none", "ack_ids": ["1-1-1"]}),
        ("ModifyAckDeadline", {"subscription": f"{PROJECT}/subscriptions/none", "ack_ids": ["1-1-1"]}),
        ("ModifyPushConfig", {"subscription": f"{PROJECT}/subscriptions/none"}),
        ("Seek", {"subscription": f"{PROJECT}/subscriptions/none", "snapshot": SNAPSHOT}),
        ("Seek", {"subscription": SUBSCRIPTION, "snapshot": SNAPSHOT}),
        ("CreateSnapshot", {"subscription": f"{PROJECT}/subscriptions/none", "name": SNAPSHOT}),
        ("GetSnapshot", {"snapshot": SNAPSHOT}),
        ("UpdateSnapshot", {"snapshot": {"name": SNAPSHOT}, "update_mask": {"paths": ["labels"]}}),
        ("DeleteSnapshot", {"snapshot": SNAPSHOT}),
    ],
)
def test_what_there_is_not(ordered, method, fields):
    assert status_of(getattr(ordered, method), **fields) is NOT_FOUND


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{}],
        [{"ordering_key": "k"}],
        [{"data": b"x", "ordering_key": "k" * 1025}],
        [{"data": b"x", "attributes": {"goog-x": "1"}}],
        [{"data": b"x", "attributes": {"": "1"}}],
        [{"data": b"x", "attributes": {"a" * 257: "1"}}],
        [{"data": b"x", "attributes": {"a": "1" * 1025}}],
        [{"data": b"x", "attributes": {f"a{number}": "" for number in range(101)}}],
        [{"data": b"x"}] * 1001,
        [{"data": b"fine"}, {"data": b"x" * (10 * 1024 * 1024 + 1)}],
    ],
)
def test_messages_that_can_not_be_published(ordered, messages):
    assert status_of(ordered.Publish, topic=TOPIC, messages=messages) is INVALID
    publish(ordered, "still served")
    assert take(ordered) == ["still served"], "nothing of the bad request was stored"


def test_a_request_that_is_too_large(ordered):
    messages = [{"data": b"x" * (9 * 1024 * 1024)}] * 3
    assert status_of(ordered.Publish, topic=TOPIC, messages=messages) is grpc.StatusCode.RESOURCE_EXHAUSTED
    publish(ordered, "still served")


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("Pull", {"subscription": SUBSCRIPTION, "max_messages": 0}),
        ("Seek", {"subscription": SUBSCRIPTION}),
        ("Acknowledge", {"subscription": SUBSCRIPTION, "ack_ids": ["nonsense"]}),
        ("ModifyAckDeadline", {"subscription": SUBSCRIPTION, "ack_ids": ["1-1-1"], "ack_deadline_seconds": 601}),
        ("ModifyAckDeadline", {"subscription": SUBSCRIPTION, "ack_ids": ["1-1-1"], "ack_deadline_seconds": -1}),
        ("ListTopics", {"project": "demo"}),
        ("ListTopics", {"project": PROJECT, "page_size": -1}),
    ],
)
def test_questions_that_make_no_sense(ordered, method, fields):
    assert status_of(getattr(ordered, method), **fields) is INVALID


LONG = "x" * 2049


@pytest.mark.parametrize(
    "fields",
    [
        {"kms_key_name": LONG},
        {"kms_key_name": "ü" * 1025},
        {"message_storage_policy": {"allowed_persistence_regions": [LONG]}},
        {"message_storage_policy": {"allowed_persistence_regions": ["europe-west1"] * 101}},
        {"tags": {LONG: "x"}},
        {"tags": {"x": LONG}},
    ],
)
def test_every_text_list_and_map_of_a_topic_has_a_limit(raw, fields):
    assert status_of(raw.CreateTopic, name=TOPIC, **fields) is INVALID
    assert raw.CreateTopic(name=TOPIC, kms_key_name=LONG[1:]).kms_key_name == LONG[1:]
    paths = [name for name in fields if name != "tags"]
    update = {"topic": {"name": TOPIC, **fields}, "update_mask": {"paths": paths}}
    assert status_of(raw.UpdateTopic, **update) is INVALID


@pytest.mark.parametrize("attributes", [{"x": LONG}, {f"x{number}": "" for number in range(101)}])
def test_every_text_list_and_map_of_a_subscription_has_a_limit(raw, attributes):
    raw.CreateTopic(name=TOPIC)
    config = {"push_endpoint": "http://127.0.0.1:9/", "attributes": attributes}
    assert status_of(raw.CreateSubscription, name=SUBSCRIPTION, topic=TOPIC, push_config=config) is INVALID
