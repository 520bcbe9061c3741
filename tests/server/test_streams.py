"""StreamingPull, by hand: what every client relies on, without the habits of one."""

from __future__ import annotations

import grpc
import pytest

from seriatim.errors import OutcomeUnknown
from seriatim.server import streaming_pull
from seriatim.server.options import ServerOptions
from tests.engine.conftest import WatchedStore
from tests.server.conftest import publish
from tests.server.served import DEAD, SUBSCRIPTION, TOPIC, ServerThread, server_in_thread

MASK = {"paths": ["labels"]}


def data_of(messages) -> list[str]:
    return [received.message.data.decode() for received in messages]


def test_only_one_message_of_a_key_is_out_whatever_the_number_of_streams(ordered):
    one, two = ordered.stream(), ordered.stream()
    publish(ordered, "0", "1", "2")
    publish(ordered, "end", key="z")
    # Both keys are out, and nothing more of k: a ping on both streams shows what came before its answer.
    came = until_quiet(one) + until_quiet(two)
    assert sorted(data_of(came)) == ["0", "end"]
    for expected in ("1", "2"):
        ordered.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[received.ack_id for received in came])
        came = until_something(one, two)
        assert data_of(came) == [expected]


def until_quiet(stream) -> list:
    """What has come on a stream; a ping is answered after it."""
    stream.send()
    found = []
    while True:
        response = stream.receive()
        found += response.received_messages
        if not response.received_messages:
            return found


def until_something(*streams) -> list:
    while True:
        for stream in streams:
            if found := until_quiet(stream):
                return found


def test_a_message_whose_deadline_passed_comes_again_before_those_behind_it(ordered):
    stream = ordered.stream(stream_ack_deadline_seconds=1)
    publish(ordered, "0", "1")
    assert data_of(stream.take(1)) == ["0"]
    (again,) = stream.take(1)
    assert data_of([again]) == ["0"]
    stream.ack(again)
    assert data_of(stream.take(1)) == ["1"]


def test_a_half_closed_stream_ends_well(ordered):
    stream = ordered.stream()
    assert stream.finish() is grpc.StatusCode.OK


def test_a_ping_is_answered_and_every_response_says_what_the_subscription_is(ordered):
    stream = ordered.stream()
    stream.send()
    pong = stream.receive()
    publish(ordered, "0")
    for response in (pong, stream.receive()):
        assert response.subscription_properties.message_ordering_enabled
        assert not response.subscription_properties.exactly_once_delivery_enabled


def test_a_client_that_pings_and_does_not_read_is_ended(ordered, monkeypatch):
    # Few, because the client begins to read when its pings are sent, which is before a busy server has seen them all.
    monkeypatch.setattr(streaming_pull, "MAX_UNSENT_ANSWERS", 20)
    stream = ordered.stream()
    for key in range(60):  # so much that the connection is full, and nothing more can be written
        ordered.Publish(topic=TOPIC, messages=[{"data": b"x" * 1_000_000, "ordering_key": f"k{key}"}])
    for _ in range(2000):
        stream.send()
    stream.until_sent()
    assert stream.end() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_client_gets_no_more_messages_than_it_asked_for(ordered):
    stream = ordered.stream(max_outstanding_messages=2)
    for key in "abcd":
        publish(ordered, key, key=key)
    first = until_quiet(stream)
    assert len(first) == 2
    stream.ack(first[0])
    assert len(stream.take(1)) == 1


def test_a_client_gets_no_more_bytes_than_it_asked_for(ordered):
    stream = ordered.stream(max_outstanding_bytes=1000)
    for key in "abcdef":
        publish(ordered, key * 400, key=key)
    first = until_quiet(stream)
    assert len(first) == 3, "the third one is begun below the limit"
    stream.ack(*first)
    assert len(until_something(stream)) == 3


def test_what_is_larger_than_the_messages_before_does_not_slip_through_the_limit_of_bytes(ordered):
    stream = ordered.stream(max_outstanding_bytes=1000)
    publish(ordered, "s", key="small")
    stream.ack(*stream.take(1))
    ordered.Publish(topic=TOPIC, messages=[{"data": b"x" * 600, "ordering_key": f"k{number}"} for number in range(5)])
    assert len(until_something(stream)) == 2


