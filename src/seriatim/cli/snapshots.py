"""``seriatim snapshots``: create, list, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seriatim.cli.command_groups import CommandGroup
from seriatim.cli.common.command import with_broker
from seriatim.cli.common.output import Fields, Output, moment
from seriatim.cli.common.parameters import Duration, asks_first
from seriatim.errors import NotFound

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, SnapshotInfo


@click.group("snapshots", cls=CommandGroup)
def command() -> None:
    """Create, list and delete snapshots of subscriptions.

    A snapshot holds a position that subscriptions of the same topic can seek to.
    """


@command.command("create")
@click.argument("subscription")
@click.argument("name")
@click.option("--lasts", type=Duration(), default="7d", show_default=True, help="How long to keep it: 90, 10m, 2h, 7d.")
@with_broker
async def create(broker: Broker, output: Output, subscription: str, name: str, lasts: float) -> None:
    """Create the snapshot NAME of SUBSCRIPTION.

    Messages that the subscription has not settled are kept as long as the snapshot.
    """
    info = await broker.create_snapshot(subscription, name, lasts=lasts)
    output.result(_fields(info), f"created snapshot '{name}' of subscription '{subscription}'")


@command.command("list")
@with_broker
async def list_(broker: Broker, output: Output) -> None:
    """List snapshots."""
    rows = [_fields(info) for info in sorted(await broker.list_snapshots(), key=lambda info: info.name)]
    output.listing(
        rows, {"snapshot": "snapshot", "topic": "topic", "expires": "expires"}, empty="there are no snapshots"
    )


async def _require_snapshot(broker: Broker, *, name: str, **_: object) -> None:
    if name not in {info.name for info in await broker.list_snapshots()}:
        raise NotFound(f"snapshot '{name}' does not exist, or has expired")


@command.command("delete")
@click.argument("name")
@asks_first("Delete snapshot '{name}'?", _require_snapshot)
@with_broker
async def delete(broker: Broker, output: Output, name: str) -> None:
    """Delete the snapshot NAME."""
    await broker.delete_snapshot(name)
    output.result({"snapshot": name, "deleted": True}, f"deleted snapshot '{name}'")


def _fields(info: SnapshotInfo) -> Fields:
    return {"snapshot": info.name, "topic": info.topic, "expires": moment(info.expires)}
