"""What the outbox costs a program: publishing inside its own PostgreSQL transaction, beside a plain insert of the same rows.

    python -m bench.outbox [--messages 5000] [--keys 100] [--rows 10] [--rounds 5]

Both run one statement per row through psycopg and commit after so many rows, while the owner of the store, another process,
empties the outbox. Both have a turn in each round, and the ratio is taken within a round; figures are medians. The server runs
without fsync, which makes commits cheap and the comparison harder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from statistics import median
from time import perf_counter

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
    print("ready", flush=True)
    time.sleep(3600)
"""
PLAIN = "INSERT INTO plain (topic, key, data, attributes) VALUES (%s, %s, %b, NULL)"


def rows_per_second(connection: psycopg.Connection, given: argparse.Namespace, schema: str | None) -> float:
    """Through the outbox of a schema, or into a plain table."""
    began = perf_counter()
    for number in range(given.messages):
        key = f"key-{number % given.keys}"
        if schema is None:
            connection.execute(PLAIN, ("events", key, PAYLOAD), prepare=True)
        else:
            outbox.publish(connection, "events", PAYLOAD, ordering_key=key, schema=schema)
        if number % given.rows == given.rows - 1:
            connection.commit()
    connection.commit()
    return given.messages / (perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.outbox", description=__doc__)
    for name, default in (("messages", 5_000), ("keys", 100), ("rows", 10), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--record", action="store_true", help="also write a record for the docs, in docs/benchmarks")
    given = parser.parse_args()
    recorder = Recorder("outbox")
    url = postgres.server().url("outbox_bench")
    address = url.partition("&schema")[0]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, url], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    owner.stdout.readline()
    with psycopg.connect(address) as connection:
        connection.execute(
            "CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, key text, "
            "data bytea NOT NULL, attributes jsonb)"
        )
        connection.commit()
        rounds = [
            [rows_per_second(connection, given, schema) for schema in (None, "outbox_bench")]
            for _ in range(given.rounds)
        ]
    owner.terminate()
    owner.wait()
    plain, through = (median(column) for column in zip(*rounds, strict=True))
    ratio = median(after / before for before, after in rounds)
    print(f"{plain:,.0f} rows/s plain, {through:,.0f} rows/s through the outbox, ratio {ratio:.2f}")
    if given.record:
        rows = [
            {"work": "plain insert", "rows a second": round(plain), "beside": "", "goal": ""},
            {
                "work": "through the outbox",
                "rows a second": round(through),
                "beside": f"{ratio:.2f} × plain insert",
                "goal": "≥ 0.5",
            },
        ]
        names = ("plain insert", "through the outbox")
        recorder.write(rows, dict(zip(names, zip(*rounds, strict=True), strict=True)))


if __name__ == "__main__":
    main()
