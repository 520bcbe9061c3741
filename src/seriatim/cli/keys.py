"""``seriatim keys``: what each key of a subscription waits for, and an operator's hand on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seriatim.cli.output import Columns, Fields, Output, cell_text, duration, message_fields, moment, payload_text
from seriatim.cli.parameters import key_argument
from seriatim.cli.store import with_broker

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, KeyInfo


@click.group("keys")
def command() -> None:
    """See what the keys of a subscription wait for, and free them."""


@command.command("list")
@click.argument("subscription")
@click.option("--blocked", is_flag=True, help="Only keys that something blocks.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many to list at most.")
@with_broker
async def list_(broker: Broker, output: Output, subscription: str, blocked: bool, limit: int) -> None:
    """List the keys of SUBSCRIPTION that have messages or are paused, those in trouble first.

    '-' stands for the messages without a key.
    """
    keys = await broker.list_keys(subscription, limit=limit, blocked_only=blocked)
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
    output.listing([_fields(info) for info in keys], columns, empty="no key waits" if blocked else "there are no keys")


@command.command("peek")
@click.argument("subscription")
@key_argument
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="How many to show at most.")
@with_broker
async def peek(broker: Broker, output: Output, subscription: str, key: str | None, limit: int) -> None:
    """Show the first messages of KEY, in order, without delivering them."""
    messages = [
        message_fields(str(found.offset), found.key, found.data, found.attributes, found.published)
        for found in await broker.peek(subscription, key, limit)
    ]
    columns: Columns = {"id": "id", "published": "published", "data": payload_text}
    output.listing(messages, columns, empty="no message waits")


@command.command("retry")
@click.argument("subscription")
@key_argument
@with_broker
async def retry(broker: Broker, output: Output, subscription: str, key: str | None) -> None:
    """Let the head of KEY go out now, instead of when its retry or its delay is due."""
    await broker.retry_key(subscription, key)
    _report(output, subscription, key, "may be delivered now", retried=True)


@command.command("skip")
@click.argument("subscription")
@key_argument
@with_broker
async def skip(broker: Broker, output: Output, subscription: str, key: str | None) -> None:
    """Settle the head of KEY without delivering it. If it is being handled just now, that lease is lost."""
    offset = await broker.skip(subscription, key)
    _report(output, subscription, key, f"skipped message {offset}", id=str(offset))


@command.command("dead-letter")
@click.argument("subscription")
@key_argument
@click.option("--rest", is_flag=True, help="Everything that waits in the key, not only its head.")
@click.option("--reason", help="Why, to be found with the dead letter.")
@with_broker
async def dead_letter(
    broker: Broker, output: Output, subscription: str, key: str | None, rest: bool, reason: str | None
) -> None:
    """Put the head of KEY among the dead letters, from where it can be redriven."""
    offsets = await broker.dead_letter(subscription, key, reason, rest=rest)
    done = f"dead-lettered {', '.join(map(str, offsets)) or 'nothing'}"
    _report(output, subscription, key, done, ids=[str(offset) for offset in offsets])


@command.command("pause")
@click.argument("subscription")
@key_argument
@click.option("--reason", help="Why, for those who will wonder.")
@with_broker
async def pause(broker: Broker, output: Output, subscription: str, key: str | None, reason: str | None) -> None:
    """Give out nothing more of KEY until it is resumed, also after a restart."""
    await broker.pause_key(subscription, key, reason)
    _report(output, subscription, key, "paused", paused=True)


@command.command("resume")
@click.argument("subscription")
@key_argument
@with_broker
async def resume(broker: Broker, output: Output, subscription: str, key: str | None) -> None:
    """Give messages of KEY out again."""
    await broker.resume_key(subscription, key)
    _report(output, subscription, key, "resumed", paused=False)


def _report(output: Output, subscription: str, key: str | None, done: str, **fields: object) -> None:
    named = "keyless messages" if key is None else f"key {cell_text(key)}"
    output.result({"subscription": subscription, "key": key, **fields}, f"{named}: {done}")


def _fields(info: KeyInfo) -> Fields:
    return {
        "key": info.key,
        "state": info.state,
        "depth": info.depth,
        "in_flight": info.in_flight,
        "head": None if info.head is None else str(info.head),
        "head_age": info.head_age,
        "attempts": info.attempts,
        "not_before": moment(info.not_before),
        "error": info.error,
        "why": info.why,
    }
