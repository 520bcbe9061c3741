"""Our own asyncio client over the wire, ``PubSub("pubsub://…")``, as programs use it: a handler for each message."""

from __future__ import annotations

import asyncio

from bench.ordered_drain.workload import Workload
from bench.wire.meter import Meter, Reading
from bench.wire.raw import PATIENCE, Client, check_order
from bench.wire.servers import Served
from seriatim import Message, PubSub


async def drain(server: Served, workload: Workload) -> Reading:
    """From a full backlog. Order is checked."""
    filling = Client(server.address)
    await filling.prepare()
    await filling.publish(workload)
    await filling.close()
    got, done, meter = list[tuple[str, int]](), asyncio.Event(), Meter(server.process)

    def handle(message: Message) -> None:
        got.append((message.ordering_key or "", int(message.id)))
        message.ack()
        if len(got) == workload.messages:
            done.set()

    async with PubSub(f"pubsub://{server.address}/bench") as pubsub:
        subscription = pubsub.subscription("worker")
        subscription.on("message", handle)
        with meter:
            subscription.open()
            await asyncio.wait_for(done.wait(), PATIENCE)
        await subscription.close()
    check_order(workload, got)
    return meter.reading(workload.messages)
