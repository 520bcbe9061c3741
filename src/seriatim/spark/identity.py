"""Which query and which batch is running: what Spark tells every task of a streaming query, and its driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext

from seriatim.errors import FailedPrecondition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""The names that Spark has for them."""


class TaskIdentity(NamedTuple):
    """What a task of a streaming query is for."""

    query: str
    batch: int
    partition: int


def task_identity() -> TaskIdentity:
    """Asked within a task: which query, batch and partition it is for."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if context is None or query is None or batch is None:
        raise FailedPrecondition(
            "Spark did not say which query and batch a task belongs to: run it as a streaming query, with writeStream"
        )
    return TaskIdentity(query, int(batch), context.partitionId())


def query_of(frame: DataFrame) -> str:
    """Within ``foreachBatch``: the id of the streaming query, under which its batches are written once."""
    query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise FailedPrecondition("there is no streaming query here: ask for its id within foreachBatch")
    return query
