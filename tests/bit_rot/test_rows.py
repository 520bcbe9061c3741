"""Damage to single rows that decide which messages are delivered, and when: floors, attempts, pauses, dead letters, options."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from seriatim.errors import DamagedStore
from seriatim.store.settled_set import BLOCK_BYTES
from seriatim.store.sqlite.store import SqliteReader, SqliteStore
from seriatim.store.state_checksums import NO_CHECKSUM, checksum_of, seal
from tests.bit_rot.rows import TABLES, Rows
from tests.bit_rot.stores import content_of, reading
from tests.bit_rot.times import TIMES
from tests.conftest import fast_folder

FLIPS = 60


@pytest.fixture(scope="module")
def rows():
    with TemporaryDirectory(dir=fast_folder()) as scratch:
        yield Rows(Path(scratch) / "store.db")


@pytest.mark.soak
@pytest.mark.parametrize("table", TABLES)
def test_a_flipped_bit_in_a_row_is_noticed_or_changes_nothing(rows, table):
    bits = rows.bits(table)
    outcomes: Counter[str] = Counter()
    for bit, outcome, found in rows.outcomes(bits if TIMES > 1 else Random().sample(bits, FLIPS)):
        outcomes[outcome] += 1
        assert found in (None, rows.written), bit
    assert outcomes["not noticed"] < outcomes.total(), outcomes


def change(rows: Rows, statement: str) -> Path:
    rows.restore()
    with closing(sqlite3.connect(rows.path)) as file:
        file.create_function("without_checksum", 1, lambda text: json.dumps(json.JSONDecoder().raw_decode(text)[0]))
        file.create_function("without_place", 2, lambda blob, unit: seal(blob[:-4]) if len(blob) % unit == 4 else blob)
        file.execute(statement)
        file.commit()
    return rows.path


CHANGES = [
    ("UPDATE subscriptions SET floor = floor + 1", "the floor of subscription 1 is damaged"),
    ("UPDATE subscriptions SET floor = floor - 1", "the floor of subscription 1 is damaged"),
    ("UPDATE subscriptions SET since = since - 1", "the floor of subscription 1 is damaged"),
    ("UPDATE subscriptions SET floor_checksum = NULL", "the floor of subscription 1 is damaged"),
    ("UPDATE subscriptions SET options = replace(options, ': 2', ': 3')", "the options of subscription 'shipping'"),
    ("UPDATE topics SET options = replace(options, ': 50', ': 51')", "the options of topic 'orders' are damaged"),
    ("UPDATE snapshots SET options = replace(options, ': 3', ': 2')", "the options of snapshot 'snapshot' are damaged"),
    (
        'UPDATE troubles SET "offset" = 11 WHERE "offset" = 10',
        "what is known of message 11 in subscription 1 is damaged",
    ),
    ("UPDATE troubles SET failures = failures + 1", "what is known of message 9 in subscription 1 is damaged"),
    ("UPDATE troubles SET not_before = not_before + 1", "what is known of message 9 in subscription 1 is damaged"),
    ("UPDATE troubles SET error = 'another'", "what is known of message 9 in subscription 1 is damaged"),
    ("UPDATE troubles SET steps_aside = NOT steps_aside", "what is known of message 9 in subscription 1 is damaged"),
    (
        'UPDATE troubles SET subscription_id = 2 WHERE "offset" = 10',
        "what is known of message 10 in subscription 2 is damaged",
    ),
    ("UPDATE troubles SET checksum = NULL", "what is known of message 9 in subscription 1 is damaged"),
    ("UPDATE paused_keys SET lane = ':l' WHERE lane = ':k'", "the pause of ':[kl]' in subscription 1 is damaged"),
    ("UPDATE paused_keys SET reason = 'another'", "the pause of ':[kl]' in subscription 1 is damaged"),
    ("UPDATE paused_keys SET subscription_id = 2 WHERE lane = ':k'", "the pause of ':k' in subscription 2 is damaged"),
    ("UPDATE dead_letters SET attempts = attempts + 1", "the dead letter 11 in subscription 1 is damaged"),
    ("UPDATE dead_letters SET key = 'l'", "the dead letter 11 in subscription 1 is damaged"),
    ("UPDATE dead_letters SET time = time + 1", "the dead letter 11 in subscription 1 is damaged"),
    ("UPDATE dead_letters SET overtaken = NOT overtaken", "the dead letter 11 in subscription 1 is damaged"),
    ("UPDATE dead_letters SET checksum = NULL", "the dead letter 11 in subscription 1 is damaged"),
    ("UPDATE settlements SET undone = 1 - undone", "settled messages"),
    ("UPDATE settlements SET subscription_id = 2", "settled messages"),
    ("UPDATE settled_blocks SET subscription_id = 2", "a block of settled messages"),
    ("UPDATE settled_blocks SET block = block + 1", "a block of settled messages"),
]


@pytest.mark.parametrize(("statement", "message"), CHANGES)
def test_a_row_that_was_changed_is_refused_and_the_check_names_it(rows, statement, message):
    path = change(rows, statement)
    with closing(SqliteReader(path)) as reader:
        with pytest.raises(DamagedStore, match=message):
            content_of(reader)
        problems = list(reader.check())
    assert [problem for problem in problems if re.search(message, problem.what)]


def test_the_check_looks_at_every_subscription(rows):
    path = change(rows, "UPDATE subscriptions SET floor = floor + 1")
    with closing(SqliteReader(path)) as reader:
        assert [problem.where for problem in reader.check()] == ["subscription 'billing'", "subscription 'shipping'"]


def test_clean_up_refuses_a_damaged_floor(rows):
    path = change(rows, "UPDATE subscriptions SET floor = floor + 1")
    with closing(SqliteStore(path)) as store, pytest.raises(DamagedStore, match="the floor of subscription 1"):
        store.upkeep(1.0)


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE subscriptions SET options = without_checksum(options), floor_checksum = {NO_CHECKSUM}",
        "UPDATE topics SET options = without_checksum(options)",
        "UPDATE snapshots SET options = without_checksum(options)",
        f"UPDATE troubles SET checksum = {NO_CHECKSUM}",
        f"UPDATE paused_keys SET checksum = {NO_CHECKSUM}",
        f"UPDATE dead_letters SET checksum = CASE WHEN overtaken THEN -1 - {NO_CHECKSUM} ELSE {NO_CHECKSUM} END",
        "UPDATE settlements SET offsets = without_place(offsets, 8)",
        f"UPDATE settled_blocks SET bits = without_place(bits, {BLOCK_BYTES})",
    ],
)
def test_a_row_that_an_earlier_version_wrote_is_read_as_it_is(rows, statement):
    assert reading(change(rows, statement)) == ("not noticed", rows.written)


def test_a_dead_letter_of_an_earlier_version_can_still_be_overtaken(rows):
    path = change(rows, f'UPDATE dead_letters SET checksum = {NO_CHECKSUM} WHERE "offset" = 11')
    with closing(SqliteStore(path)) as store:
        with store.transaction() as work:
            work.overtake(1, [11])
        assert [letter.overtaken for letter in store.dead_letters(1)] == [True, True]


def test_numbers_are_the_same_in_every_database():
    """SQLite returns 1 for true, 5.0 for 5 in a column of times, and 0.0 for -0.0."""
    assert checksum_of(True, 5, -0.0) == checksum_of(1, 5.0, 0)
    assert checksum_of("1") != checksum_of(1)
