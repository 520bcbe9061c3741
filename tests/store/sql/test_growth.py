"""One blocked key and a million other messages: the file stops growing, and shrinks in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from seriatim.store.base import Cursor, Record
from seriatim.store.sqlite.store import SqliteStore
from tests.conftest import fast_folder
from tests.store.contract.kit import NOW, upkeep_until_done

MESSAGES, PACK = 1_000_000, 1_000
SAMPLES = 10
DATA = b"x" * 200


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=fast_folder()) as found:
        yield Path(found)


def write_and_settle(store: SqliteStore, first: int) -> None:
    """A pack of messages, one in a hundred of which belongs to the key that is blocked; the others are settled."""
    offsets = range(first, first + PACK)
    pack = [Record(at, "blocked" if at % 100 == 0 else "other", DATA, None, NOW - 10) for at in offsets]
    with store.transaction() as work:
        work.append(1, pack)
        work.settle(1, [at for at in offsets if at % 100])


def file_size(store: SqliteStore) -> int:
    return sum(path.stat().st_size for path in store._path.parent.glob(f"{store._path.name}*"))


def test_one_blocked_key_does_not_keep_a_million_settled_messages(folder):
    sizes = []
    with closing(SqliteStore(folder / "store.db")) as store:
        with store.transaction() as work:
            topic = work.create_topic("t", {})
            work.create_subscription(topic.id, "s", {}, Cursor(0))
        for first in range(0, MESSAGES, PACK):
            write_and_settle(store, first)
            if (first // PACK) % (MESSAGES // PACK // SAMPLES) == 0:
                upkeep_until_done(store, NOW)
                sizes.append(file_size(store))
        upkeep_until_done(store, NOW)
        kept = [position.offset for positions in store.headers(1) for position in positions]
        assert kept == list(range(0, MESSAGES, 100))
        # With everything that was ever written it would be 200 MB.
        assert max(sizes) < 50 * 2**20
        assert sizes[-1] < 1.5 * sizes[2], "it goes on growing"
        before = file_size(store)
        with store.transaction() as work:
            work.settle(1, kept)
        upkeep_until_done(store, NOW)
        assert list(store.headers(1)) == []
        assert store.cursor(1).blocks == {}
        assert file_size(store) <= before
        assert list(store.check()) == []
