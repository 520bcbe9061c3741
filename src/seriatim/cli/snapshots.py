"""``seriatim snapshots``: create, list, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seriatim.cli.output import Fields, Output, moment
from seriatim.cli.parameters import Duration, asks_first
from seriatim.cli.store import with_broker

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, SnapshotInfo


@click.group("snapshots")
def command() -> None:
    """Remember where a subscription stands, to go back there later."""


@command.command("create")
@click.argument("subscription")
@click.argument("name")
@click.option("--lasts", type=Duration(), default="7d", show_default=True, help="How long it is kept: 90, 10m, 2h, 7d.")
@with_broker
async def create(broker: Broker, output: Output, subscription: str, name: str, lasts: float) -> None:
    """Remember where SUBSCRIPTION stands as NAME. Messages that it has not settled are kept as long."""
    info = await broker.create_snapshot(subscription, name, lasts=lasts)
    output.result(_fields(info), f"created snapshot '{name}' of subscription '{subscription}'")


@command.command("list")
@with_broker
async def list_(broker: Broker, output: Output) -> None:
    """List the snapshots."""
    rows = [_fields(info) for info in sorted(await broker.list_snapshots(), key=lambda info: info.name)]
    output.listing(
        rows, {"snapshot": "snapshot", "topic": "topic", "expires": "expires"}, empty="there are no snapshots"
    )


@command.command("delete")
@click.argument("name")
@asks_first("Delete snapshot '{name}' for good?")
@with_broker
async def delete(broker: Broker, output: Output, name: str) -> None:
    """Delete the snapshot NAME."""
    await broker.delete_snapshot(name)
    output.result({"snapshot": name, "deleted": True}, f"deleted snapshot '{name}'")


def _fields(info: SnapshotInfo) -> Fields:
    return {"snapshot": info.name, "topic": info.topic, "expires": moment(info.expires)}
