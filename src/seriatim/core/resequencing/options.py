"""A resequencer's options, its effects and its ledger."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from seriatim.core.sequence import SequenceSpace
from seriatim.core.validation import convert_choices, require_span, require_whole
from seriatim.errors import InvalidArgument

M = TypeVar("M")


class StartRule(StrEnum):
    """How the first number of a session is determined."""

    LITERAL = "literal"
    FIRST_SEEN = "first seen"
    LOWEST_WITHIN = "lowest within"


@dataclass(frozen=True, slots=True)
class Start:
    """The first number of a session."""

    rule: StartRule
    value: float = 0

    @classmethod
    def at(cls, number: int) -> Start:
        """A literal first number: missing numbers from it on are a gap."""
        return cls(StartRule.LITERAL, number)

    @classmethod
    def first_seen(cls) -> Start:
        """The first number that arrives."""
        return cls(StartRule.FIRST_SEEN)

    @classmethod
    def lowest_within(cls, time: float) -> Start:
        """The lowest number that arrives within ``time`` of the first."""
        require_span("the time of Start.lowest_within", time)
        return cls(StartRule.LOWEST_WITHIN, time)

    @property
    def patience(self) -> float:
        """How long a session collects messages before it begins."""
        return self.value if self.rule is StartRule.LOWEST_WITHIN else 0


class OnGap(StrEnum):
    """What happens when a gap has timed out."""

    SKIP = "skip"  # its numbers are given up
    HOLD = "hold"  # it is reported once, and kept until an operator skips it
    DEAD_LETTER = "dead-letter"  # its numbers are given up, together with the messages directly behind it
    REQUEST = "request"  # its numbers are requested from the source, and given up after ``max_requests`` times


class OnLate(StrEnum):
    """What happens to a message whose number was given up. It gets a ledger entry in any case."""

    DROP = "drop"
    SIDE_OUTPUT = "side-output"
    RAISE = "raise"


class OnDuplicate(StrEnum):
    """Which copy of a number counts."""

    FIRST = "first"
    LAST = "last"  # as long as the number is held
    CONFLICT = "conflict"  # the first, and copies with another digest are reported


class OnOverflow(StrEnum):
    """What happens when a message arrives for a key that holds as many as it may."""

    GIVE_UP = "give-up"  # the first gap is given up, which makes room
    DROP = "drop"  # the message is dropped
    RAISE = "raise"  # CapacityExceeded


class OnEpoch(StrEnum):
    """What happens to held messages of a session when the next one starts."""

    RELEASE = "release"  # they are released in order
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class ResequenceOptions:
    """The options of a resequencer. Times are in the unit of ``now``.

    ``on_gap`` applies to a number that is missing for ``gap_timeout``, and ``max_requests`` is how often it is requested.
    ``capacity`` limits the messages held for one key; with a modulus it is less than half of it. ``on_overflow`` applies to a
    message beyond it; the default is GIVE_UP, or RAISE with ``on_gap=HOLD``. ``remember`` limits the ranges of given-up numbers
    that are kept to tell late messages from duplicates; a number older than those counts as late. ``resync_after``: with a
    modulus, after this many messages in a row from behind that continue each other (default 3), sync is reported as lost.
    """

    space: SequenceSpace = field(default_factory=SequenceSpace)
    start: Start = field(default_factory=Start.first_seen)
    gap_timeout: float | None = None
    on_gap: OnGap = OnGap.SKIP
    max_requests: int = 3
    on_late: OnLate = OnLate.DROP
    on_duplicate: OnDuplicate = OnDuplicate.FIRST
    on_epoch: OnEpoch = OnEpoch.RELEASE
    capacity: int | None = None
    on_overflow: OnOverflow | None = None
    remember: int = 128
    resync_after: int | None = None

    DEFAULT_CAPACITY = 10_000
    DEFAULT_RESYNC_AFTER = 3

    def __post_init__(self) -> None:
        convert_choices(self, on_gap=OnGap, on_late=OnLate, on_duplicate=OnDuplicate, on_epoch=OnEpoch)
        if self.on_overflow is not None:
            convert_choices(self, on_overflow=OnOverflow)
        if self.gap_timeout is not None:
            require_span("gap_timeout", self.gap_timeout)
        if self.on_gap is OnGap.REQUEST and not self.gap_timeout:
            raise InvalidArgument("on_gap=REQUEST asks when a gap_timeout of more than 0 has passed: set one")
        if self.on_gap is OnGap.HOLD and self.on_overflow is OnOverflow.GIVE_UP:
            raise InvalidArgument("on_gap=HOLD never gives up a gap by itself: choose on_overflow=DROP or RAISE")
        require_whole("max_requests", self.max_requests, 1)
        require_whole("remember", self.remember, 1)
        if self.resync_after is not None:
            require_whole("resync_after", self.resync_after, 2)
        if self.start.rule is StartRule.LITERAL:
            self.space.validate(self.start.value)
        if self.capacity is not None:
            self._check_capacity(self.capacity)

    def _check_capacity(self, capacity: int) -> None:
        require_whole("capacity", capacity, 1)
        limit = self.space.max_ahead
        if limit is not None and capacity > limit:
            raise InvalidArgument(
                f"capacity {capacity} is more than the {limit} numbers that can be told to be ahead "
                f"modulo {self.space.modulus}; choose {limit} or less"
            )

    @property
    def held_limit(self) -> int:
        """How many messages one key may hold: ``capacity``, or its default."""
        if self.capacity is not None:
            return self.capacity
        return min(self.DEFAULT_CAPACITY, self.space.max_ahead or self.DEFAULT_CAPACITY)

    @property
    def overflow(self) -> OnOverflow:
        """What happens to a message without room: ``on_overflow``, or its default."""
        if self.on_overflow is not None:
            return self.on_overflow
        return OnOverflow.RAISE if self.on_gap is OnGap.HOLD else OnOverflow.GIVE_UP

    @property
    def resync_limit(self) -> int | None:
        """The number of messages behind that means lost sync: ``resync_after``, or its default; None for never."""
        if self.resync_after is not None or self.space.modulus is None:
            return self.resync_after
        return self.DEFAULT_RESYNC_AFTER


class Reason(StrEnum):
    """Why a message, or a range of numbers, was not released."""

    LATE = "late"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    LOST = "lost"
    OVERFLOW = "overflow"
    DEAD_LETTER = "dead-letter"
    DISCARDED = "discarded"
    SYNC_LOST = "sync-lost"


class Released(NamedTuple, Generic[M]):
    """The next message in order."""

    key: Hashable
    epoch: int
    sequence: int
    message: M


class LedgerEntry(NamedTuple, Generic[M]):
    """A message, or a range of numbers that never arrived, was not released."""

    key: Hashable
    epoch: int
    reason: Reason
    first: int
    last: int
    size: int
    time: float
    detail: str
    message: M | None = None


class Late(NamedTuple, Generic[M]):
    """A late message on the side output (its ledger entry comes with it)."""

    key: Hashable
    epoch: int
    sequence: int
    message: M


class DeadLettered(NamedTuple, Generic[M]):
    """A message stranded behind a gap that was given up (its ledger entry comes with it)."""

    key: Hashable
    epoch: int
    sequence: int
    message: M


class ResendRequested(NamedTuple):
    """Request every missing number from the source: inclusive ranges, in order."""

    key: Hashable
    epoch: int
    ranges: tuple[tuple[int, int], ...]


class GapReported(NamedTuple):
    """Gaps are overdue and wait for an operator (``on_gap=HOLD``)."""

    key: Hashable
    epoch: int
    ranges: tuple[tuple[int, int], ...]


class SyncLost(NamedTuple):
    """The source seems to have another position: request a resend or a rebirth."""

    key: Hashable
    epoch: int
    sequence: int


Effect: TypeAlias = Released[M] | LedgerEntry[M] | Late[M] | DeadLettered[M] | ResendRequested | GapReported | SyncLost
