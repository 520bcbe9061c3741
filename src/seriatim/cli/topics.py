"""``seriatim topics``: create, list, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seriatim.cli.output import Columns, Fields, Output, duration, where_said
from seriatim.cli.parameters import Duration, asks_first, or_never_ending
from seriatim.cli.store import with_broker, with_new_broker

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, TopicInfo


@click.group("topics")
def command() -> None:
    """Create, list and delete topics."""


@command.command("create")
@click.argument("name")
@click.option(
    "--retention",
    type=Duration(endless=True),
    default="7d",
    show_default=True,
    help="How long to keep messages that were published before anybody subscribed.",
)
@click.option(
    "--retain-settled",
    type=Duration(endless=True),
    default="0",
    show_default=True,
    help="How long to keep messages that everybody has settled.",
)
@with_new_broker
async def create(broker: Broker, output: Output, name: str, retention: float, retain_settled: float) -> None:
    """Create the topic NAME.

    Durations are seconds, or 1.5s, 10m, 2h, 7d, or 'forever'.
    """
    from seriatim.engine.options import TopicOptions

    options = TopicOptions(or_never_ending(retention), or_never_ending(retain_settled))
    info = await broker.create_topic(name, options)
    output.result(_fields(info), f"created topic '{name}'")


@command.command("list")
@with_broker
async def list_(broker: Broker, output: Output) -> None:
    """List the topics."""
    topics = sorted(await broker.list_topics(), key=lambda info: info.name)
    columns: Columns = {
        "topic": "topic",
        "earliest": "earliest",
        "next offset": "next_offset",
        "retention": lambda row: duration(row["retention"]) or "forever",
        "retain settled": lambda row: duration(row["retain_settled"]) or "forever",
    }
    rows = [_fields(info) for info in topics]
    output.listing(rows, {**columns, **where_said("problem", rows)}, empty="there are no topics")


@command.command("delete")
@click.argument("name")
@asks_first("Delete topic '{name}', its messages and its subscriptions for good?")
@with_broker
async def delete(broker: Broker, output: Output, name: str) -> None:
    """Delete the topic NAME, with its messages and its subscriptions."""
    await broker.delete_topic(name)
    output.result({"topic": name, "deleted": True}, f"deleted topic '{name}'")


def _fields(info: TopicInfo) -> Fields:
    return {
        "topic": info.name,
        "earliest": info.earliest,
        "next_offset": info.next_offset,
        "retention": info.options.retention,
        "retain_settled": info.options.retain_settled,
        "problem": info.problem,
    }
