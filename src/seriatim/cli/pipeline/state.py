"""``seriatim pipeline state``: info, held, repartition."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from math import isfinite
from typing import Any

import click

from seriatim.cli.command_groups import CommandGroup
from seriatim.cli.common.command import with_output
from seriatim.cli.common.output import Fields, Output, payload
from seriatim.cli.common.parameters import limit_option
from seriatim.cli.common.spark import spark_session
from seriatim.spark.state_admin import StateInfo, held_rows, inspect_state, repartition_state


@click.group("state", cls=CommandGroup)
def command() -> None:
    """Inspect and repartition the state of a stream."""


@command.command("info")
@click.argument("path")
@with_output
def info(output: Output, path: str) -> None:
    """Show the query, the batch and the partitions of the state in PATH."""
    found = inspect_state(path)
    rows = [_partition_fields(asdict(part)) for part in found.partitions]
    if output.as_json:
        output.result({**_state_fields(found), "partitions": rows}, "")
        return
    click.echo(f"query {found.query}\nbatch {found.batch}, the newest of {found.versions} restorable versions")
    columns = {name: name for name in ("partition", "keys", "held", "gaps", "due")}
    output.listing(rows, columns, empty="")


def _state_fields(found: StateInfo) -> Fields:
    return {"state": found.location, "query": found.query, "batch": found.batch, "versions": found.versions}


def _partition_fields(part: dict[str, Any]) -> Fields:
    """What never falls due has no time. Times are numbers, as in the ledger: only the stream knows their unit."""
    return {**part, "due": part["due"] if isfinite(part["due"]) else None}


@command.command("held")
@click.argument("path")
@limit_option(100)
@with_output
def held(output: Output, path: str, limit: int) -> None:
    """Show the rows that wait behind gaps in PATH, by key."""
    rows = (row for table in held_rows(path) for batch in table.to_batches(1000) for row in batch.to_pylist())
    shown = [{name: _plain(value) for name, value in row.items()} for row in islice(rows, limit)]
    columns = {name: name for name in shown[0]} if shown else {}
    output.listing(shown, columns, empty="no rows are waiting")


def _plain(value: Any) -> Any:
    """A value as JSON has it, and people read it."""
    if isinstance(value, bytes):
        return payload(value)["data"]
    return json.loads(json.dumps(value, default=str))


@command.command("repartition")
@click.argument("path")
@click.option("--partitions", type=click.IntRange(min=1), required=True, help="The new number of partitions.")
@with_output
def repartition(output: Output, path: str, partitions: int) -> None:
    """Repartition the state in PATH while its query is stopped.

    Then start the query with the new number of partitions.
    """
    with spark_session(show_progress=output.progress) as spark:
        batches = repartition_state(spark, path, partitions)
    sentence = f"repartitioned into {partitions}; the query continues after batch {batches[-1]}"
    output.result({"state": path, "partitions": partitions, "batch": batches[-1]}, sentence)
