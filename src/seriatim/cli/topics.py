"""``seriatim topics``: create, list, show, update, delete."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.command_groups import CommandGroup
from seriatim.cli.common.command import with_broker, with_new_broker
from seriatim.cli.common.output import Columns, Fields, Output, column_if_set, duration
from seriatim.cli.common.parameters import Duration, asks_first, none_if_forever, require_topic
from seriatim.errors import AlreadyExists

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, TopicInfo


@click.group("topics", cls=CommandGroup)
def command() -> None:
    """Create, list, change and delete topics."""


def retention_options(*, is_new: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options that ``create`` and ``update`` share. What is not given is None; new topics have defaults."""
    kept, settled = ("  [default: 7d]", "  [default: 0]") if is_new else ("", "")
    kept = f"How long to keep messages published before anybody subscribed.{kept}"
    settled = f"How long to keep messages that all subscriptions have settled.{settled}"
    window, ids = ("  [default: 10m]", "  [default: 1000000]") if is_new else ("", "")
    shared = [
        click.option("--retention", type=Duration(endless=True), help=kept),
        click.option("--retain-settled", type=Duration(endless=True), help=settled),
        click.option("--dedup-window", type=Duration(), help=f"How long to remember the ids of messages.{window}"),
        click.option("--dedup-max-ids", type=int, help=f"How many ids to remember at most.{ids}"),
    ]
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(shared), command)


@command.command("create")
@click.argument("name")
@retention_options(is_new=True)
@with_new_broker
async def create(broker: Broker, output: Output, name: str, **given: Any) -> None:
    """Create the topic NAME.

    Durations are seconds, or 1.5s, 10m, 2h, 7d, or 'forever'. A store that does not exist is created.
    """
    from seriatim.engine.options import TopicOptions

    try:
        info = await broker.create_topic(name, TopicOptions(**_given(given)))
    except AlreadyExists as error:
        raise AlreadyExists(f"{error}: to change its options, use 'seriatim topics update {name}'") from error
    output.result(_fields(info), f"created topic '{name}'")


@command.command("update")
@click.argument("name")
@retention_options(is_new=False)
@with_broker
async def update(broker: Broker, output: Output, name: str, **given: Any) -> None:
    """Change options of the topic NAME.

    Options that are not given stay as they are.
    """
    from seriatim.engine.options import TopicOptions

    changed = _given(given)
    if not changed:
        raise click.UsageError("Name at least one option to change.")
    await broker.update_topic(name, TopicOptions(**changed), list(changed))
    named = ", ".join(f"--{name.replace('_', '-')} {_shown(value)}" for name, value in changed.items())
    output.result(_fields(await broker.describe_topic(name)), f"updated topic '{name}': {named}")


def _shown(value: float | None) -> str:
    return "forever" if value is None else str(value) if isinstance(value, int) else str(duration(value))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: none_if_forever(value) for name, value in options.items() if value is not None}


@command.command("list")
@with_broker
async def list_(broker: Broker, output: Output) -> None:
    """List topics."""
    columns: Columns = {
        "topic": "topic",
        "earliest": "earliest",
        "next offset": "next_offset",
        "retention": lambda row: duration(row["retention"]) or "forever",
        "retain settled": lambda row: duration(row["retain_settled"]) or "forever",
    }
    rows = [_fields(info) for info in await broker.list_topics()]
    output.listing(rows, {**columns, **column_if_set("problem", rows)}, empty="there are no topics")


@command.command("show")
@click.argument("name")
@with_broker
async def show(broker: Broker, output: Output, name: str) -> None:
    """Show the options of the topic NAME, what it keeps, and its subscriptions."""
    fields = _fields(await broker.describe_topic(name))
    fields["subscriptions"] = [info.name for info in await broker.list_subscriptions(topic=name)]
    output.details(
        fields,
        {
            "topic": name,
            "problem": fields["problem"],
            "kept messages": _kept(fields),
            "retention": duration(fields["retention"]) or "forever",
            "retain settled": duration(fields["retain_settled"]) or "forever",
            "dedup window": duration(fields["dedup_window"]),
            "dedup ids": fields["dedup_max_ids"],
            "subscriptions": ", ".join(fields["subscriptions"]) or "none",
        },
    )


def _kept(fields: Fields) -> str | None:
    """What a topic still has, where its ids are numbers."""
    first, end = fields["earliest"], fields["next_offset"]
    if first is None or end is None:
        return None
    return f"from {first} to {end - 1}" if first < end else "none"


@command.command("delete")
@click.argument("name")
@asks_first("Delete topic '{name}', its messages and its subscriptions?", require_topic)
@with_broker
async def delete(broker: Broker, output: Output, name: str) -> None:
    """Delete the topic NAME, with its messages and its subscriptions."""
    await broker.delete_topic(name)
    output.result({"topic": name, "deleted": True}, f"deleted topic '{name}'")


def _fields(info: TopicInfo) -> Fields:
    place = {"topic": info.name, "earliest": info.earliest, "next_offset": info.next_offset}
    names = ("retention", "retain_settled", "dedup_window", "dedup_max_ids")
    return {**place, **{name: getattr(info.options, name) for name in names}, "problem": info.problem}
