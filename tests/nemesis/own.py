"""The modes whose programs are our own clients: linked to a SQLite store, standing by on PostgreSQL, served."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from random import Random

from tests import postgres
from tests.nemesis.checker import Anomaly, Promises, check
from tests.nemesis.client import GRAVES, LIMITED, MAX_ATTEMPTS, STRICT, Life
from tests.nemesis.fault import Fault
from tests.nemesis.history import Event
from tests.nemesis.mode import Arena, Mode, python
from tests.nemesis.program import Program

CLIENTS = "abc"
DRAIN_S = 180.0


class OwnClients(Mode):
    """Three clients, and a last one that drains the store with the same program."""

    def __init__(self, arena: Arena, store: str, life: Life) -> None:
        super().__init__(arena)
        self._store, self._life = store, life
        self.clients = [Program(name, arena.folder, self._command(name)) for name in CLIENTS]
        self.programs = list(self.clients)

    def _command(self, name: str) -> _Command:
        return _Command(replace(self._life, who=name))

    def drain(self) -> None:
        life = replace(self._life, who="drain", work="drain", url=self._store)
        last = Program("drain", self.arena.folder, _Command(life))
        last.start()
        if not last.wait(DRAIN_S):
            self.arena.troubles.append(f"the store was not drained within {DRAIN_S:.0f} s")
        self.arena.troubles += last.suspicious()
        self.arena.troubles += check_store(self._store)

    def judge(self, events: Sequence[Event]) -> list[Anomaly]:
        dead = {(event.key, event.number) for event in events if event.sub == GRAVES}
        return [*check(events, Promises(STRICT)), *check(events, Promises(LIMITED, MAX_ATTEMPTS), dead)]


class _Command:
    """The command of each life of a client."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def __call__(self, life: int) -> list[str]:
        return python("tests.nemesis.client", json.dumps(asdict(replace(self._life, life=life))))


class Linked(OwnClients):
    """Programs that share a SQLite store: one owns it, the others are linked to it."""

    name = "sqlite"

    def __init__(self, arena: Arena) -> None:
        store = f"sqlite:///{arena.folder / 'store.db'}"
        super().__init__(arena, store, Life(store, str(arena.folder), arena.seed))


class Standby(OwnClients):
    """Programs that stand by for each other on PostgreSQL."""

    name = "postgres"

    def __init__(self, arena: Arena) -> None:
        store = postgres.server().new_url()
        super().__init__(arena, store, Life(store, str(arena.folder), arena.seed, is_standby=True))
        self.faults.append(BreakConnections())


class Served(OwnClients):
    """Our own client against ``seriatim serve``."""

    name = "served"

    def __init__(self, arena: Arena) -> None:
        store, port = f"sqlite:///{arena.folder / 'store.db'}", free_port()
        super().__init__(arena, store, Life(f"pubsub://127.0.0.1:{port}/seriatim", str(arena.folder), arena.seed))
        command = python("seriatim", "serve", "--store", store, "--port", str(port))
        self.programs.insert(0, Program("server", arena.folder, lambda _: command, is_client=False))


class BreakConnections(Fault):
    name, counted_as = "break", "broken connections"

    def apply(self, program: Program, random: Random) -> float:
        postgres.server().end_connections()
        return 0


def check_store(url: str) -> list[str]:
    """What ``seriatim check`` objects to."""
    checked = subprocess.run(python("seriatim", "check", "--store", url), capture_output=True, check=False)
    return [] if checked.returncode == 0 else [f"check: {checked.stdout.decode()} {checked.stderr.decode()}"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
