"""The outbox in a SQLite file of the application: how far it was read is committed together with the messages."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from seriatim import PubSub, outbox
from seriatim.engine.engine import Engine
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, NotSupported
from seriatim.store import open_store
from seriatim.store.sqlite.outbox_file import OutboxFile
from seriatim.testing import run_in_virtual_time
from tests.server.served import server_in_thread

ROOT = Path(__file__).parents[2]
KILLS = 5


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def app(tmp_path, url) -> Path:
    """The file of an application, whose outbox the store knows."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript("PRAGMA journal_mode=WAL; CREATE TABLE orders (id int)")

    async def prepare() -> None:
        async with PubSub(url) as pubsub:
            for name in ("t", "u"):
                await pubsub.topic(name).create()
            await pubsub.add_outbox(path)
            await pubsub.add_outbox(path)

    asyncio.run(prepare())
    return path


def publish(connection, data: str, key: str | None = "k", topic: str = "t", **options) -> None:
    outbox.publish(connection, topic, data.encode(), ordering_key=key, **options)


def stored(url: str, count: int, topic: str = "t") -> list[tuple[str | None, str]]:
    async def wait() -> list[tuple[str | None, str]]:
        async with asyncio.timeout(30), PubSub(url) as pubsub:
            store = cast(Engine, pubsub._broker)._store
            (row,) = (row for row in store.catalog().topics if row.name == topic)
            while len(store.read(row.id, 0, 100_000)) < count:  # noqa: ASYNC110 - a task of the engine does it
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)  # nothing more may come
            return [(record.key, record.data.decode()) for record in store.read(row.id, 0, 100_000)]

    return asyncio.run(wait())


def test_a_message_is_there_if_and_only_if_the_transaction_commits(url, app):
    with closing(sqlite3.connect(app)) as file:
        with file:
            file.execute("INSERT INTO orders VALUES (1)")
            publish(file, "first", attributes={"a": "b"})
            publish(file, "beside", topic="u")
        publish(file, "rolled back")
        file.rollback()
        with file:
            publish(file, "loose", None)
    engine = create_engine(f"sqlite:///{app}")
    with Session(engine) as session, session.begin():
        publish(session, "from a session")
    engine.dispose()
    assert stored(url, 3) == [("k", "first"), (None, "loose"), ("k", "from a session")]
    assert stored(url, 1, "u") == [("k", "beside")]
    with closing(sqlite3.connect(app)) as file:
        assert file.execute("SELECT count(*) FROM seriatim_outbox").fetchone() == (0,)


def test_wrong_files_and_connections_are_refused_with_what_to_do(url, app, tmp_path):
    async def wrong_files() -> None:
        async with PubSub(url) as pubsub:
            with pytest.raises(InvalidArgument, match="is a store: an outbox is a table in a database of your own"):
                await pubsub.add_outbox(tmp_path / "store.db")
            for wrong in (1, None, b"app.db"):
                with pytest.raises(InvalidArgument, match="an outbox is a file: give its path"):
                    await pubsub.add_outbox(cast("str", wrong))

    asyncio.run(wrong_files())
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        with pytest.raises(FailedPrecondition, match="this file has no outbox: call 'await"):
            publish(other, "1")
        with pytest.raises(InvalidArgument, match="a Cursor can't publish through the outbox"):
            publish(other.cursor(), "1")
        with pytest.raises(InvalidArgument, match="Attributes must be a mapping"):
            outbox.publish(other, "orders", b"1", attributes=cast("dict[str, str]", ["a"]))
        engine = create_engine("sqlite://")
        for wrong, name in ((engine, "Engine"), (sessionmaker(engine), "sessionmaker")):
            with pytest.raises(InvalidArgument, match=f"a {name} can't publish through the outbox"):
                outbox.publish(wrong, "orders", b"1")
        for schema in (5, None, "a b", ""):
            with pytest.raises(InvalidArgument, match=r"^schema must be a str|is not the schema of a store"):
                outbox.publish(other, "orders", b"1", schema=cast("str", schema))


def test_large_messages_are_read_a_few_at_a_time(url, app):
    large = "x" * 6 * 1024 * 1024
    with closing(sqlite3.connect(app)) as file, file:
        for number in range(4):
            publish(file, f"{number}{large}")
        ((reader,),) = file.execute("SELECT name FROM seriatim_outbox_reader")
    file_of_store = OutboxFile(str(app), reader)
    assert [row.id for row in file_of_store.read(1)] == [1, 2, 3]
    assert [row.id for row in file_of_store.read(4)] == [4]
    assert [data[0] for _, data in stored(url, 4)] == ["0", "1", "2", "3"]


