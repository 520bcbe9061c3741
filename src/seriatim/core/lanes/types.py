"""Types of the lanes' commands and effects: retry policy, leases and outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeAlias

from seriatim.core.text_checks import check_text
from seriatim.core.validation import MAX_INTEGER, one_of, require_duration, require_kind, require_whole
from seriatim.errors import InvalidArgument


class ReleaseAfter(StrEnum):
    """When the next message of a key may be delivered."""

    DURABLE = "durable"  # after the ack of the previous one is durable: no crash can cause 1, 2, 1
    RECEIPT = "receipt"  # when the ack arrives: faster on hot keys, and a crash may repeat


class RetryMode(StrEnum):
    """What happens to later messages of a key while a failed one waits for its retry."""

    BLOCK = "block"  # a message that waits for its retry blocks its key
    OVERTAKE = "overtake"  # later messages of the key pass it


class OnExhausted(StrEnum):
    """What happens to a message that has used up its delivery attempts."""

    DEAD_LETTER = "dead-letter"  # it leaves, and its key continues
    DEAD_LETTER_REST = "dead-letter-rest"  # it leaves together with everything queued behind it
    PAUSE = "pause"  # it stays, and its key waits for an operator


_ModeName: TypeAlias = Literal["block", "overtake"]
_OnExhaustedName: TypeAlias = Literal["dead-letter", "dead-letter-rest", "pause"]
_set = object.__setattr__


class Keep(StrEnum):
    """Which of the waiting messages are delivered."""

    ALL = "all"
    LATEST = "latest"  # the newest of each key: it supersedes the ones that wait before it


@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """How failed deliveries are retried: after a backoff that doubles with each failure, between ``min_backoff`` and
    ``max_backoff`` seconds. Only the key of the failed message waits. ``RetryPolicy.immediate()`` retries at once.

    ``mode`` is whether a message that waits for its retry blocks its key ("block"), or later messages pass it
    ("overtake"). After ``max_attempts`` deliveries, ``on_exhausted`` decides: the message leaves as a dead letter
    ("dead-letter"), together with everything behind it ("dead-letter-rest"), or stays, and its key waits for an
    operator ("pause").
    """

    min_backoff: float = 0.1
    max_backoff: float = 60.0
    mode: RetryMode = RetryMode.BLOCK
    max_attempts: int | None = None
    on_exhausted: OnExhausted = OnExhausted.DEAD_LETTER

    def __init__(
        self,
        min_backoff: float = 0.1,
        max_backoff: float = 60.0,
        mode: RetryMode | _ModeName = RetryMode.BLOCK,
        max_attempts: int | None = None,
        on_exhausted: OnExhausted | _OnExhaustedName = OnExhausted.DEAD_LETTER,
    ) -> None:
        require_duration("min_backoff", min_backoff)
        require_duration("max_backoff", max_backoff)
        if max_backoff < min_backoff:
            raise InvalidArgument(f"max_backoff {max_backoff} must not be below min_backoff {min_backoff}")
        if max_attempts is not None:
            require_whole("max_attempts", max_attempts, 1, MAX_INTEGER)
        _set(self, "min_backoff", min_backoff)
        _set(self, "max_backoff", max_backoff)
        _set(self, "mode", one_of("mode", RetryMode, mode))
        _set(self, "max_attempts", max_attempts)
        _set(self, "on_exhausted", one_of("on_exhausted", OnExhausted, on_exhausted))

    @classmethod
    def immediate(
        cls,
        *,
        mode: RetryMode | _ModeName = RetryMode.BLOCK,
        max_attempts: int | None = None,
        on_exhausted: OnExhausted | _OnExhaustedName = OnExhausted.DEAD_LETTER,
    ) -> RetryPolicy:
        """Retry without a delay, as Google Pub/Sub does for a subscription without a retry policy."""
        return cls(0, 0, mode, max_attempts, on_exhausted)

    def backoff(self, failures: int) -> float:
        """The delay after the ``failures``-th failed delivery."""
        # The exponent is limited: a float overflows after a thousand failures.
        return min(self.max_backoff, self.min_backoff * 2.0 ** min(failures - 1, 64))

    def is_exhausted(self, failures: int) -> bool:
        """Whether a message that failed this often has used up its attempts."""
        return self.max_attempts is not None and failures >= self.max_attempts

    def lets_pass(self, key: str | None) -> bool:
        """Whether later messages of a key pass one that waits for its retry."""
        return key is None or self.mode is RetryMode.OVERTAKE


def check_tenants(limit: int | None, separator: str, window: int) -> None:
    """Raise InvalidArgument unless lanes support this limit per tenant."""
    check_text("tenant_separator", separator)
    if not separator:
        raise InvalidArgument(f"tenant_separator must be text of one character or more, not {separator!r}")
    if limit is not None:
        require_whole("tenant_limit", limit, 1, MAX_INTEGER)
        if window > 1:
            raise InvalidArgument(f"a limit for each tenant goes with a window of 1, not {window}")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The options of a map of lanes."""

    retry: RetryPolicy = field(default_factory=RetryPolicy.immediate)
    window: int = 1
    release: ReleaseAfter = ReleaseAfter.DURABLE
    keep: Keep = Keep.ALL
    tenant_limit: int | None = None
    tenant_separator: str = "/"

    def __post_init__(self) -> None:
        require_kind("retry", RetryPolicy, self.retry)
        require_whole("window", self.window, 1, MAX_INTEGER)
        check_tenants(self.tenant_limit, self.tenant_separator, self.window)
        _set(self, "release", one_of("release", ReleaseAfter, self.release))
        _set(self, "keep", one_of("keep", Keep, self.keep))


