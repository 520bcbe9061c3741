"""``seriatim messages pull``: look at the messages of a subscription, or consume them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf

import click

from seriatim.cli.common.command import with_broker
from seriatim.cli.common.output import Fields, Output, counted, duration, message_fields, message_line
from seriatim.cli.common.parameters import Duration, limit_option
from seriatim.client.consumer import ConsumeOptions, MessageStream
from seriatim.client.message import Message
from seriatim.engine.broker import Broker

AT_ONCE = 100
"""The maximum number of messages that are taken, printed and acked together."""


@click.command("pull")
@click.argument("subscription")
@limit_option(10)
@click.option(
    "--wait", type=Duration(), default="1s", show_default=True, help="Stop after this long without a message."
)
@click.option("--ack", is_flag=True, help="Ack the messages that were printed. Without it, all are given back.")
@click.option("--follow", is_flag=True, help="Continue until Ctrl-C, regardless of --limit and --wait.")
@with_broker
async def command(
    broker: Broker, output: Output, subscription: str, limit: int, wait: float, ack: bool, follow: bool
) -> None:
    """Pull messages from a subscription.

    Without --ack, messages are only shown: all are given back at the end, and the delivery does not count as an attempt. Each
    key shows its first message only, because the next one waits for its ack ('keys peek' and 'messages read' show more),
    and other consumers wait meanwhile. With --ack, a message is acked after it was printed. With --json, each message is one
    line.
    """
    await broker.describe_subscription(subscription)
    stream = MessageStream(broker, subscription, ConsumeOptions(max_messages=AT_ONCE if ack else 1000))
    left = inf if follow else limit
    try:
        while left > 0 and (messages := await take(stream, min(left, AT_ONCE), None if follow else wait)):
            for message in messages:
                fields = _fields(message)
                output.result(fields, message_line(fields))
            if ack:
                await asyncio.gather(*(message.ack_durable() for message in messages))
            left -= len(messages)
    finally:
        stream.close()
    if left == limit:
        output.note(
            f"no messages in subscription '{subscription}' within {duration(wait)}{await _why(broker, subscription)}"
        )


async def _why(broker: Broker, subscription: str) -> str:
    """What keeps messages back, if any are there."""
    stats = await broker.stats(subscription)
    if stats.paused:
        return f": it is paused, see 'seriatim subscriptions resume {subscription}'"
    there = f"{counted(stats.total, 'message')} {'is' if stats.total == 1 else 'are'} there"
    return f", but {there}: see 'seriatim keys list {subscription}'" if stats.total else ""


async def take(stream: MessageStream, most: float, wait: float | None) -> list[Message]:
    """The messages that are available, at least one unless none comes in time."""
    messages: list[Message] = []
    with suppress(TimeoutError):
        while len(messages) < most:
            # What is at hand needs no waiting, so it is taken even when there is no time.
            async with asyncio.timeout(0 if messages else wait):
                messages.append(await anext(stream))
    return messages


def _fields(message: Message) -> Fields:
    published = message.publish_time.timestamp()
    fields = message_fields(message.id, message.ordering_key, message.data, message.attributes, published)
    return {**fields, "attempt": message.delivery_attempt}
