"""Damage to a SQLite store: said when it is opened, read or checked. Messages and what is settled are never silently wrong.

**Not noticed**: damage to rows that have no checksum (positions of readers and writers, documents), to the last commit in a
write-ahead log (or the last two, if zeros hide where the first of them ended), and a log that is cut off.
``docs/explanation/guarantees.md`` says so. ``test_rows.py`` damages the rows that have one.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from seriatim import PubSub
from seriatim.errors import DamagedStore, NotAStore, SeriatimError, StoreFailed
from seriatim.store.sqlite.inspection import examine
from seriatim.store.sqlite.restore import restore_backup
from seriatim.store.sqlite.store import SqliteReader, SqliteStore
from seriatim.store.sqlite.wal_damage import count_lost_commits
from seriatim.store.state_checksums import CHECKSUM_BYTES
from tests.bit_rot.damage import KINDS, copied, damaged
from tests.bit_rot.stores import Content, content_of, fill, reading
from tests.bit_rot.times import TIMES
from tests.conftest import fast_folder

FLIPPED, CUT = "a flipped bit", "the end cut off"
"""A log that is cut off looks like one that was never longer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(dir=fast_folder()) as scratch:
        yield Path(scratch)


@pytest.fixture(scope="module")
def closed(folder) -> tuple[Path, Content]:
    """A store that was closed: one file, without a write-ahead log."""
    whole = folder / "closed"
    whole.mkdir()
    store, held = fill(whole / "store.db", 40)
    store.close()
    return whole, held[-1]


@pytest.fixture(scope="module")
def killed(folder) -> tuple[Path, list[Content]]:
    """A store whose owner was killed: everything is in its write-ahead log."""
    whole = folder / "killed"
    whole.mkdir()
    store, held = fill(folder / "running.db", 15)
    for part in ("", "-wal"):
        shutil.copy(folder / f"running.db{part}", whole / f"store.db{part}")
    store.close()
    return whole, held


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_database_is_said_to_be_damaged_and_no_message_is_wrong(folder, closed, kind):
    whole, held = closed
    outcomes: Counter[str] = Counter()
    for seed in random_seeds(60):
        store = damaged(whole, folder / "damaged", "store.db", kind, seed) / "store.db"
        outcome, found = reading(store)
        outcomes[outcome] += 1
        if found is not None:
            assert found.messages == held.messages, seed
            assert found.settled == held.settled, seed
    assert outcomes["not noticed"] < outcomes.total(), outcomes


@pytest.mark.soak
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != CUT])
def test_a_damaged_write_ahead_log_loses_the_last_commit_at_most(folder, killed, kind):
    """Or the last two, where the zeros hide where the first of them ended."""
    whole, held = killed
    for seed in random_seeds(60):
        store = damaged(whole, folder / "damaged", "store.db-wal", kind, seed) / "store.db"
        _, found = reading(store)
        assert found is None or found in held[-2 if kind == FLIPPED else -3 :], seed


@pytest.mark.parametrize("zeroed", [32, 512])
def test_a_log_without_its_header_is_refused(folder, killed, zeroed):
    whole, _ = killed
    store = copied(whole, folder / "damaged") / "store.db"
    log = Path(f"{store}-wal")
    log.write_bytes(bytes(zeroed) + log.read_bytes()[zeroed:])
    with pytest.raises(DamagedStore, match="write-ahead log"):
        SqliteStore(store)
    with pytest.raises(DamagedStore, match="write-ahead log"):
        examine(store)


def test_a_flipped_bit_in_the_salts_of_a_commit_hides_it_from_nobody(folder, killed):
    """In the frame that ends the last commit but one: both commits can't be read."""
    whole, _ = killed
    store = copied(whole, folder / "damaged") / "store.db"
    log = Path(f"{store}-wal")
    content = bytearray(log.read_bytes())
    page_bytes = int.from_bytes(content[8:12], "big")
    frames = range(32, len(content), 24 + page_bytes)
    ends = [at for at in frames if content[at + 8 : at + 16] == content[16:24] and any(content[at + 4 : at + 8])]
    content[ends[-2] + 8] ^= 1
    log.write_bytes(content)
    with pytest.raises(DamagedStore, match="write-ahead log"):
        SqliteStore(store)


def test_a_log_that_can_not_be_read_is_said(folder, killed):
    whole, _ = killed
    store = copied(whole, folder / "damaged") / "store.db"
    log = Path(f"{store}-wal")
    log.unlink()
    log.mkdir()
    with pytest.raises(StoreFailed, match="can't be read"):
        SqliteStore(store)


@pytest.mark.parametrize("table", ["store", "topics"])
def test_rows_that_are_gone_are_no_stack_trace(folder, killed, table):
    whole, _ = killed
    store = copied(whole, folder / "damaged") / "store.db"
    with closing(sqlite3.connect(store)) as database:
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute(f"DELETE FROM {table}")
        database.commit()

    async def use() -> None:
        async with PubSub(f"sqlite:///{store}"):
            pass

    with pytest.raises(DamagedStore, match="seriatim store check"):
        asyncio.run(use())


