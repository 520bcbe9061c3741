"""StreamingPull: one stream of one client.

Rules
    - The first request names the subscription, the ack deadline and the flow-control limits. Later requests may carry acks,
      deadline changes, and a new ack deadline for messages to come; anything else is refused. An empty request is a ping, and
      is answered.
    - Every response says whether the subscription is ordered and exactly-once, because clients rely on it.
    - Messages that wait for the client to read count as outstanding, so that no more than the limits allow can pile up. A
      message whose lease was lost while it waited is not sent.
    - When the server ends a stream, all its outstanding messages are released at once, and the attempts do not count. When the
      client ends it, the same happens to messages not sent yet; those sent it may still ack (``ended_streams.py``).

Theory of operation
    The lanes keep order across the streams of a subscription: they lease the next message of a key when the previous one is
    settled. A stream is a consumer of the engine with two loops: one handles requests, the other fills responses with
    everything that has arrived in the meantime.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from itertools import chain
from math import inf
from typing import Any

from seriatim.core.lanes.types import Lease
from seriatim.engine.broker import Broker
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import InvalidArgument, ResourceExhausted
from seriatim.server.consumers import INVALID, ConsumerRegistry, Failures, RegisteredConsumer, check_seconds, is_final
from seriatim.server.options import ServerOptions
from seriatim.server.push_delivery import require_pullable
from seriatim.server.resources import Resources
from seriatim.wire.message_conversion import encode_message, encode_received
from seriatim.wire.resource_messages import is_exactly_once
from seriatim.wire.services import StreamingPullResponse

RESPONSE_FULL_BYTES = 1024 * 1024
"""A response of this size gets no more messages: some clients accept at most 4 MiB."""

MESSAGE_OVERHEAD_BYTES = 100
"""The approximate size of a message on the wire without its data."""

MAX_UNSENT_ANSWERS = 1000
"""How many answers to pings and acks may wait for a client that does not read."""

_FIRST_ONLY = ("subscription", "client_id", "max_outstanding_messages", "max_outstanding_bytes", "protocol_version")

Write = Callable[[Any], Awaitable[None]]


class Stream:
    """One stream of one client."""

    def __init__(
        self, broker: Broker, members: ConsumerRegistry, resources: Resources, options: ServerOptions, first: Any
    ) -> None:
        """``first`` is the first request. Raises if it can't be served."""
        self._broker = broker
        self._members = members
        self._resources = resources
        self._name = resources.subscriptions.in_store(first.subscription)
        self._first = first
        self._pending: deque[Delivered] = deque()
        self._sending: list[Lease] = []  # in a response that is being written
        self._answers: deque[Any] = deque()  # responses without messages
        self._changed = asyncio.Event()
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

    async def run(
        self, requests: AsyncIterator[Any], write: Write, ended: Callable[[RegisteredConsumer], None]
    ) -> None:
        """Serve until the client hangs up, then call ``ended`` with its consumer. Raises if anything else ends the stream."""
        await require_pullable(self._broker, self._name)
        self._member = self._members.join(self._name, self._consumer)
        receiving = asyncio.create_task(self._receive_requests(requests))
        receiving.add_done_callback(self._requests_ended)
        try:
            await self._send_responses(write)
        finally:
            receiving.cancel()
            if self._error is not None:
                self._members.leave(self._member)
            else:
                # What waits to be read from the store or by the client.
                unread = list(chain(*self._consumer.batches))
                self._consumer.batches.clear()
                unsent = [*self._sending, *(one.lease for one in self._pending), *unread]
                self._consumer.give_back(reversed(unsent))
                ended(self._member)

    def end(self, error: BaseException) -> None:
        """End the stream with an error."""
        self._error = self._error or error
        self._changed.set()

    # -- from the engine ------------------------------------------------------------------------------------------------

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        self._pending += delivered
        self._changed.set()

    def _failed(self, error: BaseException) -> None:
        """The subscription is gone, or the store."""
        if is_final(error):
            self.end(error)

    # -- from the client ------------------------------------------------------------------------------------------------

    async def _receive_requests(self, requests: AsyncIterator[Any]) -> None:
        await self._apply_request(self._first)
        async for request in requests:
            self._check_later(request)
            if not request.ByteSize():
                self._answer(StreamingPullResponse())
            await self._apply_request(request)

    def _requests_ended(self, receiving: asyncio.Task[None]) -> None:
        self._is_over = True
        self._changed.set()
        if not receiving.cancelled() and (error := receiving.exception()) is not None:
            self.end(error)

    def _check_later(self, request: Any) -> None:
        for field in _FIRST_ONLY:
            if getattr(request, field):
                raise InvalidArgument(f"{field} can be set in the first request of a stream only")
        if request.stream_ack_deadline_seconds:
            self._resources.check_ack_deadline(request.stream_ack_deadline_seconds)
            self._consumer.ack_deadline = float(request.stream_ack_deadline_seconds)

    async def _apply_request(self, request: Any) -> None:
        """Apply acks and deadline changes."""
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
        if len(self._answers) >= MAX_UNSENT_ANSWERS:
            raise ResourceExhausted(f"{MAX_UNSENT_ANSWERS} responses are unread on this stream: read them first")
        self._answers.append(response)
        self._changed.set()

    async def _options(self) -> SubscriptionOptions:
        return (await self._broker.describe_subscription(self._name)).options

    # -- to the client --------------------------------------------------------------------------------------------------

    async def _send_responses(self, write: Write) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._error is None and (self._pending or self._answers):
                await self._send_next(write)
            if self._error is not None:
                raise self._error
            if self._is_over:
                return

    async def _send_next(self, write: Write) -> None:
        """Send a response with as many waiting messages as fit, and then one answer, so that neither delays the other."""
        options = await self._options()
        properties = _properties(options.message_ordering, is_exactly_once(options.resource))
        if self._pending and (messages := self._next_messages(options.dead_letter_topic is not None)):
            await write(b"".join([properties, *messages]))
            self._sending.clear()
        if self._answers:
            await write(properties + self._answers.popleft().SerializeToString())

    def _next_messages(self, counts_attempts: bool) -> list[bytes]:
        """Messages for one response, serialized; none if the leases of all waiting messages were lost."""
        pending, member, names, size = self._pending, self._member, self._resources.subscriptions, 0
        is_held, sending = member.attachment.holds, self._sending.append
        messages: list[bytes] = []
        while pending and size < RESPONSE_FULL_BYTES:
            delivered = pending.popleft()
            lease, record = delivered
            if is_held(lease):  # otherwise it expired, or was fenced, while it waited
                sending(lease)
                message = encode_message(delivered.id, record, names)
                messages.append(encode_received(member.ack_id(lease), message, lease.attempt if counts_attempts else 0))
                size += len(record.data) + MESSAGE_OVERHEAD_BYTES
        return messages


@cache
def _properties(is_ordered: bool, is_exactly_once: bool) -> bytes:
    """What every response says about its subscription, serialized."""
    properties = {"message_ordering_enabled": is_ordered, "exactly_once_delivery_enabled": is_exactly_once}
    return bytes(StreamingPullResponse(subscription_properties=properties).SerializeToString())


def _at_most(asked: int, limit: int) -> int:
    """The client's limit within the server's; 0 and less stand for the server's."""
    return int(min(asked if asked > 0 else inf, limit))
