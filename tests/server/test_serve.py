"""``seriatim serve`` as a process: how it begins and ends, and what a crash does to its clients."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from seriatim.server.server import Tls
from tests.certificates import new_certificate
from tests.ports import free_port
from tests.server.conftest import make_ordered, publish
from tests.server.node.client import node_command
from tests.server.served import PATIENCE, SUBSCRIPTION, TOPIC, Clients

ROOT = Path(__file__).parent.parent.parent
KEYS = "abcde"
MANY = 40


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Clients of a server that comes and goes, at a port that nobody else has."""
    clients = Clients(f"127.0.0.1:{free_port()}")
    yield clients
    clients.close()


def port_of(clients: Clients) -> int:
    return int(clients.address.rpartition(":")[2])


Trace = list[tuple[int, str, int]]
"""When, by the one clock of the machine, which number of which key came to one of the processes."""


def numbers_by_key(trace: Trace) -> dict[str, list[int]]:
    found = defaultdict(list)
    for _, key, number in sorted(trace):  # what processes say reaches us in any order
        found[key].append(number)
    return found


def assert_in_order_and_whole(trace: Trace) -> None:
    """Nothing lost, nothing out of order; what was out when the server was killed may come once more, at its place."""
    by_key = numbers_by_key(trace)
    assert sorted(by_key) == list(KEYS)
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"key {key} is out of order"
        assert set(numbers) == set(range(2 * MANY)), f"key {key} is not whole"


@pytest.mark.parametrize("language", ["python", "node"])
def test_killed_in_the_middle_nothing_is_lost_or_out_of_order_and_clients_come_back(serve, url, clients, language):
    """Two subscriber processes and a publisher; the Python client needs about ten seconds to try again."""
    command = node_command("worker.js") if language == "node" else [sys.executable, "-m", "tests.server.worker"]
    server = serve(url, port_of(clients))
    make_ordered(clients)
    publisher, came = clients.publisher(), queue.Queue[tuple[int, str, int]]()
    workers = [Worker([*command, clients.address], clients.address, came) for _ in range(2)]
    trace: Trace = []

    def publish_some(numbers: range) -> None:
        futures = [
            publisher.publish(TOPIC, str(number).encode(), ordering_key=key) for number in numbers for key in KEYS
        ]
        for future in futures:
            future.result(PATIENCE)

    publish_some(range(MANY))
    while len(trace) < MANY * len(KEYS) // 2:
        trace.append(came.get(timeout=PATIENCE))
    server.kill()
    server = serve(url, port_of(clients))
    publish_some(range(MANY, 2 * MANY))
    while not all(2 * MANY - 1 in numbers_by_key(trace)[key] for key in KEYS):
        trace.append(came.get(timeout=PATIENCE))
    assert all(worker.count for worker in workers), "both had work"
    for worker in workers:
        worker.end()
    assert server.terminate() == 0
    assert_in_order_and_whole(trace)


class Worker:
    """A process that works messages off, and says what it got."""

    def __init__(self, command: list[str], address: str, came: queue.Queue[tuple[int, str, int]]) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PUBSUB_EMULATOR_HOST": address},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.count = 0
        self._came = came
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            when, key, number = line.split()
            self.count += 1
            self._came.put((int(when), key, int(number)))

    def end(self) -> None:
        self._process.communicate("")
        self._reader.join()


def test_sigterm_ends_streams_with_unavailable_and_gives_leases_back(serve, url, clients):
    server = serve(url, port_of(clients))
    make_ordered(clients)
    raw = clients.raw()
    stream = raw.stream(stream_ack_deadline_seconds=600)
    publish(raw, "0", "1")
    (held,) = stream.take(1)
    assert server.terminate() == 0
    assert stream.end() is grpc.StatusCode.UNAVAILABLE
    server = serve(url, port_of(clients))
    again = Clients(clients.address)
    (received,) = again.raw().Pull(subscription=SUBSCRIPTION, max_messages=2).received_messages
    assert (received.message.data, received.ack_id != held.ack_id) == (b"0", True)
    again.raw().Acknowledge(subscription=SUBSCRIPTION, ack_ids=[held.ack_id])  # of the former server: means nothing now
    assert not again.raw().Pull(subscription=SUBSCRIPTION, max_messages=2, return_immediately=True).received_messages
    again.close()
    server.terminate()


