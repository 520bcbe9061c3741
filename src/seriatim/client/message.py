"""A message as a handler gets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Protocol

from seriatim.core.delivery import Lease
from seriatim.engine.subscription import Delivered

_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})
_set = object.__setattr__


class Outcome(Protocol):
    """Where a message says what became of it."""

    def ack(self, lease: Lease) -> None: ...
    def nack(self, lease: Lease, delay: float | None, error: str | None) -> None: ...
    def extend(self, lease: Lease, seconds: float) -> float: ...


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
        attributes = self._delivered.record.attributes
        return MappingProxyType(dict(attributes)) if attributes else _NO_ATTRIBUTES

    @property
    def ordering_key(self) -> str | None:
        return self._delivered.record.key

    @property
    def publish_time(self) -> datetime:
        return datetime.fromtimestamp(self._delivered.record.published, UTC)

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery."""
        return self._delivered.lease.attempt

    def ack(self) -> None:
        """It is done; the next message of its key may follow."""
        self._outcome.ack(self._delivered.lease)

    def nack(self, delay: float | None = None, error: str | None = None) -> None:
        """It failed and comes again, at its place, after ``delay`` seconds or as the retry policy says."""
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
            self.nack(error=f"{type(error).__name__}: {error}")
