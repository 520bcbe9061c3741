"""A plant for the tests: scripted edge nodes over a real broker, a host at work, and what it stored."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiomqtt

from seriatim.core.sparkplug.messages import NodeOrdering
from seriatim.engine.connect import open_broker
from seriatim.errors import NotFound
from seriatim.sparkplug.host import Host, HostOptions
from seriatim.sparkplug.mqtt_address import MqttAddress
from seriatim.sparkplug.payload import Payload, decode
from seriatim.store import open_store
from tests.mosquitto import Mosquitto

TOPIC = "telemetry"


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


def run_bounded(scenario: Any, seconds: float = 60) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(seconds):
            return await scenario

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool], what: str = "") -> None:
    """Wait for another process or a broker, of which nothing here can be told by an event."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, what or "it did not happen in time"
        await asyncio.sleep(0.01)


class EdgeNode:
    """An edge node that sends what it is told, in the order in which it is told.

    Its messages are stamped in the order of their numbers, as those of a network that displaced them would be.
    """

    def __init__(self, client: aiomqtt.Client, group: str = "g", node: str = "n", bd_seq: int = 0) -> None:
        self._client = client
        self._group, self._node = group, node
        self.bd_seq = bd_seq
        self._began = milliseconds()

    async def send(self, kind: str, payload: Any, device: str | None = None) -> None:
        where = f"spBv1.0/{self._group}/{kind}/{self._node}" + (f"/{device}" if device else "")
        data = payload if isinstance(payload, bytes) else payload.SerializeToString()
        await self._client.publish(where, data)

    async def birth(self, seq: int = 0, *metrics: dict[str, Any]) -> None:
        self._began = max(milliseconds(), self._began + 1000)
        payload = Payload(timestamp=self._began, seq=seq)
        payload.metrics.add(name="bdSeq", datatype=4, long_value=self.bd_seq)
        for metric in metrics:
            payload.metrics.add(**metric)
        await self.send("NBIRTH", payload)

    async def death(self, bd_seq: int | None = None) -> None:
        payload = Payload(timestamp=milliseconds())
        payload.metrics.add(name="bdSeq", datatype=4, long_value=self.bd_seq if bd_seq is None else bd_seq)
        await self.send("NDEATH", payload)

    async def data(self, *numbers: int, device: str | None = None, **metric: Any) -> None:
        for seq in numbers:
            payload = Payload(timestamp=self._began + seq, seq=seq % 256)
            payload.metrics.add(**(metric or {"name": "value", "datatype": 3, "int_value": seq}))
            await self.send("DDATA" if device else "NDATA", payload, device)

    async def device_birth(self, seq: int, device: str, *metrics: dict[str, Any]) -> None:
        payload = Payload(timestamp=self._began + seq, seq=seq)
        for metric in metrics:
            payload.metrics.add(**metric)
        await self.send("DBIRTH", payload, device)


class Ear:
    """Hears what is published on some topics."""

    def __init__(self) -> None:
        self.heard: list[aiomqtt.Message] = []

    def payloads(self) -> list[Any]:
        return [decode(message.payload) for message in self.heard]

    def states(self) -> list[dict[str, Any]]:
        return [json.loads(message.payload) for message in self.heard]


@asynccontextmanager
async def ear_on(mosquitto: Mosquitto, *topics: str) -> AsyncIterator[Ear]:
    ear = Ear()

    async def listen(client: aiomqtt.Client) -> None:
        with suppress(aiomqtt.MqttError):
            async for message in client.messages:
                ear.heard.append(message)

    async with aiomqtt.Client("127.0.0.1", mosquitto.port) as client:
        for topic in topics:
            await client.subscribe(topic, qos=1)
        task = asyncio.create_task(listen(client))
        try:
            yield ear
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def node_on(mosquitto: Mosquitto, node: str = "n", **names: Any) -> AsyncIterator[EdgeNode]:
    async with aiomqtt.Client("127.0.0.1", mosquitto.port) as client:
        yield EdgeNode(client, node=node, **names)


@asynccontextmanager
async def host_on(
    mosquitto: Mosquitto, store: str, options: HostOptions | None = None, **ordering: Any
) -> AsyncIterator[Host]:
    """A host at work, online."""
    broker = await open_broker(store)
    try:
        options = replace(options or HostOptions(), ordering=NodeOrdering(**ordering), reconnect_delay=0.05)
        host = Host(broker, TOPIC, MqttAddress.parse(mosquitto.url), options)
        running = asyncio.create_task(host.run())
        try:
            waiting = asyncio.create_task(host.online.wait())
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
            yield host
            if not host.online.is_set():  # then it may be about to end by an error
                await asyncio.wait([running], timeout=5)
            assert not running.done() or running.result() is None
        finally:
            running.cancel()
            await asyncio.wait([running])
    finally:
        await broker.close()


class Stored:
    """A message as the topic has it."""

    def __init__(self, record: Any) -> None:
        self.key = record.key
        self.attributes = dict(record.attributes)
        self.data = json.loads(record.data)

    def __repr__(self) -> str:
        reason = f"{self.attributes['reason']} " if "reason" in self.attributes else ""
        return f"{reason}{self.attributes.get('kind', '-')} {self.attributes.get('seq', '-')}"


def stored_in(store: str, name: str = TOPIC) -> list[Stored]:
    """What a topic has; nothing when store or topic are not there yet."""
    try:
        reader = open_store(store, read_only=True)
    except NotFound:
        return []
    try:
        ids = [topic.id for topic in reader.catalog().topics if topic.name == name]
        return [Stored(record) for topic_id in ids for record in reader.read(topic_id, 0, 10**6)]
    finally:
        reader.close()


def ledger_in(store: str) -> list[Stored]:
    return stored_in(store, f"{TOPIC}-ledger")
