"""``seriatim pull``: see what a subscription has, or work it off."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf

import click

from seriatim.cli.output import Fields, Output, message_fields, message_line
from seriatim.cli.parameters import Duration
from seriatim.cli.store import with_broker
from seriatim.client.consumer import Consuming, MessageStream
from seriatim.client.message import Message
from seriatim.engine.broker import Broker

AT_ONCE = 100
"""How many messages are taken, printed and acked together at most."""


@click.command("pull")
@click.argument("subscription")
@click.option("--max", "most", type=click.IntRange(min=1), default=10, show_default=True, help="Stop after so many.")
@click.option("--wait", type=Duration(), default="1s", show_default=True, help="Stop when that long no message came.")
@click.option(
    "--ack", is_flag=True, help="Ack what was printed. Without it, messages are only looked at and given back."
)
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C, whatever --max and --wait say.")
@with_broker
async def command(
    broker: Broker, output: Output, subscription: str, most: int, wait: float, ack: bool, follow: bool
) -> None:
    """Print messages of SUBSCRIPTION.

    Without --ack this is a look: everything is given back at the end, and counts as not tried. A key shows only its first
    message then, because the next one waits for its ack ('keys peek' shows more), and other consumers have to wait meanwhile.
    With --ack a message is acked after it was printed. With --json each message is one line.
    """
    await broker.describe_subscription(subscription)
    stream = MessageStream(broker, subscription, Consuming(max_messages=AT_ONCE if ack else 1000))
    left = inf if follow else most
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


async def take(stream: MessageStream, most: float, wait: float | None) -> list[Message]:
    """Messages that are at hand, at least one unless none comes in time."""
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
