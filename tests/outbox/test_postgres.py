"""The outbox on PostgreSQL: messages appear if and only if, and in the order in which, the transactions around them commit."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from itertools import product
from pathlib import Path
from typing import cast

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from seriatim import PubSub, outbox
from seriatim.engine.engine import Engine
from seriatim.errors import InvalidArgument
from seriatim.store import open_store
from tests import postgres

ROOT = Path(__file__).parents[2]
KILLS = 4


class Database:
    """A store, its schema, and the database that it shares with the application."""

    def __init__(self) -> None:
        self.url = postgres.server().new_url(lease=1)
        self.conninfo, _, query = self.url.partition("?")
        options = dict(part.split("=", 1) for part in query.split("&"))
        self.schema = options["schema"]
        self.conninfo += "?" + "&".join(f"{name}={value}" for name, value in options.items() if name in {"host"})

    def connect(self, **options) -> psycopg.Connection:
        return psycopg.connect(self.conninfo, **options)

    def publish(self, connection, data: str, key: str | None = "k", topic: str = "t", **options):
        return outbox.publish(connection, topic, data.encode(), ordering_key=key, schema=self.schema, **options)

    @property
    def alchemy(self) -> str:
        return self.conninfo.replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture
def database() -> Database:
    found = Database()
    store = open_store(found.url)
    with store.transaction() as work:
        for name in ("t", "u"):
            work.create_topic(name, {})
    store.close()
    return found


def stored(database: Database, count: int, topic: str = "t") -> list[tuple[str | None, str]]:
    """What is in the log as soon as there are so many messages: an owner appends them."""

    async def wait() -> list[tuple[str | None, str]]:
        async with asyncio.timeout(30), PubSub(database.url) as pubsub:
            store = cast(Engine, pubsub._broker)._store
            (row,) = (row for row in store.catalog().topics if row.name == topic)
            while len(store.read(row.id, 0, 100_000)) < count:  # noqa: ASYNC110 - another process commits
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)  # nothing more may come
            found = store.read(row.id, 0, 100_000)
            return [(record.key, record.data.decode()) for record in found]

    return asyncio.run(wait())


def test_a_message_is_there_if_and_only_if_the_transaction_commits(database):
    with database.connect() as connection:
        connection.execute("CREATE TEMPORARY TABLE orders (id int)")
        connection.execute("INSERT INTO orders VALUES (1)")
        database.publish(connection, "placed", attributes={"colour": "réd"})
        database.publish(connection, "loose", None)
    with database.connect() as connection:
        database.publish(connection, "rolled back")
        connection.rollback()
        database.publish(connection, "after a rollback")
        with connection.transaction(force_rollback=True):
            database.publish(connection, "in a savepoint that is rolled back")
    with suppress(ZeroDivisionError), database.connect() as connection:
        database.publish(connection, "lost with an error")
        raise ZeroDivisionError
    assert stored(database, 3) == [("k", "placed"), (None, "loose"), ("k", "after a rollback")]
    store = open_store(database.url)
    assert store.read(store.catalog().topics[0].id, 0, 1)[0].attributes == {"colour": "réd"}
    store.close()


class TenantSession(Session):
    """A session as applications define their own."""


def test_sessions_of_sqlalchemy_and_async_connections_publish_too(database):
    engine = create_engine(database.alchemy)
    with Session(engine) as session, session.begin():
        session.execute(text("CREATE TEMPORARY TABLE invoices (id int)"))
        database.publish(session, "from a session", attributes={"a": "b"})
    with TenantSession(engine) as session, session.begin():
        database.publish(session, "from a session of the application's own kind")
    with engine.begin() as connection:
        database.publish(connection, "from a connection")
    with Session(engine) as session:
        database.publish(session, "never")
        session.rollback()
    engine.dispose()

    async def asynchronously() -> None:
        async with await psycopg.AsyncConnection.connect(database.conninfo) as connection:
            await database.publish(connection, "async")
        async_engine = create_async_engine(database.alchemy)
        async with AsyncSession(async_engine) as session, session.begin():
            await database.publish(session, "from an async session")
        await async_engine.dispose()

    asyncio.run(asynchronously())
    assert [data for _, data in stored(database, 5)] == [
        "from a session",
        "from a session of the application's own kind",
        "from a connection",
        "async",
        "from an async session",
    ]


class Writer:
    """Transactions of one connection, one after the other: the keys that each publishes, and whether it commits."""

    def __init__(self, connection: psycopg.AsyncConnection, dice: random.Random, keys: Sequence[str]) -> None:
        self.connection = connection
        self.transactions = [
            # in one order everywhere: no deadlocks
            (sorted(dice.choices(keys, k=dice.randint(1, 4))), dice.random() < 0.8)
            for _ in range(2)
        ]
        self.written: list[tuple[str, str]] = []
        self.waits_for: str | None = None
        self.publishing: asyncio.Task[object] | None = None

    @property
    def next(self) -> str | None:
        """The key that it publishes next; None: its transaction ends."""
        keys, _ = self.transactions[0]
        return keys[0] if keys else None


async def interleaved(
    database: Database, connections: Sequence[psycopg.AsyncConnection], dice: random.Random, keys: Sequence[str]
) -> dict[str, list[str]]:
    """Run transactions step by step, in random turn. Returns what each key has to have, in the order of the commits."""
    committed: dict[str, list[str]] = {key: [] for key in keys}
    writers, held, count = [Writer(one, dice, keys) for one in connections], dict[str, Writer](), 0

    def may_go(writer: Writer) -> bool:
        if not writer.transactions or writer.publishing is not None:
            return False
        awaited = {other.waits_for for other in writers if other.publishing is not None}
        return writer.next not in awaited or held.get(str(writer.next)) is writer  # one waits for a key at a time

    while able := list(filter(may_go, writers)):
        writer = dice.choice(able)
        if (key := writer.next) is not None:
            writer.transactions[0][0].pop(0)
            count += 1
            writer.written.append((key, str(count)))
            writer.publishing = asyncio.create_task(database.publish(writer.connection, str(count), key))
            writer.waits_for = key
            if held.setdefault(key, writer) is not writer:
                continue  # until that one's transaction has ended
            await writer.publishing
            writer.publishing = None
            continue
        _, commits = writer.transactions.pop(0)
        waiting = [other for other in writers if other.publishing is not None and held[str(other.waits_for)] is writer]
        assert not any(other.publishing.done() for other in waiting if other.publishing), "writers of a key wait"
        await (writer.connection.commit() if commits else writer.connection.rollback())
        for key, data in writer.written if commits else ():
            committed[key].append(data)
        writer.written = []
        held = {key: holder for key, holder in held.items() if holder is not writer}
        for other in waiting:
            assert other.publishing is not None
            await other.publishing
            other.publishing = None
            held[str(other.waits_for)] = other
    assert not any(writer.transactions for writer in writers)
    return committed


def test_however_transactions_interleave_each_key_has_what_was_committed_in_the_order_of_the_commits(database):
    async def main() -> None:
        expected: dict[str, list[str]] = {}
        async with PubSub(database.url) as pubsub, AsyncExitStack() as stack:
            connections = [
                await stack.enter_async_context(await psycopg.AsyncConnection.connect(database.conninfo))
                for _ in range(4)
            ]
            for seed in range(50):
                dice = random.Random(seed)
                keys = [f"{seed}-{number}" for number in range(1 + seed % 3)]
                expected |= await interleaved(database, connections, dice, keys)
            store = cast(Engine, pubsub._broker)._store
            topic = next(row.id for row in store.catalog().topics if row.name == "t")
            total = sum(map(len, expected.values()))
            async with asyncio.timeout(60):
                while len(store.read(topic, 0, 100_000)) < total:  # noqa: ASYNC110 - the owner tells nobody
                    await asyncio.sleep(0.02)
            found: dict[str, list[str]] = {key: [] for key in expected}
            for record in store.read(topic, 0, 100_000):
                found[str(record.key)].append(record.data.decode())
            assert found == expected
            assert total > 300

    asyncio.run(main())


def test_what_can_never_work_is_refused_where_it_is_published(database):
    with database.connect(autocommit=True) as connection:
        with pytest.raises(psycopg.errors.UndefinedObject, match='topic "nowhere" does not exist'):
            database.publish(connection, "x", topic="nowhere")
        for sql in (
            "publish('t', 'x', 'k', '{\"a\": 1}')",
            "publish('t', 'x', '')",
            "publish('t', 'x', 'k', '[]')",
        ):
            with pytest.raises(psycopg.Error):
                connection.execute(f'SELECT "{database.schema}".{sql}')
        for wrong in ({"key": "\0"}, {"key": "x" * 2000}, {"topic": ""}, {"attributes": {"a": 1}}):
            with pytest.raises(InvalidArgument):
                database.publish(connection, "x", **wrong)
    with pytest.raises(InvalidArgument, match="can't publish through the outbox"):
        outbox.publish(object(), "t", b"")


def test_one_key_keeps_the_order_of_the_commits_because_the_second_waits(database):
    """The second transaction publishes after the first and would commit before it: it has to wait."""
    first, second = database.connect(), database.connect()
    database.publish(first, "first")
    went_on = threading.Event()

    def publish_second() -> None:
        database.publish(second, "second")
        second.commit()
        went_on.set()

    worker = threading.Thread(target=publish_second)
    worker.start()
    assert not went_on.wait(0.5)
    first.commit()
    worker.join(10)
    assert went_on.is_set()
    first.close()
    second.close()
    assert stored(database, 2) == [("k", "first"), ("k", "second")]


def test_two_keys_are_published_in_one_order_and_committed_in_the_other(database):
    first, second, unrelated = database.connect(), database.connect(), database.connect()
    unrelated.execute("CREATE TABLE nobody_cares (id int)")  # open for as long as the test lasts
    database.publish(first, "a1", "a")
    database.publish(second, "b1", "b")
    database.publish(second, "b2", "b")
    second.commit()
    began = time.monotonic()
    assert stored(database, 2) == [("b", "b1"), ("b", "b2")], "neither waits for the other, nor for the unrelated one"
    assert time.monotonic() - began < 10
    database.publish(first, "a2", "a")
    first.commit()
    assert stored(database, 4) == [("b", "b1"), ("b", "b2"), ("a", "a1"), ("a", "a2")]
    for connection in (first, second, unrelated):
        connection.close()


def test_opposite_orders_of_keys_end_in_a_deadlock_that_postgresql_reports(database):
    first, second = database.connect(), database.connect()
    database.publish(first, "1", "a")
    database.publish(second, "2", "b")
    outcomes: list[BaseException | None] = []

    def go_on(connection, key) -> None:
        try:
            database.publish(connection, "again", key)
            connection.commit()
            outcomes.append(None)
        except psycopg.errors.DeadlockDetected as error:
            connection.rollback()
            outcomes.append(error)

    workers = [threading.Thread(target=go_on, args=pair) for pair in ((first, "b"), (second, "a"))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert sorted(error is None for error in outcomes) == [False, True]
    assert len(stored(database, 2)) == 2
    first.close()
    second.close()


OWNER = """
import asyncio, sys
from seriatim import PubSub
async def own():
    async with PubSub(sys.argv[1], standby=True):
        print("owner", flush=True)
        await asyncio.sleep(3600)
