"""A consumer of a subscription on a Pub/Sub server.

Rules
    - A stream that breaks is opened again, after a pause that doubles until a stream works; all of its leases are lost, and the
      consumer is notified. A permanent error (the subscription is gone, the token is wrong) ends it, and is passed to the
      consumer.
    - Acks and deadline changes go over the stream, all of one turn of the event loop in one request. ``ack_durable`` is a
      separate call.
    - Detaching sends the remaining acks; then the server ends the stream and redelivers the rest. Messages that arrive between
      ``stop`` and that are kept and not nacked: they would be redelivered at once, and count as a failure each time.
    - A lease that has expired by the clock of this process is no longer held, because the API does not report lost leases.
    - A nack with a delay is a lease that lasts for the delay: the API has no other way.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from math import ceil, inf
from typing import Any

import grpc

from seriatim.client.channel import Channel, error_of
from seriatim.core.lanes.types import Lease
from seriatim.core.text_checks import reason_of
from seriatim.core.validation import require_duration
from seriatim.engine.broker import OnDurable
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.errors import (
    FailedPrecondition,
    NotSupported,
    OutcomeUnknown,
    ResourceExhausted,
    SeriatimError,
    StaleLease,
)
from seriatim.log import logger
from seriatim.wire.services import StreamingPullRequest
from seriatim.wire.times import seconds_of

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
"""The pause between two attempts to open a stream, in seconds."""

MAX_DEADLINE_S = 600

CLOSE_TIMEOUT_S = 5.0
"""How many seconds a consumer that detaches has to send its last acks."""


class _Received(Delivered):
    """A message under the id that the server gave it."""

    message_id: str

    @property
    def id(self) -> str:
        return self.message_id


class ServerAttachment:
    """Sends the outcomes of one consumer's messages to the server."""

    def __init__(self, channel: Channel, subscription: str, consumer: Consumer) -> None:
        self.ack_deadline = 10.0
        self._channel = channel
        self._subscription = subscription
        self._consumer = consumer
        self._tokens = count(1)
        self._held: dict[int, tuple[Lease, str]] = {}  # with its ack id, by token
        self._until: dict[int, float] = {}  # by token, by the clock of the loop
        self._loop = asyncio.get_running_loop()
        self._unsent = StreamingPullRequest()
        self._has_unsent = asyncio.Event()
        self._is_stopped = self._is_closing = self._is_served = False
        self._stream: Any = None
        self._work = asyncio.create_task(self._keep_streaming())
        self._acking: set[asyncio.Task[None]] = set()

    # -- from the consumer ----------------------------------------------------------------------------------------------

    def holds(self, lease: Lease) -> bool:
        return lease.token in self._held and self._until[lease.token] > self._loop.time()

    def ack(self, lease: Lease, on_durable: OnDurable | None = None) -> None:
        ack_id = self._let_go(lease)
        if on_durable is None:
            self._unsent.ack_ids.append(ack_id)
            self._has_unsent.set()
        else:
            task = asyncio.create_task(self._ack(ack_id, on_durable))
            self._acking.add(task)
            task.add_done_callback(self._acking.discard)

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        if delay is not None:
            require_duration("delay", delay)
        if (error := reason_of(error)) is not None:
            logger.debug("message %d failed: %s", lease.offset, error)  # there is no way to tell the server
        self._modify(self._let_go(lease), delay or 0)

    def dead_letter(self, lease: Lease, reason: str | None = None, *, rest: bool = False) -> None:  # noqa: ARG002
        raise NotSupported(
            f"the Pub/Sub API can't dead-letter message {lease.offset}: nack it, and its dead-letter policy counts the attempts"
        )

    def extend(self, lease: Lease, seconds: float) -> None:
        require_duration("seconds", seconds)
        self._modify(self._require(lease), seconds)
        self._until[lease.token] = self._loop.time() + seconds

    def stop(self) -> None:
        self._is_stopped = True

    def detach(self) -> None:
        self._held.clear()
        self._until.clear()
        self._is_stopped = self._is_closing = True
        self._has_unsent.set()
        if self._stream is None:
            self._work.cancel()

    @property
    def is_closed(self) -> bool:
        return self._work.done() and not self._acking

    async def wait_closed(self) -> None:
        """Wait until everything is sent, at most CLOSE_TIMEOUT_S."""
        _, late = await asyncio.wait({self._work, *self._acking}, timeout=CLOSE_TIMEOUT_S)
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
        self._unsent.modify_deadline_ack_ids.append(ack_id)
        self._unsent.modify_deadline_seconds.append(min(MAX_DEADLINE_S, ceil(seconds)))
        self._has_unsent.set()

    async def _ack(self, ack_id: str, on_durable: OnDurable) -> None:
        try:
            await self._channel.call("Acknowledge", subscription=self._subscription, ack_ids=[ack_id])
        except FailedPrecondition as error:
            on_durable(StaleLease(f"the ack came too late: {error}"))
        except SeriatimError as error:
            on_durable(error)
        except BaseException:
            on_durable(OutcomeUnknown("the ack was cut off before it was answered: the message may come again"))
            raise
        else:
            on_durable(None)

    # -- the stream -----------------------------------------------------------------------------------------------------

    async def _keep_streaming(self) -> None:
        pause = MIN_PAUSE_S
        while True:
            self._is_served = False
            problem: Exception
            try:
                found = await self._channel.call("GetSubscription", subscription=self._subscription)
                self.ack_deadline = float(found.ack_deadline_seconds)
                self._stream = self._channel.stream()
                await self._read_stream(self._stream)
            except grpc.aio.AioRpcError as error:
                problem = error_of(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the consumer must hear of it
                problem = error
            else:
                problem = OutcomeUnknown("the server ended the stream")
            self._stream = None
            self._lose_all()
            if self._is_closing:
                return
            if not isinstance(problem, OutcomeUnknown | ResourceExhausted):
                self._consumer.failed(problem)
                return
            pause = MIN_PAUSE_S if self._is_served else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)

    async def _read_stream(self, call: Any) -> None:
        limit = self._consumer.max_bytes
        await call.write(
            StreamingPullRequest(
                subscription=self._subscription,
                stream_ack_deadline_seconds=ceil(self.ack_deadline),
                max_outstanding_messages=self._consumer.max_messages,
                max_outstanding_bytes=0 if limit == inf else int(limit),
            )
        )
        sending = asyncio.create_task(self._send_requests(call))
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                self._is_served = True
                self._receive(response.received_messages)
        finally:
            sending.cancel()
            call.cancel()

    async def _send_requests(self, call: Any) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # who reads hears why
            await call.write(StreamingPullRequest())  # a ping: its answer says that the stream is served
            while True:
                await self._has_unsent.wait()
                self._has_unsent.clear()
                unsent, self._unsent = self._unsent, StreamingPullRequest()
                if unsent.ByteSize():
                    await call.write(unsent)
                if self._is_closing:
                    if self._acking:  # the server releases what is not acked when the stream ends
                        await asyncio.wait(self._acking)
                    await call.done_writing()
                    return

    def _receive(self, messages: Any) -> None:
        delivered = [self._take(received) for received in messages]
        if delivered and not self._is_stopped:
            self._consumer.deliver(delivered)

    def _take(self, received: Any) -> Delivered:
        message, token = received.message, next(self._tokens)
        lease = Lease(
            token=token,
            key=message.ordering_key or None,
            offset=token,
            attempt=received.delivery_attempt or 1,
            deadline=inf,  # only the server knows
        )
        self._held[lease.token] = lease, received.ack_id
        self._until[lease.token] = self._loop.time() + self.ack_deadline
        attributes = dict(message.attributes) or None
        delivered = _Received.of(lease, message.data, attributes, seconds_of(message.publish_time))
        delivered.message_id = message.message_id
        return delivered

    def _lose_all(self) -> None:
        lost, self._held = self._held, {}
        self._until.clear()
        self._unsent = StreamingPullRequest()
        for lease, _ in lost.values():
            self._consumer.fenced(lease)
