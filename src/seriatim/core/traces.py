"""Traces: the guarantee that an observed sequence of messages satisfies, and the first witness against the next one.

Rules
    - A trace is what was received of **one key over one route**, in order of arrival.
    - A number received after a higher one is an *inversion*, also when it is a repeat: 1, 2, 1 is not monotonic
      (``guarantees.py`` says why).
    - A number received before is a *duplicate*, one that was sent and not received is a *loss*, and one that was never
      sent is a *phantom*, with which no guarantee holds.
    - Pairs of received messages can't reveal a loss at the **end** of a trace. It is a loss, but can only be detected
      if it is known what was sent: ``classify(received, sent=...)``. Without ``sent`` or ``start`` a trace is judged
      from the lowest to the highest number in it.

Theory of operation
    A trace of one key is judged in one pass. Each number becomes a position (plain integers, one apart); a position below
    the highest so far is an inversion, one seen before is a duplicate, and a hole in the set of seen positions is a loss.
    The set is kept as ranges, so an ordered trace costs constant memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, Protocol

from seriatim.core.guarantees import Guarantee, Level, level
from seriatim.core.ranges import RangeSet
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import InvalidArgument

UNBOUNDED = SequenceSpace()

WitnessKind = Literal["phantom", "inversion", "conflict", "duplicate", "loss", "invalid"]

# In the order in which a verdict names them: those that deny the lowest level first. A checker of numbers alone finds
# no conflict (a copy with another payload) and accepts nothing invalid; an audit of whole tables finds both.
_DENIES: dict[WitnessKind, Guarantee] = {
    "phantom": Guarantee.ABSOLUTE,
    "inversion": Guarantee.NO_INVERSION,
    "conflict": Guarantee.NO_DUPLICATE,
    "duplicate": Guarantee.NO_DUPLICATE,
    "loss": Guarantee.NO_LOSS,
    "invalid": Guarantee.ABSOLUTE,
}


@dataclass(frozen=True, slots=True)
class Witness:
    """The first thing in a trace that violates a guarantee.

    ``at`` is an index in the trace; None for a loss, which has no position in it. ``other`` is the message that
    overtook (inversion), that came before (duplicate), or that follows the hole (loss); None if there is none.
    """

    kind: WitnessKind
    at: int | None
    sequence: Hashable
    other: Hashable
    text: str

    @property
    def denies(self) -> Guarantee:
        """The bits that it violates."""
        return _DENIES[self.kind]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for a trace of one key.

    ``reordered`` counts the messages whose *first* arrival was behind a later one, ``max_displacement`` is how far behind,
    at most: a resequencer must hold that many positions to put the trace right.
    """

    guarantee: Guarantee
    witnesses: tuple[Witness, ...]
    received: int
    distinct: int
    duplicates: int
    phantoms: int
    lost: int
    reordered: int
    max_displacement: int

    @property
    def level(self) -> Level:
        """The strongest named guarantee that held."""
        return level(self.guarantee)

    @property
    def witness(self) -> Witness | None:
        """The first witness against the next level; None when the trace is absolute."""
        return self.witnesses[0] if self.witnesses else None


class TraceChecker:
    """Judges the trace of one key incrementally, by numbers of a space or by the list of what was sent."""

    # An audit keeps one checker per key, of which there may be millions.
    __slots__ = (
        "_duplicates",
        "_first",
        "_highest",
        "_ids",
        "_max_displacement",
        "_phantoms",
        "_received",
        "_reordered",
        "_seen",
    )

    def __init__(
        self,
        *,
        sent: Sequence[Hashable] | None = None,
        space: SequenceSpace = UNBOUNDED,
        start: int | None = None,
    ) -> None:
        if sent is not None and (space != UNBOUNDED or start is not None):
            raise InvalidArgument("sent says already what is expected: leave out space and start")
        self._ids: _Ids = _Counted(space, start) if sent is None else _Listed(sent)
        self._seen = RangeSet()
        self._highest: int | None = None
        self._received = self._duplicates = self._phantoms = self._reordered = self._max_displacement = 0
        self._first: dict[WitnessKind, Witness] = {}

    def observe(self, sequence: Hashable) -> None:
        """Add the next received message. InvalidSequence, with no change, if it is not a number of the space."""
        position = self._ids.position(sequence, self._highest)
        at = self._received
        self._received += 1
        if position is None:
            self._phantoms += 1
            self._note("phantom", at, sequence, None, "was never sent")
            return
        is_duplicate = position in self._seen
        if is_duplicate:
            self._duplicates += 1
            self._note("duplicate", at, sequence, sequence, "was received before")
        if self._highest is None or position > self._highest:
            self._highest = position
        elif position < self._highest:
            overtaker = self._ids.label(self._highest)
            self._note("inversion", at, sequence, overtaker, f"was received after {overtaker!r}, which was sent later")
            if not is_duplicate:
                self._reordered += 1
                self._max_displacement = max(self._max_displacement, self._highest - position)
        self._seen.add(position)

    def expect(self, sequence: Hashable) -> None:
        """Everything up to ``sequence`` was sent: for numbers, if what is sent becomes known gradually."""
        self._ids.expect(sequence)

    @property
    def violation(self) -> Witness | None:
        """The first violation of any guarantee. A loss is not one: missing messages may still arrive."""
        return next(iter(self._first.values()), None)

    def verdict(self, *, so_far: bool = False) -> Verdict:
        """The verdict on all messages so far. With ``so_far`` more may follow: only gaps below received ones are
        losses."""
        missing = list(self._missing(so_far))
        witnesses = self._witnesses(missing)
        return Verdict(
            guarantee=reduce(lambda left, witness: left & ~witness.denies, witnesses, Guarantee.ABSOLUTE),
            witnesses=witnesses,
            received=self._received,
            distinct=self._seen.count(),
            duplicates=self._duplicates,
            phantoms=self._phantoms,
            lost=sum(hi - lo + 1 for lo, hi in missing),
            reordered=self._reordered,
            max_displacement=self._max_displacement,
        )

    def _note(self, kind: WitnessKind, at: int, sequence: Hashable, other: Hashable, what: str) -> None:
        if kind not in self._first:
            self._first[kind] = Witness(kind, at, sequence, other, f"{sequence!r} at index {at} {what}")

    def _missing(self, so_far: bool) -> Iterator[tuple[int, int]]:
        """The holes between the first and last position known to be sent, or else between the lowest and highest
        seen."""
        first_seen = self._seen.first()
        lo = self._ids.lowest if first_seen is None or self._ids.lowest is not None else first_seen[0]
        hi = self._highest if so_far or self._ids.highest is None else self._ids.highest
        return iter(()) if lo is None or hi is None else self._seen.gaps(lo, hi)

    def _witnesses(self, missing: Sequence[tuple[int, int]]) -> tuple[Witness, ...]:
        found = [self._first[kind] for kind in _DENIES if kind in self._first]
        if missing:
            sequence, other = self._ids.label(missing[0][0]), None
            text, following = f"{sequence!r} was sent but never received", missing[0][1] + 1
            if following in self._seen:
                other = self._ids.label(following)
                text = f"{sequence!r} is missing before {other!r}"
            found.append(Witness("loss", None, sequence, other, text))
        return tuple(found)


