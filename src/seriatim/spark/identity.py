"""The query, batch and partition that is running, from the local properties that Spark sets in tasks and on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.utils import is_remote

from seriatim.errors import FailedPrecondition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""The names of Spark's local properties."""


class BatchIdentity(NamedTuple):
    """A batch of a query, if Spark does not provide it."""

    query: str
    batch: int


class TaskIdentity(NamedTuple):
    query: str
    batch: int
    partition: int


def task_identity(given: BatchIdentity | None = None) -> TaskIdentity:
    """The identity of the task that calls this: as Spark says, or of the batch that is ``given``."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if context is not None and given is not None:
        return TaskIdentity(*given, context.partitionId())
    if context is None or query is None or batch is None:
        raise FailedPrecondition(
            "Spark did not say which query and batch a task belongs to: run it as a streaming query, with writeStream; within "
            "foreachBatch on Spark Connect use resequence_batch"
        )
    return TaskIdentity(query, int(batch), context.partitionId())


def query_of(frame: DataFrame) -> str:
    """Within ``foreachBatch``: the id of the streaming query, under which its batches are written once."""
    if is_remote():
        raise FailedPrecondition(
            "Spark Connect does not say which query a batch belongs to: use a name of your own that belongs to the checkpoint"
        )
    query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise FailedPrecondition("there is no streaming query here: ask for its id within foreachBatch")
    return query
