"""The consumers of this server, and their acks, nacks and deadline changes.

Rules
    - An ack id names the consumer that holds the message, its offset and the token of its lease. Tokens, and so ack ids, are
      never reused, even after a restart. An ack id works on its own subscription only, from any connection.
    - An ack for a lost lease changes nothing. With exactly-once delivery it is reported; otherwise it counts as success, as in
      Google Pub/Sub. An ack that could not be written is reported as a transient failure.
    - A unary ack is answered when it is durable, unless the subscription has a window: then it may have to wait for others.

Theory of operation
    A consumer of the engine knows its outstanding leases. No second copy is kept here, so none can be left over when a lease
    ends: the lease that an ack id names either exists, with the same token, or does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import NamedTuple

from seriatim.core.lanes.types import Lease
from seriatim.engine.broker import Attachment, Broker
from seriatim.engine.consumer import Consumer
from seriatim.engine.outcomes import tell_future
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, StaleLease, StoreBroken, StoreLost
from seriatim.server.options import MAX_ACK_DEADLINE_S

INVALID = "PERMANENT_FAILURE_INVALID_ACK_ID"
TRANSIENT = "TRANSIENT_FAILURE_OTHER"

MAX_ACK_IDS = 10_000
"""Per request. The response may have to name all of them."""

MAX_ACK_ID_CHARACTERS = 100

Failures = dict[str, str]
"""Failed ack ids, each with the reason defined by the API."""


class RegisteredConsumer(NamedTuple):
    """A consumer of this server, by its number."""

    number: int
    subscription: str
    consumer: Consumer
    attachment: Attachment

    def ack_id(self, lease: Lease) -> str:
        return f"{self.number}-{lease.offset}-{lease.token}"


class ConsumerRegistry:
    """The consumers of a server."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._numbers = count(1)
        self._members: dict[int, RegisteredConsumer] = {}

    def join(self, subscription: str, consumer: Consumer) -> RegisteredConsumer:
        """Start delivering to a consumer."""
        number = next(self._numbers)
        member = RegisteredConsumer(number, subscription, consumer, self._broker.attach(subscription, consumer))
        self._members[number] = member
        return member

    def leave(self, member: RegisteredConsumer) -> None:
        """Remove a consumer. Its messages are redelivered at once, and the attempt does not count."""
        self._members.pop(member.number, None)
        member.attachment.detach()

    # -- acks and deadlines ---------------------------------------------------------------------------------------------

    def ack(self, subscription: str, ack_ids: Sequence[str]) -> None:
        self._ack_all(list(self._held(subscription, ack_ids).values()))

    @staticmethod
    def _ack_all(held: Sequence[tuple[RegisteredConsumer, Lease]]) -> None:
        """Ack leases of one subscription, in one call of the engine. One of them may fence a later one."""
        for member, _ in held[:1]:
            member.consumer.ack_all([lease for _, lease in held])

    async def ack_durably(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """Ack, and wait until that is durable. Without a window, all acks are durable when the last one is."""
        held = list(self._held(subscription, ack_ids).values())
        self._ack_all(held[:-1])
        for last in held[-1:]:
            with suppress(StaleLease):
                await _ack(*last)

    async def ack_exactly(self, subscription: str, ack_ids: Sequence[str]) -> Failures:
        """Ack, and wait until that is durable. Returns what was not acked."""
        held = self._held(subscription, ack_ids)
        failures = dict.fromkeys(set(ack_ids) - held.keys(), INVALID)
        answers = await asyncio.gather(*(_ack(*found) for found in held.values()), return_exceptions=True)
        for ack_id, answer in zip(held, answers, strict=True):
            if answer is not None:
                failures[ack_id] = INVALID if isinstance(answer, StaleLease) else TRANSIENT
        return failures

    def modify(self, subscription: str, ack_ids: Sequence[str], seconds: float) -> Failures:
        """Extend leases to ``seconds`` from now; 0 releases them (nack). Returns those that are lost."""
        held = self._held(subscription, ack_ids)
        failures = dict.fromkeys(set(ack_ids) - held.keys(), INVALID)
        for ack_id, (member, lease) in held.items():
            try:
                if seconds:
                    member.attachment.extend(lease, seconds)
                else:
                    member.attachment.nack(lease)
            except StaleLease:
                failures[ack_id] = INVALID
        return failures

    def _held(self, subscription: str, ack_ids: Sequence[str]) -> dict[str, tuple[RegisteredConsumer, Lease]]:
        """The leases that ack ids name, as far as they are still held. Raises InvalidArgument for a malformed ack id."""
        if len(ack_ids) > MAX_ACK_IDS:
            raise InvalidArgument(f"a request has at most {MAX_ACK_IDS} ack IDs, not {len(ack_ids)}: send several")
        found: dict[str, tuple[RegisteredConsumer, Lease]] = {}
        for ack_id in ack_ids:
            try:
                number, offset, token = map(int, ack_id[: MAX_ACK_ID_CHARACTERS + 1].split("-"))
            except ValueError:
                raise InvalidArgument(f"{ack_id[:100]!r} is not an ack ID of this server") from None
            member = self._members.get(number)
            if member is not None and member.subscription == subscription:
                lease = member.consumer.lease(token)
                if lease is not None and lease.offset == offset:
                    found[ack_id] = member, lease
        return found


def is_final(error: BaseException) -> bool:
    """Whether a consumer gets nothing more after this error. A store that is being reopened is waited for."""
    return isinstance(error, NotFound | FailedPrecondition | StoreLost) and not isinstance(error, StoreBroken)


def check_seconds(seconds: int) -> None:
    """Raise InvalidArgument unless a lease can be changed to last this long."""
    if not 0 <= seconds <= MAX_ACK_DEADLINE_S:
        raise InvalidArgument(f"an ack deadline must be 0 to {MAX_ACK_DEADLINE_S} seconds, not {seconds}")


def _ack(member: RegisteredConsumer, lease: Lease) -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        member.attachment.ack(lease, partial(tell_future, done))
    except StaleLease as error:
        tell_future(done, error)
    return done
