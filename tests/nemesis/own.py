"""The modes whose programs are our own clients: linked to a SQLite store, standing by on PostgreSQL, served."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

from tests.nemesis.checker import Anomaly, Promises, check
from tests.nemesis.client import DEDUP_WINDOW_S, GRAVES, LIMITED, MAX_ATTEMPTS, STRICT, Life
from tests.nemesis.clock import Clock, ClockJump
from tests.nemesis.database import DATABASE, PORT, Database, OutlastLease
from tests.nemesis.disk import Disk, FullDisk, SlowDisk, why_no_mounts
from tests.nemesis.history import Event
from tests.nemesis.mode import Arena, Mode, python
from tests.nemesis.network import NETWORK, Link, Network, why_not
from tests.nemesis.program import Program, Surroundings
from tests.ports import free_port

CLIENTS = "abc"
DRAIN_S = 180.0
DISK_MEGABYTES = 48
NOTICED_AFTER_S = 5.0
"""A client that has to share its processor with many others may take as long as that to read what waited for it."""
SCHEMA = "nemesis"
SERVER_PORT = 8085


class OwnClients(Mode):
    """Three clients, and a last one that drains the store with the same program."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.life = Life("", str(arena.folder), arena.seed)
        self.faults += [ClockJump(), FullDisk(), SlowDisk()]

    def add_client(
        self,
        name: str,
        url: str,
        *surroundings: Surroundings,
        module: str = "tests.nemesis.client",
        others: Sequence[str] = (),
    ) -> Program:
        """``others``: further addresses, which its lives take turns with."""
        command = _Command(replace(self.life, who=name), [url, *others], module)
        client = Program(name, self.arena.folder, command, surroundings=surroundings)
        self.programs.append(client)
        return client

    def drain_store(self, url: str) -> None:
        last = Program("drain", self.arena.folder, _Command(replace(self.life, who="drain", work="drain"), [url]))
        last.start()
        if not last.wait(DRAIN_S):
            self.arena.troubles.append(f"the store was not drained within {DRAIN_S:.0f} s")
        self.arena.troubles += [*last.suspicious(), *check_store(url)]

    promises: ClassVar[Promises] = Promises(STRICT, is_stored_once=True, noticed_after_s=NOTICED_AFTER_S)
    """What is promised to a subscription; the one with a limit of attempts has that promise, too."""

    def judge(self, events: Sequence[Event]) -> list[Anomaly]:
        dead = {(event.key, event.number) for event in events if event.sub == GRAVES}
        limited = replace(self.promises, sub=LIMITED, max_attempts=MAX_ATTEMPTS)
        return [*check(events, self.promises), *check(events, limited, dead)]


class _Command:
    """The command of each life of a client."""

    def __init__(self, life: Life, urls: Sequence[str], module: str = "tests.nemesis.client") -> None:
        self._life, self._urls, self._module = life, urls, module

    def __call__(self, life: int) -> list[str]:
        url = self._urls[life % len(self._urls)]
        return python(self._module, json.dumps(asdict(replace(self._life, url=url, life=life))))


class Linked(OwnClients):
    """Programs on one machine that share a SQLite store: one owns it, the others are linked to it."""

    name = "sqlite"

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        folder, *disk = store_folder(arena)
        self._store = f"sqlite:///{folder / 'store.db'}"
        clock = Clock(arena.folder / "clock")
        for name in CLIENTS:
            self.add_client(name, self._store, clock, *disk)

    def drain(self) -> None:
        self.drain_store(self._store)


class Standby(OwnClients):
    """Programs on machines of their own that stand by for each other on PostgreSQL."""

    name = "postgres"

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.faults += [*NETWORK, *DATABASE]
        self.life = replace(self.life, is_standby=True)
        network = network_of(arena)
        self._database = make_database(arena, network)
        self.faults.append(OutlastLease(self._database, SCHEMA))
        self.programs.append(self._database)
        for name in CLIENTS:
            machine = machine_of(name, arena, network)
            self._database.dependents.append(self.add_client(name, self._database.url(SCHEMA), *machine))

    def drain(self) -> None:
        self._database.start()
        self._database.wait_until_ready()
        self.drain_store(self._database.local_url(SCHEMA))


