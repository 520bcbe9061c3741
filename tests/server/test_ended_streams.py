"""What becomes of leases when a stream ends: the client may still ack what it got, unless its connection is gone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from seriatim.server.ended_streams import connected
from seriatim.server.options import ServerOptions
from tests.server.conftest import publish
from tests.server.node.client import node_command
from tests.server.served import DEAD, PATIENCE, SUBSCRIPTION, TOPIC, Raw, RawStream, ServerThread, server_in_thread
from tests.server.test_streams import data_of, until_quiet

LONG = {"stream_ack_deadline_seconds": 600}
ENDINGS: dict[str, Callable[[RawStream], object]] = {"half-close": RawStream.finish, "cancel": RawStream.hang_up}


@pytest.fixture(params=ENDINGS)
def end(request) -> Callable[[RawStream], object]:
    """How a client ends its stream."""
    return ENDINGS[request.param]


def ended_with_one(raw: Raw, end: Callable[[RawStream], object], **first: int):
    """The message that a client got before it ended its stream."""
    stream = raw.stream(**(LONG | first))
    (received,) = stream.take(1)
    end(stream)
    return received


def comes_next(raw: Raw) -> list[str]:
    """What a new stream gets first, after whatever is at hand for it."""
    return data_of(raw.stream(**LONG).take(1))


def test_an_ack_by_a_call_is_taken_after_the_client_ended_its_stream(ordered, end):
    publish(ordered, "0", "1")
    zero = ended_with_one(ordered, end)
    ordered.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id])
    assert comes_next(ordered) == ["1"]


def test_a_nack_by_a_call_is_taken_after_the_client_ended_its_stream(ordered, end):
    publish(ordered, "0", "1")
    zero = ended_with_one(ordered, end)
    ordered.ModifyAckDeadline(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id], ack_deadline_seconds=0)
    assert comes_next(ordered) == ["0"]


def test_the_key_of_an_ended_stream_goes_to_nobody_else_until_its_deadline(ordered, end):
    began = time.monotonic()
    publish(ordered, "0", "1")
    zero = ended_with_one(ordered, end, stream_ack_deadline_seconds=2)
    publish(ordered, "other", key="z")
    other = ordered.stream(**LONG)
    assert data_of(other.take(1)) == ["other"]
    assert data_of(other.take(1)) == ["0"]
    assert time.monotonic() - began >= 2
    ordered.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id])  # too late: it changes nothing
    assert until_quiet(other) == []


def test_with_a_window_the_rest_of_a_key_waits_for_the_messages_of_an_ended_stream(raw, end):
    raw.CreateTopic(name=TOPIC)
    labels = {"seriatim-window": "10"}
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True, labels=labels)
    publish(raw, "0", "1")
    zero = ended_with_one(raw, end, max_outstanding_messages=1)
    other = raw.stream(**LONG)
    publish(raw, "other", key="z")
    assert data_of(other.take(1)) == ["other"]
    assert until_quiet(other) == []
    raw.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id])
    assert data_of(other.take(1)) == ["1"]


def test_a_late_ack_is_refused_when_its_lease_is_over(raw, end):
    raw.CreateTopic(name=TOPIC)
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_exactly_once_delivery=True)
    publish(raw, "0")
    zero = ended_with_one(raw, end, stream_ack_deadline_seconds=1)
    (again,) = raw.stream(**LONG).take(1)
    with pytest.raises(grpc.RpcError) as refused:
        raw.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[zero.ack_id])
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    raw.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[again.ack_id])


# -- when the connection is gone ----------------------------------------------------------------------------------------


def test_leases_are_released_at_once_when_the_connection_breaks(ordered, clients):
    publish(ordered, "0", "1")
    client = clients.raw()
    assert data_of(client.stream(**LONG).take(1)) == ["0"]
    client.disconnect()
    assert comes_next(ordered) == ["0"]


def test_leases_of_an_ended_stream_are_released_when_the_connection_goes_later(ordered, clients, end):
    publish(ordered, "0", "1")
    client = clients.raw()
    ended_with_one(client, end)
    other = ordered.stream(**LONG)
    assert until_quiet(other) == []
    client.disconnect()
    assert data_of(other.take(1)) == ["0"]


CLIENT = """
import sys, time
from tests.server.served import Clients
(message,) = Clients(sys.argv[1]).raw().stream(stream_ack_deadline_seconds=600).take(1)
print(message.message.data.decode(), flush=True)
time.sleep(600)
"""


def test_a_client_that_is_killed_frees_its_messages_at_once_and_they_count_as_not_tried(ordered, clients):
    policy = {"dead_letter_topic": DEAD, "max_delivery_attempts": 5}
    ordered.UpdateSubscription(
        subscription={"name": SUBSCRIPTION, "dead_letter_policy": policy}, update_mask={"paths": ["dead_letter_policy"]}
    )
    publish(ordered, "0", "1")
    root = Path(__file__).parents[2]
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, clients.address], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    with client.stdout:
        assert client.stdout.readline() == "0\n"
        other = ordered.stream(**LONG)
        assert until_quiet(other) == []
        client.kill()
        (again,) = other.take(1)
        client.wait(PATIENCE)
    assert (data_of([again]), again.delivery_attempt) == (["0"], 1)


def test_what_was_not_sent_to_a_client_that_ended_its_stream_goes_to_others_at_once(ordered):
    stream = ordered.stream(**LONG)
    count = 60  # so much that the connection is full, and the rest waits in the server
    for key in range(count):
        ordered.Publish(topic=TOPIC, messages=[{"data": b"%d" % key + b" " * 1_000_000, "ordering_key": f"k{key}"}])
    stream.hang_up()
    other, came = ordered.stream(**LONG), list[str]()
    while len(came) < count / 2:  # without those that the connection had taken
        came += data_of(other.receive().received_messages)
    assert len(set(came)) == len(came)


# -- bounds -------------------------------------------------------------------------------------------------------------


def test_of_a_clients_ended_streams_as_many_are_kept_as_it_may_have_streams(end):
    with server_in_thread(options=ServerOptions(max_streams_per_client=2)) as server:
        raw = server.clients.raw()
        raw.CreateTopic(name=TOPIC)
        raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True)
        for key in "abc":
            publish(raw, key, key=key)
            assert data_of([ended_with_one(raw, end)]) == [key]
        assert comes_next(raw) == ["a"]


def test_nothing_is_left_of_ended_streams_when_their_messages_are_settled(server: ServerThread, ordered, end):
    publish(ordered, "0", "1", "2")
    for _ in range(3):
        received = ended_with_one(ordered, end)
        ordered.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[received.ack_id])
    subscriber, give_up = server._server._subscriber, time.monotonic() + PATIENCE
    while len(subscriber._ended_streams) or subscriber._members._members:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert len(server.engine.get_subscription("projects/demo/subscriptions/work").deliveries) == 0


# -- connections --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="the table of connections is Linux's")
def test_a_connection_is_known_by_its_far_end_until_that_is_closed(family, host):
    with socket.create_server((host, 0), family=family) as listening:
        with socket.create_connection(listening.getsockname()[:2]) as client:
            near, _ = listening.accept()
            kind = "ipv4" if family is socket.AF_INET else "ipv6"
            peer = f"{kind}:{f'%5B{host}%5D' if kind == 'ipv6' else host}:{client.getsockname()[1]}"
            assert connected([peer]) == {peer}
        assert connected([peer]) == set()
        near.close()


def test_who_has_no_tcp_address_counts_as_connected():
    assert connected(["unix:/run/socket", "ipv4:nonsense", "ipv4:name:80"]) == {
        *("unix:/run/socket", "ipv4:nonsense", "ipv4:name:80")
    }


def test_everybody_counts_as_connected_where_there_is_no_table(monkeypatch):
    monkeypatch.setattr("seriatim.server.ended_streams._TABLES", ("/no/such/table",))
    assert connected(["ipv4:192.0.2.1:9"]) == {"ipv4:192.0.2.1:9"}


# -- official clients ---------------------------------------------------------------------------------------------------


def test_what_the_python_client_acks_while_it_shuts_down_does_not_come_again(ordered, clients):
    publish(ordered, *(str(number) for number in range(20)))
    seen: list[str] = []

    def work(message):
        seen.append(message.data.decode())
        time.sleep(0.02)  # so that it is closed in the midst of the work
        message.ack()

    pulling = clients.subscriber().subscribe(SUBSCRIPTION, work, await_callbacks_on_shutdown=True)
    while len(seen) < 5:
        time.sleep(0.01)
    pulling.cancel()
    pulling.result(PATIENCE)
    assert comes_next(ordered) == [str(len(seen))]


def test_what_the_node_client_acked_before_it_was_closed_does_not_come_again(server, ordered):
    count = 100
    for number in range(count):
        publish(ordered, str(number), key=f"k{number}")
    environment = {**os.environ, "PUBSUB_EMULATOR_HOST": server.clients.address}
    command = [*node_command("close.js"), str(count)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == f"{count}\n"
    publish(ordered, "end", key="end")
    assert comes_next(ordered) == ["end"]