Holder: TypeAlias = Any
"""A consumer, as the caller knows it. Lanes only compare it."""


class Lease(NamedTuple):
    """A delivery in flight. ``token`` fences it: commands with any other token have no effect.

    A batch is one lease: ``behind`` are the messages that it covers after the first.
    """

    token: int
    key: str | None
    offset: int
    attempt: int
    deadline: float
    behind: tuple[int, ...] = ()

    @property
    def offsets(self) -> tuple[int, ...]:
        """All messages that it covers, in order."""
        return (self.offset, *self.behind)

    def each(self) -> list[Lease]:
        """The lease as seen by each of its messages: a command with it is about that message."""
        if not self.behind:
            return [self]
        token, key, _, attempt, deadline, _ = self
        return [tuple.__new__(Lease, (token, key, offset, attempt, deadline, ())) for offset in self.offsets]


class Settled(NamedTuple):
    """A message is done. Store this, then ``confirm`` its offset."""

    key: str | None
    offset: int


class DeadLettered(NamedTuple):
    """A message leaves its lane undelivered. Store it elsewhere, then ``confirm`` its offset."""

    key: str | None
    offset: int
    attempts: int
    error: str | None


class Removed(NamedTuple):
    """A message was removed from its lane without delivery. Store this, then ``confirm`` its offset."""

    key: str | None
    offset: int


class Superseded(NamedTuple):
    """A message was superseded by a newer one of its key, ``by``, and is not delivered. Store this; do not confirm."""

    key: str
    offset: int
    by: int


class Redriven(NamedTuple):
    """A dead letter is back in its place. Store this, then ``confirm`` its offset."""

    key: str | None
    offset: int


class Returned(NamedTuple):
    """A message waits in its place until ``not_before``: a delivery failed, or an operator made it due."""

    key: str | None
    offset: int
    attempts: int
    not_before: float
    error: str | None


class Expired(NamedTuple):
    """A lease expired. What happens to its message follows; ``holder`` had the lease."""

    lease: Lease
    holder: Holder = None


class Fenced(NamedTuple):
    """A lease was taken back because an earlier message of its key failed, or an operator intervened; the message will
    be delivered again, in order. ``holder`` had the lease; None if it was acked provisionally."""

    lease: Lease
    holder: Holder = None


class KeyPaused(NamedTuple):
    """A key has used up its attempts and waits for an operator (``on_exhausted=PAUSE``)."""

    key: str
    offset: int
    attempts: int
    error: str | None


LaneEffect: TypeAlias = Settled | DeadLettered | Removed | Redriven | Returned | Expired | Fenced | KeyPaused


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of messages, in total and by state."""

    total: int
    ready: int
    leased: int
    delayed: int
    blocked: int


@dataclass(frozen=True, slots=True)
class LaneView:
    """The state of one key, for operators."""

    key: str | None
    state: str
    depth: int
    in_flight: int
    head: int | None
    attempts: int
    not_before: float | None
    error: str | None
    since: float | None = field(default=None, compare=False)
    """When it entered this wait: None if unknown, -inf if that was when its next message was published."""
    deadline: float | None = field(default=None, compare=False)  # of the lease that it waits for
    next: int | None = field(default=None, compare=False)  # the next message to deliver; the head may be in flight
