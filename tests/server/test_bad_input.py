"""Whatever bytes come, each call ends with a status of the caller's, and the server goes on serving."""

from __future__ import annotations

import random
from contextlib import suppress

import grpc
import pytest

from seriatim.wire.services import SERVICES
from tests.server.served import DEAD, PROJECT, SUBSCRIPTION, TOPIC

CASES = 400
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
}
WORDS = [
    "",
    TOPIC,
    DEAD,
    SUBSCRIPTION,
    PROJECT,
    f"{PROJECT}/snapshots/abc",
    "labels",
    "topic.x",
    "1-2-3",
    "\x00",
    "ü" * 600,
]
SENSIBLE = {
    "name": [TOPIC, SUBSCRIPTION, f"{PROJECT}/topics/new", f"{PROJECT}/subscriptions/new", f"{PROJECT}/schemas/new"],
    "topic": [TOPIC, f"{PROJECT}/topics/none"],
    "dead_letter_topic": [DEAD, f"{PROJECT}/topics/none"],
    "subscription": [SUBSCRIPTION, f"{PROJECT}/subscriptions/none"],
    "snapshot": [f"{PROJECT}/snapshots/abc"],
    "project": [PROJECT],
    "parent": [PROJECT],
    "resource": [TOPIC],
    "filter": ["", "attributes:a"],
    "push_endpoint": ["", "http://127.0.0.1:9/"],
}
UNARY = [
    (service, name, method.request)
    for service, methods in SERVICES.items()
    for name, method in methods.items()
    if not method.is_streaming
]


