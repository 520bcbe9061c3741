"""What somebody can do before the server knows who it is, or what is wanted: nothing that hurts the others."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from seriatim.server.options import ServerOptions
from seriatim.wire.services import SERVICES
from tests.server.conftest import make_ordered, publish
from tests.server.http2 import Http2Call
from tests.server.served import PROJECT, SUBSCRIPTION, TOPIC, Clients, ServerThread, server_in_thread
from tests.server.test_access import TOKENS, tokens_in

STREAMING_PULL = "/google.pubsub.v1.Subscriber/StreamingPull"
PUBLISH = "/google.pubsub.v1.Publisher/Publish"
GET_TOPIC = "/google.pubsub.v1.Publisher/GetTopic"
WATCH = "/grpc.health.v1.Health/Watch"
ELSEWHERE = "127.0.0.2"
MIB = 1024 * 1024


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def get_topic(port: int, source: str, **headers: str) -> bool:
    """Whether a call from another address is answered."""
    call = Http2Call(port, GET_TOPIC, source=source, **headers)
    answered = call.request(SERVICES["google.pubsub.v1.Publisher"]["GetTopic"].request(topic=TOPIC).SerializeToString())
    call.close()
    return answered


async def open_silently(
    address: str, path: str, count: int, first: bytes | None = None, seconds: float = 1.0
) -> Counter[Any]:
    """Open calls on which nothing more is said, and count with what they have ended by then; None: not at all."""
    async with grpc.aio.insecure_channel(address) as channel:
        calls = [channel.stream_stream(path)() for _ in range(count)]
        if first is not None:
            await asyncio.gather(*(call.write(first) for call in calls), return_exceptions=True)
        ended = [asyncio.create_task(call.code()) for call in calls]
        await asyncio.wait(ended, timeout=seconds)
        codes = Counter(task.result() if task.done() else None for task in ended)
        for task in ended:
            task.cancel()
        for call in calls:
            call.cancel()
        return codes


def silent(
    server: ServerThread, path: str, count: int, first: bytes | None = None, seconds: float = 1.0
) -> Counter[Any]:
    return asyncio.run(open_silently(server.clients.address, path, count, first, seconds))


def test_a_stream_without_a_token_ends_before_it_has_said_anything(tmp_path):
    with server_in_thread(options=ServerOptions(max_calls=50), access=tokens_in(tmp_path)) as server:
        codes = silent(server, STREAMING_PULL, 200, seconds=20.0)
        assert codes[None] == 0, "none of them is left"
        assert codes[grpc.StatusCode.UNAUTHENTICATED] > 0
        assert server.clients.raw("root").CreateTopic(name=TOPIC).name == TOPIC


def test_silent_streams_of_one_address_leave_room_for_others_and_end_after_a_while():
    options = ServerOptions(max_calls=50, max_calls_per_client=20, max_streams_per_client=10, first_request_timeout=5.0)
    with server_in_thread(options=options) as server:
        server.clients.raw().CreateTopic(name=TOPIC)
        flood = threading.Thread(target=lambda: codes.update(silent(server, STREAMING_PULL, 200, seconds=20.0)))
        codes: Counter[Any] = Counter()
        flood.start()
        assert get_topic(server.port, ELSEWHERE)
        assert server.clients.raw().GetTopic(topic=TOPIC).name == TOPIC, (
            "streams leave room for the same client's calls"
        )
        flood.join()
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED: 190, grpc.StatusCode.DEADLINE_EXCEEDED: 10}


def test_who_watches_health_leaves_room_for_others():
    with server_in_thread(options=ServerOptions(max_calls=100)) as server:
        server.clients.raw().CreateTopic(name=TOPIC)
        codes = silent(server, WATCH, 90, health_pb2.HealthCheckRequest().SerializeToString(), seconds=3.0)
        assert codes[None] == 32
        assert codes[grpc.StatusCode.RESOURCE_EXHAUSTED] == 58
        assert get_topic(server.port, ELSEWHERE)


@pytest.mark.parametrize("with_tokens", [True, False], ids=["tokens", "no tokens"])
def test_requests_that_are_announced_and_do_not_come_hold_little_memory(serve, tmp_path, with_tokens):
    """60 of 20 MiB would be 1.2 GB. Without a token nothing of them is read; otherwise a few at a time."""
    more: list[str] = []
    if with_tokens:
        tokens_in(tmp_path, TOKENS)
        more = ["--tokens", str(tmp_path / "tokens.toml")]
    server = serve("memory://", 0, *more)
    clients = Clients(f"127.0.0.1:{server.port}")
    clients.raw("root").CreateTopic(name=TOPIC)
    clients.close()
    before = resident(server.process.pid)
    with ExitStack() as stack, ThreadPoolExecutor(60) as threads:
        calls = [stack.enter_context(closing(Http2Call(server.port, PUBLISH))) for _ in range(60)]
        sent = list(threads.map(lambda call: call.announce(20 * MIB, 20 * MIB - 100), calls))
        grown = resident(server.process.pid) - before
        assert grown < (50 if with_tokens else 450) * MIB, [size // MIB for size in sent]
        assert get_topic(server.port, ELSEWHERE, authorization="Bearer root"), "others are served"


def is_served(server: ServerThread) -> bool:
    try:
        server.clients.raw().CreateTopic(name=TOPIC)
    except grpc.RpcError as error:
        return error.code() == grpc.StatusCode.ALREADY_EXISTS
    return True


def test_a_request_that_does_not_come_in_time_ends_its_call():
    with server_in_thread(options=ServerOptions(request_timeout=0.3)) as server:
        codes = silent(server, PUBLISH, 40, seconds=20.0)
        assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED: 40}
        assert any(is_served(server) for _ in range(10)), "on a busy machine even an honest request may be late"


class Cable:
    """A connection to a server that can be pulled out: nothing passes any more, and nobody hears of it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._is_out = threading.Event()
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def pull_out(self) -> None:
        self._is_out.set()

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._port))
        self._sockets += [near, far]
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                if self._is_out.is_set():
                    return
                target.sendall(data)
        except OSError:
            return


def test_a_client_that_vanishes_is_noticed_and_its_messages_go_to_others():
    with server_in_thread(options=ServerOptions(keepalive=1.0)) as server:
        make_ordered(server.clients)
        cable = Cable(server.port)
        far = Clients(f"127.0.0.1:{cable.port}")
        stream = far.raw().stream(stream_ack_deadline_seconds=600)
        publish(server.clients.raw(), "0")
        stream.take(1)
        started = time.monotonic()
        cable.pull_out()
        (again,) = server.clients.raw().Pull(subscription=SUBSCRIPTION, max_messages=1).received_messages
        assert again.message.data == b"0"
        assert time.monotonic() - started < 10
        cable.close()
        far.close()


def test_a_name_of_any_length_costs_nothing_to_refuse(tmp_path):
    with server_in_thread(access=tokens_in(tmp_path)) as server:
        with pytest.raises(grpc.RpcError) as refused:
            server.clients.raw("p").Publish(topic=f"{PROJECT}/topics/ord" + "x" * 10_000_000)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
