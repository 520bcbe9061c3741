"""``seriatim explain``: what a declared pipeline can keep."""

from __future__ import annotations

from pathlib import Path

import click

from seriatim.cli.output import as_json as json_text
from seriatim.cli.session import configured
from seriatim.cli.store import json_option
from seriatim.config import LoadedConfig
from seriatim.spark.pipeline import load


@click.command("explain")
@click.argument("path", metavar="PIPELINE", type=click.Path(path_type=Path))
@json_option
@configured
def command(loaded: LoadedConfig, /, path: Path, as_json: bool) -> None:  # noqa: ARG001
    """Say what each stage of a pipeline gives, why, and what is left at each sink.

    PIPELINE is a TOML file. Nothing is started. Exit status 1 means that it promises more than it can keep ('require').
    """
    explanation = load(path).explain()
    click.echo(json_text(explanation.as_fields()) if as_json else "\n".join(explanation.describe()))
    explanation.require()
