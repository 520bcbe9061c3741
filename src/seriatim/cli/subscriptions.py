"""``seriatim subscriptions``: create, list, delete; pause, resume, seek."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.output import Columns, Fields, Output, duration, moment, where_said
from seriatim.cli.parameters import Duration, Moment, asks_first
from seriatim.cli.store import with_broker
from seriatim.core.delivery import OnExhausted, Release, RetryMode, RetryPolicy

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, SubscriptionInfo


@click.group("subscriptions")
def command() -> None:
    """Create, list, delete, pause and rewind subscriptions."""


@command.command("create")
@click.argument("topic")
@click.argument("name")
@click.option("--ordered", is_flag=True, help="Keep messages in order, per key.")
@click.option("--ack-deadline", type=Duration(), default="10s", show_default=True, help="How long a lease lasts.")
@click.option("--min-backoff", type=Duration(), default="0", show_default=True, help="Wait before the first retry.")
@click.option("--max-backoff", type=Duration(), default="10m", show_default=True, help="The longest wait.")
@click.option(
    "--retry-mode",
    type=click.Choice([mode.value for mode in RetryMode]),
    default=RetryMode.BLOCK.value,
    show_default=True,
    help="Whether a message that waits for its retry blocks its key, or later ones overtake it.",
)
@click.option("--max-attempts", type=click.IntRange(min=1), help="Give a message up after so many deliveries.")
@click.option(
    "--on-exhausted",
    type=click.Choice([action.value for action in OnExhausted]),
    default=OnExhausted.DEAD_LETTER.value,
    show_default=True,
    help="What happens to a message that used up its attempts.",
)
@click.option("--window", type=click.IntRange(min=1), default=1, show_default=True, help="In flight per key at once.")
@click.option(
    "--release",
    type=click.Choice([release.value for release in Release]),
    default=Release.DURABLE.value,
    show_default=True,
    help="When the next message of a key goes out: when the ack is on disk, or when it arrives.",
)
@click.option("--dead-letter-topic", metavar="TOPIC", help="Copy dead letters to this topic.")
@click.option("--filter", help='Deliver only messages whose attributes match, for example: attributes.kind = "order".')
@with_broker
async def create(broker: Broker, output: Output, topic: str, name: str, **options: Any) -> None:
    """Create the subscription NAME of TOPIC. It gets what is published from now on.

    Durations are seconds, or 1.5s, 10m, 2h, 7d.
    """
    from seriatim.engine.options import SubscriptionOptions

    retry = RetryPolicy(
        options["min_backoff"],
        options["max_backoff"],
        RetryMode(options["retry_mode"]),
        options["max_attempts"],
        OnExhausted(options["on_exhausted"]),
    )
    told = SubscriptionOptions(
        ordering=options["ordered"],
        ack_deadline=options["ack_deadline"],
        retry=retry,
        window=options["window"],
        release=Release(options["release"]),
        dead_letter_topic=options["dead_letter_topic"],
        filter=options["filter"],
    )
    info = await broker.create_subscription(topic, name, told)
    output.result(_fields(info), f"created subscription '{name}' of topic '{topic}'")


@command.command("list")
@click.option("--topic", help="Only those of this topic.")
@with_broker
async def list_(broker: Broker, output: Output, topic: str | None) -> None:
    """List the subscriptions."""
    found = [info for info in await broker.list_subscriptions() if topic in {None, info.topic}]
    columns: Columns = {
        "subscription": "subscription",
        "topic": "topic",
        "ordered": "ordering",
        "ack deadline": lambda row: duration(row["ack_deadline"]),
        "max attempts": lambda row: row["retry"]["max_attempts"],
        "dead-letter topic": "dead_letter_topic",
    }
    rows = [_fields(info) for info in sorted(found, key=lambda info: info.name)]
    output.listing(rows, {**columns, **where_said("problem", rows)}, empty="there are no subscriptions")


@command.command("delete")
@click.argument("name")
@asks_first("Delete subscription '{name}' and its place in the log for good?")
@with_broker
async def delete(broker: Broker, output: Output, name: str) -> None:
    """Delete the subscription NAME. Its topic and the messages that others need stay."""
    await broker.delete_subscription(name)
    output.result({"subscription": name, "deleted": True}, f"deleted subscription '{name}'")


@command.command("pause")
@click.argument("name")
@with_broker
async def pause(broker: Broker, output: Output, name: str) -> None:
    """Give out nothing more of NAME, also after a restart. Leases that are out go on."""
    await broker.pause(name)
    output.result({"subscription": name, "paused": True}, f"paused subscription '{name}'")


@command.command("resume")
@click.argument("name")
@with_broker
async def resume(broker: Broker, output: Output, name: str) -> None:
    """Give messages of NAME out again."""
    await broker.resume(name)
    output.result({"subscription": name, "paused": False}, f"resumed subscription '{name}'")


@command.command("seek")
@click.argument("name")
@click.option(
    "--time", type=Moment(), help="To what was published at or after this time (ISO 8601; UTC unless it says)."
)
@click.option("--offset", type=click.IntRange(min=0), help="To this offset.")
@click.option("--snapshot", help="To where a subscription stood when this snapshot was made.")
@with_broker
async def seek(
    broker: Broker, output: Output, name: str, time: float | None, offset: int | None, snapshot: str | None
) -> None:
    """Move NAME to a time, an offset or a snapshot: what comes after it is delivered (again).

    Leases that are out are lost and failed attempts forgotten; dead letters stay.
    """
    if [time, offset, snapshot].count(None) != 2:
        raise click.UsageError("Give one of --time, --offset and --snapshot.")
    if time is not None:
        await broker.seek_to_time(name, time)
    elif offset is not None:
        await broker.seek_to_offset(name, offset)
    elif snapshot is not None:
        await broker.seek_to_snapshot(name, snapshot)
    there = moment(time) or snapshot or f"offset {offset}"
    fields = {"subscription": name, "time": moment(time), "offset": offset, "snapshot": snapshot}
    output.result(fields, f"moved subscription '{name}' to {there}")


def _fields(info: SubscriptionInfo) -> Fields:
    return {"subscription": info.name, "topic": info.topic, **info.options.to_json(), "problem": info.problem}
