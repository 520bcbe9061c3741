"""StreamingPull: one stream of one client.

Rules
    - The first request names the subscription, the deadline of its leases and how much may be outstanding. A later one may
      bring acks, changes of deadlines, and another deadline for what comes then; anything else is refused. One that brings
      nothing is a ping, and is answered.
    - Every response says whether the subscription is ordered and exactly-once: clients act on it.
    - Messages that wait until the client reads are outstanding like those that it has, so no more than the limits allow can
      pile up. What was lost while it waited is not sent.
    - A stream that the server ends gives everything that is outstanding on it back at once, which counts as not tried. When the
      client ends it, that happens to what was not sent yet; what the client got it may still ack (``ended.py``).

Theory of operation
    Order across the streams of a subscription is the lanes' business: they lease the next message of a key when the one before
    is settled, whoever had it. A stream is a consumer of the engine with two loops around it: one takes requests, the other
    fills responses with all that has come meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain
from math import inf
from typing import Any

from seriatim.core.delivery import Lease
from seriatim.engine.broker import Broker
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import InvalidArgument, ResourceExhausted
from seriatim.server.consumers import INVALID, Failures, Member, Members, check_seconds, is_final
from seriatim.server.options import ServerOptions
from seriatim.server.pushing import require_pullable
from seriatim.server.resources import Resources
from seriatim.wire.documents import is_exactly_once
from seriatim.wire.messages import fill
from seriatim.wire.services import StreamingPullResponse

FULL_RESPONSE = 1024 * 1024
"""A response takes no more messages when it has so many bytes: some clients accept 4 MiB at most."""

OVERHEAD = 100
"""About so many bytes a message takes besides its data."""

MOST_ANSWERS = 1000
"""So many answers to pings and acks may wait for a client that does not read."""

_FIRST_ONLY = ("subscription", "client_id", "max_outstanding_messages", "max_outstanding_bytes", "protocol_version")

Write = Callable[[Any], Awaitable[None]]


class Stream:
    """A client that takes messages as they come."""

    def __init__(
        self, broker: Broker, members: Members, resources: Resources, options: ServerOptions, first: Any
    ) -> None:
        """``first`` is the first request. Raises when it can't be served."""
        self._broker = broker
        self._members = members
        self._resources = resources
        self._name = resources.subscriptions.in_store(first.subscription)
        self._first = first
        self._pending: deque[Delivered] = deque()
        self._sending: list[Lease] = []  # what is in a response that the connection has not taken yet
        self._answers: deque[Any] = deque()  # responses without messages
        self._news = asyncio.Event()
        self._error: BaseException | None = None
        self._is_over = False
        resources.check_ack_deadline(first.stream_ack_deadline_seconds)
        self._consumer = Consumer(
            self._deliver,
            max_messages=_at_most(first.max_outstanding_messages, options.max_outstanding_messages),
            max_bytes=_at_most(first.max_outstanding_bytes, options.max_outstanding_bytes),
            failed=self._failed,
            ack_deadline=float(first.stream_ack_deadline_seconds),
        )

    async def run(self, requests: AsyncIterator[Any], write: Write, ended: Callable[[Member], None]) -> None:
        """Serve until the client hangs up: ``ended`` is then called with what it leaves. Raises what ended it otherwise."""
        await require_pullable(self._broker, self._name)
        self._member = self._members.join(self._name, self._consumer)
        listening = asyncio.create_task(self._listen(requests))
        listening.add_done_callback(self._heard_all)
        try:
            await self._speak(write)
        finally:
            listening.cancel()
            if self._error is not None:
                self._members.leave(self._member)
            else:
                self._consumer.give_back(reversed(self._unsent()))
                ended(self._member)

    def _unsent(self) -> list[Lease]:
        """Leases whose messages wait to be read from the store or by the client, in order."""
        unread = list(chain(*self._consumer.batches))
        self._consumer.batches.clear()
        return [*self._sending, *(one.lease for one in self._pending), *unread]

    def end(self, error: BaseException) -> None:
        """Let the stream end, and say why."""
        self._error = self._error or error
        self._news.set()

    # -- what the engine says -------------------------------------------------------------------------------------------

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        self._pending += delivered
        self._news.set()

    def _failed(self, error: BaseException) -> None:
        """The subscription is gone, or the store."""
        if is_final(error):
            self.end(error)

    # -- what the client says -------------------------------------------------------------------------------------------

    async def _listen(self, requests: AsyncIterator[Any]) -> None:
        await self._take_word(self._first)
        async for request in requests:
            self._check_later(request)
            if not request.ByteSize():
                self._answer(StreamingPullResponse())
            await self._take_word(request)

    def _heard_all(self, listening: asyncio.Task[None]) -> None:
        self._is_over = True
        self._news.set()
        if not listening.cancelled() and (error := listening.exception()) is not None:
            self.end(error)

    def _check_later(self, request: Any) -> None:
        for field in _FIRST_ONLY:
            if getattr(request, field):
                raise InvalidArgument(f"{field} can be set in the first request of a stream only")
        if request.stream_ack_deadline_seconds:
            self._resources.check_ack_deadline(request.stream_ack_deadline_seconds)
            self._consumer.ack_deadline = float(request.stream_ack_deadline_seconds)

    async def _take_word(self, request: Any) -> None:
        """Acks and changes of deadlines."""
        if len(request.modify_deadline_seconds) != len(request.modify_deadline_ack_ids):
            raise InvalidArgument("there must be as many modify_deadline_seconds as modify_deadline_ack_ids")
        changes: dict[int, list[str]] = {}
        for seconds, ack_id in zip(request.modify_deadline_seconds, request.modify_deadline_ack_ids, strict=True):
            check_seconds(seconds)
            changes.setdefault(seconds, []).append(ack_id)
        failures: Failures = {}
        for seconds, ack_ids in changes.items():
            failures |= self._members.modify(self._name, ack_ids, seconds)
        if (request.ack_ids or changes) and is_exactly_once((await self._options()).resource):
            self._confirm(request, failures, await self._members.ack_exactly(self._name, request.ack_ids))
        else:
            self._members.ack(self._name, request.ack_ids)

    def _confirm(self, request: Any, failed_changes: Failures, failed_acks: Failures) -> None:
        answer = StreamingPullResponse()
        for confirmation, asked, failed in (
            (answer.acknowledge_confirmation, request.ack_ids, failed_acks),
            (answer.modify_ack_deadline_confirmation, request.modify_deadline_ack_ids, failed_changes),
        ):
            if asked:
                confirmation.ack_ids.extend(ack_id for ack_id in asked if ack_id not in failed)
                confirmation.invalid_ack_ids.extend(ack_id for ack_id, why in failed.items() if why == INVALID)
                confirmation.temporary_failed_ack_ids.extend(ack_id for ack_id, why in failed.items() if why != INVALID)
        self._answer(answer)

    def _answer(self, response: Any) -> None:
        if len(self._answers) >= MOST_ANSWERS:
            raise ResourceExhausted(f"{MOST_ANSWERS} answers wait to be read on this stream: read them")
        self._answers.append(response)
        self._news.set()

    async def _options(self) -> SubscriptionOptions:
        return (await self._broker.describe_subscription(self._name)).options

    # -- what the client hears ------------------------------------------------------------------------------------------

    async def _speak(self, write: Write) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._error is None and (self._pending or self._answers):
                await self._say_something(write)
            if self._error is not None:
                raise self._error
            if self._is_over:
                return

    async def _say_something(self, write: Write) -> None:
        """A response with what waits, as far as it fits into one, and an answer in its turn: neither keeps the other back."""
        options = await self._options()
        messages = StreamingPullResponse()
        if self._pending and self._fill(messages, options):
            await write(messages)
            self._sending.clear()
        if self._answers:
            answer = self._answers.popleft()
            _describe(answer, options)
            await write(answer)

    def _fill(self, response: Any, options: SubscriptionOptions) -> bool:
        """Put messages into a response; False when all that waited was lost meanwhile."""
        _describe(response, options)
        counts_attempts, size, names = options.dead_letter_topic is not None, 0, self._resources.subscriptions
        pending, member, add = self._pending, self._member, response.received_messages.add
        while pending and size < FULL_RESPONSE:
            lease, record = pending.popleft()
            if not member.holds(lease):  # it expired, or was fenced, while it waited
                continue
            self._sending.append(lease)
            received = add(ack_id=member.ack_id(lease))
            fill(received.message, record, names)
            if counts_attempts:
                received.delivery_attempt = lease.attempt
            size += len(record.data) + OVERHEAD
        return size > 0


def _describe(response: Any, options: SubscriptionOptions) -> None:
    properties = response.subscription_properties
    properties.message_ordering_enabled = options.ordering
    properties.exactly_once_delivery_enabled = is_exactly_once(options.resource)


def _at_most(asked: int, limit: int) -> int:
    """What a client asks for within what the server allows; 0 and less is all that it may have."""
    return int(min(asked if asked > 0 else inf, limit))
