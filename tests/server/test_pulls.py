"""Unary pulls, acks and deadlines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from seriatim.wire.services import SUBSCRIBER
from tests.engine.conftest import WatchedStore
from tests.server.conftest import publish
from tests.server.served import SUBSCRIPTION, TOPIC, ServerThread, server_in_thread


def pull(raw, most: int = 10, **fields):
    return list(raw.Pull(subscription=SUBSCRIPTION, max_messages=most, **fields).received_messages)


def data_of(messages) -> list[str]:
    return [received.message.data.decode() for received in messages]


def test_a_pull_waits_for_a_message(ordered):
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pull, ordered)
        publish(ordered, "0")
        assert data_of(waiting.result()) == ["0"]


def test_a_pull_that_may_not_wait_may_be_empty(ordered):
    assert pull(ordered, return_immediately=True) == []
    assert ordered.Pull(subscription=SUBSCRIPTION, max_messages=1, return_immediately=True)


def test_a_pull_is_answered_empty_before_its_caller_gives_up(ordered):
    call = ordered._channel.unary_unary("/google.pubsub.v1.Subscriber/Pull")
    request = SUBSCRIBER["Pull"].request(subscription=SUBSCRIPTION, max_messages=1)
    assert call(request.SerializeToString(), timeout=1) == b""


def test_a_pull_gives_all_that_is_at_hand_up_to_what_was_asked_for(ordered):
    for number in range(200):
        publish(ordered, str(number), key=f"k{number}")
    assert len(pull(ordered, 150)) == 150
    assert len(pull(ordered, 150)) == 50


def test_a_pull_gives_no_more_bytes_than_a_response_should_have(ordered):
    for number in range(8):
        ordered.Publish(topic=TOPIC, messages=[{"data": b"x" * 1_000_000, "ordering_key": f"k{number}"}])
    came = [pull(ordered, 100) for _ in range(3)]
    assert [len(messages) for messages in came] == [3, 3, 2]
    assert len({received.message.message_id for messages in came for received in messages}) == 8


def test_attributes_that_only_look_like_those_of_a_dead_letter(ordered):
    lies = {"seriatim-dead-letter-subscription": "projects/x", "seriatim-dead-letter-published": "yesterday"}
    ordered.Publish(topic=TOPIC, messages=[{"data": b"x", "attributes": lies}])
    (received,) = pull(ordered)
    assert received.message.attributes["CloudPubSubDeadLetterSourceSubscription"] == ""


def test_what_nobody_pulls_stays_for_others(ordered):
    publish(ordered, "0", "1")
    publish(ordered, "a", key="other")
    (zero,) = pull(ordered, 1)
    ordered.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id])
    assert sorted(data_of(ordered.stream().take(2))) == ["1", "a"], "an ack makes no room at a pull that is over"


def test_nacked_and_expired_messages_come_again_first(ordered):
    publish(ordered, "0", "1")
    (zero,) = pull(ordered)
    ordered.ModifyAckDeadline(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id], ack_deadline_seconds=0)
    (zero,) = pull(ordered)
    assert data_of([zero]) == ["0"]
    ordered.ModifyAckDeadline(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id], ack_deadline_seconds=1)
    (again,) = pull(ordered)
    assert data_of([again]) == ["0"]
    ordered.Acknowledge(
        subscription=SUBSCRIPTION, ack_ids=[zero.ack_id]
    )  # stale: changes nothing, and that is no error
    assert pull(ordered, return_immediately=True) == []
    ordered.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[again.ack_id])
    assert data_of(pull(ordered)) == ["1"]


def test_an_ack_is_answered_when_it_is_durable():
    store = WatchedStore()
    with server_in_thread(store=store) as server, ThreadPoolExecutor(1) as threads:
        raw = server.clients.raw()
        raw.CreateTopic(name=TOPIC)
        raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC)
        publish(raw, "0", "1")
        ack_ids = [received.ack_id for received in pull(raw)]
        store.gate.clear()
        acking = threads.submit(raw.Acknowledge, subscription=SUBSCRIPTION, ack_ids=ack_ids)
        with pytest.raises(TimeoutError):
            acking.result(0.2)
        store.gate.set()
        acking.result()
        server.run(server.engine.wait_until_empty(SUBSCRIPTION))


def test_an_ack_id_works_on_its_own_subscription_only(ordered):
    ordered.CreateSubscription(name=f"{SUBSCRIPTION}-2", topic=TOPIC, enable_message_ordering=True)
    publish(ordered, "0", "1")
    (zero,) = pull(ordered)
    ordered.Acknowledge(subscription=f"{SUBSCRIPTION}-2", ack_ids=[zero.ack_id])
    (other,) = ordered.Pull(subscription=f"{SUBSCRIPTION}-2", max_messages=5).received_messages
    assert data_of([other]) == ["0"]


def test_exactly_once_says_which_acks_failed(raw):
    raw.CreateTopic(name=TOPIC)
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_exactly_once_delivery=True)
    publish(raw, "0", "1")
    zero, one = pull(raw)
    raw.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id])
    with pytest.raises(grpc.RpcError) as refused:
        raw.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id, one.ack_id])
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    status, info = Status(), ErrorInfo()
    status.ParseFromString(dict(refused.value.trailing_metadata())["grpc-status-details-bin"])
    assert status.details[0].Unpack(info)
    assert dict(info.metadata) == {zero.ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}
    with pytest.raises(grpc.RpcError):
        raw.ModifyAckDeadline(subscription=SUBSCRIPTION, ack_ids=[one.ack_id], ack_deadline_seconds=20)


def test_pulls_that_wait_end_when_the_server_stops(server: ServerThread, ordered):
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pull, ordered)
        while not server.run(server.engine.stats(SUBSCRIPTION)).consumers:
            pass
        server.stop()
        with pytest.raises(grpc.RpcError) as refused:
            waiting.result()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
