"""``seriatim demo``: a fleet of devices, a faulty network, and the order with and without Seriatim."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from seriatim.cli.common.command import with_output
from seriatim.cli.common.consoles import start_console
from seriatim.cli.common.output import Output
from seriatim.cli.common.signals import run_until_signal
from seriatim.cli.demo.display import as_fields, show_steps, show_story
from seriatim.demo.books import Audited, Books
from seriatim.demo.fleet import MIN_MESSAGES, Fleet
from seriatim.demo.folder import DemoFolder
from seriatim.demo.plan import Demo
from seriatim.demo.run import MakeOrdering, run
from seriatim.engine.broker import Broker
from seriatim.engine.reported_status import AuditedSide, leave_audit
from seriatim.errors import GuaranteeNotMet
from seriatim.extras import EXTRAS, is_installed

FULL = Fleet(devices=100, messages=400)
QUICK = Fleet(devices=20, messages=100, shuffle=200)
PER_SECOND, QUICK_PER_SECOND = 1_000, 5_000


@click.command("demo")
@click.option("--devices", type=click.IntRange(min=1), help=f"Number of devices.  [default: {FULL.devices}]")
@click.option(
    "--messages", type=click.IntRange(min=MIN_MESSAGES), help=f"Readings per device.  [default: {FULL.messages}]"
)
@click.option("--drop", type=click.FloatRange(0, 1), help=f"Share that is lost.  [default: {FULL.drop}]")
@click.option(
    "--duplicate",
    type=click.FloatRange(0, 1),
    help=f"Share that is duplicated.  [default: {FULL.duplicate}]",
)
@click.option(
    "--shuffle", type=click.IntRange(min=0), help=f"Places by which readings are displaced.  [default: {FULL.shuffle}]"
)
@click.option("--seed", type=int, help=f"The seed of all randomness.  [default: {FULL.seed}]")
@click.option("--quick", is_flag=True, help="Run a small fleet, faster.")
@click.option("--without-spark", is_flag=True, help="Resequence in this process instead of on Spark.")
@click.option("--folder", type=click.Path(path_type=Path), help="The folder for the results, new or empty.")
@click.option("--console", is_flag=True, help="Show the demo in the web console, until Ctrl-C.")
@with_output
def command(output: Output, quick: bool, without_spark: bool, folder: Path | None, console: bool, **fleet: Any) -> None:
    """Watch a shuffled stream being put back in order.

    A fleet of devices sends numbered readings through a network that loses, duplicates and shuffles them. What arrives is
    published to the topic 'raw'. A pipeline on Spark puts it in order, into the topic 'ordered' and into tables, with a ledger
    of what it could not place. Subscribers consume 'ordered', one message per device at a time.

    In the end both sides are audited, and every message is accounted for. The store, the tables, the pipeline and a report stay
    in a folder.
    """
    chosen = replace(QUICK if quick else FULL, **{name: value for name, value in fleet.items() if value is not None})
    demo = Demo(chosen, DemoFolder.make(folder), QUICK_PER_SECOND if quick else PER_SECOND)
    _run(demo, output, without_spark=without_spark, console=console)


def _show(books: Books, demo: Demo, output: Output) -> None:
    discrepancies = list(books.discrepancies())
    if output.as_json:
        output.result(as_fields(books, demo.folder, discrepancies), "")
    else:
        show_story(books, demo.folder, discrepancies)
    if discrepancies:
        raise GuaranteeNotMet(f"the accounts don't add up: {discrepancies[0]}; please report this, with the seed")


def _run(demo: Demo, output: Output, *, without_spark: bool, console: bool) -> None:
    has_spark = all(map(is_installed, EXTRAS["spark"]))
    if not (has_spark or without_spark):
        click.echo("Spark is not installed, so this process does its part: pip install 'seriatim[spark]'", err=True)
    ordering = _ordering(with_spark=has_spark and not without_spark)
    has_ended = False

    async def work(stack: AsyncExitStack) -> None:
        nonlocal has_ended
        brokers: list[Broker] = []

        async def opened(broker: Broker) -> None:
            brokers.append(broker)
            if console:
                server = await start_console(stack, broker, ("127.0.0.1", 0), tokens=None, tls=(None, None), names=())
                click.echo(f"Console at {server.url}", err=True)

        with show_steps(enabled=output.progress) as steps:
            books = await run(demo, ordering, steps, stack, opened)
        has_ended = True
        report = demo.folder.report.read_text(encoding="utf-8") if demo.folder.report.exists() else None
        sides = [_side("before: topic raw", books.before, demo), _side("after: topic ordered", books.after, demo)]
        await leave_audit(brokers[0], "demo", sides, report)
        _show(books, demo, output)
        if console:
            click.echo("The console stays open until you press Ctrl-C.", err=True)
            await asyncio.Event().wait()

    try:
        run_until_signal(work)
    except click.exceptions.Exit:
        if not has_ended:
            click.echo(f"stopped; the results so far are in '{demo.folder.path}'", err=True)
            raise


def _side(title: str, audited: Audited, demo: Demo) -> AuditedSide:
    counts = (audited.rows, audited.lost, audited.duplicates, audited.reordered)
    return AuditedSide(title, demo.fleet.devices, *counts, audited.guarantee.in_words())


def _ordering(*, with_spark: bool) -> MakeOrdering:
    if with_spark:
        from seriatim.demo.on_spark import ordering_on_spark

        return ordering_on_spark
    from seriatim.demo.in_process import ordering_in_process

    return ordering_in_process
