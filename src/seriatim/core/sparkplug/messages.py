"""Types of an edge node's session machine: messages, options and effects."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from seriatim.core.resequencing.options import LedgerEntry, OnEpoch, OnGap, OnOverflow, ResequenceOptions
from seriatim.core.sequence import SequenceSpace
from seriatim.core.validation import convert_choices, require_duration, require_kind, require_whole
from seriatim.errors import InvalidArgument

M = TypeVar("M")

SEQ = SequenceSpace(256)
"""The numbers that an edge node and all its devices share."""
MAX_BD_SEQ = 2**64 - 1


class Kind(StrEnum):
    """The messages of an edge node. The names are Sparkplug's."""

    NBIRTH = "NBIRTH"
    NDEATH = "NDEATH"
    NDATA = "NDATA"
    DBIRTH = "DBIRTH"
    DDEATH = "DDEATH"
    DDATA = "DDATA"


OF_DEVICES = frozenset({Kind.DBIRTH, Kind.DDEATH, Kind.DDATA})
OF_DATA = frozenset({Kind.NDATA, Kind.DDATA})


class EdgeMessage(NamedTuple, Generic[M]):
    """One message of an edge node, as needed for its order. ``body`` is returned to the caller."""

    kind: Kind
    body: M
    seq: int | None = None
    timestamp: int | None = None
    """When the node sent it, by the node's own clock; only compared with other stamps of the same node."""
    device: str | None = None
    bd_seq: int | None = None
    """The session that it refers to: in NBIRTH and NDEATH only."""


def check_message(message: object) -> None:
    """Raise InvalidArgument unless ``message`` is valid. An absent seq is not a zero."""
    if not isinstance(message, EdgeMessage):
        raise InvalidArgument(f"an edge node's message must be an EdgeMessage, not {type(message).__name__}")
    if not isinstance(message.kind, Kind):
        raise InvalidArgument(f"the kind of a message must be one of {', '.join(Kind)}, not {message.kind!r}")
    if message.kind is not Kind.NDEATH:
        SEQ.validate(message.seq)
    if message.kind is Kind.NBIRTH or message.bd_seq is not None:
        _require_number("bdSeq", message.bd_seq, MAX_BD_SEQ)
    if message.timestamp is not None:
        _require_number("timestamp", message.timestamp, 2**64 - 1)
    if (message.kind in OF_DEVICES) != (isinstance(message.device, str) and message.device != ""):
        raise InvalidArgument(
            f"{message.kind} with device {message.device!r}: D messages name a device, N messages none"
        )