def test_a_flipped_bit_in_a_write_ahead_log_is_refused_by_everybody_and_nothing_is_changed(folder, killed):
    whole, _ = killed
    store = copied(whole, folder / "damaged") / "store.db"
    log = Path(f"{store}-wal")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    for _ in range(2):
        with pytest.raises(DamagedStore, match=r"write-ahead log .* is damaged, and \d+ commits or more can't be read"):
            SqliteStore(store)
    assert log.read_bytes() == content
    with pytest.raises(DamagedStore, match="write-ahead log"):
        SqliteReader(store)
    with pytest.raises(DamagedStore, match="write-ahead log"):
        examine(store)


def test_a_log_whose_end_is_torn_by_a_crash_is_accepted(folder, killed):
    whole, held = killed
    store = copied(whole, folder / "damaged") / "store.db"
    log = Path(f"{store}-wal")
    log.write_bytes(log.read_bytes()[:-3000] + bytes(3000))
    assert count_lost_commits(log) == 0
    _, found = reading(store)
    assert found == held[-2]


def test_torn_frames_that_a_crash_left_are_not_held_against_the_next_one(folder, killed):
    """The frames of a lost commit are still in the file when the next owner writes over the first of them and crashes, too."""
    whole, _ = killed
    store = copied(whole, folder / "damaged") / "store.db"
    log = Path(f"{store}-wal")
    content = bytearray(log.read_bytes())
    last_commit = len(content) - 6 * 4120
    content[last_commit] ^= 1
    log.write_bytes(content)
    again = SqliteStore(store)
    torn = bytearray(log.read_bytes())
    torn[32 + 24] ^= 1
    crashed = folder / "again"
    shutil.rmtree(crashed, ignore_errors=True)
    crashed.mkdir()
    shutil.copy(store, crashed / "store.db")
    (crashed / "store.db-wal").write_bytes(torn)
    again.close()
    assert count_lost_commits(crashed / "store.db-wal") == 0
    SqliteStore(crashed / "store.db").close()


@pytest.mark.parametrize("part", range(0, 32, 4))
def test_a_damaged_header_of_a_log_is_refused(folder, killed, part):
    whole, _ = killed
    store = copied(whole, folder / "damaged") / "store.db"
    log = Path(f"{store}-wal")
    content = bytearray(log.read_bytes())
    content[part + 1] ^= 4
    log.write_bytes(content)
    with pytest.raises(DamagedStore, match="write-ahead log"):
        SqliteStore(store)


def test_the_files_of_two_stores_that_were_swapped_are_said_to_be_damaged_or_not_mixed(folder, killed, closed):
    store = copied(closed[0], folder / "damaged") / "store.db"
    shutil.copy(killed[0] / "store.db-wal", f"{store}-wal")
    try:
        opened = SqliteStore(store)
    except SeriatimError:
        return
    problems = list(opened.check())
    whole = not problems and content_of(opened)
    opened.close()
    assert problems or whole in [closed[1], killed[1][-1]]


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_backup_is_refused_or_what_is_restored_has_the_right_messages(folder, closed, kind):
    whole, held = closed
    for seed in random_seeds(30):
        backup = damaged(whole, folder / "damaged", "store.db", kind, seed) / "store.db"
        target = folder / "damaged" / "restored.db"
        try:
            restore_backup(backup, target)
        except SeriatimError:
            assert not target.exists()
        else:
            outcome, found = reading(target)
            assert found is None or found.messages == held.messages, (seed, outcome)


def random_seeds(count: int) -> list[int]:
    random = Random()
    return [random.getrandbits(32) for _ in range(count * TIMES)]


# -- one row ------------------------------------------------------------------------------------------------------------


def change_row(store: Path, statement: str) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.create_function("flip", 1, lambda blob: bytes([blob[0] ^ 16]) + blob[1:])
        connection.create_function("unsealed", 1, lambda blob: blob[:-CHECKSUM_BYTES])
        connection.execute(statement)
        connection.commit()


SETTLED = {"settled_blocks": "bits", "settlements": "offsets", "snapshots": "cursor"}


@pytest.mark.parametrize("table", SETTLED)
def test_what_is_settled_is_never_silently_wrong(folder, closed, table):
    store = copied(closed[0], folder / "damaged") / "store.db"
    change_row(store, f"UPDATE {table} SET {SETTLED[table]} = flip({SETTLED[table]})")
    outcome, _ = reading(store)
    assert outcome == "refused when read"


