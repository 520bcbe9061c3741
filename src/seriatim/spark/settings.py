"""Recommended settings for a Spark session. Only ``configure`` applies them, because they affect other queries, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seriatim.log import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORTH_SETTING = {
    # Batches for Python are limited by their rows. Given a limit in bytes, Spark adds up the bytes again with every row,
    # which costs more than writing the row; the largest number there is turns that off.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


def configure(spark: SparkSession) -> dict[str, str]:
    """Apply settings to your session that make ``resequence`` and ``order_nodes`` faster; returns what was changed.

    This is optional, and logs each change. Our own commands, such as ``seriatim pipeline run``, have these settings.
    """
    changed = {name: value for name, value in WORTH_SETTING.items() if spark.conf.get(name, None) != value}
    for name, value in changed.items():
        spark.conf.set(name, value)
        logger.info("%s is now %s in this session", name, value)
    return changed
