"""A topic of the engine as a route: durable, in order, and repeated in place after a crash.

Frames go forth through one topic and back through another. A frame counts as delivered when whoever hears it has
returned; one that was under way in a crash is given out again, at its place: continuous, as the engine promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from seriatim.core.guarantees import DeliveryMode, Guarantee
from seriatim.engine.broker import Attachment, Broker, Outgoing
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import AlreadyExists, SeriatimError, StaleLease
from seriatim.log import logger
from seriatim.pipes.chain import Deliver, Inlet
from seriatim.pipes.route import Hear, Port, Route

MAX_FRAME = 1024 * 1024
KEY = "frames"


class TopicRoute(Route):
    """Frames as messages of a topic. With ``ordered=False`` its subscription gives them out in any order."""

    mode = DeliveryMode.AT_LEAST_ONCE
    max_frame = MAX_FRAME

    def __init__(self, broker: Broker, topic: str, *, ordered: bool = True) -> None:
        self._broker, self._topic = broker, topic
        self.name = f"topic {topic}"
        self.order = Guarantee.NO_INVERSION if ordered else Guarantee.NONE
        self.why = "durable; a crash repeats in place" if ordered else "durable; in any order, and a crash repeats"

    async def open_sender(self, hear: Hear) -> Port:
        return await self._open(self._topic, f"{self._topic}.back", hear)

    async def open_receiver(self, hear: Hear) -> Port:
        return await self._open(f"{self._topic}.back", self._topic, hear)

    async def open(self, deliver: Deliver) -> Inlet:
        """The bare route: a message is settled when the output has taken it, and not before."""
        receiver = await self._open_port(f"{self._topic}.back", self._topic)
        receiver.listen(_Deliverer(receiver, deliver))
        return _TopicInlet(await self._open_port(self._topic, f"{self._topic}.back"), receiver)

    async def _open(self, out: str, into: str, hear: Hear) -> Port:
        port = await self._open_port(out, into)
        port.listen(_Hearer(port, hear))
        return port

    async def _open_port(self, out: str, into: str) -> _TopicPort:
        options = SubscriptionOptions(ordering=bool(self.order))
        for topic in (out, into):
            with suppress(AlreadyExists):
                await self._broker.create_topic(topic)
            with suppress(AlreadyExists):
                await self._broker.create_subscription(topic, f"{topic}.end", options)
        return _TopicPort(self._broker, out, f"{into}.end")


class _TopicPort:
    def __init__(self, broker: Broker, topic: str, subscription: str) -> None:
        self._broker, self._topic, self._subscription = broker, topic, subscription
        self._attachment: Attachment | None = None
        self._listener: _Hearer | _Deliverer | None = None
        self._written: set[asyncio.Future[range]] = set()

    def listen(self, listener: _Hearer | _Deliverer) -> None:
        self._listener = listener
        self._attachment = self._broker.attach(self._subscription, Consumer(listener.take))

    def ack(self, delivered: Delivered) -> None:
        if self._attachment is not None:
            with suppress(StaleLease):  # it comes again
                self._attachment.ack(delivered.lease)

    def send(self, frame: bytes) -> None:
        try:
            future = self._broker.publish(self._topic, [Outgoing(KEY, frame)])
        except SeriatimError as error:
            logger.warning("a frame for topic %r is lost: %s", self._topic, error)
            return
        self._written.add(future)
        future.add_done_callback(self._on_written)

    def _on_written(self, future: asyncio.Future[range]) -> None:
        self._written.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.warning("a frame for topic %r is lost: %s", self._topic, error)

    async def write(self, message: bytes) -> None:
        """Send a message of its own, and wait until it is durable."""
        await self._broker.publish(self._topic, [Outgoing(KEY, message)])

    @property
    def is_ready(self) -> bool:
        return len(self._written) < 1000

    async def ready(self) -> None:
        if self._written:
            await asyncio.wait(self._written)

    async def wait_until_empty(self) -> None:
        with suppress(SeriatimError):
            await self._broker.wait_until_empty(self._subscription)

    async def close(self) -> None:
        await self.ready()
        if self._attachment is not None:
            self._attachment.detach()
        if self._listener is not None:
            await self._listener.close()


class _Hearer:
    """Frames of a pipe: heard at once."""

    def __init__(self, port: _TopicPort, hear: Hear) -> None:
        self._port, self._hear = port, hear

    def take(self, delivered: Sequence[Delivered]) -> None:
        for one in delivered:
            self._hear(one.record.data)
            self._port.ack(one)

    async def close(self) -> None:
        """There is nothing to wait for."""


class _Deliverer:
    """Messages for an output, one after another, each settled when it is taken."""

    def __init__(self, port: _TopicPort, deliver: Deliver) -> None:
        self._port, self._deliver = port, deliver
        self._queue: asyncio.Queue[Delivered] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    def take(self, delivered: Sequence[Delivered]) -> None:
        for one in delivered:
            self._queue.put_nowait(one)

    async def _run(self) -> None:
        while True:
            one = await self._queue.get()
            await self._deliver(one.record.data)
            self._port.ack(one)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class _TopicInlet:
    def __init__(self, sender: _TopicPort, receiver: _TopicPort) -> None:
        self._sender, self._receiver = sender, receiver

    async def send(self, message: bytes) -> None:
        """The message is on the disk when this returns."""
        await self._sender.write(message)

    async def drain(self) -> None:
        await self._sender.ready()
        await self._receiver.wait_until_empty()

    async def close(self) -> None:
        await self._sender.close()
        await self._receiver.close()