def test_health_metrics_and_logs(serve, url):
    server = serve(url, 0, "--metrics-port", "0")
    clients = Clients(f"127.0.0.1:{server.port}")
    answer = health_pb2_grpc.HealthStub(clients.channel()).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    make_ordered(clients)
    publish(clients.raw(), "0", "1")
    page = urllib.request.urlopen(f"http://127.0.0.1:{server.ready['metrics_port']}/metrics").read().decode()
    assert f'seriatim_published_messages_total{{topic="{TOPIC}"}} 2.0' in page
    assert f'seriatim_messages{{state="ready",subscription="{SUBSCRIPTION}"}} 1.0' in page
    assert "seriatim_commit_seconds_bucket" in page
    clients.close()
    assert server.terminate() == 0


def test_the_line_that_says_where_it_serves():
    command = [
        sys.executable,
        "-m",
        "seriatim",
        "-v",
        "serve",
        "--store",
        "memory://",
        "--port",
        "0",
        "--log-format",
        "json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("Serving Google Pub/Sub at 127.0.0.1:")
    assert line.endswith(" from memory://.\n")
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE)
    assert [json.loads(entry)["message"] for entry in errors.splitlines()] == ["the server is stopping"]


def test_lines_of_grpc_itself_are_json_too(tmp_path):
    """Somebody speaks plain text to a server with TLS, and gRPC's core writes about it."""
    tls = Tls(*new_certificate())
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(tls.certificate)
    key.write_bytes(tls.key)
    command = [sys.executable, "-m", "seriatim", "-v", "serve", "--json", "--store", "memory://", "--port", "0"]
    command += ["--log-format", "json", "--tls-cert", str(certificate), "--tls-key", str(key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = json.loads(process.stdout.readline())["port"]
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        plain.settimeout(PATIENCE)
        while plain.recv(1000):  # until the server hangs up
            pass
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE)
    entries = [json.loads(line) for line in errors.splitlines()]
    assert any("Handshake failed" in entry["message"] for entry in entries)
    assert {entry["level"] for entry in entries} == {"info"}


def test_ipv6(serve, url):
    server = serve(url, 0, "--host", "::1", "--metrics-port", "0", "--metrics-host", "::1")
    clients = Clients(f"[::1]:{server.port}")
    assert clients.raw().CreateTopic(name=TOPIC).name == TOPIC
    assert urllib.request.urlopen(f"http://[::1]:{server.ready['metrics_port']}/metrics").status == 200
    clients.close()
    assert server.terminate() == 0


def test_metrics_stay_on_the_loopback_wherever_the_server_listens(serve, url):
    server = serve(url, 0, "--host", "0.0.0.0", "--insecure", "--metrics-port", "0")
    port = server.ready["metrics_port"]
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").status == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port))
    server.terminate()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached by others: give --tls-cert and --tls-key, or --insecure"),
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key belong together"),
        (["--tls-cert", "none.pem", "--tls-key", "none.pem"], "the certificate or its key can't be read"),
        (["--project", "a b"], "'a b' is not the name of a project"),
        (
            ["--metrics-port", "0", "--metrics-host", "0.0.0.0"],
            "metrics at 0.0.0.0 can be read by others: give --tls-cert",
        ),
    ],
)
def test_what_it_refuses_to_serve(options, said):
    command = [sys.executable, "-m", "seriatim", "serve", "--store", "memory://", "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr


def test_a_port_that_is_taken(serve, url):
    server = serve(url)
    command = [sys.executable, "-m", "seriatim", "serve", "--store", "memory://", "--port", str(server.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, f"can't listen at 127.0.0.1:{server.port}" in ended.stderr) == (1, True)
    server.terminate()


def test_other_commands_reach_the_store_while_it_is_served(serve, url):
    server = serve(url)
    clients = Clients(f"127.0.0.1:{server.port}")
    make_ordered(clients)
    publish(clients.raw(), "0", "1")
    command = [sys.executable, "-m", "seriatim", "store", "stats", "--json", "--store", url]
    (stats,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (stats["subscription"], stats["total"]) == (SUBSCRIPTION, 2)
    clients.close()
    server.terminate()