def test_what_is_settled_is_read_from_stores_of_before_that_had_no_checksum(folder, closed):
    whole, held = closed
    store = copied(whole, folder / "damaged") / "store.db"
    for table, column in SETTLED.items():
        change_row(store, f"UPDATE {table} SET {column} = unsealed({column})")
    assert reading(store) == ("not noticed", held)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE topics SET options = CAST(x'7bff7d' AS TEXT)",
        "UPDATE topics SET options = '{\"retention\": nul}'",
        "UPDATE subscriptions SET options = '{'",
        "UPDATE writers SET batches = '[['",
        "UPDATE snapshots SET options = ''",
    ],
)
def test_a_damaged_text_is_an_error_of_ours(folder, closed, statement):
    store = copied(closed[0], folder / "damaged") / "store.db"
    change_row(store, statement)
    outcome, _ = reading(store)
    assert outcome == "refused when read"


@pytest.mark.parametrize("column", ["head", "data"])
def test_a_pack_that_is_no_bytes_is_an_error_of_ours(folder, closed, column):
    store = copied(closed[0], folder / "damaged") / "store.db"
    change_row(store, f"UPDATE packs SET {column} = 5")
    with closing(SqliteReader(store)) as reader:
        with pytest.raises(DamagedStore):
            reader.read(1, 0, 9)
        with pytest.raises(DamagedStore):
            reader.fetch(1, list(range(120)))
        if column == "head":
            with pytest.raises(DamagedStore):
                list(reader.headers(1))


@pytest.mark.parametrize("column", ["first_offset", "last_offset", "messages", "head", "data"])
def test_a_check_survives_a_row_that_holds_something_else(folder, closed, column):
    store = copied(closed[0], folder / "damaged") / "store.db"
    change_row(store, f"UPDATE packs SET {column} = 'text' WHERE id = (SELECT max(id) FROM packs)")
    with closing(SqliteReader(store)) as reader:
        assert list(reader.check())


def test_a_damaged_schema_that_sqlite_can_not_even_name_is_an_error_of_ours(folder, closed):
    store = copied(closed[0], folder / "damaged") / "store.db"
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET name = CAST(x'c5c5' AS TEXT), sql = 'CREATE x' WHERE name = 'writers'"
        )
        connection.commit()
    with pytest.raises(DamagedStore):
        SqliteStore(store)


def test_a_damaged_list_of_migrations_is_no_older_store(folder, closed):
    store = copied(closed[0], folder / "damaged") / "store.db"
    change_row(store, "DELETE FROM migrations WHERE version = (SELECT max(version) FROM migrations)")
    with pytest.raises(DamagedStore, match="and no note of it: restore a backup"):
        SqliteStore(store)


def test_an_empty_file_is_no_backup(folder):
    (folder / "empty.backup").touch()
    with pytest.raises(NotAStore, match="is empty: choose another file"):
        restore_backup(folder / "empty.backup", folder / "restored.db")


WRONG = (None, -1, "text", b"\0" * 7, 2**62)


def test_whatever_a_row_holds_only_errors_of_ours_come_out(folder):
    """Every column of every table gets every wrong value; then the store is opened, used and cleaned up."""
    whole = folder / "used.db"
    asyncio.run(_fill_all_tables(whole))
    with closing(sqlite3.connect(whole)) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = [(table, row[1]) for table in tables for row in file.execute(f"PRAGMA table_info({table})")]
    refused: Counter[str] = Counter()
    for table, column in columns:
        for wrong in WRONG:
            store = folder / "wrong.db"
            for old in folder.glob("wrong.db*"):
                old.unlink()
            shutil.copy(whole, store)
            with closing(sqlite3.connect(store, isolation_level=None)) as file:
                file.execute("PRAGMA foreign_keys = OFF")
                try:
                    file.execute(f"UPDATE {table} SET {column} = ?", (wrong,))
                except sqlite3.Error:  # constraints keep some from being written, if not from being damaged
                    continue
            try:
                asyncio.run(_use(store))
            except SeriatimError:
                refused[table] += 1
    assert refused.keys() >= {"topics", "packs", "subscriptions", "dead_letters", "settlements", "migrations"}, refused


async def _fill_all_tables(store: Path) -> None:
    async with PubSub(f"sqlite:///{store}") as pubsub:
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create()
        await topic.subscription("other").create()
        for number in range(40):
            await topic.publish(b"x", ordering_key=f"k{number % 5}", dedup_id=str(number))
        first, *others = await subscription.pull(5)
        first.dead_letter("bad")
        for message in others[1:]:
            await message.ack_durable()
        others[0].nack(delay=3600)
        await subscription.pause_key("k3", "stock-taking")
        await subscription.snapshot("now")


async def _use(store: Path) -> None:
    async with asyncio.timeout(20), PubSub(f"sqlite:///{store}") as pubsub:
        subscription = pubsub.subscription("s")
        for message in await subscription.pull(10, timeout=0.05):
            await message.ack_durable()
        await pubsub.topic("t").publish(b"x", dedup_id="1000")
        await subscription.dead_letters()
        await subscription.keys()
        await pubsub.snapshots()
        await pubsub.broker.clean_up()
