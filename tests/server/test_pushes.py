"""Push subscriptions, against a real HTTP server."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest

from tests.server.conftest import publish
from tests.server.served import DEAD, PATIENCE, SUBSCRIPTION, TOPIC, server_in_thread
from tests.server.test_resources import status_of


class Endpoint:
    """Receives pushes, and answers them with what ``answer`` says."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.answer = lambda _: 204
        self._changed = threading.Condition()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with endpoint._changed:
                    endpoint.got.append((self.path, body))
                    endpoint._changed.notify_all()
                self.send_response(endpoint.answer(body))
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/orders?token=1"

    def wait(self, count: int) -> list[tuple[str, bytes]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, PATIENCE), self.got
            return self.got

    def messages(self, count: int) -> list[dict[str, Any]]:
        return [json.loads(body)["message"] for _, body in self.wait(count)]

    def data(self, count: int) -> list[str]:
        return [base64.b64decode(message["data"]).decode() for message in self.messages(count)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


def make(raw, endpoint: Endpoint, **more: Any) -> None:
    config = {"push_endpoint": endpoint.url, **more.pop("push_config", {})}
    raw.CreateTopic(name=TOPIC)
    raw.CreateTopic(name=DEAD)
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True, push_config=config, **more)


def test_messages_are_posted_in_order(raw, endpoint):
    make(raw, endpoint)
    publish(raw, "0", "1", "2", kind="order")
    assert endpoint.data(3) == ["0", "1", "2"]
    path, body = endpoint.got[0]
    pushed = json.loads(body)
    assert (path, pushed["subscription"], "deliveryAttempt" in pushed) == ("/orders?token=1", SUBSCRIPTION, False)
    message = pushed["message"]
    assert (message["messageId"], message["orderingKey"], message["attributes"]) == ("0", "k", {"kind": "order"})
    assert message["publishTime"] == message["publish_time"]
    assert message["publishTime"].endswith("Z")


def test_one_that_is_refused_comes_again_before_those_behind_it(raw, endpoint):
    answers = iter([204, 500, 302])
    endpoint.answer = lambda _: next(answers, 204)
    make(raw, endpoint)
    publish(raw, "0", "1", "2")
    assert endpoint.data(5) == ["0", "1", "1", "1", "2"]


def test_one_that_is_never_taken_is_dead_lettered(raw, endpoint):
    endpoint.answer = lambda body: 500 if json.loads(body)["message"]["data"] == "YmFk" else 200
    policy = {"dead_letter_topic": DEAD, "max_delivery_attempts": 5}
    make(raw, endpoint, dead_letter_policy=policy)
    publish(raw, "bad", "good")
    assert endpoint.data(6) == ["bad"] * 5 + ["good"]
    assert [json.loads(body)["deliveryAttempt"] for _, body in endpoint.got] == [1, 2, 3, 4, 5, 1]


def test_without_a_wrapper_the_body_is_the_data(raw, endpoint):
    make(raw, endpoint, push_config={"no_wrapper": {}})
    publish(raw, "\x00 bare")
    assert endpoint.wait(1)[0][1] == b"\x00 bare"


def test_pushing_begins_and_ends_with_the_configuration(raw, endpoint):
    make(raw, endpoint)
    assert status_of(raw.Pull, subscription=SUBSCRIPTION, max_messages=1) is grpc.StatusCode.FAILED_PRECONDITION
    assert raw.stream().end() is grpc.StatusCode.FAILED_PRECONDITION
    raw.ModifyPushConfig(subscription=SUBSCRIPTION)
    publish(raw, "pulled", "pushed")
    (pulled,) = raw.Pull(subscription=SUBSCRIPTION, max_messages=1).received_messages
    assert pulled.message.data == b"pulled"
    raw.Acknowledge(subscription=SUBSCRIPTION, ack_ids=[pulled.ack_id])
    raw.ModifyPushConfig(subscription=SUBSCRIPTION, push_config={"push_endpoint": endpoint.url})
    assert endpoint.data(1) == ["pushed"]


def test_pushing_goes_on_after_a_restart_and_waits_for_an_endpoint_that_is_down(tmp_path, endpoint):
    url = f"sqlite:///{tmp_path}/store.db"
    with server_in_thread(url) as server:
        raw = server.clients.raw()
        raw.CreateTopic(name=TOPIC)
        config = {"push_endpoint": "http://127.0.0.1:9/nobody"}
        raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, push_config=config)
        publish(raw, "0")
        while not server.run(server.engine.metrics()).subscriptions[SUBSCRIPTION].nacked:
            pass
        raw.ModifyPushConfig(subscription=SUBSCRIPTION, push_config={"push_endpoint": endpoint.url})
        endpoint.answer = lambda _: 503
        endpoint.wait(1)
    endpoint.answer = lambda _: 200
    before = len(endpoint.got)
    with server_in_thread(url):
        assert set(endpoint.data(before + 1)) == {"0"}


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ({"push_endpoint": "nonsense"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"push_endpoint": "ftp://host/x"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"push_endpoint": "http://host:99999/"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"push_endpoint": "http://host/a b"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"push_endpoint": "http://host/\r\nX: y"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"push_endpoint": "http://host:0/"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"push_endpoint": "http://host/#part"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"push_endpoint": "http://host/" + "x" * 2048}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"push_endpoint": "http://host/", "oidc_token": {"audience": "a"}}, grpc.StatusCode.UNIMPLEMENTED),
        ({"push_endpoint": "http://host/", "no_wrapper": {"write_metadata": True}}, grpc.StatusCode.UNIMPLEMENTED),
    ],
)
def test_configurations_that_can_not_be(ordered, config, status):
    assert status_of(ordered.ModifyPushConfig, subscription=SUBSCRIPTION, push_config=config) is status
