"""A driver on a cluster, which puts topic raw in order twice: python -m tests.spark.cluster_child MASTER URL FOLDER.

First as a table, into topic repaired; then as a stream, into topic ordered. In the middle of the stream, one task writes into
the file ``paused`` where it is at work, and waits to be killed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

from seriatim.spark import ordered, register, resequence
from seriatim.spark.compatibility import SPARK
from seriatim.spark.identity import BATCH_ID
from seriatim.spark.local.session import LOG4J, local_session
from tests.spark.cluster import PATIENCE, SHORT_LIVED

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_BATCH = 120
PAUSED_BATCH = "2" if SPARK >= (4, 2) else "0"  # before 4.2 everything is one batch
PARTITIONS = 4
MEMORY = "512m"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class PauseOnce:
    """Lets rows pass. One task, once, says where it is and goes on when it is told to, which nobody does while it lives."""

    folder: str

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            if context.getLocalProperty(BATCH_ID) == PAUSED_BATCH:
                self._pause()

    def _pause(self) -> None:
        paused, draft = Path(self.folder, "paused"), Path(self.folder, f"draft-{os.getpid()}")
        draft.write_text(str(Path.cwd()))
        try:
            os.link(draft, paused)  # the first of all tasks
        except FileExistsError:
            return
        while not Path(self.folder, "go").exists():
            time.sleep(0.02)


def session(master: str) -> SparkSession:
    return local_session(
        "cluster",
        settings={
            "spark.master": master,
            "spark.driver.memory": MEMORY,
            "spark.executor.memory": MEMORY,
            "spark.executor.cores": "1",
            "spark.driver.extraJavaOptions": f"{SHORT_LIVED} -Dlog4j2.configurationFile={LOG4J.as_uri()}",
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.shuffle.io.retryWait": "200ms",  # a worker that was killed does not come back
            # Both workers are to be at work before the first task begins.
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE:.0f}s",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
    )


def numbered(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("offset", "key", "data", "cast(cast(data AS string) AS bigint) AS seq")


def put_table_in_order(spark: SparkSession, url: str) -> None:
    raw = spark.read.format("seriatim").options(url=url, topic="raw", rowsPerPartition="100").load()
    rows = ordered(numbered(raw).transform(resequence(key="key", sequence="seq")))
    sorted_rows = rows.repartition(PARTITIONS, "key").sortWithinPartitions("key", "_position")
    sorted_rows.write.format("seriatim").options(url=url, topic="repaired").mode("append").save()


def put_stream_in_order(spark: SparkSession, url: str, folder: str) -> None:
    limit = {"maxRowsPerTrigger": ROWS_A_BATCH} if SPARK >= (4, 2) else {}
    source = spark.readStream.format("seriatim").options(url=url, topic="raw", rowsPerPartition="40", **limit)
    raw = source.load()
    rules = resequence(key="key", sequence="seq", start=0, state=f"{folder}/state", partitions=PARTITIONS)
    tagged = numbered(raw).transform(rules)
    rows = ordered(tagged.mapInArrow(PauseOnce(folder).run, tagged.schema))
    sink = rows.writeStream.format("seriatim").options(url=url, topic="ordered")
    query = sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


def main(master: str, url: str, folder: str) -> None:
    spark = session(master)
    register(spark)
    put_table_in_order(spark, url)
    put_stream_in_order(spark, url, folder)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