def random_message(chance: random.Random, kind, depth: int = 0):
    """A message of a kind with some of its fields filled, with what may even make sense."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if chance.random() < 0.5 or (depth > 3 and field.message_type):
            continue
        if field.is_repeated:
            fill_many(chance, message, field, depth)
        elif field.message_type:
            getattr(message, field.name).CopyFrom(random_message(chance, type(getattr(message, field.name)), depth + 1))
        else:
            setattr(message, field.name, random_value(chance, field))
    return message


def fill_many(chance: random.Random, message, field, depth: int) -> None:
    several = getattr(message, field.name)
    if field.message_type is None:
        several.extend(random_value(chance, field) for _ in range(chance.randrange(4)))
    elif field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is None:
            several[chance.choice(WORDS)] = chance.choice(WORDS)
    else:
        for _ in range(chance.randrange(4)):
            several.add().CopyFrom(random_message(chance, field.message_type._concrete_class, depth + 1))


def random_value(chance: random.Random, field):
    kinds = {
        field.CPPTYPE_STRING: lambda: (
            chance.randbytes(9) if field.type == field.TYPE_BYTES else random_text(chance, field)
        ),
        field.CPPTYPE_BOOL: lambda: chance.random() < 0.5,
        field.CPPTYPE_ENUM: lambda: chance.choice(field.enum_type.values).number,
        field.CPPTYPE_DOUBLE: chance.random,
    }
    return kinds.get(field.cpp_type, lambda: chance.choice([-(2**31), -1, 0, 1, 11, 601, 2**31 - 1]))()


def random_text(chance: random.Random, field) -> str:
    """More often than not something that is at its place."""
    return chance.choice(SENSIBLE.get(field.name, WORDS) if chance.random() < 0.8 else WORDS)


@pytest.mark.parametrize("seed", range(4))
def test_random_and_truncated_requests(ordered, seed):
    chance = random.Random(seed)
    seen = set()
    for _ in range(CASES // 4):
        service, name, kind = chance.choice(UNARY)
        data = random_message(chance, kind).SerializeToString()
        if chance.random() < 0.3:
            data = data[: chance.randrange(len(data) + 1)]
        if chance.random() < 0.2:
            data = chance.randbytes(chance.randrange(100))
        if name == "Pull":  # it would wait
            data += kind(return_immediately=True).SerializeToString()
        status = ordered.send_bytes(service, name, data)
        assert status in EXPECTED, (name, data)
        seen.add(status)
    assert len(seen) >= 3, "the cases are worth something"
    assert_serving(ordered)


@pytest.mark.parametrize("seed", range(2))
def test_random_streams(ordered, seed):
    chance = random.Random(seed)
    kind = SERVICES["google.pubsub.v1.Subscriber"]["StreamingPull"].request
    call = ordered._channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")
    for _ in range(CASES // 8):
        requests = [random_message(chance, kind) for _ in range(3)]
        if chance.random() < 0.7:
            requests[0].subscription, requests[0].stream_ack_deadline_seconds = SUBSCRIPTION, 10
        data = [one.SerializeToString()[: chance.choice([None, 3])] for one in requests]
        responses = call(iter(data), timeout=20)
        with suppress(grpc.RpcError):
            list(responses)
        assert responses.code() in EXPECTED, data
    assert_serving(ordered)


def assert_serving(raw) -> None:
    """A topic that nothing random can have touched works."""
    topic, subscription = f"{PROJECT}/topics/fresh", f"{PROJECT}/subscriptions/fresh"
    raw.CreateTopic(name=topic)
    raw.CreateSubscription(name=subscription, topic=topic)
    raw.Publish(topic=topic, messages=[{"data": b"well"}])
    (received,) = raw.Pull(subscription=subscription, max_messages=1).received_messages
    assert received.message.data == b"well"


def test_there_is_no_such_method(raw):
    assert raw.send_bytes("google.pubsub.v1.Publisher", "Nonsense", b"") is grpc.StatusCode.UNIMPLEMENTED


LATEST = 253_402_300_799
BAD_TIMES = [
    {"seconds": 2**63 - 1},
    {"seconds": -(2**63)},
    {"seconds": LATEST + 1},
    {"seconds": 1, "nanos": -1},
    {"seconds": 1, "nanos": 2**31 - 1},
]


@pytest.mark.parametrize("time", BAD_TIMES)
def test_times_that_protobuf_does_not_allow_are_refused_and_change_nothing(ordered, time):
    snapshot = f"{PROJECT}/snapshots/snap"
    ordered.CreateSnapshot(name=snapshot, subscription=SUBSCRIPTION)
    before = ordered.ListSnapshots(project=PROJECT)
    mask = {"paths": ["expire_time"]}
    calls = [
        lambda: ordered.UpdateSnapshot(snapshot={"name": snapshot, "expire_time": time}, update_mask=mask),
        lambda: ordered.Seek(subscription=SUBSCRIPTION, time=time),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "time is not a valid Timestamp" in refused.value.details()
    assert ordered.ListSnapshots(project=PROJECT) == before


DURATIONS = [{"seconds": 2**63 - 1}, {"seconds": -315_576_000_001}, {"seconds": 600, "nanos": -1}, {"nanos": 2**31 - 1}]


@pytest.mark.parametrize("duration", DURATIONS)
@pytest.mark.parametrize(
    "path", ["message_retention_duration", "expiration_policy.ttl", "retry_policy.minimum_backoff"]
)
def test_durations_that_protobuf_does_not_allow_are_refused(ordered, path, duration):
    value = duration
    for name in reversed(path.split(".")[1:]):
        value = {name: value}
    field = path.partition(".")[0]
    calls = [
        lambda: ordered.CreateSubscription(name=f"{SUBSCRIPTION}-2", topic=TOPIC, **{field: value}),
        lambda: ordered.UpdateSubscription(
            subscription={"name": SUBSCRIPTION, field: value}, update_mask={"paths": [field]}
        ),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "is not a valid Duration" in refused.value.details()


def test_a_negative_duration_is_read_as_such_and_refused_for_what_it_means(ordered):
    with pytest.raises(grpc.RpcError) as refused:
        ordered.CreateTopic(name=f"{TOPIC}-2", message_retention_duration={"seconds": -1, "nanos": -500_000_000})
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "10 minutes" in refused.value.details()


@pytest.mark.parametrize("text", ["x" * 5_000_000, "ü" * 2_500_000], ids=["ASCII", "umlauts"])
def test_errors_repeat_no_more_of_the_input_than_clients_take(ordered, text):
    for call in (
        lambda: ordered.GetTopic(topic=text),
        lambda: ordered.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, labels={text: ""}),
        lambda: ordered.CreateSubscription(name=f"{SUBSCRIPTION}-2", topic=TOPIC, filter=text),
        lambda: ordered.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[text]),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert len(refused.value.details().encode()) < 3000


def test_a_request_with_too_many_ack_ids_is_refused(ordered):
    for call in (
        lambda: ordered.Acknowledge(subscription=SUBSCRIPTION, ack_ids=["1-1-1"] * 10_001),
        lambda: ordered.ModifyAckDeadline(
            subscription=SUBSCRIPTION, ack_ids=["1-1-1"] * 10_001, ack_deadline_seconds=10
        ),
    ):
        with pytest.raises(grpc.RpcError, match="at most 10000 ack IDs"):
            call()
