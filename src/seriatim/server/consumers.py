"""Everybody who takes messages at this server, and what they say about them.

Rules
    - An ack id names the consumer that holds the message, its offset and the token of its lease. Tokens are never given twice,
      also after a restart, so an ack id never is. It works on its own subscription only, from whichever connection it comes.
    - What is said about a lease that is lost changes nothing. Where exactly-once delivery is on it is also reported; elsewhere
      that is as good as success, as with Google Pub/Sub. An ack that could not be written is reported as a passing failure.
    - An ack by a call of its own is answered when it is durable, unless there is a window: then it may have to wait for others.

Theory of operation
    A consumer of the engine knows what is outstanding with it. Nothing of that is written down a second time here, so nothing
    can be left over when a lease ends: the lease that an ack id names is there, with the same token, or it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from seriatim.core.delivery import Lease
from seriatim.engine.broker import Attachment, Broker
from seriatim.engine.consumer import Consumer
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, StaleLease, StoreBroken, StoreLost
from seriatim.server.options import LONGEST_ACK_DEADLINE

INVALID = "PERMANENT_FAILURE_INVALID_ACK_ID"
TRANSIENT = "TRANSIENT_FAILURE_OTHER"

MOST_ACK_IDS = 10_000
"""In one request. An answer may have to name all of them."""

LONGEST_ACK_ID = 100

Failures = dict[str, str]
"""What went wrong, by ack id, in the words of the API."""


class Member(NamedTuple):
    """A consumer at work."""

    number: int
    subscription: str
    consumer: Consumer
    attachment: Attachment

    def ack_id(self, lease: Lease) -> str:
        return f"{self.number}-{lease.offset}-{lease.token}"

    def holds(self, lease: Lease) -> bool:
        """Whether a lease is still this consumer's."""
        return self.consumer.leases.get(lease.offset) is lease


class Members:
    """The consumers of a server."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._numbers = count(1)
        self._members: dict[int, Member] = {}

    def join(self, subscription: str, consumer: Consumer) -> Member:
        """Let a consumer have messages from now on."""
        number = next(self._numbers)
        member = Member(number, subscription, consumer, self._broker.attach(subscription, consumer))
        self._members[number] = member
        return member

    def leave(self, member: Member) -> None:
        """A consumer goes. What it had is given out again at once, and counts as not tried."""
        self._members.pop(member.number, None)
        member.attachment.detach()

    # -- what is said about leases --------------------------------------------------------------------------------------

    def ack(self, subscription: str, ack_ids: Sequence[str]) -> None:
        for attachment, lease in self._held(subscription, ack_ids).values():
            with suppress(StaleLease):  # one before it in this call may have fenced it
                attachment.ack(lease)

    async def ack_durably(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """Ack, and wait until that is durable. Where no ack waits for another one, all are when the last one is."""
        held = list(self._held(subscription, ack_ids).values())
        for attachment, lease in held[:-1]:
            with suppress(StaleLease):  # one before it in this call may have fenced it
                attachment.ack(lease)
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
        """Keep messages for ``seconds`` from now; 0 gives them back (nack). Returns what is not held any more."""
        held = self._held(subscription, ack_ids)
        failures = dict.fromkeys(set(ack_ids) - held.keys(), INVALID)
        for ack_id, (attachment, lease) in held.items():
            try:
                if seconds:
                    attachment.extend(lease, seconds)
                else:
                    attachment.nack(lease)
            except StaleLease:
                failures[ack_id] = INVALID
        return failures

    def _held(self, subscription: str, ack_ids: Sequence[str]) -> dict[str, tuple[Attachment, Lease]]:
        """The leases that ack ids name, as far as they are still held. Raises InvalidArgument when one is no ack id at all."""
        if len(ack_ids) > MOST_ACK_IDS:
            raise InvalidArgument(f"a request has at most {MOST_ACK_IDS} ack IDs, not {len(ack_ids)}: send several")
        found: dict[str, tuple[Attachment, Lease]] = {}
        for ack_id in ack_ids:
            number, offset, token = _parse(ack_id)
            member = self._members.get(number)
            if member is None or member.subscription != subscription:
                continue
            lease = member.consumer.leases.get(offset)
            if lease is not None and lease.token == token:
                found[ack_id] = member.attachment, lease
        return found


def is_final(error: BaseException) -> bool:
    """Whether nothing more comes after what a consumer heard. A store that is opened again is waited for."""
    return isinstance(error, NotFound | FailedPrecondition | StoreLost) and not isinstance(error, StoreBroken)


def check_seconds(seconds: int) -> None:
    """Raise InvalidArgument unless a lease can be changed to last so long."""
    if not 0 <= seconds <= LONGEST_ACK_DEADLINE:
        raise InvalidArgument(f"an ack deadline is changed to 0 to {LONGEST_ACK_DEADLINE} seconds, not {seconds}")


def _parse(ack_id: str) -> tuple[int, int, int]:
    try:
        if len(ack_id) > LONGEST_ACK_ID:
            raise ValueError(ack_id)
        number, offset, token = ack_id.split("-")
        return int(number), int(offset), int(token)
    except ValueError:
        raise InvalidArgument(f"{ack_id[:100]!r} is not an ack ID of this server") from None


def _ack(attachment: Attachment, lease: Lease) -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    try:
        attachment.ack(lease, told)
    except StaleLease as error:
        told(error)
    return done
