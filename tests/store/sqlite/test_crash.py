"""A killed process leaves whole transactions behind, and every one that it was told of.

A child writes numbered transactions that each change several tables, and says after each commit which one it was. It is
killed at a random moment; then everything is looked at by somebody else.
"""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from seriatim.store.base import Cursor, DocumentRow
from seriatim.store.settled_set import SettledSet
from seriatim.store.sqlite.store import SqliteReader, SqliteStore
from tests.store.contract.kit import kept, records

KILLS = 20
ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys
from tests.store.sqlite.test_crash import write_for_ever
write_for_ever(sys.argv[1], int(sys.argv[2]))
"""


def write_for_ever(path: str, number: int) -> None:
    store = SqliteStore(path)
    topics = {topic.name: topic for topic in store.catalog().topics}
    (subscription,) = store.catalog().subscriptions
    while True:
        with store.transaction() as work:
            work.append(topics["left"].id, records([number], size=5_000, published=0.0))
            work.settle(subscription.id, [number] if number % 10 else [])
            work.put_document(DocumentRow("count", "number", str(number)))
            work.append(topics["right"].id, records([number], size=5_000, published=0.0))
        print(number, flush=True)  # noqa: T201
        number += 1
        if number % 7 == 0:
            store.upkeep(0.0)


def run_and_kill(path, number: int, moment: int) -> int:
    """Start at a number, kill after so many commits, and return the last number that was acknowledged."""
    command = [sys.executable, "-c", PROGRAM, str(path), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(moment)]
        child.kill()
        said += child.stdout.readlines()
    return max(int(line) for line in said if line.endswith("\n"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def test_no_kill_tears_a_transaction_or_loses_an_acknowledged_one(path):
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    with closing(SqliteStore(path)) as store, store.transaction() as work:
        left, right = work.create_topic("left", {}), work.create_topic("right", {"retention": None})
        work.create_subscription(left.id, "s", {}, Cursor(0))
    acknowledged = -1
    for _ in range(KILLS):
        acknowledged = run_and_kill(path, acknowledged + 1, moments.randint(1, 40))
        acknowledged = check_after_crash(path, left, right, acknowledged, seed)


def check_after_crash(path, left, right, acknowledged: int, seed: int) -> int:
    """Everything is there once and whole; the last number that was written."""
    with closing(SqliteReader(path)) as reader:
        assert list(reader.check()) == [], seed
        everything = kept(reader, right)
        last = everything[-1]
        assert everything == list(range(last + 1)), seed
        assert last in {acknowledged, acknowledged + 1}, seed
        catalog = reader.catalog()
        assert [row.text for row in reader.documents("count")] == [str(last)]
        assert [topic.next_offset for topic in catalog.topics] == [last + 1, last + 1]
        settled = SettledSet.of(reader.cursor(catalog.subscriptions[0].id))
        left_over = kept(reader, left)
        unsettled = [offset for offset in left_over if offset not in settled]
        assert unsettled == list(range(0, last + 1, 10)), seed
        assert all(record.data.startswith(f"{record.offset}.".encode()) for record in reader.fetch(left.id, left_over))
    return last
