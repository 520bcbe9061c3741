"""Redis Streams, with every append and acknowledgement fsynced, and a per-key dispatcher in the client.

Redis does not know keys: whoever wants order per key reads with a consumer group and holds a message back while an earlier one
of its key is out. Redis gets its best here: commands go in pipelines of a hundred, all acks of a round are one command and
share their round trip with the next read, replies are parsed by hiredis, and the layers of its client above the connection are
left out. The publisher is a thread of the same program, as it is with us, or a process of its own.
"""

from __future__ import annotations

import multiprocessing
import shutil
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Any

from bench.ordered_drain.workload import BACKLOG, BATCH, Workload, check_order

STREAM, GROUP = b"events", b"worker"
READ_AHEAD = 10_000
"""So many messages the dispatcher holds at most, so that a hot key does not hide the others."""


def is_missing() -> str | None:
    """Why Redis can't take part, or None."""
    if shutil.which("redis-server") is None:
        return "there is no redis-server: install Debian's package of that name"
    try:
        import redis  # noqa: F401
    except ImportError:
        return "there is no client for Redis: pip install 'redis[hiredis]'"
    return None


def rate(workload: Workload, own_process: bool = False) -> float:
    """Messages per second from the first publish until the last ack is durable."""
    with running_server() as port:
        client = _connect(port)
        _ask(client, [(b"XGROUP", b"CREATE", STREAM, GROUP, b"0", b"MKSTREAM")])
        delivered = multiprocessing.Value("q", 0)
        ready, go = multiprocessing.Event(), multiprocessing.Event()
        kind = multiprocessing.Process if own_process else threading.Thread
        publisher = kind(target=_publish, args=(port, workload, delivered, ready, go))
        publisher.start()
        ready.wait()
        begin = perf_counter()
        go.set()
        numbers = _consume(client, workload.messages, delivered)
        seconds = perf_counter() - begin
        publisher.join()
    check_order(workload, numbers)
    return workload.messages / seconds


def drain_rate(workload: Workload) -> float:
    """Messages per second from a full backlog until the last ack is durable."""
    with running_server() as port:
        client = _connect(port)
        _ask(client, [(b"XGROUP", b"CREATE", STREAM, GROUP, b"0", b"MKSTREAM")])
        for batch in workload.batches():
            _ask(client, _appends(batch))
        begin = perf_counter()
        numbers = _consume(client, workload.messages, multiprocessing.Value("q", 0))
        seconds = perf_counter() - begin
    check_order(workload, numbers)
    return workload.messages / seconds


@contextmanager
def running_server() -> Iterator[int]:
    """A server of our own on a free port, in a folder that is removed."""
    with TemporaryDirectory(prefix="ordered-drain-") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        options = {
            "--port": port,
            "--bind": "127.0.0.1",
            "--dir": folder,
            "--appendonly": "yes",
            "--appendfsync": "always",
            "--save": "",
            "--auto-aof-rewrite-percentage": 0,
            "--logfile": str(Path(folder) / "log"),
        }
        server = subprocess.Popen(["redis-server", *(str(part) for option in options.items() for part in option)])
        try:
            _await_server(port)
            yield port
        finally:
            server.terminate()
            server.wait()


def _await_server(port: int) -> None:
    deadline = monotonic() + 10
    while monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        sleep(0.02)
    raise TimeoutError("redis-server did not start within 10 seconds")


def _connect(port: int) -> Any:
    kind: Any = import_module("redis.connection").Connection
    connection = kind(host="127.0.0.1", port=port, socket_timeout=60, protocol=2)
    connection.connect()
    return connection


def _send(connection: Any, commands: list[tuple[Any, ...]]) -> None:
    connection.send_packed_command(connection.pack_commands(commands))


def _ask(connection: Any, commands: list[tuple[Any, ...]]) -> list[Any]:
    _send(connection, commands)
    return [connection.read_response() for _ in commands]


def _appends(batch: list[tuple[str, bytes]]) -> list[tuple[Any, ...]]:
    return [(b"XADD", STREAM, b"*", b"k", key, b"d", data) for key, data in batch]


def _publish(port: int, workload: Workload, delivered: Synchronized[int], ready: Any, go: Any) -> None:
    """A process: pipelines of a hundred, two of them under way, never further ahead than everybody may be."""
    connection = _connect(port)
    batches = workload.batches()
    ready.set()
    go.wait()
    published, under_way = 0, deque[int]()
    for batch in batches:
        while published - delivered.value > BACKLOG - BATCH:
            sleep(0.0002)
        _send(connection, _appends(batch))
        under_way.append(len(batch))
        published += len(batch)
        if len(under_way) > 1:
            for _ in range(under_way.popleft()):
                connection.read_response()
    while under_way:
        for _ in range(under_way.popleft()):
            connection.read_response()


class Dispatcher:
    """At most one message of each key is out; the others of the key wait for it."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[tuple[bytes, bytes]]] = {}
        self.held = 0

    def add(self, key: bytes, message: tuple[bytes, bytes]) -> tuple[bytes, bytes] | None:
        """The message, if it may go out now."""
        queue = self._waiting.get(key)
        if queue is None:
            self._waiting[key] = deque()
            return message
        queue.append(message)
        self.held += 1
        return None

    def acked(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The ack of a key's message is durable: the next one of the key, if there is one."""
        queue = self._waiting[key]
        if queue:
            self.held -= 1
            return queue.popleft()
        del self._waiting[key]
        return None


def _consume(connection: Any, messages: int, delivered: Synchronized[int]) -> list[int]:
    """Rounds of one round trip each: the acks of what was worked off, and a read for more."""
    dispatcher, numbers = Dispatcher(), list[int]()
    out: list[tuple[bytes, tuple[bytes, bytes]]] = []  # what may be worked off now
    acked = 0
    while acked < messages:
        numbers += [int(data[:10]) for _, (_, data) in out]
        commands: list[tuple[Any, ...]] = [(b"XACK", STREAM, GROUP, *[id_ for _, (id_, _) in out])] if out else []
        reads = dispatcher.held < READ_AHEAD and len(numbers) + dispatcher.held < messages
        if reads:
            block = () if out else (b"BLOCK", 1000)
            commands.append((b"XREADGROUP", b"GROUP", GROUP, b"c", b"COUNT", 1000, *block, b"STREAMS", STREAM, b">"))
        replies = _ask(connection, commands)
        acked += len(out)
        delivered.value = acked
        ready = [(key, dispatcher.acked(key)) for key, _ in out]
        if reads and replies[-1]:
            for id_, (_, key, _, data) in replies[-1][0][1]:
                ready.append((key, dispatcher.add(key, (id_, data))))
        out = [(key, message) for key, message in ready if message is not None]
    return numbers
