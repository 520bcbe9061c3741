"""``seriatim demo``: a fleet of devices, a faulty network, and what order is left with and without Seriatim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from seriatim.cli.demo_display import as_fields, show_steps, show_story
from seriatim.cli.output import as_json as to_json
from seriatim.cli.session import configured
from seriatim.cli.signals import run_until_signal
from seriatim.cli.store import json_option
from seriatim.config import LoadedConfig
from seriatim.demo.books import Books
from seriatim.demo.fleet import FEWEST_MESSAGES, Fleet
from seriatim.demo.folder import DemoFolder
from seriatim.demo.job import MakeOrdering, run
from seriatim.demo.plan import Demo
from seriatim.errors import GuaranteeNotMet
from seriatim.extras import EXTRAS, is_installed

FULL = Fleet(devices=100, messages=400)
QUICK = Fleet(devices=20, messages=100, shuffle=200)
PER_SECOND, QUICK_PER_SECOND = 1_000, 5_000


@click.command("demo")
@click.option("--devices", type=click.IntRange(min=1), help=f"How many devices send.  [default: {FULL.devices}]")
@click.option(
    "--messages", type=click.IntRange(min=FEWEST_MESSAGES), help=f"How many each one sends.  [default: {FULL.messages}]"
)
@click.option("--drop", type=click.FloatRange(0, 1), help=f"Share that is lost.  [default: {FULL.drop}]")
@click.option("--duplicate", type=click.FloatRange(0, 1), help=f"Share that comes twice.  [default: {FULL.duplicate}]")
@click.option(
    "--shuffle", type=click.IntRange(min=0), help=f"By how many places messages move.  [default: {FULL.shuffle}]"
)
@click.option("--seed", type=int, help=f"Same seed, same fleet, same faults.  [default: {FULL.seed}]")
@click.option("--quick", is_flag=True, help="A small fleet, in a hurry.")
@click.option("--without-spark", is_flag=True, help="Put in order in this process, as where Spark is not installed.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Leave everything in this folder, which must be new or empty."
)
@json_option
@configured
def command(
    loaded: LoadedConfig, /, quick: bool, without_spark: bool, folder: Path | None, as_json: bool, **fleet: Any
) -> None:
    """See the messages of a faulty network put back in order.

    A fleet of devices sends numbered readings through a network that loses, repeats and shuffles them. What arrives is
    published to the topic 'raw'; a pipeline on Spark puts it in order, into the topic 'ordered' and into tables, with a
    ledger of what it could not place; subscribers consume 'ordered', one message of a device at a time. All of that
    happens at once.

    At the end both sides are audited and everything is added up. The store, the tables, the pipeline and a report are left
    in a folder.
    """
    chosen = replace(QUICK if quick else FULL, **{name: value for name, value in fleet.items() if value is not None})
    demo = Demo(chosen, DemoFolder.make(folder), QUICK_PER_SECOND if quick else PER_SECOND)
    books = _run(demo, without_spark=without_spark, show_progress=loaded.values.progress)
    discrepancies = list(books.discrepancies())
    if as_json:
        click.echo(to_json(as_fields(books, demo.folder, discrepancies)))
    else:
        show_story(books, demo.folder, discrepancies)
    if discrepancies:
        raise GuaranteeNotMet(f"the books do not add up: {discrepancies[0]}; please report this, with the seed")


def _run(demo: Demo, *, without_spark: bool, show_progress: bool) -> Books:
    has_spark = all(map(is_installed, EXTRAS["spark"]))
    if not (has_spark or without_spark):
        click.echo("Spark is not installed, so one process does its part: pip install 'seriatim[spark]'", err=True)
    ordering = _ordering(with_spark=has_spark and not without_spark)
    try:
        with show_steps(enabled=show_progress) as steps:
            return run_until_signal(lambda stack: run(demo, ordering, steps, stack))
    except click.exceptions.Exit:
        click.echo(f"stopped: nothing runs any more, and what there was is in '{demo.folder.path}'", err=True)
        raise


def _ordering(*, with_spark: bool) -> MakeOrdering:
    if with_spark:
        from seriatim.demo.on_spark import ordering_on_spark

        return ordering_on_spark
    from seriatim.demo.in_process import ordering_in_process

    return ordering_in_process
