"""The client that receives what the network lets through, and publishes it."""

from __future__ import annotations

import asyncio

from seriatim.client.topic import Topic
from seriatim.demo.fleet import Crossing
from seriatim.demo.steps import Step

TURNS_PER_SECOND = 20


async def publish_arrivals(crossing: Crossing, topic: Topic, step: Step, *, per_second: float) -> None:
    """Publish every reading when it arrives, with its device as the key. All of them are durable at the end."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for arrival in crossing:
        topic.publish(arrival.payload(), ordering_key=arrival.reading.device)
        step.count = crossing.sent
        ahead = begun + crossing.sent / per_second - loop.time()
        if ahead > 1 / TURNS_PER_SECOND:
            await asyncio.sleep(ahead)
            step.note = f"{crossing.arrivals:,} arrived"
    await topic.flush()
    step.note = f"{crossing.arrivals:,} arrived"
