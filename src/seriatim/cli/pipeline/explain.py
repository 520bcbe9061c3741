"""``seriatim pipeline explain``: which guarantees a pipeline provides."""

from __future__ import annotations

from pathlib import Path

import click

from seriatim.cli.common.command import with_output
from seriatim.cli.common.output import Output
from seriatim.spark.pipeline import load


@click.command("explain")
@click.argument("path", metavar="PIPELINE", type=click.Path(path_type=Path))
@with_output
def command(output: Output, path: Path) -> None:
    """Show which guarantees a pipeline provides.

    Explains what each stage guarantees and why, and what remains at each sink. PIPELINE is a TOML file. Nothing is started.
    Exits with 1 if the pipeline requires more than it can provide.
    """
    explanation = load(path).explain()
    output.result(explanation.as_fields(), "\n".join(explanation.describe()))
    explanation.require()
