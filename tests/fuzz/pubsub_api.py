"""Requests of the Pub/Sub API: any method, and those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from re import sub
from typing import Any

from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.errors import SeriatimError, StoreLost
from seriatim.server.calls import _parse
from seriatim.server.ended_streams import Client
from seriatim.server.server import Server
from seriatim.wire.services import SERVICES, SUBSCRIBER, PullResponse, StreamingPullResponse
from tests.fuzz import MAX_SECONDS
from tests.fuzz.engines import EngineTarget

METHODS = [(service, name) for service, methods in SERVICES.items() for name in methods]
SKIPPED = {"Pull", "StreamingPull", "ModifyPushConfig"}
"""Those that wait (see ``Pulls``), and one that would post to any address, as ``push_config`` in other requests would."""

PROJECT = "projects/p"
TOPIC, SUBSCRIPTION = f"{PROJECT}/topics/top", f"{PROJECT}/subscriptions/sub"
EXACTLY_ONCE = f"{PROJECT}/subscriptions/exact"
GIVEN = "*"
"""Instead of an ack ID: one that was given out."""

PULL_S = 0.02


class Methods(EngineTarget):
    """Any method: the first byte says which, the rest is the request. Topics and the like come and go with the inputs."""

    async def start(self, engine: Engine) -> None:
        self._server = Server(engine)
        self._services = self._server._services
        await self._make()

    async def _make(self) -> None:
        for service, name, fields in (
            ("google.pubsub.v1.Publisher", "CreateTopic", {"name": TOPIC}),
            ("google.pubsub.v1.Subscriber", "CreateSubscription", {"name": SUBSCRIPTION, "topic": TOPIC}),
        ):
            await self._call(service, name, SERVICES[service][name].request(**fields).SerializeToString())

    async def take(self, engine: Engine, data: bytes) -> None:
        service, name = METHODS[data[0] % len(METHODS)] if data else METHODS[0]
        if name not in SKIPPED:
            await self._call(service, name, data[1:])

    async def _call(self, service: str, name: str, data: bytes) -> None:
        with suppress(SeriatimError):
            request = _parse(SERVICES[service][name], data)
            messages: list[Any] = [request, getattr(request, "subscription", None)]
            for message in messages:
                if hasattr(message, "push_config"):
                    message.ClearField("push_config")
            answer: Any = getattr(self._services[service], sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
            await asyncio.wait_for(answer(request), MAX_SECONDS)

    async def end(self) -> None:
        await _end(self._server)


class Pulls(EngineTarget):
    """StreamingPull, its first request and later ones, and Pull with little time.

    The first byte says which (odd: Pull), and the next bit whether the stream's leases end with it. Then come requests, each
    after its length in two bytes.
    """

    async def start(self, engine: Engine) -> None:
        self._server = Server(engine)
        self._service: Any = self._server._subscriber
        publisher: Any = self._server._services["google.pubsub.v1.Publisher"]
        await publisher.create_topic(SERVICES["google.pubsub.v1.Publisher"]["CreateTopic"].request(name=TOPIC))
        for name, exactly_once in ((SUBSCRIPTION, False), (EXACTLY_ONCE, True)):
            await self._service.create_subscription(
                SUBSCRIBER["CreateSubscription"].request(
                    name=name, topic=TOPIC, enable_message_ordering=True, enable_exactly_once_delivery=exactly_once
                )
            )

    async def take(self, engine: Engine, data: bytes) -> None:
        (topic,) = await engine.list_topics(limit=1)
        await engine.publish(topic.name, [Outgoing(f"k{self._count}", b"x")] * 3)
        kind, requests = data[0] if data else 0, _split(data[1:])
        with suppress(SeriatimError):
            work = self._pull(requests) if kind & 1 else self._stream(requests, releases=not kind & 2)
            await asyncio.wait_for(work, MAX_SECONDS)

    async def _pull(self, requests: list[bytes]) -> None:
        for data in requests:
            response = PullResponse.FromString(await self._service.pull(_parse(SUBSCRIBER["Pull"], data), PULL_S))
            acks = [one.ack_id for one in response.received_messages]
            if acks:
                request = SUBSCRIBER["Acknowledge"].request(subscription=SUBSCRIPTION, ack_ids=acks)
                await self._service.acknowledge(request)

    async def _stream(self, requests: list[bytes], *, releases: bool) -> None:
        given: list[str] = []

        async def write(response: bytes) -> None:
            given.extend(one.ack_id for one in StreamingPullResponse.FromString(response).received_messages)

        method = SUBSCRIBER["StreamingPull"]
        first = _parse(method, requests[0] if requests else b"")

        async def later() -> AsyncIterator[Any]:
            for data in requests[1:]:
                for _ in range(20):
                    await asyncio.sleep(0)
                request = _parse(method, data)
                for ids in (request.ack_ids, request.modify_deadline_ack_ids):
                    ids[:] = [given[-1] if ack_id == GIVEN and given else ack_id for ack_id in ids]
                yield request

        await self._service.streaming_pull(first, later(), write, Client("me", "unix:x", releases))

    async def end(self) -> None:
        await _end(self._server)


async def _end(server: Server) -> None:
    server._subscriber.end(StoreLost("the server is stopping"))
    await server._subscriber.close()


def _split(data: bytes) -> list[bytes]:
    requests = []
    while data:
        size = int.from_bytes(data[:2], "big")
        requests.append(data[2 : 2 + size])
        data = data[2 + size :]
    return requests
