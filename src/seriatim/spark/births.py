"""Epochs from births: which session of its source each row of a captured table belongs to.

Sources such as Sparkplug's edge nodes do not write the number of their session on every message; they say when a new one
begins. In a table everything is there, so the sessions can be counted: a row belongs to the last birth of its key that was
*sent* no later.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from seriatim.spark.roles import Transformation


def with_epochs(*, key: str, birth: Column, sent: str, name: str = "epoch") -> Transformation:
    """A transformation that adds the column ``name``: how many births its key has had when a row was sent.

    ``birth`` says which rows begin a session, and ``sent`` is the column with the time at which the source sent them, by its
    own clock. Rows from before any birth have epoch 0. For static frames; ``resequence(epoch=…)`` takes the column.
    """

    def add(frame: DataFrame) -> DataFrame:
        # Of the same time, the birth comes first: what a source sends with it belongs to the new session.
        by_time = Window.partitionBy(key).orderBy(F.col(sent), F.when(birth, 0).otherwise(1))
        so_far = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        return frame.withColumn(name, F.sum(F.when(birth, 1).otherwise(0)).over(so_far).cast("int"))

    return add
