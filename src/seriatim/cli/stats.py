"""``seriatim stats``: how many messages each subscription has, and what they wait for."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from seriatim.cli.output import Columns, Fields, Output, as_json, duration
from seriatim.cli.parameters import Duration
from seriatim.cli.store import with_broker
from seriatim.errors import NotFound

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker

COLUMNS: Columns = {
    "subscription": "subscription",
    "total": "total",
    "ready": "ready",
    "leased": "leased",
    "delayed": "delayed",
    "blocked": "blocked",
    "dead letters": "dead_letters",
    "keys": "keys",
    "blocked keys": "blocked_keys",
    "paused keys": "paused_keys",
    "oldest": lambda row: duration(row["oldest_age"]),
    "consumers": "consumers",
    "paused": "paused",
}


@click.command("stats")
@click.argument("subscription", required=False)
@click.option(
    "--watch",
    type=Duration(),
    is_flag=False,
    flag_value="2",
    metavar="[SECONDS]",
    help="Show it again every so many seconds (2), until Ctrl-C.",
)
@with_broker
async def command(broker: Broker, output: Output, subscription: str | None, watch: float | None) -> None:
    """Show what each subscription has, or one: messages that are ready, leased, delayed, or blocked behind others."""
    while True:
        _show(output, await _stats(broker, subscription), watching=watch is not None)
        if watch is None:
            break
        await asyncio.sleep(watch)


async def _stats(broker: Broker, subscription: str | None) -> list[Fields]:
    """What there is to say now; a subscription that goes away meanwhile is left out."""
    if subscription is not None:
        return [asdict(await broker.stats(subscription))]
    rows = []
    for name in sorted(info.name for info in await broker.list_subscriptions()):
        try:
            rows.append(asdict(await broker.stats(name)))
        except NotFound:
            continue
    return rows


def _show(output: Output, rows: list[Fields], *, watching: bool) -> None:
    if watching and output.as_json:
        for row in rows:
            click.echo(as_json(row))
        return
    if watching and sys.stdout.isatty():
        click.clear()
    output.listing(rows, COLUMNS, empty="there are no subscriptions")
