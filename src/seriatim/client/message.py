"""A message as a handler gets it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, runtime_checkable

from seriatim.core.delivery import Lease
from seriatim.engine.broker import Told
from seriatim.engine.consumer import Delivered

_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})
_set = object.__setattr__


@runtime_checkable
class Publishable(Protocol):
    """What can be published: a ``PubSubMessage``, or a ``Message`` that came from elsewhere."""

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


class Outcome(Protocol):
    """Where a message says what became of it."""

    def ack(self, lease: Lease, told: Told | None = None) -> None: ...
    def nack(self, lease: Lease, delay: float | None, error: str | BaseException | None) -> None: ...
    def extend(self, lease: Lease, seconds: float) -> None: ...
    def may_start(self, lease: Lease) -> bool: ...


class Message:
    """A delivery. Say ``ack`` when it is done or ``nack`` when it failed; both raise StaleLease when the lease is lost.

    As an async context manager it acks at the end of the block, and nacks when the block raises. What it says of itself is
    worked out when it is asked: most handlers want the data and little else.
    """

    __slots__ = ("_delivered", "_outcome")
    _delivered: Delivered
    _outcome: Outcome

    def __init__(self, delivered: Delivered, outcome: Outcome) -> None:
        _set(self, "_delivered", delivered)
        _set(self, "_outcome", outcome)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"a message can't be changed: its {name} stays as it is")

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, data={self.data!r}, ordering_key={self.ordering_key!r})"

    @property
    def id(self) -> str:
        return str(self._delivered.record.offset)

    @property
    def data(self) -> bytes:
        return self._delivered.record.data

    @property
    def attributes(self) -> Mapping[str, str]:
        return attributes_of(self._delivered.record.attributes)

    @property
    def ordering_key(self) -> str | None:
        return self._delivered.record.key

    @property
    def publish_time(self) -> datetime:
        return time_of(self._delivered.record.published)

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery."""
        return self._delivered.lease.attempt

    def ack(self) -> None:
        """It is done; the next message of its key may follow."""
        self._outcome.ack(self._delivered.lease)

    async def ack_durable(self) -> None:
        """Ack it, and return when that is durable: it will not be delivered again. Raises StaleLease when the lease is lost."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(error: BaseException | None) -> None:
            if durable.cancelled():
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        self._outcome.ack(self._delivered.lease, told)
        await durable

    def nack(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """It failed and comes again, at its place, after ``delay`` seconds or as the retry policy says.

        ``error`` is kept with the message: as UTF-8, and up to 4,096 bytes of it.
        """
        self._outcome.nack(self._delivered.lease, delay, error)

    def extend(self, seconds: float) -> None:
        """Keep it for ``seconds`` from now."""
        self._outcome.extend(self._delivered.lease, seconds)

    def json(self) -> Any:
        """The data, read as JSON."""
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
    """Whether it makes sense to begin with a message: its lease is not known to be lost, and its consumer goes on."""
    return message._outcome.may_start(message._delivered.lease)  # noqa: SLF001 - one of us


def attributes_of(attributes: Mapping[str, str] | None) -> Mapping[str, str]:
    return MappingProxyType(dict(attributes)) if attributes else _NO_ATTRIBUTES


def time_of(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
