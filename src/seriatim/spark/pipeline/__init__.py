"""Pipelines declared in TOML: source, order and sinks.

``load`` reads the file and ``Pipeline.explain`` shows which guarantees it provides; neither needs Spark. ``Pipeline.start``
runs it in any session; ``seriatim pipeline run`` makes a session and shows the progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seriatim.spark.pipeline.declaration import Declaration, read_declaration
from seriatim.spark.pipeline.guarantees import PipelineExplanation, explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from seriatim.spark.pipeline.run import Run

__all__ = ["Pipeline", "load"]


def load(path: str | Path) -> Pipeline:
    """Read a pipeline from its file, and validate it."""
    return Pipeline(read_declaration(Path(path)))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline as its file declares it."""

    declaration: Declaration

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.declaration.settings.name

    def explain(self) -> PipelineExplanation:
        """Which guarantees each stage provides, why, and what remains of them at each sink."""
        return explain(self.declaration)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start it in a session, unless it requires more than its stages provide."""
        run = self._new_run()
        run.start(spark)
        return run.query

    def begin(self, spark: SparkSession) -> Run:
        """Start it and track its progress: what is read, written and held. It can be stopped after a complete batch."""
        run = self._new_run()
        run.start(spark)
        return run

    def _new_run(self) -> Run:
        from seriatim.spark.pipeline.run import Run

        self.explain().require()
        return Run(self.declaration)
