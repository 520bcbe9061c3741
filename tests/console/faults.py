"""Faults to try the console on: subscriptions in each of which one key is stuck for another reason.

``python -m tests.console.faults 3`` starts a console with the third of them and prints where to open it. What is wrong is not
said: which key is stuck, since when, why, and what to do, is for the pages to tell. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from seriatim import RetryPolicy
from seriatim.console import ConsoleServer
from seriatim.engine.broker import Outgoing
from seriatim.engine.connect import open_engine
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions

FAULTS = {
    "a handler that fails": "Waits for its retry until .*: the printer is out of paper, since .*when an operator retries",
    "an operator who forgot to resume": "Paused: stock-taking, since .*resume the key to continue",
    "a consumer that hangs": r"Message \d+ is in flight .*, since .*it continues after its ack or nack",
    "a subscription that is paused": r"The subscription is paused \(waiting since .* UTC\); it needs an operator",
    "nobody who consumes": r"is ready, but the subscription has no consumer.*; it needs a consumer\.\s+It began .* ago\.\s*"
    r"Message \d+ was published .*ago",
}
"""Each of them, and what the page of the key says."""


async def prepare(engine: Engine, name_of: Callable[[str], str] = str, faults: Sequence[str] = tuple(FAULTS)) -> None:
    """A subscription for each fault, in which one key is stuck."""
    await engine.create_topic("orders")
    retry = RetryPolicy(min_backoff=3600, max_backoff=3600)
    options = SubscriptionOptions(message_ordering=True, retry=retry, ack_deadline=600)
    for fault in faults:
        name = name_of(fault)
        await engine.create_subscription("orders", name, options)
        if fault == "an operator who forgot to resume":
            await engine.pause_key(name, "order-4", "stock-taking")
        if fault == "a subscription that is paused":
            await engine.pause(name)
        if fault != "nobody who consumes":
            attach(engine, name, "order-4", "the printer is out of paper" if fault == "a handler that fails" else None)
    await engine.publish("orders", [Outgoing(f"order-{i}", b"x") for i in range(9)])


def attach(engine: Engine, subscription: str, stuck: str, error: str | None = None) -> None:
    """A consumer that handles all keys but one, which it fails with an error, or keeps in its hands."""

    def handle(delivered: Sequence[Delivered]) -> None:
        for lease, _ in delivered:
            if lease.key != stuck:
                attachment.ack(lease)
            elif error is not None:
                attachment.nack(lease, error=error)

    attachment = engine.attach(subscription, Consumer(handle))


async def serve(fault: str) -> None:
    engine = await open_engine("memory://")
    try:
        await prepare(engine, lambda _: "shipping", [fault])
        server = ConsoleServer(engine, port=0)
        await server.start()
        try:
            sys.stdout.write(f"Something is wrong with the orders. Open {server.url}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
        finally:
            await server.stop()
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", type=int, choices=range(1, len(FAULTS) + 1))
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(list(FAULTS)[parser.parse_args().fault - 1]))


if __name__ == "__main__":
    main()
