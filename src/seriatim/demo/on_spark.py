"""Resequencing on Spark: a declared pipeline, as a user would write it, on all cores of this machine.

One thread makes all calls to Spark, one after another. Stopping Spark's Java interrupts whatever it is doing, at any moment:
the current call raises, and the thread is free.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyarrow import parquet
from pyspark.errors import PySparkException

from seriatim.core.guarantees import Guarantee
from seriatim.core.resequencing.options import Reason
from seriatim.demo.books import Audited, Entry
from seriatim.demo.folder import PIPELINE
from seriatim.demo.plan import RAW, Demo, Topics
from seriatim.demo.progress import Steps
from seriatim.demo.subscribers import Subscribers
from seriatim.errors import FailedPrecondition
from seriatim.spark import audit, pipeline, total
from seriatim.spark.auditing import report
from seriatim.spark.auditing.audit import BITS
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.failures import unwrapped
from seriatim.spark.local.session import local_session
from seriatim.spark.local.shutdown import end_java
from seriatim.spark.tagged import Tag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from seriatim.spark.pipeline.run import Run

T = TypeVar("T")

POLL_INTERVAL_S = 0.5


async def ordering_on_spark(demo: Demo, topics: Topics, steps: Steps) -> OrderingOnSpark:  # noqa: ARG001
    """Ready to run the pipeline of the demo, with a copy of it in the folder."""
    shutil.copyfile(PIPELINE, demo.folder.pipeline)
    return OrderingOnSpark(demo, steps)


class OrderingOnSpark:
    """A pipeline, and the session that runs it."""

    def __init__(self, demo: Demo, steps: Steps) -> None:
        self._demo, self._steps = demo, steps
        self._starting = steps.add("start Spark")
        self._ordering = steps.add("put in order on Spark", demo.fleet.sent)
        self._thread = ThreadPoolExecutor(1, "spark")
        self._spark: SparkSession | None = None
        self._run: Run | None = None

    async def work(self) -> None:
        with self._steps.at_work(self._starting):
            await self._call(self._start)
        self._steps.begin(self._ordering)
        while not await self._call(self._poll):
            pass
        raise FailedPrecondition(
            f"the pipeline ended before everything was in order: see '{self._demo.folder.spark_log}'"
        )

    async def finish(self) -> None:
        assert self._run is not None
        await self._call(self._run.finish)
        await self._call(self._count)
        self._steps.end(self._ordering)

    async def ledger(self) -> list[Entry]:
        columns = ["key", "_reason", "_first", "_last", "_size", "_detail"]
        table = await asyncio.to_thread(parquet.read_table, self._demo.folder.ledger, columns=columns)
        return [Entry(*row.values()) for row in table.to_pylist()]

    async def audit(self, subscribers: Subscribers) -> tuple[Audited, Audited]:  # noqa: ARG002
        return await self._call(self._audit_both)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        idle = asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        while not idle.done():  # it may be starting a Java just now
            await asyncio.to_thread(end_java)
            await asyncio.wait([idle], timeout=POLL_INTERVAL_S)
        await asyncio.to_thread(end_java)

    # -- in the thread -------------------------------------------------------------------------------------------------

    async def _call(self, what: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._translated, what)

    def _translated(self, what: Callable[[], T]) -> T:
        try:
            return what()
        except (PySparkException, Py4JError) as error:
            raise unwrapped(error) from error
        except ConnectionError as error:
            raise FailedPrecondition(f"Spark's Java has ended: see '{self._demo.folder.spark_log}'") from error

    def _start(self) -> None:
        self._spark = local_session("seriatim demo", log_file=self._demo.folder.spark_log)
        self._run = pipeline.load(self._demo.folder.pipeline).begin(self._spark)

    def _poll(self) -> bool:
        """Whether the stream has ended, which it should not do by itself."""
        assert self._run is not None
        has_ended = self._run.wait(POLL_INTERVAL_S)
        self._count()
        return has_ended

    def _count(self) -> None:
        assert self._run is not None
        totals = self._run.totals()
        self._ordering.count = totals.rows[Tag.ORDERED] + totals.ledger[Reason.LOST]
        self._ordering.note = f"{totals.batches} batches, {totals.held:,} held"

    def _audit_both(self) -> tuple[Audited, Audited]:
        folder = self._demo.folder
        topic = self._session.read.format("seriatim").option("url", folder.url).option("topic", RAW).load()
        raw = topic.selectExpr("offset", *pipeline.load(folder.pipeline).declaration.source.select)
        before = _audit("before: topic raw", raw, "offset")
        after = _audit("after: table ordered", self._session.read.parquet(str(folder.ordered.absolute())), "_position")
        report.write_report(folder.report, before, after)
        return _found(before), _found(after)

    @property
    def _session(self) -> SparkSession:
        assert self._spark is not None
        return self._spark


def _audit(title: str, frame: DataFrame, arrival: str) -> report.Audited:
    """An audit that is computed once, for the report and for the accounts."""
    roles = ColumnRoles("key", "sequence", arrival)
    verdicts = frame.persist().transform(audit(key=roles.key, sequence=roles.sequence, arrival=arrival))
    return report.Audited(title, frame, verdicts.persist(), roles)


def _found(audited: report.Audited) -> Audited:
    found = total(audited.verdicts).first()
    assert found is not None  # an aggregate of everything has one row
    counts = {name: found[name] for name in ("rows", "duplicates", "reordered", "lost")}
    guarantee = Guarantee(sum(Guarantee[bit.upper()] for bit in BITS if found[bit]))
    return Audited(**counts, furthest=found["max_displacement"], guarantee=guarantee)
