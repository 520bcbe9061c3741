"""A declared pipeline beside the same read, parse, shuffle and plain write; and how long both take to start.

The topic has the rows of a trace as JSON. Ours puts them in order, from topic to topic, with a ledger in a table. The limit
parses the same columns, shuffles them by key and appends them to a topic of the same store.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from bench.spark.trace import Trace
from seriatim.spark import register
from seriatim.spark.pipeline import load
from seriatim.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SELECT = ("key", "data", "offset", "inline(array(from_json(cast(data AS string), 'seq bigint, arrived double')))")
DECLARATION = """
[pipeline]
name = "bench"
checkpoint = "{folder}/checkpoint"
trigger = "available-now"

[source]
format = "seriatim"
options = {{ url = "{url}", topic = "raw" }}
select = [{select}]

[order]
key = "key"
sequence = "seq"
arrival = "arrived"
start = 0
gap_timeout = {gap_timeout}

[[sink]]
format = "seriatim"
options = {{ url = "{url}", topic = "{topic}" }}
{columns}

[[sink]]
what = "ledger"
format = "parquet"
options = {{ path = "{folder}/ledger" }}
"""


class PipelineBench:
    """A store with the messages of a trace in a topic, and two ways through Spark."""

    def __init__(self, spark: SparkSession, trace: Trace, folder: Path) -> None:
        self.spark, self.trace, self.folder = spark, trace, folder
        self.url = f"sqlite:///{folder}/store.db"
        self._names = map("topic-{}".format, count())
        register(spark)
        self._create("raw")
        self._create("out")
        self._create("plain")
        rows = spark.read.parquet(str(trace.folder)).orderBy("arrived")
        messages = rows.selectExpr("device AS key", "to_json(struct(seq, arrived, payload)) AS data")
        messages.write.format("seriatim").options(url=self.url, topic="raw").mode("append").save()

    def row_bytes(self) -> float:
        """How many bytes a row has when it is parsed: key, data, offset, number and time."""
        some = self.spark.read.format("seriatim").options(url=self.url, topic="raw", endingOffsets="100").load()
        (found,) = some.selectExpr("avg(length(key) + length(data)) + 24 AS bytes").collect()
        return float(found.bytes)

    def _create(self, topic: str) -> str:
        with closing(open_store(self.url)) as store, store.transaction() as work:
            work.create_topic(topic, {})
        return topic

    def in_order(self, columns: str = "") -> float:
        topic = self._create(next(self._names))
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            path = Path(folder) / "pipeline.toml"
            path.write_text(declaration(self.url, topic, folder, self.trace.gap_timeout, columns))
            return self._seconds(load(path).start(self.spark))

    def in_order_through_spark(self) -> float:
        """The same, but the rows pass through Spark to the sink: an expression keeps tasks from staging them."""
        return self.in_order('columns = { key = "key", data = "CAST(data AS BINARY)" }')

    def plainly(self) -> float:
        topic = self._create(next(self._names))
        stream = self.spark.readStream.format("seriatim").options(url=self.url, topic="raw").load()
        messages = stream.selectExpr(*SELECT).repartition("key")
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            writer = messages.writeStream.format("seriatim").options(url=self.url, topic=topic)
            query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
            return self._seconds(query)

    def _seconds(self, query: StreamingQuery) -> float:
        """What all batches took together, from trigger to commit."""
        query.awaitTermination()
        if sum(batch["numInputRows"] for batch in query.recentProgress) < self.trace.rows:
            raise RuntimeError(f"not all of {self.trace.rows} rows were read")
        return float(sum(batch["durationMs"]["triggerExecution"] for batch in query.recentProgress)) / 1000


def declaration(url: str, topic: str, folder: str | Path, gap_timeout: float, columns: str = "") -> str:
    select = ", ".join(f'"{one}"' for one in SELECT)
    return DECLARATION.format(
        url=url, topic=topic, folder=folder, gap_timeout=gap_timeout, select=select, columns=columns
    )


# -- from nothing to the first batch ------------------------------------------------------------------------------------

SESSION = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
"""
BARE = f"""{SESSION}
rows = spark.readStream.schema("device string, seq long, arrived double, payload string").parquet(sys.argv[1])
writer = rows.repartition(2, "device").writeStream.format("noop").option("checkpointLocation", sys.argv[2])
writer.trigger(availableNow=True).start().awaitTermination()
"""
BETWEEN_TOPICS = f"""{SESSION}
from seriatim.spark import register
register(spark)
rows = spark.readStream.format("seriatim").options(url=sys.argv[1], topic="raw").load().select("key", "data")
writer = rows.repartition(2, "key").writeStream.format("seriatim").options(url=sys.argv[1], topic="plain")
writer.option("checkpointLocation", sys.argv[2]).trigger(availableNow=True).start().awaitTermination()
"""


def start_up(trace: Trace, url: str, folder: Path) -> dict[str, Callable[[], float]]:
    """Whole processes with a first, small batch: a bare session's, from files or between topics, and that of ``seriatim
    pipeline run``."""

    def bare() -> float:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            return _seconds_of([sys.executable, "-c", BARE, str(trace.folder), own])

    def between_topics() -> float:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            return _seconds_of([sys.executable, "-c", BETWEEN_TOPICS, url, own])

    def ours() -> float:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            path = Path(own) / "pipeline.toml"
            path.write_text(declaration(url, "out", own, trace.gap_timeout))
            return _seconds_of([sys.executable, "-m", "seriatim", "pipeline", "run", str(path)])

    return {"bare session": bare, "bare session between topics": between_topics, "seriatim pipeline run": ours}


def _seconds_of(command: list[str]) -> float:
    began = perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return perf_counter() - began
