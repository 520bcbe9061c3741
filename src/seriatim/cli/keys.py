"""``seriatim keys``: why keys of a subscription are blocked, and what an operator can do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from seriatim.cli.command_groups import CommandGroup
from seriatim.cli.common.command import with_broker
from seriatim.cli.common.output import (
    Columns,
    Fields,
    Output,
    attributes_text,
    cell_text,
    duration,
    message_fields,
    moment,
    payload_text,
)
from seriatim.cli.common.parameters import Choice, asks_first, key_argument, limit_option, require_subscription

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, KeyInfo, KeyOrder, KeyState

STATES = ("paused", "delayed", "leased", "settling", "ready")


@click.group("keys", cls=CommandGroup)
def command() -> None:
    """See why keys are blocked, and unblock them."""


def on_key(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command about one key of a subscription, or about its keyless messages."""
    return lambda function: command.command(name)(click.argument("subscription")(key_argument(function)))


@command.command("list")
@click.argument("subscription")
@click.option("--blocked", is_flag=True, help="Only blocked keys.")
@click.option(
    "--order", type=click.Choice(["trouble", "oldest", "deepest"]), default="trouble", help="What to list first."
)
@click.option("--state", type=Choice(STATES), help="Only keys in this state.")
@click.option("--search", metavar="TEXT", default="", help="Only keys that contain this text.")
@limit_option(100)
@with_broker
async def list_(
    broker: Broker,
    output: Output,
    subscription: str,
    blocked: bool,
    order: KeyOrder,
    state: KeyState | None,
    search: str,
    limit: int,
) -> None:
    """List keys that have messages or are paused, blocked ones first.

    '-' stands for messages without a key.
    """
    keys = await broker.list_keys(
        subscription, limit=limit, blocked_only=blocked, order=order, state=state, search=search
    )
    columns: Columns = {
        "key": "key",
        "state": "state",
        "depth": "depth",
        "in flight": "in_flight",
        "head": "head",
        "head age": lambda row: duration(row["head_age"]),
        "attempts": "attempts",
        "why": "why",
    }
    output.listing(
        [_fields(info) for info in keys], columns, empty="no keys are blocked" if blocked else "no keys have messages"
    )


@on_key("why")
@with_broker
async def why(broker: Broker, output: Output, subscription: str, key: str | None) -> None:
    """Explain what KEY is waiting for, since when, and what would unblock it."""
    found = await broker.explain(subscription, key)
    fields = {**asdict(found), "since": moment(found.since), "until": moment(found.until)}
    output.result({"subscription": subscription, **fields}, f"{_named(key)}: {found.sentence}")


@command.command("superseded")
@click.argument("subscription")
@click.option("--key", metavar="KEY", help="Only messages of this key.")
@limit_option(100)
@with_broker
async def superseded(broker: Broker, output: Output, subscription: str, key: str | None, limit: int) -> None:
    """List messages that were superseded by newer ones of their keys, the latest first.

    With '--keep latest' they are settled without being delivered. The last 10,000 are remembered, until the owner of the
    store ends.
    """
    found = [asdict(one) | {"time": moment(one.time)} for one in await broker.superseded(subscription, key, limit)]
    columns: Columns = {"id": "id", "key": "ordering_key", "superseded by": "by", "time": "time"}
    output.listing(found, columns, empty="no messages are remembered as superseded")


@on_key("peek")
@limit_option(10)
@with_broker
async def peek(broker: Broker, output: Output, subscription: str, key: str | None, limit: int) -> None:
    """Show the first messages of KEY without delivering them."""
    messages = [
        message_fields(found.id, found.ordering_key, found.data, found.attributes, found.publish_time)
        for found in await broker.peek(subscription, key, limit)
    ]
    columns: Columns = {"id": "id", "published": "published", "data": payload_text}
    if any(message["attributes"] for message in messages):
        columns = {"id": "id", "published": "published", "attributes": attributes_text, "data": payload_text}
    output.listing(messages, columns, empty="no messages are waiting")


@on_key("retry")
@with_broker
async def retry(broker: Broker, output: Output, subscription: str, key: str | None) -> None:
    """Deliver the first message of KEY now, without waiting for its retry or delay.

    A key that is paused stays paused: 'keys resume' delivers it.
    """
    await broker.retry_key(subscription, key)
    found = await broker.explain(subscription, key)
    done = "may be delivered now"
    if found.waits_for == "operator":
        done = f"no longer waits for its time, but {found.sentence} (see 'keys resume' and 'subscriptions resume')"
    _report(output, subscription, key, done, retried=True)


@on_key("skip")
@asks_first(
    lambda key, subscription, **_: f"Skip the first message of {_named(key)} in subscription '{subscription}'?",
    require_subscription,
)
@with_broker
async def skip(broker: Broker, output: Output, subscription: str, key: str | None) -> None:
    """Settle the first message of KEY without delivering it.

    A consumer that is handling it loses its lease. 'keys dead-letter' keeps the message.
    """
    skipped = await broker.skip(subscription, key)
    _report(output, subscription, key, f"skipped message {skipped}", id=skipped)


@on_key("dead-letter")
@click.option("--rest", is_flag=True, help="All messages of the key, not only the first.")
@click.option("--reason", help="Stored with the dead letter.")
@with_broker
async def dead_letter(
    broker: Broker, output: Output, subscription: str, key: str | None, rest: bool, reason: str | None
) -> None:
    """Dead-letter the first message of KEY.

    It can be put back with 'dead-letters redrive'.
    """
    ids = await broker.dead_letter(subscription, key, reason, rest=rest)
    _report(output, subscription, key, f"dead-lettered {', '.join(ids) or 'nothing'}", ids=ids)


@on_key("pause")
@click.option("--reason", help="Shown by 'keys list'.")
@with_broker
async def pause(broker: Broker, output: Output, subscription: str, key: str | None, reason: str | None) -> None:
    """Stop delivery of KEY until it is resumed.

    It stays paused after a restart.
    """
    await broker.pause_key(subscription, key, reason)
    _report(output, subscription, key, "paused", paused=True)


@on_key("resume")
@with_broker
async def resume(broker: Broker, output: Output, subscription: str, key: str | None) -> None:
    """Resume delivery of KEY."""
    await broker.resume_key(subscription, key)
    _report(output, subscription, key, "resumed", paused=False)


def _report(output: Output, subscription: str, key: str | None, done: str, **fields: object) -> None:
    output.result({"subscription": subscription, "key": key, **fields}, f"{_named(key)}: {done}")


def _named(key: str | None) -> str:
    return "keyless messages" if key is None else f"key {cell_text(key)}"


def _fields(info: KeyInfo) -> Fields:
    return {**asdict(info), "not_before": moment(info.not_before)}
