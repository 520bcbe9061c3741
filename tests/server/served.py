"""A server for tests: in a thread of this process, or in a process of its own; and both kinds of clients."""

from __future__ import annotations

import asyncio
import json
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.futures import StreamingPullFuture
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from seriatim.engine.access_tokens import Access
from seriatim.engine.engine import Engine
from seriatim.server.options import ServerOptions
from seriatim.server.server import Server, Tls
from seriatim.store.base import Store
from seriatim.wire.services import SERVICES
from tests.fast import refuse

PATIENCE = 20.0
PROJECT = "projects/demo"
TOPIC, DEAD = f"{PROJECT}/topics/orders", f"{PROJECT}/topics/graves"
SUBSCRIPTION = f"{PROJECT}/subscriptions/work"


CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    *((f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max")),
]


class Clients:
    """Clients of a server at an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channels: list[grpc.Channel] = []
        self._closing: list[Any] = []
        self._pulls: list[StreamingPullFuture] = []

    def channel(self) -> grpc.Channel:
        """A connection of its own, also when there is another one to the same address."""
        self._channels.append(grpc.insecure_channel(self.address, CHANNEL_OPTIONS))
        return self._channels[-1]

    def publisher(self, **options: Any) -> pubsub_v1.PublisherClient:
        transport = PublisherGrpcTransport(channel=self.channel())
        ordering = pubsub_v1.types.PublisherOptions(enable_message_ordering=True, **options)
        client = pubsub_v1.PublisherClient(publisher_options=ordering, transport=transport)
        self._closing.append(client.stop)
        return client

    def subscriber(self) -> pubsub_v1.SubscriberClient:
        client = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel()))
        self._closing.append(client.close)
        return client

    def subscribe(self, work: Callable[[Any], None], subscription: str = SUBSCRIPTION) -> StreamingPullFuture:
        """Let a subscriber of its own call ``work`` with every message, until the clients are closed."""
        pulling = self.subscriber().subscribe(subscription, work)
        self._pulls.append(pulling)
        return pulling

    def end_pulls(self) -> None:
        """Let subscribers end in good order, which needs a server."""
        for pulling in self._pulls:
            pulling.cancel()
        for pulling in self._pulls:
            with suppress(GoogleAPICallError):
                pulling.result(PATIENCE)
        self._pulls.clear()

    def raw(self, token: str | None = None) -> Raw:
        raw = Raw(self.channel(), token)
        self._closing.append(raw.close)
        return raw

    def close(self) -> None:
        self.end_pulls()
        for close in self._closing:
            close()
        for channel in self._channels:
            channel.close()


class Raw:
    """Every method of the API by its name, without a client library: ``raw.Publish(topic=…, messages=[…])``."""

    def __init__(self, channel: grpc.Channel, token: str | None = None) -> None:
        self._channel = channel
        self._metadata = None if token is None else [("authorization", f"Bearer {token}")]
        self._streams: list[RawStream] = []

    def close(self) -> None:
        for stream in self._streams:
            stream.hang_up()

    def disconnect(self) -> None:
        """Let the connection break, with everything on it."""
        self._channel.close()

    def __getattr__(self, name: str) -> Any:
        service, method = next((service, methods[name]) for service, methods in SERVICES.items() if name in methods)
        make = self._channel.stream_stream if method.is_streaming else self._channel.unary_unary
        call = make(f"/{service}/{name}", method.request.SerializeToString, method.response.FromString)
        if method.is_streaming:
            return lambda requests: call(requests, metadata=self._metadata)
        return lambda **fields: call(method.request(**fields), timeout=PATIENCE, metadata=self._metadata)

    def send_bytes(self, service: str, name: str, data: bytes) -> grpc.StatusCode:
        """Call a method with whatever bytes, and return the status."""
        try:
            self._channel.unary_unary(f"/{service}/{name}")(data, timeout=PATIENCE)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def stream(self, **first: Any) -> RawStream:
        first = {"subscription": SUBSCRIPTION, "stream_ack_deadline_seconds": 10, **first}
        request = SERVICES["google.pubsub.v1.Subscriber"]["StreamingPull"].request
        self._streams.append(RawStream(self.StreamingPull, request, first))
        return self._streams[-1]


class RawStream:
    """A StreamingPull under a test's control."""

    def __init__(self, call: Any, request: Any, first: dict[str, Any]) -> None:
        self._request = request
        self._outgoing: list[Any] = []
        self._more = threading.Condition()
        self._is_closed = False
        self.send(**first)
        self._responses = call(self._requests())

    def send(self, **fields: Any) -> None:
        with self._more:
            self._outgoing.append(self._request(**fields))
            self._more.notify_all()

    def receive(self) -> Any:
        """The next response."""
        return next(self._responses)

    def take(self, count: int) -> list[Any]:
        """The next messages, so many of them."""
        found: list[Any] = []
        while len(found) < count:
            found += self.receive().received_messages
        assert len(found) == count
        return found

    def ack(self, *messages: Any) -> None:
        self.send(ack_ids=[message.ack_id for message in messages])

    def nack(self, *messages: Any) -> None:
        self.send(modify_deadline_seconds=[0] * len(messages), modify_deadline_ack_ids=[one.ack_id for one in messages])

    def hang_up(self) -> None:
        self._close()
        self._responses.cancel()

    def finish(self) -> grpc.StatusCode:
        """Say that nothing more comes, and return how the stream ends."""
        self._close()
        return self.end()

    def end(self) -> grpc.StatusCode:
        """Wait for the end of the stream, whatever comes before it."""
        try:
            for _ in self._responses:
                pass
        except grpc.RpcError:
            pass
        return self._responses.code()

    def until_sent(self) -> None:
        """Wait until the client library has taken all that was to be sent."""
        with self._more:
            assert self._more.wait_for(lambda: not self._outgoing, PATIENCE)

    def _close(self) -> None:
        with self._more:
            self._is_closed = True
            self._more.notify_all()

    def _requests(self) -> Iterator[Any]:
        while True:
            with self._more:
                while not self._outgoing and not self._is_closed:
                    self._more.wait()
                if not self._outgoing:
                    return
                request = self._outgoing.pop(0)
                self._more.notify_all()
            yield request


@contextmanager
def server_in_thread(
    url: str = "memory://",
    options: ServerOptions | None = None,
    access: Access | None = None,
    tls: Tls | None = None,
    store: Store | None = None,
) -> Iterator[ServerThread]:
    server = ServerThread(url, options, access, tls, store)
    try:
        yield server
    finally:
        server.close()


class ServerThread:
    """A server with its engine, in a thread of this process."""

    def __init__(
        self, url: str, options: ServerOptions | None, access: Access | None, tls: Tls | None, store: Store | None
    ) -> None:
        refuse("a Pub/Sub server")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.engine: Engine = self.run(self._open(url, store))
        self._server = self.run(self._start(options, access, tls))
        self.clients = Clients(f"127.0.0.1:{self.port}")

    async def _open(self, url: str, store: Store | None) -> Engine:
        if store is None:
            return await Engine.open(url)
        engine = Engine(store)
        await engine.start()
        return engine

    async def _start(self, options: ServerOptions | None, access: Access | None, tls: Tls | None) -> Server:
        server = Server(self.engine, options, access)
        self.port = await server.start(port=0, tls=tls)
        return server

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def stop(self) -> None:
        self.run(self._server.stop())

    def close(self) -> None:
        self.clients.close()
        self.run(self._server.stop(grace=0))
        self.run(self.engine.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ServerProcess:
    """``seriatim serve`` in a process of its own, which may have to wait until it can serve."""

    def __init__(self, url: str, port: int = 0, *more: str) -> None:
        refuse("a Pub/Sub server")
        command = [sys.executable, "-m", "seriatim", "serve", "--json", "--store", url, "--port", str(port), *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    @cached_property
    def ready(self) -> dict[str, Any]:
        """What it says when it serves; waits for it."""
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    @property
    def port(self) -> int:
        port: int = self.ready["port"]
        return port

    @property
    def is_ready(self) -> bool:
        """Whether it has said so by now."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)  # to one that has ended it does nothing
        status = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


class Inbox:
    """What a subscriber of the official client gets, and waits for."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self._changed = threading.Condition()

    def add(self, message: Any) -> None:
        with self._changed:
            self.got.append(message)
            self._changed.notify_all()

    def wait(self, count: int) -> list[str]:
        """The data of everything that came, once it is ``count`` messages."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, PATIENCE), f"only {self.data} came"
            return self.data

    @property
    def data(self) -> list[str]:
        return [message.data.decode() for message in self.got]