def test_what_was_read_and_not_deleted_is_not_read_again(url, app):
    with closing(sqlite3.connect(app)) as file:
        with file:
            publish(file, "1")
        rows = file.execute("SELECT * FROM seriatim_outbox").fetchall()
        assert stored(url, 1) == [("k", "1")]
        with file:
            file.executemany("INSERT INTO seriatim_outbox VALUES (?, ?, ?, ?, ?)", rows)
            publish(file, "2")
    assert stored(url, 2) == [("k", "1"), ("k", "2")]


def test_what_was_appended_and_not_deleted_is_not_appended_again_when_the_file_is_added_anew(url, app, tmp_path):
    with closing(sqlite3.connect(app)) as file:
        with file:
            publish(file, "1")
        rows = file.execute("SELECT * FROM seriatim_outbox").fetchall()
        assert stored(url, 1) == [("k", "1")]
        with file:  # the owner was killed before it deleted them
            file.executemany("INSERT INTO seriatim_outbox VALUES (?, ?, ?, ?, ?)", rows)

    async def add_anew() -> None:
        async with PubSub(url) as pubsub:
            await pubsub.remove_outbox(app)
            with closing(sqlite3.connect(app)) as file, file:
                publish(file, "2")
            (tmp_path / "link.db").symlink_to(app)
            await pubsub.add_outbox(tmp_path / "link.db")
            with pytest.raises(FailedPrecondition, match="was added under another path: remove it there"):
                await pubsub.add_outbox(app)

    asyncio.run(add_anew())
    assert stored(url, 2) == [("k", "1"), ("k", "2")]


def test_an_older_copy_keeps_its_messages_when_it_is_added_anew(url, app):
    with closing(sqlite3.connect(app)) as file:
        for number in range(3):
            with file:
                publish(file, f"{number}")
        assert [data for _, data in stored(url, 3)] == ["0", "1", "2"]
        with file:  # a backup was put in its place
            file.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'seriatim_outbox'")
            publish(file, "new")

    async def add_anew() -> None:
        async with PubSub(url) as pubsub:
            await pubsub.remove_outbox(app)
            await pubsub.add_outbox(app)

    asyncio.run(add_anew())
    assert [data for _, data in stored(url, 4)] == ["0", "1", "2", "new"]


def test_a_file_that_is_removed_at_any_moment_loses_and_repeats_nothing(url, app, caplog):
    total = 60

    async def remove_and_add() -> None:
        async with PubSub(url) as pubsub:
            with closing(sqlite3.connect(app, timeout=30)) as file:
                for number in range(total):
                    with file:
                        publish(file, f"{number}")
                    await asyncio.sleep(random.choice([0, 0.001, 0.01]))
                    if number % 5 == 4:
                        await pubsub.remove_outbox(app)
                        await pubsub.add_outbox(app)

    asyncio.run(remove_and_add())
    assert [data for _, data in stored(url, total)] == [f"{number}" for number in range(total)]
    assert not caplog.records


def test_a_topic_that_does_not_exist_stops_the_file_until_it_does(url, app, caplog):
    with closing(sqlite3.connect(app)) as file, file:
        publish(file, "1", topic="later")
        publish(file, "2")
    assert stored(url, 0) == []
    assert "topic 'later'" in caplog.text
    store = open_store(url)
    with store.transaction() as work:
        work.create_topic("later", {})
    store.close()
    assert stored(url, 1) == [("k", "2")]
    assert stored(url, 1, "later") == [("k", "1")]


def test_a_linked_program_registers_a_file_with_the_owner_and_a_pubsub_server_refuses(url, tmp_path):
    app = tmp_path / "another.db"
    with closing(sqlite3.connect(app)):
        pass

    async def linked() -> list[bytes]:
        async with PubSub(url) as owner, PubSub(url) as other:
            assert not isinstance(other.broker, Engine)
            work = await (await owner.topic("t").ensure()).subscription("work").ensure(enable_message_ordering=True)
            await other.add_outbox(app)
            with closing(sqlite3.connect(app)) as file, file:
                publish(file, "by way of the owner")
            return [message.data for message in await work.pull(timeout=30)]

    assert asyncio.run(linked()) == [b"by way of the owner"]

    async def served(address: str) -> None:
        async with PubSub(f"pubsub://{address}/demo") as pubsub:
            with pytest.raises(NotSupported, match="use its store instead"):
                await pubsub.add_outbox(app)

    with server_in_thread() as server:
        asyncio.run(served(server.clients.address))