def classify(
    received: Iterable[Hashable],
    *,
    sent: Sequence[Hashable] | None = None,
    space: SequenceSpace = UNBOUNDED,
    start: int | None = None,
) -> Verdict:
    """The strongest guarantee that the trace of one key satisfies, with a witness against each bit that it does not.

    ``start`` is the first number sent, which reveals a loss before the first message received. ``sent`` is everything
    that was sent, in order, each once: any hashable ids; it reveals losses at the end too, and phantoms.
    """
    checker = TraceChecker(sent=sent, space=space, start=start)
    for sequence in received:
        checker.observe(sequence)
    return checker.verdict()


class _Ids(Protocol):
    """Converts message ids to positions, one apart, and back. ``lowest`` and ``highest`` were certainly sent."""

    @property
    def lowest(self) -> int | None: ...

    @property
    def highest(self) -> int | None: ...

    def position(self, sequence: Hashable, highest_seen: int | None, /) -> int | None:
        """The position of ``sequence``; None if it cannot have been sent."""

    def label(self, position: int) -> Hashable: ...
    def expect(self, sequence: Hashable, /) -> None: ...


class _Counted:
    """Ids are numbers of a sequence space; what was sent is known from ``start`` on, if at all."""

    __slots__ = ("_origin", "_space", "highest", "lowest")

    def __init__(self, space: SequenceSpace, start: int | None) -> None:
        self.highest: int | None = None
        self._space = space
        self._origin = None if start is None else space.validate(start)
        self.lowest = None if start is None else 0

    def position(self, sequence: Hashable, highest_seen: int | None) -> int | None:
        number = self._space.validate(sequence)
        if self._origin is None:
            self._origin = number
        expected = 0 if highest_seen is None else highest_seen + 1
        unwrapped = self._space.unwrap(number, self._unwrapped(expected))
        position = (unwrapped - self._origin) // self._space.increment
        return None if self.lowest is not None and position < self.lowest else position

    def label(self, position: int) -> int:
        return self._space.wrap(self._unwrapped(position))

    def expect(self, sequence: Hashable) -> None:
        position = self.position(sequence, self.highest)
        if position is None:
            raise InvalidArgument(f"{sequence!r} lies before the first number that was to be sent")
        self.highest = position if self.highest is None else max(self.highest, position)

    def _unwrapped(self, position: int) -> int:
        assert self._origin is not None
        return self._origin + position * self._space.increment


class _Listed:
    """Ids are given as a list, in the order of sending."""

    lowest: int | None = 0

    def __init__(self, sent: Sequence[Hashable]) -> None:
        self._sent = tuple(sent)
        self._positions = {sequence: position for position, sequence in enumerate(self._sent)}
        if len(self._positions) < len(self._sent):
            raise InvalidArgument("sent must name each message once: give repeated messages ids of their own")
        self.highest: int | None = len(self._sent) - 1

    def position(self, sequence: Hashable, _highest_seen: int | None, /) -> int | None:
        return self._positions.get(sequence)

    def label(self, position: int) -> Hashable:
        return self._sent[position]

    def expect(self, _sequence: Hashable, /) -> None:
        raise InvalidArgument("sent says already what is expected")
