"""The official Python client, as programs use it: a callback for each message."""

from __future__ import annotations

import asyncio
import threading

import grpc
from google.cloud import pubsub_v1
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from bench.ordered_drain.workload import Workload
from bench.wire.meter import Meter, Reading
from bench.wire.raw import PATIENCE, SUBSCRIPTION, Client
from bench.wire.servers import Served


def drain(server: Served, workload: Workload) -> Reading:
    """From a full backlog. What comes twice does not count."""
    asyncio.run(_fill(server.address, workload))
    seen: set[bytes] = set()
    done = threading.Event()

    def work(message: pubsub_v1.subscriber.message.Message) -> None:
        seen.add(message.data)
        message.ack()
        if len(seen) == workload.messages:
            done.set()

    channel, meter = grpc.insecure_channel(server.address), Meter(server.process)
    subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    with meter:
        pulling = subscriber.subscribe(SUBSCRIPTION, work)
        if not done.wait(PATIENCE):
            raise TimeoutError(f"{len(seen)} of {workload.messages} messages came within {PATIENCE:.0f} seconds")
    pulling.cancel()
    pulling.result()
    subscriber.close()
    return meter.reading(workload.messages)


async def _fill(address: str, workload: Workload) -> None:
    client = Client(address)
    await client.prepare()
    await client.publish(workload)
    await client.close()