class Served(OwnClients):
    """Our own client against ``seriatim serve``."""

    name = "served"
    promises = replace(OwnClients.promises, orders_unconfirmed=False)

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.faults += NETWORK
        network = network_of(arena)
        folder, *disk = store_folder(arena)
        self._store = f"sqlite:///{folder / 'store.db'}"
        topic = ["create", "events", "--dedup-window", str(DEDUP_WINDOW_S), "--store", self._store]
        subprocess.run(python("seriatim", "topics", *topic), check=True, stdout=subprocess.DEVNULL)
        server, address = make_server("server", arena, network, ["--store", self._store], *disk)
        self.programs.append(server)
        for name in CLIENTS:
            machine = machine_of(name, arena, network)
            server.dependents.append(self.add_client(name, f"pubsub://{address}/seriatim", *machine))

    def drain(self) -> None:
        self.drain_store(self._store)


class ServedStandby(OwnClients):
    """Our own client against two servers, of which one serves while the other stands by, on PostgreSQL."""

    name = "served-postgres"
    is_cheap = False
    promises = Served.promises

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.faults += [*NETWORK, *DATABASE]
        self.life = replace(self.life, knows_ids=False)  # its topic has the window of every topic
        network = network_of(arena)
        self._database = make_database(arena, network)
        self.faults.append(OutlastLease(self._database, SCHEMA))
        options = ["--store", self._database.url(SCHEMA), "--standby"]
        servers = [make_server(name, arena, network, options) for name in ("server", "standby")]
        depended_on: list[Program] = [self._database, *(server for server, _ in servers)]
        self.programs += depended_on
        first, *others = [f"pubsub://{address}/seriatim" for _, address in servers]
        for name in CLIENTS:
            client = self.add_client(name, first, *machine_of(name, arena, network), others=others)
            for program in depended_on:
                program.dependents.append(client)

    def drain(self) -> None:
        self._database.start()
        self._database.wait_until_ready()
        self.drain_store(self._database.local_url(SCHEMA))


def make_server(
    name: str, arena: Arena, network: Network | None, options: Sequence[str], *surroundings: Surroundings
) -> tuple[Program, str]:
    """A server that lets leases be as short as a second, and its address."""
    machine = machine_of(name, arena, network)
    link = machine[0] if isinstance(machine[0], Link) else None
    host, port = (link.address, SERVER_PORT) if link else ("127.0.0.1", free_port())
    where = ["--host", host, "--port", str(port), "--insecure", "--min-ack-deadline", "1"]
    command = python("seriatim", "serve", *where, *options)
    server = Program(name, arena.folder, lambda _: command, surroundings=[*machine, *surroundings], is_client=False)
    return server, f"{host}:{port}"


def make_database(arena: Arena, network: Network | None) -> Database:
    link = network.join("database") if network else None
    return Database(arena.folder, arena.cleanup, PORT if link else free_port(), link)


def network_of(arena: Arena) -> Network | None:
    """The network of this round, if this machine can have one."""
    return Network(arena.cleanup) if why_not() is None else None


def machine_of(name: str, arena: Arena, network: Network | None) -> list[Surroundings]:
    """What a program has that runs on a machine of its own: a link to the network, and a clock."""
    clock = Clock(arena.folder / f"{name}-clock")
    return [network.join(name), clock] if network else [clock]


def store_folder(arena: Arena) -> tuple[Path, *tuple[Disk, ...]]:
    """Where the store is, and the disk if this machine can have one for it."""
    if why_no_mounts() is not None:
        return (arena.folder,)
    disk = Disk(arena.folder / "disk", DISK_MEGABYTES, arena.cleanup)
    return disk.folder, disk


def check_store(url: str) -> list[str]:
    """What ``seriatim store check`` objects to."""
    checked = subprocess.run(python("seriatim", "store", "check", "--store", url), capture_output=True, check=False)
    return [] if checked.returncode == 0 else [f"check: {checked.stdout.decode()} {checked.stderr.decode()}"]
