"""Ends of a pipe that survive a crash: an outbox before the sender, a topic behind the receiver.

Rules
    - ``Outbox``: an accepted message is in a topic, under its index, until the receiver has confirmed it. After a restart,
      the sender continues with what is there, under the same indexes.
    - ``TopicOutput``: messages are appended to a topic in one transaction with the next index. After a restart, the
      receiver continues there, and drops what it gets again.
    - Both kinds of position are compared before they are moved: of two programs with one name, one is refused.

Together they make a pipe absolute across crashes of either end, or of both at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from seriatim.core.lanes.types import Lease
from seriatim.core.pipes.protocol import DeliveredRun, Finished, PipeOptions
from seriatim.core.pipes.sender import PipeSender
from seriatim.engine.broker import Attachment, Broker, Outgoing, WriterMove
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.outcomes import tell_future
from seriatim.errors import AlreadyExists, FailedPrecondition, OutcomeUnknown, StaleLease
from seriatim.log import logger
from seriatim.pipes.chain import Deliver
from seriatim.pipes.endpoints import Report, SenderEnd
from seriatim.pipes.epochs import Epochs, StoreEpochs
from seriatim.pipes.route import Route

LEASE_S = 1e9
"""A sender keeps its messages until they are confirmed; a crash gives them back."""

INDEX = "pipe-index"
"""The attribute that carries a message's index in an outbox."""


class Outbox:
    """A topic in which messages wait until they are confirmed. It belongs to one pipe."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker, self.topic = broker, topic

    def epochs(self, name: str) -> Epochs:
        """The epochs of the sending end, kept in the outbox's store."""
        return StoreEpochs(self.broker, self.topic, f"{name} sender")

    async def prepare(self, subscription: str, queue: int) -> None:
        """Create what is not there yet."""
        with suppress(AlreadyExists):
            await self.broker.create_topic(self.topic)
        options = SubscriptionOptions(message_ordering=True, ack_deadline=LEASE_S, window=queue)
        with suppress(AlreadyExists):
            await self.broker.create_subscription(self.topic, subscription, options)


