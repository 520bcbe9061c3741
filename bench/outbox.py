"""What the outbox costs a program: publishing inside its own transaction, beside a plain insert of the same rows.

    python -m bench.outbox [--messages 5000] [--keys 100] [--rows 10] [--rounds 5] [--quick] [--record]

On PostgreSQL (psycopg) and on SQLite (a file of the program's own), both run one statement per row and commit after so many
rows, while the owner of the store, another process, empties the outbox. Both have a turn in each round, and in each round the
other one comes first; ratios are taken within a round, and figures are medians. *Until appended* includes the time until the
owner has appended the last row to its topic. The program's commits wait for no disk, which makes them cheap and the comparison
harder; those of a store in SQLite do.
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import psycopg

from bench.record import Recorder
from seriatim import outbox
from tests import postgres

PAYLOAD = b"." * 100
OWNER = """
import sys, time
from seriatim.blocking import PubSub
with PubSub(sys.argv[1]) as pubsub:
    pubsub.topic("events").ensure()
    for path in sys.argv[2:]:
        pubsub.add_outbox(path)
    print("ready", flush=True)
    time.sleep(3600)
"""
WORK = ("plain insert", "through the outbox", "through the outbox, until appended")

Rates = list[tuple[float, float, float]]
"""Rows a second of each kind of work, round by round."""


@contextmanager
def owner(*arguments: str) -> Iterator[None]:
    """Another process that owns a store and empties outboxes."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "the owner did not begin"
        yield
    finally:
        process.terminate()
        process.wait()


def on_postgresql(given: argparse.Namespace) -> Rates:
    url = postgres.server().url("outbox_bench")
    with owner(url), psycopg.connect(url.partition("&schema")[0]) as connection:
        connection.execute(
            "CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, key text, "
            "data bytea NOT NULL, attributes jsonb)"
        )
        connection.commit()
        plain = partial(
            connection.execute, "INSERT INTO plain (topic, key, data, attributes) VALUES (%s, %s, %b, NULL)"
        )
        return rates(given, connection, lambda row: plain(row, prepare=True), "outbox_bench", "outbox_bench.outbox")


def on_sqlite(given: argparse.Namespace) -> Rates:
    with TemporaryDirectory(prefix="outbox-") as folder:
        path = Path(folder) / "app.db"
        with closing(sqlite3.connect(path, timeout=60)) as connection:
            connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")
            connection.execute(
                "CREATE TABLE plain (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key TEXT, "
                "data BLOB NOT NULL, attributes TEXT)"
            )
            plain = partial(
                connection.execute, "INSERT INTO plain (topic, key, data, attributes) VALUES (?, ?, ?, NULL)"
            )
            with owner(f"sqlite:///{Path(folder) / 'store.db'}", str(path)):
                return rates(given, connection, plain, "seriatim", "seriatim_outbox")


def rates(
    given: argparse.Namespace,
    connection: Any,
    plain: Callable[[tuple[str, str, bytes]], object],
    schema: str,
    table: str,
) -> Rates:
    """Measure both; ``table`` is where rows wait for the owner."""

    def publish(row: tuple[str, str, bytes]) -> object:
        topic, key, data = row
        return outbox.publish(connection, topic, data, ordering_key=key, schema=schema)

    def is_empty() -> bool:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        connection.commit()
        return count == 0

    def through_outbox() -> tuple[float, float]:
        began = perf_counter()
        seconds = insert(given, connection, publish)
        while not is_empty():
            sleep(0.001)
        return seconds, perf_counter() - began

    measured: Rates = []
    for number in range(given.rounds):  # in each round the other one comes first
        plain_seconds = 0.0 if number % 2 else insert(given, connection, plain)
        seconds, until_appended = through_outbox()
        plain_seconds = plain_seconds or insert(given, connection, plain)
        taken = (plain_seconds, seconds, until_appended)
        measured.append(tuple(given.messages / each for each in taken))  # type: ignore[arg-type]
    return measured


def insert(given: argparse.Namespace, connection: Any, one: Callable[[tuple[str, str, bytes]], object]) -> float:
    """How many seconds it takes."""
    began = perf_counter()
    for number in range(given.messages):
        one(("events", f"key-{number % given.keys}", PAYLOAD))
        if number % given.rows == given.rows - 1:
            connection.commit()
    connection.commit()
    return perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.outbox", description=__doc__)
    for name, default in (("messages", 5_000), ("keys", 100), ("rows", 10), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quick", action="store_true", help="one round of few messages, to see that it runs")
    parser.add_argument("--record", action="store_true", help="also write a record for the docs, in docs/benchmarks")
    given = parser.parse_args()
    if given.quick:
        given.messages, given.rounds = 500, 1
    recorder = Recorder("outbox")
    rows, readings = [], {}
    for database, measure in (("PostgreSQL", on_postgresql), ("SQLite", on_sqlite)):
        measured = measure(given)
        for at, (work, goal) in enumerate(zip(WORK, ("", "≥ 0.5", ""), strict=True)):
            found = [of_round[at] for of_round in measured]
            ratio = median(of_round[at] / of_round[0] for of_round in measured)
            beside = f"{ratio:.2f} × {WORK[0]}" if at else ""
            name = f"{database}: {work}"
            rows.append({"work": name, "rows a second": round(median(found)), "beside": beside, "goal": goal})
            readings[name] = found
    for row in rows:
        print(" · ".join(filter(None, map(str, row.values()))))
    if given.record:
        recorder.write(rows, readings)


if __name__ == "__main__":
    main()
