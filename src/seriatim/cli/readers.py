"""``seriatim readers``: list, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seriatim.cli.command_groups import CommandGroup
from seriatim.cli.common.command import with_broker
from seriatim.cli.common.output import Output
from seriatim.cli.common.parameters import asks_first
from seriatim.errors import NotFound

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker


@click.group("readers", cls=CommandGroup)
def command() -> None:
    """List and delete registered readers of topics.

    A streaming query on Spark is one: its topic keeps what it has not read.
    """


@command.command("list")
@with_broker
async def list_(broker: Broker, output: Output) -> None:
    """List readers, and how far each is behind."""
    ends = {info.name: info.next_offset or 0 for info in await broker.list_topics()}
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


async def _require_reader(broker: Broker, *, name: str, **_: object) -> None:
    if name not in {info.name for info in await broker.list_readers()}:
        raise NotFound(f"reader '{name}' does not exist")


@command.command("delete")
@click.argument("name")
@asks_first("Delete reader '{name}'? Messages that its query has not read may be removed.", _require_reader)
@with_broker
async def delete(broker: Broker, output: Output, name: str) -> None:
    """Delete the reader NAME.

    Messages are no longer kept for it. A query that still exists fails when it continues.
    """
    await broker.delete_reader(name)
    output.result({"reader": name, "deleted": True}, f"deleted reader '{name}'")
