"""``seriatim state``: info, held, repartition."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from math import isfinite
from typing import Any

import click

from seriatim.cli.frames import spark_at_work
from seriatim.cli.output import Fields, Output, payload
from seriatim.cli.session import configured
from seriatim.cli.store import json_option
from seriatim.config import LoadedConfig
from seriatim.spark.state_admin import StateInfo, held_rows, inspect_state, repartition_state


@click.group("state")
def command() -> None:
    """Look at what a stream that Spark puts in order remembers, and divide it anew."""


@command.command("info")
@click.argument("path")
@json_option
def info(path: str, as_json: bool) -> None:
    """Show whose state is in PATH, and how much each partition knows."""
    found = inspect_state(path)
    rows = [_partition_fields(asdict(part)) for part in found.partitions]
    if as_json:
        Output(as_json).result({**_state_fields(found), "partitions": rows}, "")
        return
    click.echo(f"query {found.query}\nbatch {found.batch}, the last of {found.versions} that can be gone on from")
    columns = {name: name for name in ("partition", "keys", "held", "gaps", "due")}
    Output(as_json).listing(rows, columns, empty="")


def _state_fields(found: StateInfo) -> Fields:
    return {"state": found.location, "query": found.query, "batch": found.batch, "versions": found.versions}


def _partition_fields(part: dict[str, Any]) -> Fields:
    """What never falls due has no time. Times are numbers, as in the ledger: only the stream knows their unit."""
    return {**part, "due": part["due"] if isfinite(part["due"]) else None}


@command.command("held")
@click.argument("path")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many rows to show at most."
)
@json_option
def held(path: str, limit: int, as_json: bool) -> None:
    """Show the rows that wait in PATH, by key: since when, for which numbers, and until when."""
    rows = (row for table in held_rows(path) for batch in table.to_batches(1000) for row in batch.to_pylist())
    shown = [{name: _plain(value) for name, value in row.items()} for row in islice(rows, limit)]
    columns = {name: name for name in shown[0]} if shown else {}
    Output(as_json).listing(shown, columns, empty="no row waits")


def _plain(value: Any) -> Any:
    """A value as JSON has it, and people read it."""
    if isinstance(value, bytes):
        return payload(value)["data"]
    return json.loads(json.dumps(value, default=str))


@command.command("repartition")
@click.argument("path")
@click.option("--partitions", type=click.IntRange(min=1), required=True, help="How many partitions there are to be.")
@json_option
@configured
def repartition(loaded: LoadedConfig, /, path: str, partitions: int, as_json: bool) -> None:
    """Divide the state in PATH anew, while its query is stopped. Then start the query with the new count."""
    with spark_at_work(show_progress=loaded.values.progress) as spark:
        batches = repartition_state(spark, path, partitions)
    sentence = f"the state has {partitions} partitions now, and can be gone on from after batch {batches[-1]}"
    Output(as_json).result({"state": path, "partitions": partitions, "batch": batches[-1]}, sentence)
