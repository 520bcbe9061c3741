"""A pipeline for the tests, the disordered traffic that it reads, and what it has written."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from seriatim.engine.broker import Broker, Outgoing
from seriatim.testing import FaultyNetwork
from tests.spark.topics.stored_topics import ask, make_topics, stored

DEVICES = 5
ROWS_A_BATCH = 40
MUCH_TOO_LATE = 60
"""By so many places of the line, a second each: longer than a gap is awaited, and no message comes early instead."""

DECLARATION = """
[pipeline]
name = "telemetry"
checkpoint = "work/telemetry"
require = "strict"
trigger = "available-now"

[source]
format = "seriatim"
options = {{ url = "sqlite:///store.db", topic = "raw", maxRowsPerTrigger = {rows_a_batch} }}
select = [
    "key AS device",
    "CAST(get_json_object(CAST(data AS STRING), '$.n') AS BIGINT) AS n",
    "CAST(get_json_object(CAST(data AS STRING), '$.at') AS DOUBLE) AS at",
    "data",
]

[order]
key = "device"
sequence = "n"
arrival = "at"
start = 1
gap_timeout = "20s"
on_late = "side-output"
partitions = 2

[[sink]]
format = "seriatim"
options = {{ url = "sqlite:///store.db", topic = "ordered" }}

[[sink]]
format = "parquet"
options = {{ path = "ordered" }}

[[sink]]
what = "ledger"
format = "parquet"
options = {{ path = "ledger" }}

[[sink]]
what = "late"
format = "seriatim"
options = {{ url = "sqlite:///store.db", topic = "late" }}
"""


def prepare(folder: Path, *, batches: int, seed: int = 1, rows_a_batch: int = ROWS_A_BATCH) -> Path:
    """A folder with a pipeline file, and a store whose topic has traffic for so many batches."""
    folder.mkdir(parents=True, exist_ok=True)
    make_topics(url_in(folder), "raw", "ordered", "late")
    publish(folder, traffic(batches * rows_a_batch, seed))
    path = folder / "pipeline.toml"
    path.write_text(DECLARATION.format(rows_a_batch=rows_a_batch))
    return path


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


def traffic(rows: int, seed: int) -> list[Outgoing]:
    """So many messages from a line that shuffles, repeats and loses them; a few come much too late."""
    random = Random(seed)
    sent = [(f"device-{number % DEVICES}", number // DEVICES + 1) for number in range(2 * rows)]
    line: FaultyNetwork[tuple[str, int]] = FaultyNetwork(seed, drop=0.03, duplicate=0.05, shuffle=12)
    received = line.transmit(sent)
    for place in (random.randrange(rows) for _ in range(rows // 20)):
        received.insert(place + MUCH_TOO_LATE, received.pop(place))
    return [
        Outgoing(device, json.dumps({"n": number, "at": at}).encode())
        for at, (device, number) in enumerate(received[:rows])
    ]


def publish(folder: Path, messages: list[Outgoing]) -> None:
    async def publishing(broker: Broker) -> None:
        for start in range(0, len(messages), 100):
            await broker.publish("raw", messages[start : start + 100])

    ask(url_in(folder), publishing)


def written(folder: Path) -> dict[str, list[Any]]:
    """Everything that the pipeline has written, row for row: topics in the order of the log, tables batch by batch."""
    topics = {
        topic: [(record.key, record.data) for record in stored(url_in(folder), topic)] for topic in ("ordered", "late")
    }
    return {**topics, "table": rows_of(folder / "ordered"), "ledger": rows_of(folder / "ledger")}


def rows_of(table: Path) -> list[dict[str, Any]]:
    """The rows of a table as they lie there, batch by batch and file by file, without Spark."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    for batch in sorted(table.glob("batch=*")):
        for file in sorted(batch.glob("*.parquet")):
            found += [{"batch": batch.name, **row} for row in pq.ParquetFile(file).read().to_pylist()]
    return found
