"""A pipeline for the tests, the disordered traffic that it reads, and what it has written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from seriatim.engine.broker import Broker, Outgoing
from seriatim.spark.compatibility import SPARK
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
{source}

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
format = "delta"
options = {{ path = "delta/ordered" }}

[[sink]]
what = "ledger"
format = "delta"
options = {{ path = "delta/ledger" }}

[[sink]]
format = "iceberg"
options = {{ table = "lake.plant.ordered", {catalog} }}

[[sink]]
what = "ledger"
format = "iceberg"
options = {{ table = "lake.plant.ledger", {catalog} }}

[[sink]]
what = "late"
format = "seriatim"
options = {{ url = "sqlite:///store.db", topic = "late" }}
"""

TOPIC = """\
format = "seriatim"
options = {{ url = "sqlite:///store.db", topic = "raw"{limit} }}
select = [
    "key AS device",
    "CAST(get_json_object(CAST(data AS STRING), '$.n') AS BIGINT) AS n",
    "CAST(get_json_object(CAST(data AS STRING), '$.at') AS DOUBLE) AS at",
    "data",
]
"""
FILES = """\
format = "json"
schema = "device STRING, n BIGINT, at DOUBLE, data STRING"
options = { path = "in", maxFilesPerTrigger = 1 }
select = ["device", "n", "at", "CAST(data AS BINARY) AS data"]
"""
CATALOG = 'catalog.type = "sql", catalog.uri = "sqlite:///catalog.db", catalog.warehouse = "warehouse"'


def prepare(
    folder: Path, *, batches: int, seed: int = 1, rows_a_batch: int = ROWS_A_BATCH, from_files: bool = False
) -> Path:
    """A folder with a pipeline file, and traffic for so many batches: in a topic, or in files."""
    if batches > 1 and SPARK < (4, 2) and not from_files:
        pytest.skip("before Spark 4.2 a batch of a topic has no limit")
    folder.mkdir(parents=True, exist_ok=True)
    make_topics(url_in(folder), "raw", "ordered", "late")
    messages = traffic(batches * rows_a_batch, seed)
    limit = f", maxRowsPerTrigger = {rows_a_batch}" if SPARK >= (4, 2) else ""
    if from_files:
        write_files(folder / "in", messages, rows_a_batch)
    else:
        publish(folder, messages)
    path = folder / "pipeline.toml"
    source = FILES if from_files else TOPIC.format(limit=limit)
    path.write_text(DECLARATION.format(source=source, catalog=CATALOG))
    return path


def write_files(folder: Path, messages: list[Outgoing], rows_a_file: int) -> None:
    folder.mkdir()
    for number, first in enumerate(range(0, len(messages), rows_a_file)):
        rows = (
            {"device": message.key, "data": message.data.decode(), **json.loads(message.data)}
            for message in messages[first : first + rows_a_file]
        )
        path = folder / f"{number:05d}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (number, number))  # Spark reads them by their times


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
    tables = {name: rows_of(folder / name) for name in ("ordered", "ledger")}
    files = {
        f"{kind} {name}": files_of(folder, name)
        for kind, files_of in (("delta", delta_files), ("iceberg", iceberg_files))
        for name in ("ordered", "ledger")
    }
    return {
        **topics,
        "table": tables["ordered"],
        "ledger": tables["ledger"],
        **{name: rows_in(of_table) for name, of_table in files.items()},
    }


def rows_of(table: Path) -> list[dict[str, Any]]:
    """The rows of a table as they lie there, batch by batch and file by file, without Spark."""
    return rows_in(table.glob("batch=*/*.parquet"))


def delta_files(folder: Path, name: str) -> Iterable[Path]:
    from deltalake import DeltaTable

    return map(Path, DeltaTable(folder / "delta" / name).file_uris())


def iceberg_files(folder: Path, name: str) -> Iterable[Path]:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(
        "lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder / "warehouse")
    )
    planned = catalog.load_table(f"plant.{name}").scan().plan_files()
    return (Path(task.file.file_path.removeprefix("file://")) for task in planned)


def rows_in(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of files, with the batch that their folder names."""
    import pyarrow.parquet as pq

    found = [(re.sub(r"-\w{32}$", "", file.parent.name), pq.ParquetFile(file).read()) for file in sorted(files)]
    return [{"batch": batch, **row} for batch, table in found for row in table.to_pylist()]