def _require_number(name: str, value: object, limit: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise InvalidArgument(f"{name} must be a whole number from 0 to {limit}, not {value!r}")


class OnTimeout(StrEnum):
    """What happens to the messages behind a gap that has timed out."""

    RELEASE = "release"
    DROP = "drop"
    HOLD = "hold"


class BeforeBirth(StrEnum):
    """What happens to data of a node without a birth."""

    RELEASE = "release"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class NodeOrdering:
    """The options of the session machine. Times are in the unit of ``now``; the defaults mean seconds.

    ``reorder_timeout`` is how long a gap, or a message ahead of its session's birth, may wait. ``on_timeout`` says what
    then happens to waiting messages: released in order, dropped, or held until the next birth. ``on_session_end`` says
    the same for messages that wait at a death or a birth. ``capacity`` limits the waiting messages of one node.

    A rebirth is requested once, and again only when ``rebirth_backoff`` has passed without a birth, a time that doubles
    with each request up to ``rebirth_backoff_limit`` and is reset after a quiet time twice as long as that limit. After
    ``rebirth_attempts`` unanswered requests only new trouble causes another. ``rebirths_per_second`` limits storms,
    over all nodes together; requests beyond it are queued. ``max_nodes`` limits the known nodes.
    """

    reorder_timeout: float = 2.0
    send_rebirth_when_timeout: bool = True
    on_timeout: OnTimeout = OnTimeout.RELEASE
    before_birth: BeforeBirth = BeforeBirth.RELEASE
    on_session_end: OnEpoch = OnEpoch.RELEASE
    capacity: int = 127
    rebirth_backoff: float = 5.0
    rebirth_backoff_limit: float = 300.0
    rebirth_attempts: int = 5
    rebirths_per_second: float = 50.0
    max_nodes: int = 100_000

    def __post_init__(self) -> None:
        convert_choices(self, on_timeout=OnTimeout, before_birth=BeforeBirth, on_session_end=OnEpoch)
        require_kind("send_rebirth_when_timeout", bool, self.send_rebirth_when_timeout)
        for name in ("reorder_timeout", "rebirth_backoff", "rebirth_backoff_limit", "rebirths_per_second"):
            require_duration(name, getattr(self, name))
        if not self.rebirths_per_second:
            raise InvalidArgument("rebirths_per_second must be more than 0: it is a limit, not a switch")
        if self.rebirth_backoff_limit < self.rebirth_backoff:
            raise InvalidArgument("rebirth_backoff_limit must not be less than rebirth_backoff")
        require_whole("rebirth_attempts", self.rebirth_attempts, 1)
        require_whole("max_nodes", self.max_nodes, 1)
        self.resequencing()

    def resequencing(self) -> ResequenceOptions:
        """How the messages of one session are put in order."""
        on_gap = {OnTimeout.RELEASE: OnGap.SKIP, OnTimeout.DROP: OnGap.DEAD_LETTER, OnTimeout.HOLD: OnGap.HOLD}
        return ResequenceOptions(
            space=SEQ,
            gap_timeout=self.reorder_timeout,
            on_gap=on_gap[self.on_timeout],
            on_overflow=OnOverflow.DROP if self.on_timeout is OnTimeout.HOLD else OnOverflow.GIVE_UP,
            on_epoch=self.on_session_end,
            capacity=self.capacity,
        )


class Status(StrEnum):
    """The status of a node or a device. *Stale*: it was online, and it is unknown whether it still is."""

    ONLINE = "online"
    OFFLINE = "offline"
    STALE = "stale"


class Flag(StrEnum):
    """A remark about a message that is in order."""

    BEFORE_BIRTH = "before-birth"
    STALE = "stale"


class ReleasedBy(StrEnum):
    """Why a message was released at this moment."""

    ORDER = "order"
    """It was the expected one."""
    GAP_FILLED = "gap-filled"
    """It waited, and what was missing before it arrived: a number, or its birth."""
    TIMEOUT = "timeout"
    """It waited for ``reorder_timeout``, and what was missing did not arrive."""
    SESSION_END = "session-end"
    """It waited until its session ended."""
    CAPACITY = "capacity"
    """It waited until no more messages could wait."""


class Ordered(NamedTuple, Generic[M]):
    """The next message of a node. NDEATH has no ``sequence``.

    ``epoch`` counts how often its numbers restarted: with each birth, and when the node was found to count elsewhere.
    """

    key: Hashable
    epoch: int
    sequence: int | None
    message: EdgeMessage[M]
    flag: Flag | None = None
    released_by: ReleasedBy = ReleasedBy.ORDER


class RebirthRequested(NamedTuple):
    """Request a new birth from the node."""

    key: Hashable
    reason: str
    attempt: int


class StatusChanged(NamedTuple):
    """The status of a node (``device=None``) or a device changed. ``stamp``: the node's time; None: use the host's."""

    key: Hashable
    device: str | None
    status: Status
    stamp: int | None


class DeathIgnored(NamedTuple, Generic[M]):
    """An NDEATH without a live session."""

    key: Hashable
    detail: str
    message: EdgeMessage[M]


@dataclass(frozen=True, slots=True)
class HeldMessage(Generic[M]):
    """A message that waits, and since when, by the caller's clock."""

    message: EdgeMessage[M]
    since: float


@dataclass(frozen=True, slots=True)
class SequenceGap:
    """Missing numbers, ``first`` to ``last``. If they wrap, ``last`` is the smaller one."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class NodeSnapshot(Generic[M]):
    """The state of a node at one moment."""

    key: Hashable
    status: Status
    devices: Mapping[str, Status]
    epoch: int
    bd_seq: int | None
    """Of its last birth."""
    expected: int | None
    """The number to be released next; None before the first message."""
    held: tuple[HeldMessage[M], ...]
    """Messages ahead of a gap, in order."""
    waiting: tuple[HeldMessage[M], ...]
    """Messages that wait for a birth."""
    gaps: tuple[SequenceGap, ...]
    """The numbers missing before and between held messages."""
    deadline: float | None
    """When the next waiting message times out."""
    rebirth_outstanding: bool
    """Whether a rebirth was requested, and has not arrived yet."""


NodeEffect: TypeAlias = Ordered[M] | LedgerEntry[EdgeMessage[M]] | RebirthRequested | StatusChanged | DeathIgnored[M]


def pack_bits(leading: int, values: Iterable[int], widths: Iterable[int]) -> int:
    """One number that rises whenever ``leading`` does, with every other value in its own bits."""
    for value, width in zip(values, widths, strict=True):
        leading = leading << width | value
    return leading


def unpack_bits(packed: int, widths: Sequence[int]) -> list[int]:
    """The inverse of ``pack_bits``: the leading value, then the others."""
    values: list[int] = []
    for width in reversed(widths):
        values.insert(0, packed & ((1 << width) - 1))
        packed >>= width
    return [packed, *values]


_STAMP_BITS = 65
_BITS = (32, 64, 8, 1, _STAMP_BITS)
"""Of epoch, bdSeq, the expected number, whether the node is born, and the newest stamp."""


class Bookmark(NamedTuple):
    """The position of a node, to be stored together with its messages. As a number it only grows: ``given`` is
    first."""

    given: int
    """The number of messages, ledger entries and ignored deaths that were returned, ever."""
    epoch: int
    bd_seq: int
    expected: int
    born: bool
    newest: int | None = None
    """The newest stamp since the last birth: a message behind with a later stamp is not a copy."""

    def pack(self) -> int:
        stamp = 0 if self.newest is None else self.newest + 1
        return pack_bits(self.given, (self.epoch, self.bd_seq, self.expected, self.born, stamp), _BITS)

    @classmethod
    def unpack(cls, packed: int) -> Bookmark:
        if packed >> sum(_BITS) == 0:  # written before stamps were included: no node reaches 2**64 messages
            packed <<= _STAMP_BITS
        given, epoch, bd_seq, expected, born, stamp = unpack_bits(packed, _BITS)
        return cls(given, epoch, bd_seq, expected, bool(born), stamp - 1 if stamp else None)