asyncio.run(own())
"""


def publish_until(stop: threading.Event, database: Database, published: list[int], part: int) -> None:
    with database.connect() as connection:
        while not stop.is_set():
            rolls_back = random.random() < 0.1
            for topic in ("t", "u"):
                data = "rolled back" if rolls_back else str(published[part])
                database.publish(connection, data, f"{part}-{published[part] % 3}", topic)
            if rolls_back:
                connection.rollback()
            else:
                connection.commit()
                published[part] += 1


def test_no_kill_of_the_owner_loses_repeats_or_reorders_a_message(database):
    seed = random.randrange(2**32)
    moments, stop, published = random.Random(seed), threading.Event(), [0, 0]
    writers = [threading.Thread(target=publish_until, args=(stop, database, published, part)) for part in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(KILLS):
            command = [sys.executable, "-c", OWNER, database.url]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
                assert owner.stdout is not None
                assert owner.stdout.readline() == "owner\n"
                time.sleep(moments.uniform(0.05, 0.6))
                owner.kill()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    for topic in ("t", "u"):
        log = stored(database, sum(published), topic)
        for part, rest in product(range(2), range(3)):
            mine = [int(data) for key, data in log if key == f"{part}-{rest}"]
            assert mine == list(range(rest, published[part], 3)), (seed, topic)


def test_a_message_of_a_deleted_topic_stays_and_delays_nobody(database):
    with database.connect() as connection:
        database.publish(connection, "early", topic="u")
        database.publish(connection, "other")
    store = open_store(database.url)
    with store.transaction() as work:
        work.delete_topic(next(row.id for row in store.catalog().topics if row.name == "u"))
    store.close()
    assert stored(database, 1) == [("k", "other")]
    store = open_store(database.url)
    with store.transaction() as work:
        work.create_topic("u", {})
    store.close()
    assert stored(database, 1, "u") == [("k", "early")]