class OutboxEnd(SenderEnd):
    """The sending end of a pipe with an outbox."""

    def __init__(
        self, machine: PipeSender, options: PipeOptions, report: Report, outbox: Outbox, name: str, appended: int
    ) -> None:
        super().__init__(machine, options, report)
        self._outbox, self._name = outbox, name
        self._appended = appended  # how many messages were ever taken in
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._append: asyncio.Task[None] | None = None
        self._leases: dict[int, Lease] = {}
        self._attachment: Attachment | None = None
        self._queue = options.queue

    @classmethod
    async def begin(
        cls, outbox: Outbox, name: str, options: PipeOptions, epoch: int, room: int, report: Report
    ) -> OutboxEnd:
        await outbox.prepare(_subscription(name), options.queue)
        appended = await outbox.broker.position_of(_writer(name))
        waiting = await outbox.broker.peek(_subscription(name), name, 1)
        first = int(waiting[0].attributes[INDEX]) if waiting else appended
        machine = PipeSender(options, epoch, first=first, max_bytes=room)
        return cls(machine, options, report, outbox, name, appended)

    async def connect(self, route: Route) -> None:
        await super().connect(route)
        consumer = Consumer(self._take, max_messages=self._queue, failed=self._store_failed)
        self._attachment = self._outbox.broker.attach(_subscription(self._name), consumer)

    async def send(self, message: bytes) -> None:
        """Accept a message. It is durable in the outbox when this returns."""
        self._machine.require_fitting(message)
        if self._failure is not None:
            raise self._failure
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((message, done))
        if self._append is None:
            self._append = asyncio.create_task(self._append_all())
        await done

    async def drain(self) -> None:
        while (
            self._waiting or self._append is not None or self._machine.kept or self._machine.next_index < self._appended
        ):
            await self._change()

    async def close(self) -> None:
        if self._append is not None:
            await asyncio.wait([self._append])
        if self._attachment is not None:
            self._attachment.detach()
        await super().close()

    # -- into the outbox ------------------------------------------------------------------------------------------------

    async def _append_all(self) -> None:
        """One append after another, so that indexes have no gaps; messages that arrive in the meantime are in the next one."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            start = self._appended
            messages = [
                Outgoing(self._name, message, {INDEX: str(index)}) for index, (message, _) in enumerate(batch, start)
            ]
            try:
                await _write(
                    self._outbox.broker, self._outbox.topic, _writer(self._name), start, start + len(batch), messages
                )
            except Exception as error:  # noqa: BLE001 - whoever waits for it hears of it, whatever it is
                _answer(batch, error)
            else:
                self._appended += len(batch)
                _answer(batch, None)
        self._append = None
        self._changed.set()

    # -- out of the outbox ----------------------------------------------------------------------------------------------

    def _take(self, leased: Sequence[Delivered]) -> None:
        machine, now = self._machine, self._loop.time()
        for lease, record in leased:
            assert record.attributes is not None
            index = int(record.attributes[INDEX])
            self._leases[index] = lease
            if index == machine.next_index:
                self._apply(machine.push(record.data, now))
            elif index < machine.next_index - machine.kept:
                self._done(index)  # it was confirmed, and that was not written before its lease was lost
            elif index > machine.next_index:
                self.fail(
                    FailedPrecondition(
                        f"message {machine.next_index} of pipe {self._name!r} is missing from its outbox, from which nothing "
                        "may be removed: start again under another name"
                    )
                )
        self.wake()

    def _carry_out(self, effect: Finished | DeliveredRun) -> None:
        if isinstance(effect, Finished):
            for index in range(effect.first, effect.end):
                self._done(index)

    def _done(self, index: int) -> None:
        lease = self._leases.pop(index, None)
        if lease is not None and self._attachment is not None:
            with suppress(StaleLease):  # it comes again, and is done then
                self._attachment.ack(lease)

    def _store_failed(self, error: BaseException) -> None:
        logger.warning("the outbox of pipe %r: %s", self._name, error)


class TopicOutput:
    """A topic that receives the output of a pipe, together with its position. ``key`` is the ordering key."""

    def __init__(self, broker: Broker, topic: str, key: str | None = None) -> None:
        self.broker, self.topic, self.key = broker, topic, key

    def epochs(self, name: str) -> Epochs:
        """The epochs of the receiving end, kept in the topic's store."""
        return StoreEpochs(self.broker, self.topic, f"{name} receiver")

    async def begin(self, name: str, on_durable: Deliver | None) -> TopicWriter:
        """Find out where the receiver was. ``on_durable`` hears of each message once it is written."""
        with suppress(AlreadyExists):  # its epoch may be kept elsewhere
            await self.broker.create_topic(self.topic)
        writer = f"pipe {name} output"
        return TopicWriter(self, writer, await self.broker.position_of(writer), on_durable)


class TopicWriter:
    """Writes the output of a pipe."""

    def __init__(self, output: TopicOutput, writer: str, position: int, on_durable: Deliver | None) -> None:
        self._output, self._writer, self._on_durable = output, writer, on_durable
        self.position = position

    async def take(self, run: DeliveredRun, settle: Callable[[int], None]) -> None:
        """Write a run of messages with its position, in one transaction."""
        end, key = max(self.position, run.end), self._output.key
        messages = [Outgoing(key, message) for message in run.messages]
        await _write(self._output.broker, self._output.topic, self._writer, self.position, end, messages)
        self.position = end
        settle(run.end)
        if self._on_durable is not None:
            for message in run.messages:
                await self._on_durable(message)


async def _write(broker: Broker, topic: str, writer: str, start: int, end: int, messages: Sequence[Outgoing]) -> None:
    """Write messages and position. After an unknown outcome, the position tells whether they were written."""
    try:
        await broker.publish_once(topic, [WriterMove(writer, start, end)], messages)
    except OutcomeUnknown:
        if await broker.position_of(writer) == start:
            await broker.publish_once(topic, [WriterMove(writer, start, end)], messages)


def _answer(batch: Sequence[tuple[bytes, asyncio.Future[None]]], error: BaseException | None) -> None:
    for _, done in batch:
        tell_future(done, error)


def _writer(name: str) -> str:
    return f"pipe {name} outbox"


def _subscription(name: str) -> str:
    return f"pipe-{name}"
