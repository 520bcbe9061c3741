"""A topic of the engine as a route: durable, in order, and repeated in place after a crash.

Frames are sent through one topic, and sent back through another. A frame counts as delivered when its callback has
returned; a frame that was in flight during a crash is delivered again in its place: continuous, as the engine promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from seriatim.core.guarantees import DeliveryMode, Guarantee
from seriatim.engine.broker import Attachment, Broker, Outgoing
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import AlreadyExists, SeriatimError, StaleLease
from seriatim.log import logger
from seriatim.pipes.chain import Deliver, Inlet, JoinedInlet
from seriatim.pipes.route import OnFrame, Port, Pump, Route

MAX_FRAME = 1024 * 1024
KEY = "frames"


class TopicRoute(Route):
    """Frames as messages of a topic. With ``enable_message_ordering=False`` they are delivered in any order."""

    mode = DeliveryMode.AT_LEAST_ONCE
    max_frame = MAX_FRAME

    def __init__(self, broker: Broker, topic: str, *, enable_message_ordering: bool = True) -> None:
        self._broker, self._topic = broker, topic
        self.name = f"topic {topic}"
        self.order = Guarantee.NO_INVERSION if enable_message_ordering else Guarantee.NONE
        self.why = f"durable; {'a crash repeats in place' if self.order else 'in any order, and a crash repeats'}"

    async def open_sender(self, on_frame: OnFrame) -> Port:
        return await self._open(self._topic, f"{self._topic}.back", on_frame)

    async def open_receiver(self, on_frame: OnFrame) -> Port:
        return await self._open(f"{self._topic}.back", self._topic, on_frame)

    async def open(self, deliver: Deliver) -> Inlet:
        """The bare route: a message is settled when the output has taken it."""
        receiver = await self._open_port(f"{self._topic}.back", self._topic)

        async def deliver_and_ack(one: Delivered) -> None:
            await deliver(one.record.data)
            receiver.ack(one)

        pump = Pump(deliver_and_ack)
        receiver.listen(pump.put, pump)
        sender = await self._open_port(self._topic, f"{self._topic}.back")
        return JoinedInlet(sender.write, sender, receiver)

    async def _open(self, out: str, into: str, on_frame: OnFrame) -> Port:
        port = await self._open_port(out, into)

        def on_delivered(one: Delivered) -> None:
            on_frame(one.record.data)
            port.ack(one)

        port.listen(on_delivered)
        return port

    async def _open_port(self, out: str, into: str) -> _TopicPort:
        options = SubscriptionOptions(message_ordering=bool(self.order))
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
        self._pump: Pump | None = None
        self._written: set[asyncio.Future[Sequence[str]]] = set()

    def listen(self, take: Callable[[Delivered], None], pump: Pump | None = None) -> None:
        """Deliver messages that arrive through ``pump``, which is closed with the port."""

        def take_all(delivered: Sequence[Delivered]) -> None:
            for one in delivered:
                take(one)

        self._pump = pump
        self._attachment = self._broker.attach(self._subscription, Consumer(take_all))

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

    def _on_written(self, future: asyncio.Future[Sequence[str]]) -> None:
        self._written.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.warning("a frame for topic %r is lost: %s", self._topic, error)

    async def write(self, message: bytes) -> None:
        """Send a single message: it is on disk when this returns."""
        await self._broker.publish(self._topic, [Outgoing(KEY, message)])

    @property
    def is_ready(self) -> bool:
        return len(self._written) < 1000

    async def ready(self) -> None:
        if self._written:
            await asyncio.wait(self._written)

    async def drain(self) -> None:
        """Wait until everything sent is written, and everything received is taken."""
        await self.ready()
        with suppress(SeriatimError):
            await self._broker.wait_until_empty(self._subscription)

    async def close(self) -> None:
        await self.ready()
        if self._attachment is not None:
            self._attachment.detach()
        if self._pump is not None:
            await self._pump.close()
