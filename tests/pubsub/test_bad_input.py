"""Whatever bytes come, each call ends with a status of the caller's, and the server goes on serving."""

from __future__ import annotations

import random
from contextlib import suppress

import grpc
import pytest

from seriatim.wire.services import SERVICES
from tests.pubsub.served import DEAD, PROJECT, SUBSCRIPTION, TOPIC

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
