"""Pipelines without code: a source, an order and sinks, declared in a file (``docs/reference/pipelines.md``).

``load`` reads the file, ``Pipeline.explain`` says what it can keep, and neither needs Spark. ``Pipeline.start`` runs it in a
session, any session; ``seriatim run`` makes one and shows what happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seriatim.spark.pipeline.declaration import Declaration, read_declaration
from seriatim.spark.pipeline.guarantees import Explanation, explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from seriatim.spark.pipeline.run import Run


def load(path: str | Path) -> Pipeline:
    """The pipeline that a TOML file declares."""
    return Pipeline(read_declaration(Path(path)))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A declared pipeline."""

    declaration: Declaration

    @property
    def name(self) -> str:
        return self.declaration.settings.name

    def explain(self) -> Explanation:
        """What each stage gives, why, and what is left at each sink."""
        return explain(self.declaration)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start it in a session, unless it promises more than it can keep."""
        run = self._new_run()
        run.start(spark)
        return run.query

    def begin(self, spark: SparkSession) -> Run:
        """Start it and keep an eye on it: what is read, written and held, and how to end it after a whole batch."""
        run = self._new_run()
        run.count_held()
        run.start(spark)
        return run

    def _new_run(self) -> Run:
        from seriatim.spark.pipeline.run import Run

        self.explain().require()
        return Run(self.declaration)
