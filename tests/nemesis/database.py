"""A PostgreSQL of its own for a round: on a disk that can run full, with a clock that can jump, restarted in every way.

It is reached through TCP in a network namespace, or at 127.0.0.1 where there are none. Its disk is a tmpfs, so a sync costs
nothing unless the nemesis makes it slow; it has fsync=on all the same.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random

import psycopg

from tests import postgres
from tests.nemesis.clock import Clock
from tests.nemesis.disk import Disk, why_no_mounts
from tests.nemesis.fault import Fault, Stop
from tests.nemesis.network import SUBNET, Link
from tests.nemesis.program import Program, Surroundings

DISK_MEGABYTES = 192
PORT = 5432
LEASE_S = 2
EVERYBODY = f"host all all {SUBNET}.0/24 trust\n"
SETTINGS = {
    "fsync": "on",
    "autovacuum": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "min_wal_size": "2MB",
    "max_wal_size": "8MB",
    "unix_socket_permissions": "0777",
}
CLIENTS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


class Database(Program):
    """The server process. SIGTERM would wait for all clients, so it is ended with SIGINT."""

    def __init__(self, folder: Path, cleanup: ExitStack, port: int, link: Link | None) -> None:
        self._home = folder / "database"
        folder.chmod(0o711)  # the server is somebody else
        self._port, self._address = port, link.address if link else "127.0.0.1"
        surroundings: list[Surroundings] = [link] if link else []
        if why_no_mounts() is None:
            surroundings.append(Disk(self._home, DISK_MEGABYTES, cleanup))
        else:
            self._home.mkdir()
        _copy_template(self._home / "data")
        surroundings.append(Clock(folder / "database-clock"))
        super().__init__("database", folder, self._make_command, surroundings=surroundings, is_client=False)
        self.become = _as_nobody()

    ending = signal.SIGINT

    def url(self, schema: str) -> str:
        """With a lease so short that a program which is stopped or cut off for some seconds is replaced by its standby."""
        return f"postgresql://postgres@{self._address}:{self._port}/postgres?schema={schema}&lease={LEASE_S}"

    def local_url(self, schema: str) -> str:
        """The same store through the unix socket, for who is in no namespace of the round."""
        return f"postgresql://postgres@/postgres?host={self._home}&port={self._port}&schema={schema}"

    def _make_command(self, _: int) -> Sequence[str]:
        where = {"port": str(self._port), "listen_addresses": self._address, "unix_socket_directories": str(self._home)}
        options = [word for name, value in {**SETTINGS, **where}.items() for word in ("-c", f"{name}={value}")]
        return [str(postgres.programs() / "postgres"), "-D", str(self._home / "data"), *options]

    @contextmanager
    def asked(self) -> Iterator[psycopg.Connection[tuple]]:
        with psycopg.connect(
            f"postgresql://postgres@/postgres?host={self._home}&port={self._port}", autocommit=True, connect_timeout=5
        ) as connection:
            yield connection

    def wait_until_ready(self, seconds: float = 180.0) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                with self.asked():
                    return
            except psycopg.Error:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def owner(self, schema: str) -> int | None:
        """The process that owns the store in a schema; None while it can't be asked, or where there is no store."""
        with suppress(psycopg.Error), self.asked() as connection:
            row = connection.execute(f"SELECT process FROM {schema}.owner WHERE renewed IS NOT NULL").fetchone()
            return int(row[0]) if row else None
        return None

    def backends(self) -> list[int]:
        """The processes that serve clients; none while it can't be asked."""
        with suppress(psycopg.Error), self.asked() as connection:
            return [backend for (backend,) in connection.execute(CLIENTS)]
        return []


class _DatabaseFault(Fault):
    def fits(self, program: Program) -> bool:
        return isinstance(program, Database)


class Restart(_DatabaseFault):
    """A fast shutdown (connections are ended), or an immediate one (like a crash). The round starts it again."""

    name, counted_as, weight = "restart", "database restarts", 3

    def apply(self, program: Program, random: Random) -> float:
        program.send(random.choice([signal.SIGINT, signal.SIGQUIT]))
        program.wait(30)
        return 0


class BreakConnections(_DatabaseFault):
    """Every connection of a client is ended by the server, politely."""

    name, counted_as, weight = "break", "broken connections", 2

    def apply(self, program: Program, random: Random) -> float:
        assert isinstance(program, Database)
        with suppress(psycopg.Error), program.asked() as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({CLIENTS}) AS clients")
        return 0


class KillBackend(_DatabaseFault):
    """SIGKILL of one server process: PostgreSQL ends all others and recovers."""

    name, counted_as = "kill backend", "killed backends"

    def apply(self, program: Program, random: Random) -> float:
        assert isinstance(program, Database)
        backends = program.backends()
        if backends:
            with suppress(ProcessLookupError):
                os.kill(random.choice(backends), signal.SIGKILL)
        return 0


class OutlastLease(Stop):
    """The owner of the store is stopped until its lease has run out and a standby has taken over. Then it goes on.

    It does not know that. Whatever it has under way, and begins before it learns of it, must be refused.
    """

    name, counted_as, weight = "outlast the lease", "owners stopped past their lease", 10

    def __init__(self, database: Database, schema: str) -> None:
        self._database, self._schema = database, schema

    def fits(self, program: Program) -> bool:
        return program.pid == self._database.owner(self._schema)

    def apply(self, program: Program, random: Random) -> float:
        program.send(signal.SIGSTOP)
        return LEASE_S + random.choice([0.5, 1.0, 2.0, 4.0])


DATABASE: list[Fault] = [Restart(), BreakConnections(), KillBackend()]


def _copy_template(data: Path) -> None:
    subprocess.run(["cp", "--archive", str(_template()), str(data)], check=True, timeout=60)


@cache
def _template() -> Path:
    """A new cluster, made once for all rounds."""
    folder = Path(tempfile.mkdtemp(prefix="seriatim-pg-template-"))
    data = folder / "data"
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
    command = [str(postgres.programs() / "initdb"), f"--pgdata={data}", "--username=postgres", "--auth=trust"]
    options = ["--encoding=UTF8", "--locale=C", "--no-sync", "--wal-segsize=1"]
    subprocess.run([*_as_nobody(), *command, *options], check=True, capture_output=True, cwd=folder, timeout=120)
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write(EVERYBODY)
    atexit.register(shutil.rmtree, folder)
    return data


def _as_nobody() -> list[str]:
    """PostgreSQL refuses to run as root. A change of the user forgets that it has to end with its parent."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig", "KILL"]