def test_acks_and_nacks_on_the_stream(ordered):
    stream = ordered.stream()
    publish(ordered, "0", "1")
    stream.nack(*stream.take(1))
    (again,) = stream.take(1)
    assert data_of([again]) == ["0"]
    stream.ack(again)
    assert data_of(stream.take(1)) == ["1"]


def test_one_request_acks_what_several_streams_have_and_a_lost_lease_among_them_stops_none(ordered):
    one, two = ordered.stream(max_outstanding_messages=2), ordered.stream(max_outstanding_messages=2)
    for key in "abcd":
        publish(ordered, f"{key}0", f"{key}1", key=key)
    came = one.take(2) + two.take(2)
    assert sorted(data_of(came)) == ["a0", "b0", "c0", "d0"]
    one.nack(came[1])
    (again,) = until_something(one, two)
    assert again.message == came[1].message
    one.ack(*came)  # the second one is lost
    assert sorted(data_of(one.take(1) + two.take(2))) == sorted(
        f"{key}1" for key in "abcd" if key != came[1].message.ordering_key
    )


def test_a_stream_may_change_the_deadline_of_what_comes_then(ordered):
    stream = ordered.stream(stream_ack_deadline_seconds=600)
    stream.send(stream_ack_deadline_seconds=1)
    stream.send()
    stream.receive()
    publish(ordered, "0")
    assert data_of(stream.take(1)) == data_of(stream.take(1)) == ["0"]


@pytest.mark.parametrize(
    "later",
    [
        {"subscription": SUBSCRIPTION},
        {"max_outstanding_messages": 5},
        {"max_outstanding_bytes": 5},
        {"client_id": "me"},
        {"protocol_version": 1},
        {"stream_ack_deadline_seconds": 601},
        {"modify_deadline_seconds": [1]},
        {"modify_deadline_seconds": [601], "modify_deadline_ack_ids": ["1-1-1"]},
        {"ack_ids": ["nonsense"]},
    ],
)
def test_what_a_later_request_may_not_say(ordered, later):
    stream = ordered.stream()
    stream.send(**later)
    assert stream.end() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("first", "status"),
    [
        ({"subscription": "nonsense"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"subscription": f"{SUBSCRIPTION}-other"}, grpc.StatusCode.NOT_FOUND),
        ({"stream_ack_deadline_seconds": 0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"stream_ack_deadline_seconds": 601}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_how_a_stream_may_not_begin(ordered, first, status):
    assert ordered.stream(**first).end() is status


def test_a_detached_subscription_gives_nothing_more_and_ends_its_streams(ordered):
    stream = ordered.stream()
    publish(ordered, "0", "1")
    stream.take(1)
    ordered.DetachSubscription(subscription=SUBSCRIPTION)
    assert ordered.GetSubscription(subscription=SUBSCRIPTION).detached
    publish(ordered, "2")
    assert stream.end() is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.RpcError) as refused:
        ordered.Pull(subscription=SUBSCRIPTION, max_messages=1)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_streams_end_with_unavailable_when_the_server_stops(server: ServerThread, ordered):
    stream = ordered.stream()
    stream.send()
    stream.receive()
    server.stop()
    assert stream.end() is grpc.StatusCode.UNAVAILABLE


def test_exactly_once_is_confirmed_on_the_stream(raw):
    raw.CreateTopic(name=TOPIC)
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_exactly_once_delivery=True)
    stream = raw.stream()
    publish(raw, "0", "1")
    zero, one = stream.take(2)
    stream.ack(zero)
    confirmed = stream.receive()
    assert confirmed.subscription_properties.exactly_once_delivery_enabled
    assert list(confirmed.acknowledge_confirmation.ack_ids) == [zero.ack_id]
    stream.ack(zero)
    assert list(stream.receive().acknowledge_confirmation.invalid_ack_ids) == [zero.ack_id]
    stream.send(modify_deadline_seconds=[30], modify_deadline_ack_ids=[one.ack_id])
    assert list(stream.receive().modify_ack_deadline_confirmation.ack_ids) == [one.ack_id]


