"""Streams for tests: a folder of small files, one a batch, a checkpoint and a state, and what came out of each batch."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from seriatim.errors import SeriatimError
from seriatim.spark import resequence, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


SCHEMA = "key string, seq bigint, at double, body string"
OPTIONS: dict[str, Any] = {"key": "key", "sequence": "seq", "arrival": "at", "start": 0, "partitions": 3}


@dataclass
class Stream:
    """A query over files that can be stopped, started and tampered with. ``options`` are those of ``orders``."""

    spark: SparkSession
    root: Path
    options: dict[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA
    before: Callable[[DataFrame], DataFrame] = lambda frame: frame
    orders: Callable[..., Callable[[DataFrame], DataFrame]] = resequence
    defaults: dict[str, Any] = field(default_factory=lambda: OPTIONS)
    batches: dict[int, list[Row]] = field(default_factory=dict)
    files: int = 0
    arrived: threading.Condition = field(default_factory=threading.Condition)

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def add(self, rows: Iterable[tuple[Any, ...]]) -> Stream:
        """The rows of one batch more."""
        names = [column.split()[0] for column in self.schema.split(", ")]
        folder = self.root / "in"
        folder.mkdir(exist_ok=True)
        path = folder / f"{self.files:05d}.json"
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
        path.write_text("\n".join(lines))
        self.files += 1
        os.utime(path, (self.files, self.files))  # files are read in the order of their times
        return self

    def tagged(self, **options: Any) -> DataFrame:
        (self.root / "in").mkdir(exist_ok=True)
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        frame = self.before(reader.json(str(self.root / "in")))
        return frame.transform(self.orders(**{**self.defaults, "state": str(self.state), **self.options, **options}))

    def start(self, **options: Any) -> StreamingQuery:
        writer = self.tagged(**options).writeStream.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(processingTime="0 seconds").foreachBatch(self._collect).start()

    def run(self, **options: Any) -> Stream:
        """Everything that is there, batch by batch."""
        writer = self.tagged(**options).writeStream.option("checkpointLocation", str(self.checkpoint))
        writer.trigger(availableNow=True).foreachBatch(self._collect).start().awaitTermination()
        return self

    def fail(self, **options: Any) -> SeriatimError:
        """The error of ours that a run ends with."""
        with pytest.raises((StreamingQueryException, SeriatimError)) as failed:
            self.run(**options)
        return unwrapped(failed.value)

    def _collect(self, batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        with self.arrived:
            self.batches[number] = rows
            self.arrived.notify_all()

    def wait_for(self, happened: Callable[[], bool]) -> None:
        with self.arrived:
            assert self.arrived.wait_for(happened, timeout=60)

    # -- what came out --------------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def ordered(self) -> dict[str, list[Any]]:
        """The bodies that were released, in order, by key; positions must be what they are to be."""
        released: dict[str, list[Any]] = {}
        for row in self.rows():
            if row["_tag"] == "ordered":
                bodies = released.setdefault(row["key"], [])
                assert row["_position"] == len(bodies)
                bodies.append(row["body"])
        return released

    def ledger(self) -> list[tuple[Any, ...]]:
        """Key, reason and numbers of what was not released."""
        entries = [row for row in self.rows() if row["_tag"] == "ledger"]
        return [(row["key"], row["_reason"], row["_first"], row["_last"]) for row in entries]

    def forget_commit(self, batch: int) -> None:
        """Make Spark run a batch again that was done."""
        for path in (self.checkpoint / "commits").iterdir():
            if path.name in (str(batch), f".{batch}.crc"):
                path.unlink()

    def versions(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.state)): path.read_bytes() for path in sorted(self.state.rglob("*.state"))}
