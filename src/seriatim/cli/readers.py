"""``seriatim readers``: list, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seriatim.cli.output import Output
from seriatim.cli.parameters import asks_first
from seriatim.cli.store import with_broker

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker


@click.group("readers")
def command() -> None:
    """See which Spark queries clean-up waits for, and wait for one no longer."""


@command.command("list")
@with_broker
async def list_(broker: Broker, output: Output) -> None:
    """List the registered readers of logs."""
    ends = {info.name: info.next_offset for info in await broker.list_topics()}
    rows = [
        {
            "reader": info.name,
            "topic": info.topic,
            "position": str(info.position),
            "behind": ends[info.topic] - info.position,
        }
        for info in sorted(await broker.list_readers(), key=lambda info: info.name)
    ]
    columns = {name: name for name in ("reader", "topic", "position", "behind")}
    output.listing(rows, columns, empty="there are no readers")


@command.command("delete")
@click.argument("name")
@asks_first("Delete reader '{name}'? What its query has not read may be removed.")
@with_broker
async def delete(broker: Broker, output: Output, name: str) -> None:
    """Delete the reader NAME: clean-up does not wait for it any more."""
    await broker.delete_reader(name)
    output.result({"reader": name, "deleted": True}, f"deleted reader '{name}'")