def test_a_window_lets_several_of_a_key_out_and_a_nack_fences_what_follows(raw):
    raw.CreateTopic(name=TOPIC)
    raw.CreateSubscription(
        name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True, labels={"seriatim-window": "3"}
    )
    stream = raw.stream()
    publish(raw, *"01234")
    three = stream.take(3)
    assert data_of(three) == ["0", "1", "2"]
    stream.ack(three[1])  # provisional
    stream.nack(three[0])
    again = stream.take(3)
    assert data_of(again) == ["0", "1", "2"]
    stream.ack(*again)
    assert data_of(stream.take(2)) == ["3", "4"]


def test_an_ack_that_could_not_be_written_is_a_passing_failure_and_not_an_invalid_one():
    store = WatchedStore()
    with server_in_thread(store=store) as server:
        raw = server.clients.raw()
        raw.CreateTopic(name=TOPIC)
        raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_exactly_once_delivery=True)
        publish(raw, "0")
        stream = raw.stream()
        (zero,) = stream.take(1)
        store.failures.append(OutcomeUnknown("who knows"))
        stream.ack(zero)
        confirmation = stream.receive().acknowledge_confirmation
        assert list(confirmation.temporary_failed_ack_ids) == [zero.ack_id]
        assert not confirmation.invalid_ack_ids
        assert not confirmation.ack_ids


@pytest.fixture
def windowed(raw):
    """A subscription that lets three messages of a key be out."""
    raw.CreateTopic(name=TOPIC)
    raw.CreateSubscription(
        name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True, labels={"seriatim-window": "3"}
    )
    return raw


def test_with_a_window_a_key_stays_with_its_stream_until_no_lease_of_it_is_out(windowed):
    one = windowed.stream(max_outstanding_messages=1, stream_ack_deadline_seconds=600)
    publish(windowed, *"012")
    (zero,) = one.take(1)
    two = windowed.stream(stream_ack_deadline_seconds=600)
    publish(windowed, "other", key="z")
    assert data_of(until_something(two)) == ["other"]
    assert _pulled(windowed) == [], "unary pulls are a consumer of their own"
    one.ack(zero)
    assert data_of(until_something(one, two)) in (["1"], ["1", "2"])


def test_with_a_window_a_key_stays_with_unary_pulls_until_no_lease_of_it_is_out(windowed):
    publish(windowed, *"012")
    (zero,) = windowed.Pull(subscription=SUBSCRIPTION, max_messages=1).received_messages
    stream = windowed.stream()
    publish(windowed, "other", key="z")
    assert data_of(until_something(stream)) == ["other"]
    one, two = windowed.Pull(subscription=SUBSCRIPTION, max_messages=9).received_messages
    assert data_of([zero, one, two]) == ["0", "1", "2"]
    publish(windowed, "3")
    windowed.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id, one.ack_id, two.ack_id])
    assert data_of(until_something(stream)) == ["3"], "nothing is out any more"


def _pulled(raw) -> list[str]:
    return data_of(raw.Pull(subscription=SUBSCRIPTION, max_messages=9, return_immediately=True).received_messages)


def test_the_window_of_the_server_is_that_of_subscriptions_that_name_none():
    with server_in_thread(options=ServerOptions(window=2)) as server:
        raw = server.clients.raw()
        raw.CreateTopic(name=TOPIC)
        raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True)
        stream = raw.stream()
        publish(raw, *"012")
        assert data_of(stream.take(2)) == ["0", "1"]


def test_labels_change_while_messages_are_out(ordered):
    stream = ordered.stream(stream_ack_deadline_seconds=600)
    publish(ordered, "0", "1")
    (zero,) = stream.take(1)
    ordered.UpdateSubscription(subscription={"name": SUBSCRIPTION, "labels": {"a": "b"}}, update_mask=MASK)
    policy = {"dead_letter_topic": DEAD, "max_delivery_attempts": 5}
    changed = ordered.UpdateSubscription(
        subscription={"name": SUBSCRIPTION, "dead_letter_policy": policy}, update_mask={"paths": ["dead_letter_policy"]}
    )
    assert (dict(changed.labels), changed.dead_letter_policy.max_delivery_attempts) == ({"a": "b"}, 5)
    stream.ack(zero)
    assert stream.take(1)[0].delivery_attempt == 1
