"""A client of bare messages: batches of a hundred, acks on the stream, one for each response."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from bench.ordered_drain.workload import OrderBroken, Workload
from bench.wire.meter import Meter, Reading
from bench.wire.servers import Served
from seriatim.wire.services import SERVICES, PublishRequest, StreamingPullRequest

TOPIC, SUBSCRIPTION = "projects/bench/topics/events", "projects/bench/subscriptions/worker"
UNDER_WAY = 16
"""So many publish requests are under way at once."""

PATIENCE = 300.0
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
_PATHS = {name: (f"/{service}/{name}", method) for service, all_ in SERVICES.items() for name, method in all_.items()}


class Client:
    """One connection."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, _OPTIONS)

    async def call(self, name: str, /, **fields: Any) -> Any:
        path, method = _PATHS[name]
        ask = self._channel.unary_unary(path, method.request.SerializeToString, method.response.FromString)
        return await ask(method.request(**fields), wait_for_ready=True, timeout=PATIENCE)

    async def prepare(self) -> None:
        await self.call("CreateTopic", name=TOPIC)
        await self.call("CreateSubscription", name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True)

    async def publish(self, workload: Workload) -> None:
        path, method = _PATHS["Publish"]
        ask = self._channel.unary_unary(path, method.request.SerializeToString, method.response.FromString)
        room = asyncio.Semaphore(UNDER_WAY)

        async def one(request: Any) -> None:
            async with room:
                await ask(request)

        requests = [
            PublishRequest(topic=TOPIC, messages=[{"data": data, "ordering_key": key} for key, data in batch])
            for batch in workload.batches()
        ]
        await asyncio.gather(*map(one, requests))

    async def drain(self, count: int, got: list[tuple[str, int]], done: asyncio.Event) -> None:
        """Take and ack until all streams together have got ``count`` messages."""
        path, method = _PATHS["StreamingPull"]
        stream = self._channel.stream_stream(path, method.request.SerializeToString, method.response.FromString)()
        await stream.write(StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=60))
        while (response := await stream.read()) is not grpc.aio.EOF:
            received = response.received_messages
            got += [(one.message.ordering_key, int(one.message.message_id)) for one in received]
            await stream.write(StreamingPullRequest(ack_ids=[one.ack_id for one in received]))
            if len(got) >= count:
                done.set()

    async def close(self) -> None:
        await self._channel.close()


async def publish(server: Served, workload: Workload) -> Reading:
    client, meter = Client(server.address), Meter(server.process)
    await client.prepare()
    with meter:
        await client.publish(workload)
    await client.close()
    return meter.reading(workload.messages)


async def drain(server: Served, workload: Workload, streams: int = 1, *, strict: bool = True) -> Reading:
    """From a full backlog, through so many streams, each with a connection of its own."""
    publisher, meter = Client(server.address), Meter(server.process)
    await publisher.prepare()
    await publisher.publish(workload)
    got = await _drain(server.address, workload, streams, meter)
    await publisher.close()
    if strict:
        check_order(workload, got)
    return meter.reading(workload.messages)


async def publish_and_drain(server: Served, workload: Workload) -> Reading:
    """Both at once."""
    publisher, meter = Client(server.address), Meter(server.process)
    await publisher.prepare()
    publishing = asyncio.create_task(publisher.publish(workload))
    got = await _drain(server.address, workload, 1, meter)
    await publishing
    await publisher.close()
    check_order(workload, got)
    return meter.reading(workload.messages)


def check_order(workload: Workload, got: list[tuple[str, int]]) -> None:
    """Raise unless everything came once, and each key's in the order in which the server stored it: requests that are under
    way at the same time have no order before."""
    last: dict[str, int] = {}
    for key, number in got:
        if last.get(key, -1) >= number:
            raise OrderBroken(f"message {number} of {key!r} came after {last[key]}")
        last[key] = number
    if len(got) != workload.messages:
        raise OrderBroken(f"{len(got)} deliveries of {workload.messages} messages")


async def _drain(address: str, workload: Workload, streams: int, meter: Meter) -> list[tuple[str, int]]:
    clients, got, done = [Client(address) for _ in range(streams)], list[tuple[str, int]](), asyncio.Event()
    with meter:
        tasks = [asyncio.create_task(client.drain(workload.messages, got, done)) for client in clients]
        await asyncio.wait_for(done.wait(), PATIENCE)
    for task in tasks:
        task.cancel()
    for client in clients:
        await client.close()
    return got
