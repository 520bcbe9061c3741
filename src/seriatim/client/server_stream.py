"""A consumer at work on a subscription of a Pub/Sub server.

Rules
    - A stream that breaks is opened again, after a pause that doubles until a stream is served; every lease of it is lost, and
      its consumer hears so. What will not change by waiting (the subscription is gone, the token is wrong) ends it, and the
      consumer hears that.
    - Acks and changes of deadlines go over the stream, all of one turn of the event loop in one request. An ack that somebody
      waits for is a call of its own.
    - Who detaches has said everything: it is sent, and the server ends the stream and gives back the rest. What comes between
      ``stop`` and that is kept and not nacked: it would come again at once, and count as a failure each time.
    - A lease whose time is over by the clock of this process is held no more, because the API does not say that one is lost.
    - A nack with a delay is a lease that lasts for the delay: the API has no other word for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from math import ceil, inf
from typing import Any

import grpc

from seriatim.client.channel import Channel, error_of
from seriatim.core.delivery import Lease
from seriatim.core.limits import reason_of
from seriatim.core.options import require_duration
from seriatim.engine.broker import Told
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.errors import FailedPrecondition, OutcomeUnknown, ResourceExhausted, SeriatimError, StaleLease
from seriatim.log import logger
from seriatim.wire.services import StreamingPullRequest
from seriatim.wire.times import seconds_of

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Between two tries to open a stream, in seconds."""

LONGEST_DEADLINE = 600

FAREWELL = 5.0
"""So many seconds a consumer that leaves has to send what it said."""


class ServedAttachment:
    """What one consumer says about its messages goes to the server that gave them."""

    def __init__(self, channel: Channel, subscription: str, consumer: Consumer) -> None:
        self.ack_deadline = 10.0
        self._channel = channel
        self._subscription = subscription
        self._consumer = consumer
        self._tokens = count(1)
        self._held: dict[int, tuple[Lease, str]] = {}  # with its ack id, by token
        self._until: dict[int, float] = {}  # by token, by the clock of the loop
        self._loop = asyncio.get_running_loop()
        self._said = StreamingPullRequest()
        self._has_said = asyncio.Event()
        self._is_stopped = self._is_leaving = self._is_served = False
        self._stream: Any = None
        self._work = asyncio.create_task(self._keep_streaming())
        self._acking: set[asyncio.Task[None]] = set()

    # -- what the consumer says -----------------------------------------------------------------------------------------

    def holds(self, lease: Lease) -> bool:
        return lease.token in self._held and self._until[lease.token] > self._loop.time()

    def ack(self, lease: Lease, told: Told | None = None) -> None:
        ack_id = self._let_go(lease)
        if told is None:
            self._said.ack_ids.append(ack_id)
            self._has_said.set()
        else:
            task = asyncio.create_task(self._ack(ack_id, told))
            self._acking.add(task)
            task.add_done_callback(self._acking.discard)

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        if delay is not None:
            require_duration("delay", delay)
        if (error := reason_of(error)) is not None:
            logger.debug("message %d failed: %s", lease.offset, error)  # there is no way to tell the server
        self._modify(self._let_go(lease), delay or 0)

    def extend(self, lease: Lease, seconds: float) -> None:
        require_duration("seconds", seconds)
        self._modify(self._require(lease), seconds)
        self._until[lease.token] = self._loop.time() + seconds

    def stop(self) -> None:
        self._is_stopped = True

    def detach(self) -> None:
        self._held.clear()
        self._until.clear()
        self._is_stopped = self._is_leaving = True
        self._has_said.set()
        if self._stream is None:
            self._work.cancel()

    @property
    def is_gone(self) -> bool:
        return self._work.done() and not self._acking

    async def gone(self) -> None:
        """Wait until everything that was said is sent, but not for ever."""
        _, late = await asyncio.wait({self._work, *self._acking}, timeout=FAREWELL)
        for task in late:
            task.cancel()

    def _require(self, lease: Lease) -> str:
        try:
            return self._held[lease.token][1]
        except KeyError:
            raise StaleLease(f"message {lease.offset} is not leased any more: it will be delivered again") from None

    def _let_go(self, lease: Lease) -> str:
        ack_id = self._require(lease)
        del self._held[lease.token], self._until[lease.token]
        return ack_id

    def _modify(self, ack_id: str, seconds: float) -> None:
        self._said.modify_deadline_ack_ids.append(ack_id)
        self._said.modify_deadline_seconds.append(min(LONGEST_DEADLINE, ceil(seconds)))
        self._has_said.set()

    async def _ack(self, ack_id: str, told: Told) -> None:
        try:
            await self._channel.call("Acknowledge", subscription=self._subscription, ack_ids=[ack_id])
        except FailedPrecondition as error:
            told(StaleLease(f"the ack came too late: {error}"))
        except SeriatimError as error:
            told(error)
        except BaseException:
            told(OutcomeUnknown("the ack was cut off before it was answered: the message may come again"))
            raise
        else:
            told(None)

    # -- the stream -----------------------------------------------------------------------------------------------------

    async def _keep_streaming(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            self._is_served = False
            problem: Exception
            try:
                found = await self._channel.call("GetSubscription", subscription=self._subscription)
                self.ack_deadline = float(found.ack_deadline_seconds)
                self._stream = self._channel.stream()
                await self._serve(self._stream)
            except grpc.aio.AioRpcError as error:
                problem = error_of(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the consumer must hear of it
                problem = error
            else:
                problem = OutcomeUnknown("the server ended the stream")
            self._stream = None
            self._lose_all()
            if self._is_leaving:
                return
            if not isinstance(problem, OutcomeUnknown | ResourceExhausted):
                self._consumer.failed(problem)
                return
            pause = SHORTEST_PAUSE if self._is_served else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _serve(self, call: Any) -> None:
        limit = self._consumer.max_bytes
        await call.write(
            StreamingPullRequest(
                subscription=self._subscription,
                stream_ack_deadline_seconds=ceil(self.ack_deadline),
                max_outstanding_messages=self._consumer.max_messages,
                max_outstanding_bytes=0 if limit == inf else int(limit),
            )
        )
        speaking = asyncio.create_task(self._speak(call))
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                self._is_served = True
                self._receive(response.received_messages)
        finally:
            speaking.cancel()
            call.cancel()

    async def _speak(self, call: Any) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # who reads hears why
            await call.write(StreamingPullRequest())  # a ping: its answer says that the stream is served
            while True:
                await self._has_said.wait()
                self._has_said.clear()
                said, self._said = self._said, StreamingPullRequest()
                if said.ByteSize():
                    await call.write(said)
                if self._is_leaving:
                    await call.done_writing()
                    return

    def _receive(self, messages: Any) -> None:
        delivered = [self._take(received) for received in messages]
        if delivered and not self._is_stopped:
            self._consumer.deliver(delivered)

    def _take(self, received: Any) -> Delivered:
        message = received.message
        lease = Lease(
            token=next(self._tokens),
            key=message.ordering_key or None,
            offset=int(message.message_id),
            attempt=received.delivery_attempt or 1,
            deadline=inf,  # only the server knows
        )
        self._held[lease.token] = lease, received.ack_id
        self._until[lease.token] = self._loop.time() + self.ack_deadline
        attributes = dict(message.attributes) or None
        return Delivered.of(lease, message.data, attributes, seconds_of(message.publish_time))

    def _lose_all(self) -> None:
        lost, self._held = self._held, {}
        self._until.clear()
        self._said = StreamingPullRequest()
        for lease, _ in lost.values():
            self._consumer.fenced(lease)