def test_a_file_belongs_to_one_store_and_an_older_copy_is_refused(url, app, tmp_path, caplog):
    async def others() -> None:
        async with PubSub(f"sqlite:///{tmp_path}/other.db") as other:
            with pytest.raises(FailedPrecondition, match="belongs to another store"):
                await other.add_outbox(app)
            with pytest.raises(NotFound):
                await other.add_outbox(tmp_path / "nothing.db")
        async with PubSub("memory://") as memory:
            with pytest.raises(FailedPrecondition, match="a store in memory forgets"):
                await memory.add_outbox(app)
        async with PubSub(url) as pubsub:
            await pubsub.remove_outbox(app)
        async with PubSub(f"sqlite:///{tmp_path}/other.db") as other:
            await other.add_outbox(app)
            await other.remove_outbox(app)
        async with PubSub(url) as pubsub:
            await pubsub.add_outbox(app)

    asyncio.run(others())
    with closing(sqlite3.connect(app)) as file:
        with file:
            publish(file, "1")
        assert stored(url, 1) == [("k", "1")]
        with file:
            file.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'seriatim_outbox'")
    assert stored(url, 1) == [("k", "1")]
    assert "older than what was read" in caplog.text


@settings(max_examples=max(5, settings().max_examples // 10))
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("tu")), max_size=3), st.sampled_from("crd")
        ),
        max_size=12,
    )
)
def test_what_commits_is_appended_in_that_order_whenever_the_owner_lives(steps):
    """A transaction commits or is rolled back; the owner, on virtual time, lives at some moments and not at others."""
    committed: list[tuple[str, str, str]] = []
    with TemporaryDirectory() as folder, closing(sqlite3.connect(Path(folder) / "app.db")) as file:
        url = f"sqlite:///{folder}/store.db"

        async def live(until: int) -> dict[str, list[tuple[str | None, str]]]:
            async with PubSub(url) as pubsub:
                for name in "tu":
                    await pubsub.topic(name).ensure()
                await pubsub.add_outbox(Path(folder) / "app.db")
                store = cast(Engine, pubsub._broker)._store
                logs = {row.name: row.id for row in store.catalog().topics}
                while True:
                    found = {name: store.read(id_, 0, 1000) for name, id_ in logs.items()}
                    if sum(map(len, found.values())) >= until:
                        return {name: [(r.key, r.data.decode()) for r in found[name]] for name in found}
                    await asyncio.sleep(0.05)

        run_in_virtual_time(live(0))
        for number, (messages, ending) in enumerate(steps):
            wanted = [(topic, key, f"{number}.{at}") for at, (key, topic) in enumerate(messages)]
            for topic, key, data in wanted:
                publish(file, data, key, topic)
            if ending == "r":
                file.rollback()
                continue
            file.commit()
            committed += wanted
            if ending == "d":
                run_in_virtual_time(live(len(committed)))
        logs = run_in_virtual_time(live(len(committed)))
        for name in "tu":
            assert logs[name] == [(key, data) for topic, key, data in committed if topic == name]


OWNER = """
import asyncio, sys
from seriatim import PubSub
async def own():
    async with PubSub(sys.argv[1]):
        print("owner", flush=True)
        await asyncio.sleep(3600)
asyncio.run(own())
"""


def test_no_kill_of_the_owner_loses_repeats_or_reorders_a_message(url, app):
    seed = random.randrange(2**32)
    moments, stop, published = random.Random(seed), threading.Event(), [0]

    def write() -> None:
        with closing(sqlite3.connect(app, timeout=30)) as file:
            while not stop.is_set():
                with file:
                    for _ in range(3):
                        publish(file, str(published[0]), f"k{published[0] % 3}")
                        published[0] += 1
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(KILLS):
            with subprocess.Popen(
                [sys.executable, "-c", OWNER, url], stdout=subprocess.PIPE, text=True, cwd=ROOT
            ) as owner:
                assert owner.stdout is not None
                assert owner.stdout.readline() == "owner\n"
                time.sleep(moments.uniform(0.05, 0.5))
                owner.kill()
    finally:
        stop.set()
        writer.join()
    numbers = [int(data) for _, data in stored(url, published[0])]
    assert numbers == list(range(published[0])), seed
