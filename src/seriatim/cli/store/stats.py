"""``seriatim store stats``: the backlog of each subscription."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from seriatim.cli.common.command import with_broker
from seriatim.cli.common.output import Cell, Fields, Output, as_json, column_if_set, duration
from seriatim.cli.common.parameters import Duration

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker
    from seriatim.engine.metrics import Metrics, Rates

COLUMNS: dict[str, Cell] = {
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
RATES: dict[str, Cell] = {
    "delivered": lambda row: _rate(row["delivered_rate"]),
    "acked": lambda row: _rate(row["acked_rate"]),
}


@click.command("stats")
@click.argument("subscription", required=False)
@click.option(
    "--watch",
    type=Duration(),
    is_flag=False,
    flag_value="2",
    metavar="[SECONDS]",
    help="Refresh at this interval (2 s) until Ctrl-C, with rates.",
)
@with_broker
async def command(broker: Broker, output: Output, subscription: str | None, watch: float | None) -> None:
    """Show the backlog of each subscription.

    Counts messages that are ready, leased, delayed, or blocked behind others of their key.
    """
    if subscription is not None:
        await broker.describe_subscription(subscription)
    metrics = await broker.metrics()
    if watch is None:
        rows = _rows(metrics, subscription)
        output.listing(rows, COLUMNS | column_if_set("stopped", rows), empty="there are no subscriptions")
        return
    rates = None
    while True:
        _show(output, _watched(_rows(metrics, subscription), rates), rates)
        await asyncio.sleep(watch)
        earlier, metrics = metrics, await broker.metrics()
        rates = metrics.since(earlier)


def _rows(metrics: Metrics, subscription: str | None) -> list[Fields]:
    return [asdict(stats) for name, stats in sorted(metrics.stats.items()) if subscription in {None, name}]


def _watched(rows: list[Fields], rates: Rates | None) -> list[Fields]:
    """The backlog with rates per second, which are unknown the first time."""
    found = rates.subscriptions if rates else {}
    return [
        {
            **row,
            "delivered_rate": found.get(row["subscription"], {}).get("delivered"),
            "acked_rate": found.get(row["subscription"], {}).get("acked"),
        }
        for row in rows
    ]


def _show(output: Output, rows: list[Fields], rates: Rates | None) -> None:
    if output.as_json:
        for row in rows:
            click.echo(as_json(row))
        return
    if sys.stdout.isatty():
        click.clear()
    output.listing(rows, COLUMNS | RATES | column_if_set("stopped", rows), empty="there are no subscriptions")
    if rates is not None:
        took = "" if rates.commit_seconds is None else f" of {rates.commit_seconds * 1000:.1f} ms"
        click.echo(f"published {_rate(rates.totals.get('published'))}, commits {_rate(rates.commits)}{took}")


def _rate(number: float | None) -> str | None:
    return None if number is None else f"{number:,.1f}/s"
