"""Settings of a Spark session that are worth having. Nothing but ``configure`` sets them: other queries see them too."""

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
    """Set in a session of your own what makes ``resequence`` and ``order_nodes`` faster; returns what was changed.

    It is optional, and the log says what it changed. Our own commands, such as ``seriatim pipeline run``, have these settings.
    """
    changed = {name: value for name, value in WORTH_SETTING.items() if spark.conf.get(name, None) != value}
    for name, value in changed.items():
        spark.conf.set(name, value)
        logger.info("%s is now %s in this session", name, value)
    return changed
