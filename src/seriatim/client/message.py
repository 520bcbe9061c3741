"""Messages: those to publish, and those that were delivered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, runtime_checkable

from seriatim.core.lanes.types import Lease
from seriatim.engine.consumer import Delivered

_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


@runtime_checkable
class Publishable(Protocol):
    """What can be published: a ``PubSubMessage``, or a received ``Message``."""

    @property
    def data(self) -> bytes: ...
    @property
    def ordering_key(self) -> str | None: ...
    @property
    def attributes(self) -> Mapping[str, str] | None: ...


@dataclass(frozen=True, slots=True)
class PubSubMessage:
    """A message to publish."""

    data: bytes
    ordering_key: str | None = None
    attributes: Mapping[str, str] | None = None
    delay: float = 0.0
    dedup_id: str | None = None


class Acknowledger(Protocol):
    """Receives the outcome of a delivery."""

    def ack(self, lease: Lease) -> None: ...
    def ack_durable(self, lease: Lease) -> Awaitable[None]: ...
    def nack(self, lease: Lease, delay: float | None, error: str | BaseException | None) -> None: ...
    def dead_letter(self, lease: Lease, reason: str | BaseException | None, rest: bool) -> None: ...
    def extend(self, lease: Lease, seconds: float) -> None: ...
    def may_start(self, lease: Lease) -> bool: ...


class Message:
    """A delivered message. Call ``ack`` when it is handled, or ``nack`` when that failed; both raise StaleLease if its lease
    is lost.

    In a batch of one key, an ack also acks the messages before it, and a nack or a dead letter ends the batch: the messages
    that are not settled are delivered again.

    As an async context manager it acks at the end of the block, and nacks if the block raises.
    """

    __slots__ = ("_acknowledger", "_delivered", "_is_acked")

    def __init__(self, delivered: Delivered, acknowledger: Acknowledger) -> None:
        self._delivered = delivered
        self._acknowledger = acknowledger
        self._is_acked = False  # if so, nobody needs to ask about its lease

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, data={self.data!r}, ordering_key={self.ordering_key!r})"

    @property
    def id(self) -> str:
        """The message's id, unique in its topic."""
        return self._delivered.id

    @property
    def data(self) -> bytes:
        """What was published."""
        return self._delivered[1].data

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes, read-only; empty if there are none."""
        return attributes_of(self._delivered.record.attributes)

    @property
    def ordering_key(self) -> str | None:
        """The key, or None."""
        return self._delivered.record.key

    @property
    def publish_time(self) -> datetime:
        """When the message was published, in UTC."""
        return time_of(self._delivered.record.published)

    @property
    def delivery_attempt(self) -> int:
        """Which delivery of the message this is: 1 for the first."""
        return self._delivered.lease.attempt

    def ack(self) -> None:
        """Mark the message as handled. The next one of its key is then delivered."""
        self._acknowledger.ack(self._delivered[0])
        self._is_acked = True

    async def ack_durable(self) -> None:
        """Ack the message, and wait until that is durable: it will not be delivered again. Raises StaleLease if the lease is
        lost, and OutcomeUnknown if its consumer is closed and can't wait any longer.
        """
        await self._acknowledger.ack_durable(self._delivered.lease)

    def nack(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """Mark the delivery as failed. The message is delivered again, in its place, after ``delay`` seconds, or as the retry
        policy says.

        ``error`` is stored with the message, as up to 4,096 bytes of UTF-8.
        """
        self._acknowledger.nack(self._delivered.lease, delay, error)

    def dead_letter(self, reason: str | BaseException | None = None, *, rest: bool = False) -> None:
        """Dead-letter the message now, regardless of its remaining attempts. Its key continues with the next message.

        With ``rest``, the messages of its key that wait behind it are dead-lettered too. ``reason`` is stored like the
        ``error`` of a nack. Raises NotSupported with a Pub/Sub server, whose API has no such call.
        """
        self._acknowledger.dead_letter(self._delivered.lease, reason, rest)

    def extend(self, seconds: float) -> None:
        """Extend the lease to ``seconds`` from now."""
        self._acknowledger.extend(self._delivered.lease, seconds)

    def json(self) -> Any:
        """The data, decoded as JSON."""
        return json.loads(self.data)

    async def __aenter__(self) -> Message:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
        else:
            self.nack(error=error)


def may_start(message: Message) -> bool:
    """Whether a message may be handled: its lease is not known to be lost, and its consumer is not closed."""
    return message._acknowledger.may_start(message._delivered.lease)  # noqa: SLF001 - one of us


def attributes_of(attributes: Mapping[str, str] | None) -> Mapping[str, str]:
    return MappingProxyType(dict(attributes)) if attributes else _NO_ATTRIBUTES


def time_of(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
