"""What lanes are told and what they answer: retry policy, leases and effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import NamedTuple, TypeAlias

from seriatim.core.options import LARGEST_WHOLE, one_of, require_duration, require_kind, require_whole
from seriatim.errors import InvalidArgument


class Release(StrEnum):
    """When the next message of a key may go out."""

    DURABLE = "durable"  # after the ack of the one before is confirmed to be durable: no crash can show 1, 2, 1
    RECEIPT = "receipt"  # when the ack arrives: faster on hot keys, and a crash may repeat


class RetryMode(StrEnum):
    BLOCK = "block"  # a message that waits for its retry blocks its key
    OVERTAKE = "overtake"  # later messages of the key pass it


class OnExhausted(StrEnum):
    """What happens to a message that used up its delivery attempts."""

    DEAD_LETTER = "dead-letter"  # it leaves, and its key goes on
    DEAD_LETTER_REST = "dead-letter-rest"  # it leaves together with everything queued behind it
    PAUSE = "pause"  # it stays, and its key waits for an operator


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How failed deliveries come back: at once (the default), or after a backoff that doubles between two bounds.

    Choices may be given as text, such as ``on_exhausted="pause"``.
    """

    min_backoff: float = 0
    max_backoff: float = 600
    mode: RetryMode = RetryMode.BLOCK
    max_attempts: int | None = None
    on_exhausted: OnExhausted = OnExhausted.DEAD_LETTER

    def __post_init__(self) -> None:
        require_duration("min_backoff", self.min_backoff)
        require_duration("max_backoff", self.max_backoff)
        if self.max_backoff < self.min_backoff:
            raise InvalidArgument(f"max_backoff {self.max_backoff} must not be below min_backoff {self.min_backoff}")
        if self.max_attempts is not None:
            require_whole("max_attempts", self.max_attempts, 1, LARGEST_WHOLE)
        object.__setattr__(self, "mode", one_of("mode", RetryMode, self.mode))
        object.__setattr__(self, "on_exhausted", one_of("on_exhausted", OnExhausted, self.on_exhausted))

    def backoff(self, failures: int) -> float:
        """How long to wait after the ``failures``-th failed delivery."""
        # Doubling is stopped early: a float overflows after a thousand failures.
        return min(self.max_backoff, self.min_backoff * 2.0 ** min(failures - 1, 64))

    def is_exhausted(self, failures: int) -> bool:
        return self.max_attempts is not None and failures >= self.max_attempts


@dataclass(frozen=True, slots=True)
class Delivery:
    """The options of a map of lanes."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    window: int = 1
    release: Release = Release.DURABLE

    def __post_init__(self) -> None:
        require_kind("retry", RetryPolicy, self.retry)
        require_whole("window", self.window, 1, LARGEST_WHOLE)
        object.__setattr__(self, "release", one_of("release", Release, self.release))


class Lease(NamedTuple):
    """A delivery under way. ``token`` fences it: whatever is said with another token changes nothing."""

    token: int
    key: str | None
    offset: int
    attempt: int
    deadline: float


class Settled(NamedTuple):
    """A message is done. Write it down, then ``confirm`` its offset."""

    key: str | None
    offset: int


class DeadLettered(NamedTuple):
    """A message leaves its lane undelivered. Store it elsewhere, then ``confirm`` its offset."""

    key: str | None
    offset: int
    attempts: int
    error: str | None


class Removed(NamedTuple):
    """A message was taken out of its lane unseen. Write it down, then ``confirm`` its offset."""

    key: str | None
    offset: int


class Redriven(NamedTuple):
    """A dead letter is back at its place. Write it down, then ``confirm`` its offset."""

    key: str | None
    offset: int


class Returned(NamedTuple):
    """A message waits at its place until ``not_before``: a delivery failed, or an operator lets it be tried at once."""

    key: str | None
    offset: int
    attempts: int
    not_before: float
    error: str | None


class Fenced(NamedTuple):
    """A lease was taken back because an earlier message of its key failed; the message will be delivered again, in order."""

    token: int
    key: str | None
    offset: int


class KeyPaused(NamedTuple):
    """A key used up its attempts and waits for an operator (``on_exhausted=PAUSE``)."""

    key: str
    offset: int
    attempts: int
    error: str | None


Effect: TypeAlias = Settled | DeadLettered | Removed | Redriven | Returned | Fenced | KeyPaused


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages there are, and how many of them are what."""

    total: int
    ready: int
    leased: int
    delayed: int
    blocked: int


@dataclass(frozen=True, slots=True)
class Survey:
    """Many keys in figures: how many there are, how many wait for their time or for an operator, and the oldest message."""

    keys: int
    blocked: int
    paused: int
    oldest: int | None


@dataclass(frozen=True, slots=True)
class LaneView:
    """One key as an operator wants to see it."""

    key: str | None
    state: str
    depth: int
    in_flight: int
    head: int | None
    attempts: int
    not_before: float | None
    error: str | None


@dataclass(frozen=True, slots=True)
class SavedMessage:
    key: str | None
    offset: int
    failures: int = 0
    not_before: float = -inf
    error: str | None = None
    steps_aside: bool = False


@dataclass(frozen=True, slots=True)
class SavedLanes:
    """What must survive a crash, as plain data. Leases do not: their messages are at their places again."""

    now: float
    next_token: int
    messages: tuple[SavedMessage, ...]
    paused: tuple[str | None, ...]
    dead_letters: tuple[tuple[str | None, int], ...]
