"""The resequencer: one key's messages, put back in order.

Rules
-----
1. Messages are released in sequence order, each number at most once, never backwards.
2. A message ahead of the expected number is *held*. The numbers that it skips are a *gap*. A message that arrives
   inside a gap splits it; the parts keep the gap's deadline.
3. A gap's deadline is the time at which it opened plus ``gap_timeout``. Traffic never extends it. Because a gap opens
   later than every gap below it, deadlines rise with the numbers: the gap at the head is always due first.
4. At its deadline a gap is, by ``on_gap``: given up (``skip``); given up together with the run of messages stranded
   behind it (``dead-letter``); reported once, with every other gap open at that moment, and kept until an operator
   calls ``skip`` (``hold``; a gap that opens later is reported when it is at the head); or requested (``request``),
   every missing number in one request, up to ``max_requests`` times and then given up.
5. A message behind the expected number is *late* if its number was given up, lies before the start or is older than the
   memory reaches, and a *duplicate* otherwise. When a given-up number has arrived late, its next copy is a duplicate.
6. Anything that is not released leaves a ledger entry with its reason.
7. A message of a higher epoch ends the session of the lower one: held messages are settled (``on_epoch``) and the start
   rule applies again. A message of a lower epoch is late.
8. Under a modulus, ``resync_after`` consecutive messages behind that continue each other mean that sync was lost: a
   ledger entry and a ``SyncLost`` request, for a resend or a rebirth.
9. A machine that is restored with other options loses nothing. A session keeps its start, and one that is still
   gathering begins with the lowest number that it has. An open gap keeps its deadline, unless a new one would be
   earlier; one that was reported gets a deadline if gaps are no longer held.

Theory of operation
-------------------
Numbers are unwrapped on input (``SequenceSpace.unwrap``), so everything below works on plain integers that only grow;
``SequenceSpace.wrap`` converts them back on output. Between ``expected`` and ``end`` (one past the highest number seen)
every number is either in ``held`` (a dict) or in exactly one gap (a list, sorted by number and so by deadline): a
release walks along the dict, and the next deadline is that of the first gap. Nothing is held while no gap is open, and
then a key costs one small object.

Time passes only in ``advance(now)``. ``push`` records arrivals but no deadline is due in it, so that each command is
atomic: one that raises has changed nothing. Call ``advance(now)`` before pushing what arrived at ``now`` and the
outcome does not depend on how often it was called in between. Time never runs backwards: an earlier ``now`` counts as
the latest one seen.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Generic, TypeVar

from seriatim.core.ranges import RangeSet
from seriatim.core.resequencing.gaps import Backlog, Gap, Held
from seriatim.core.resequencing.options import (
    DeadLettered,
    Effect,
    GapReported,
    Late,
    LedgerEntry,
    OnDuplicate,
    OnEpoch,
    OnGap,
    OnLate,
    OnOverflow,
    Reason,
    Released,
    ResendRequested,
    ResequenceOptions,
    StartRule,
    SyncLost,
)
from seriatim.core.sequence import SyncWatch
from seriatim.core.transition_table import TransitionTable
from seriatim.errors import CapacityExceeded, LateMessage

M = TypeVar("M")


class State(StrEnum):
    """The state of a key."""

    NEW = "new"
    GATHERING = "gathering"
    FLOWING = "flowing"
    HOLDING = "holding"
    STALLED = "stalled"


class Event(StrEnum):
    START = "start"  # the first number is known
    GATHER = "gather"  # a message arrives while the lowest number is awaited
    HOLD = "hold"  # a message ahead of a gap arrives
    FILL = "fill"  # the expected message arrives while others are held
    GIVE_UP = "give up"  # the head gap is due, or its room is needed
    REPORT = "report"  # the head gap is due, and on_gap is hold
    SKIP = "skip"  # an operator gives up the head gap
    FLUSH = "flush"  # the source has ended: release held messages
    CLEAR = "clear"  # forget the session: discard held messages
    EPOCH = "epoch"  # a new session begins


_WAITING = frozenset({State.HOLDING, State.STALLED, State.FLOWING})
_ENDED = {Event.CLEAR: frozenset({State.NEW}), Event.EPOCH: frozenset({State.NEW})}

TABLE = TransitionTable(
    "resequencer",
    State.NEW,
    {
        State.NEW: {
            Event.START: frozenset({State.FLOWING}),
            Event.GATHER: frozenset({State.GATHERING}),
            Event.FLUSH: frozenset({State.NEW}),
            **_ENDED,
        },
        State.GATHERING: {
            Event.GATHER: frozenset({State.GATHERING}),
            Event.START: frozenset({State.FLOWING, State.HOLDING}),
            Event.GIVE_UP: frozenset({State.FLOWING, State.HOLDING}),
            Event.FLUSH: frozenset({State.FLOWING}),
            **_ENDED,
        },
        State.FLOWING: {
            Event.HOLD: frozenset({State.HOLDING}),
            Event.FLUSH: frozenset({State.FLOWING}),
            **_ENDED,
        },
        State.HOLDING: {
            Event.HOLD: frozenset({State.HOLDING}),
            Event.FILL: _WAITING - {State.STALLED},
            Event.GIVE_UP: _WAITING - {State.STALLED},
            Event.REPORT: frozenset({State.STALLED}),
            Event.SKIP: _WAITING - {State.STALLED},
            Event.FLUSH: frozenset({State.FLOWING}),
            **_ENDED,
        },
        State.STALLED: {
            Event.HOLD: frozenset({State.STALLED}),
            Event.FILL: _WAITING,
            Event.SKIP: _WAITING,
            Event.FLUSH: frozenset({State.FLOWING}),
            **_ENDED,
        },
    },
)


@dataclass(frozen=True, slots=True)
class SavedResequencer(Generic[M]):
    """The complete state of a resequencer, as plain data."""

    now: float
    epoch: int | None
    expected: int | None
    horizon: int
    start_deadline: float | None
    held: tuple[tuple[int, Held[M]], ...]
    gaps: tuple[tuple[int, int, float, int, bool], ...]
    given_up: tuple[tuple[int, int], ...]
    behind_run: int
    behind_last: int | None


class Resequencer(Generic[M]):
    """Puts the messages of one key back in order. See the module's rules."""

    __slots__ = (
        "_backlog",
        "_epoch",
        "_expected",
        "_given_up",
        "_horizon",
        "_now",
        "_options",
        "_start_deadline",
        "_state",
        "_sync",
        "key",
    )

    def __init__(self, options: ResequenceOptions | None = None, key: Hashable = None) -> None:
        self._options = options or ResequenceOptions()
        self.key = key
        self._now = -inf
        self._epoch: int | None = None
        self._state = State.NEW
        self._forget()

    def _forget(self) -> None:
        self._expected: int | None = None
        self._start_deadline: float | None = None
        self._backlog: Backlog[M] | None = None
        self._given_up: RangeSet | None = None
        self._sync: SyncWatch | None = None
        self._horizon = 0

    # -- state ----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the key."""
        return self._state

    @property
    def epoch(self) -> int | None:
        """The current session, or None before the first message."""
        return self._epoch

    @property
    def expected(self) -> int | None:
        """The sequence number to be released next; None before the start is known."""
        return None if self._expected is None else self._options.space.wrap(self._expected)

    @property
    def deadline(self) -> float | None:
        """When ``advance`` has something to do; None: never."""
        if self._start_deadline is not None:
            return self._start_deadline
        gap = self._backlog.first_gap() if self._backlog else None
        return gap.deadline if gap and gap.deadline < inf else None

    @property
    def held_count(self) -> int:
        """The number of messages that are held."""
        return len(self._backlog.held) if self._backlog else 0

    def held(self) -> list[tuple[int, Held[M]]]:
        """The messages that wait, in order, with their sequence numbers."""
        if not self._backlog:
            return []
        wrap = self._options.space.wrap
        return [(wrap(position), item) for position, item in sorted(self._backlog.held.items())]

    def missing(self) -> tuple[tuple[int, int], ...]:
        """The open gaps as inclusive ranges of sequence numbers, in order."""
        wrap = self._options.space.wrap
        return tuple((wrap(gap.first), wrap(gap.last)) for gap in self._open_gaps())

    def was_given_up(self, sequence: int) -> bool:
        """Whether this number is behind the expected one, in a gap that was given up, and has not arrived since."""
        if self._given_up is None or self._expected is None:
            return False
        return self._options.space.unwrap(sequence, self._expected) in self._given_up

    def _open_gaps(self) -> list[Gap]:
        return self._backlog.open_gaps() if self._backlog else []

    # -- commands -------------------------------------------------------------------------------------------------------

    def push(
        self, sequence: int, message: M, now: float, *, epoch: int = 0, digest: Hashable = None, room: bool = True
    ) -> list[Effect[M]]:
        """Take in one message.

        ``digest`` identifies its payload, for ``on_duplicate=CONFLICT``. ``room=False`` means that no other message may be
        held, because the limit of many keys together is reached.
        """
        sequence = self._options.space.validate(sequence)
        item = Held(message, max(now, self._now), digest)
        effects: list[Effect[M]] = []
        if epoch != self._epoch:
            if self._epoch is not None and epoch < self._epoch:
                return self._late(sequence, epoch, item, f"epoch {epoch} ended")
            room = room or self.held_count > 0  # the end of the old session frees what it holds
            self._check_new_session(sequence, epoch, room)
            effects = self._begin_epoch(epoch, item.arrival)
        if self._expected is None:
            return effects + self._before_start(sequence, item, room)
        position = self._options.space.unwrap(sequence, self._expected)
        if position < self._expected:
            return effects + self._behind(position, item)
        if position > self._expected:
            return effects + self._ahead(position, item, room)
        effects.append(Released(self.key, epoch, sequence, message))
        self._now, self._sync = item.arrival, None
        self._expected = position + self._options.space.increment
        if self._backlog is not None:
            self._fill_head(effects)
        return effects

    def pass_run(self, first: int, count: int, now: float) -> bool:
        """Whether ``count`` messages from ``first`` on are the expected ones while nothing is held: then they are
        released at once, without examining each. Otherwise nothing has changed: push them one by one."""
        if self._backlog is not None or self._expected is None or self.expected != first:
            return False
        self._now, self._sync = max(now, self._now), None
        self._expected += count * self._options.space.increment
        return True

    def advance(self, now: float) -> list[Effect[M]]:
        """Let time pass: decide everything that is due by ``now``."""
        self._now = now = max(now, self._now)
        effects: list[Effect[M]] = []
        if self._start_deadline is not None and self._start_deadline <= now:
            self._settle_start()
            self._release_run(effects)
            self._enter(Event.START)
        while (gap := self._first_gap()) is not None and gap.deadline <= now and gap.deadline < inf:
            self._gap_falls_due(gap, now, effects)
        return effects

    def skip(self, now: float) -> list[Effect[M]]:
        """An operator gives up the head gap."""
        TABLE.targets(self._state, Event.SKIP)
        self._now = now = max(now, self._now)
        effects: list[Effect[M]] = []
        self._give_up_head(now, "skipped by an operator", effects)
        self._enter(Event.SKIP)
        return effects

    def flush(self, now: float) -> list[Effect[M]]:
        """The source has ended: give up every gap and release the held messages, in order."""
        self._now = now = max(now, self._now)
        effects: list[Effect[M]] = []
        if self._start_deadline is not None:
            self._settle_start()
            self._release_run(effects)
        while self._first_gap() is not None:
            self._give_up_head(now, "flushed", effects, strand=False)
        self._enter(Event.FLUSH)
        return effects

    def clear(self, now: float) -> list[Effect[M]]:
        """Forget the session. Held messages are discarded, with ledger entries."""
        self._now = now = max(now, self._now)
        effects = self._discard_held(now, "cleared")
        self._forget()
        self._epoch = None
        self._enter(Event.CLEAR)
        return effects

    # -- saving and restoring -------------------------------------------------------------------------------------------

    def save(self) -> SavedResequencer[M]:
        """The whole state, as plain values; ``restore`` continues from it."""
        backlog = self._backlog
        return SavedResequencer(
            now=self._now,
            epoch=self._epoch,
            expected=self._expected,
            horizon=self._horizon,
            start_deadline=self._start_deadline,
            held=tuple(backlog.held.items()) if backlog else (),
            gaps=tuple((g.first, g.last, g.deadline, g.requests, g.reported) for g in self._open_gaps()),
            given_up=tuple(self._given_up) if self._given_up else (),
            behind_run=self._sync.run if self._sync else 0,
            behind_last=self._sync.last if self._sync else None,
        )

    @classmethod
    def restore(
        cls, saved: SavedResequencer[M], options: ResequenceOptions | None = None, key: Hashable = None
    ) -> Resequencer[M]:
        """A resequencer that exactly continues the saved one, given the same options; otherwise see rule 9."""
        self = cls(options, key)
        self._now, self._epoch = saved.now, saved.epoch
        self._expected, self._horizon = saved.expected, saved.horizon
        self._start_deadline = saved.start_deadline
        if saved.held:
            step = self._options.space.increment
            self._backlog = backlog = Backlog[M](max(position for position, _ in saved.held) + step)
            backlog.held.update(saved.held)
            backlog.gaps.extend(Gap(*gap) for gap in saved.gaps)
        if saved.given_up:
            self._given_up = RangeSet(saved.given_up)
        if saved.behind_run and self._options.resync_limit is not None:
            self._sync = self._new_sync_watch()
            self._sync.run, self._sync.last = saved.behind_run, saved.behind_last
        self._adopt_options()
        self._state = self._derived_state()
        return self

    def _adopt_options(self) -> None:
        """Let nothing wait longer than these options allow from now on. With the saved options, nothing changes."""
        if self._start_deadline is not None:
            self._start_deadline = min(self._start_deadline, self._now + self._options.start.patience)
        holds, limit, earliest = self._options.on_gap is OnGap.HOLD, self._deadline_from(self._now), -inf
        for gap in self._open_gaps():
            if not (gap.reported and holds):
                gap.reported = False
                gap.deadline = earliest = max(earliest, min(gap.deadline, limit))

    def _derived_state(self) -> State:
        if self._start_deadline is not None:
            return State.GATHERING
        if self._expected is None:
            return State.NEW
        gap = self._first_gap()
        if gap is None:
            return State.FLOWING
        return State.STALLED if gap.reported else State.HOLDING

    def _enter(self, event: Event) -> None:
        target = self._derived_state()
        TABLE.check(self._state, event, target)
        self._state = target

    # -- sessions and their start ---------------------------------------------------------------------------------------

    def _check_new_session(self, sequence: int, epoch: int, room: bool) -> None:
        """Raise what the first message of a new session would raise, before the old session is ended for it."""
        start, distance = self._options.start, 0
        if start.rule is StartRule.LITERAL:
            distance = self._options.space.distance(sequence, int(start.value))
        if distance < 0 and self._options.on_late is OnLate.RAISE:
            raise self._late_error(sequence, f"epoch {epoch} starts at {start.value}")
        is_held = distance > 0 or start.rule is StartRule.LOWEST_WITHIN
        if is_held and not room and self._options.overflow is OnOverflow.RAISE:
            raise self._capacity_error(sequence)

    def _begin_epoch(self, epoch: int, now: float) -> list[Effect[M]]:
        effects: list[Effect[M]] = []
        if self._epoch is not None:
            if self._options.on_epoch is OnEpoch.RELEASE:
                effects = self.flush(now)
            else:
                effects = self._discard_held(now, f"epoch {epoch} began")
            self._forget()
            self._enter(Event.EPOCH)
        self._epoch = epoch
        if self._options.start.rule is StartRule.LITERAL:
            self._start_at(int(self._options.start.value))
            self._enter(Event.START)
        return effects

    def _start_at(self, position: int) -> None:
        self._start_deadline = None
        self._expected = self._horizon = position

    def _before_start(self, sequence: int, item: Held[M], room: bool) -> list[Effect[M]]:
        if self._options.start.rule is StartRule.LOWEST_WITHIN or self._start_deadline is not None:
            return self._gather(sequence, item, room)
        self._now = item.arrival
        self._start_at(sequence)
        self._enter(Event.START)
        self._expected = sequence + self._options.space.increment
        return [Released(self.key, self._current_epoch(), sequence, item.message)]

    def _gather(self, sequence: int, item: Held[M], room: bool) -> list[Effect[M]]:
        """Hold a message until the lowest number is known."""
        space, backlog = self._options.space, self._backlog
        # While the session gathers messages, the horizon is the lowest number among them.
        position = space.unwrap(sequence, self._horizon) if backlog else sequence
        if backlog and position in backlog.held:
            return self._duplicate_of_held(position, item)
        if backlog and space.max_ahead is not None and backlog.end - position > (space.max_ahead + 1) * space.increment:
            return self._late(sequence, self._current_epoch(), item, "more than half a circle below what was gathered")
        if self._is_full(room) and self._options.overflow is not OnOverflow.GIVE_UP:
            return self._reject_for_capacity(position, item)
        self._now = item.arrival
        if backlog is None:
            self._start_deadline = item.arrival + self._options.start.value
            self._backlog = backlog = Backlog(position)
            self._horizon = position
        backlog.held[position] = item
        self._horizon = min(self._horizon, position)
        backlog.end = max(backlog.end, position + space.increment)
        self._enter(Event.GATHER)
        return self.make_room(item.arrival) if self.held_count > self._options.held_limit else []

    def _settle_start(self) -> None:
        """Turn the gathered messages into a backlog: each gap opened when the first message above it arrived."""
        assert self._backlog is not None
        space, gathered = self._options.space, self._backlog.held
        positions = sorted(gathered)
        self._start_at(positions[0])
        gaps: list[Gap] = []
        opened = inf
        for below, position in zip(reversed(positions[:-1]), reversed(positions[1:]), strict=True):
            opened = min(opened, gathered[position].arrival)
            if position - below > space.increment:
                gaps.append(Gap(below + space.increment, position - space.increment, self._deadline_from(opened)))
        self._backlog.gaps = gaps[::-1]

    # -- in front of the expected number --------------------------------------------------------------------------------

    def _ahead(self, position: int, item: Held[M], room: bool) -> list[Effect[M]]:
        assert self._expected is not None
        if self._backlog is not None and position in self._backlog.held:
            return self._duplicate_of_held(position, item)
        if self._is_full(room) and self._options.overflow is not OnOverflow.GIVE_UP:
            return self._reject_for_capacity(position, item)
        self._now, self._sync = item.arrival, None
        if self._backlog is None:
            self._backlog = Backlog(self._expected)
        self._backlog.place(position, item, self._deadline_from(item.arrival), self._options.space.increment)
        self._enter(Event.HOLD)
        return self.make_room(item.arrival) if self.held_count > self._options.held_limit else []

    def _is_full(self, room: bool) -> bool:
        return not room or self.held_count >= self._options.held_limit

    def make_room(self, now: float) -> list[Effect[M]]:
        """Release at least one held message early: give up the head gap, or stop waiting for a lower start."""
        TABLE.targets(self._state, Event.GIVE_UP)
        self._now = now = max(now, self._now)
        effects: list[Effect[M]] = []
        if self._start_deadline is not None:
            self._settle_start()
            self._release_run(effects)
        else:
            self._give_up_head(now, "no room to hold more", effects)
        self._enter(Event.GIVE_UP)
        return effects

    def _reject_for_capacity(self, position: int, item: Held[M]) -> list[Effect[M]]:
        sequence = self._options.space.wrap(position)
        if self._options.overflow is OnOverflow.RAISE:
            raise self._capacity_error(sequence)
        self._now, self._sync = item.arrival, None
        return [self._entry(Reason.OVERFLOW, position, position, item.arrival, "no room to hold it", item.message)]

    def _capacity_error(self, sequence: int) -> CapacityExceeded:
        return CapacityExceeded(
            f"no room to hold message {sequence} of key {self.key!r} behind a gap ({self.held_count} are held); "
            "wait for the gap to close, skip it, or raise the capacity"
        )

    def _duplicate_of_held(self, position: int, item: Held[M]) -> list[Effect[M]]:
        assert self._backlog is not None
        self._now, self._sync = item.arrival, None
        held = self._backlog.held[position]
        reason, dropped = Reason.DUPLICATE, item
        if self._options.on_duplicate is OnDuplicate.LAST:
            # The newer payload replaces the older one; the arrival time stays, or a resend would extend the wait.
            self._backlog.held[position] = Held(item.message, held.arrival, item.digest)
            dropped = held
        elif self._options.on_duplicate is OnDuplicate.CONFLICT and held.digest != item.digest:
            reason = Reason.CONFLICT
        return [self._entry(reason, position, position, item.arrival, "another copy is held", dropped.message)]

    def _fill_head(self, effects: list[Effect[M]]) -> None:
        """The expected message arrived: shrink the head gap and release what no longer waits."""
        assert self._backlog is not None
        gap = self._backlog.first_gap()
        assert gap is not None
        gap.first += self._options.space.increment
        if gap.first > gap.last:
            self._backlog.drop_first_gap()
            self._release_run(effects)
        self._enter(Event.FILL)

    def _release_run(self, effects: list[Effect[M]], strand: bool = False, now: float = 0) -> None:
        """Release (or dead-letter) the held messages from the expected number on, up to the next gap."""
        assert self._backlog is not None
        assert self._expected is not None
        held, position, step = self._backlog.held, self._expected, self._options.space.increment
        epoch, wrap = self._current_epoch(), self._options.space.wrap
        while (item := held.pop(position, None)) is not None:
            if strand:
                effects.append(DeadLettered(self.key, epoch, wrap(position), item.message))
                detail = "stranded behind a gap that was given up"
                effects.append(self._entry(Reason.DEAD_LETTER, position, position, now, detail, item.message))
            else:
                effects.append(Released(self.key, epoch, wrap(position), item.message))
            position += step
        self._expected = position
        if not held:
            self._backlog = None

    # -- gaps -----------------------------------------------------------------------------------------------------------

    def _first_gap(self) -> Gap | None:
        return self._backlog.first_gap() if self._backlog is not None and self._expected is not None else None

    def _deadline_from(self, opened: float) -> float:
        return inf if self._options.gap_timeout is None else opened + self._options.gap_timeout

    def _gap_falls_due(self, gap: Gap, now: float, effects: list[Effect[M]]) -> None:
        on_gap = self._options.on_gap
        if on_gap is OnGap.HOLD:
            effects.append(GapReported(self.key, self._current_epoch(), self.missing()))
            for open_gap in self._open_gaps():
                open_gap.deadline, open_gap.reported = inf, True
            self._enter(Event.REPORT)
        elif on_gap is OnGap.REQUEST and gap.requests < self._options.max_requests:
            effects.append(ResendRequested(self.key, self._current_epoch(), self.missing()))
            for open_gap in self._open_gaps():
                # From now and not from the deadline: a late request must still leave the source time to answer.
                open_gap.deadline, open_gap.requests = self._deadline_from(now), open_gap.requests + 1
        else:
            self._give_up_head(gap.deadline, "gap timeout", effects)
            self._enter(Event.GIVE_UP)

    def _give_up_head(self, time: float, detail: str, effects: list[Effect[M]], strand: bool | None = None) -> None:
        assert self._backlog is not None
        gap = self._backlog.first_gap()
        assert gap is not None
        self._backlog.drop_first_gap()
        self._remember_given_up(gap)
        effects.append(self._entry(Reason.LOST, gap.first, gap.last, time, detail))
        self._expected = gap.last + self._options.space.increment
        if strand is None:
            strand = self._options.on_gap is OnGap.DEAD_LETTER
        self._release_run(effects, strand, time)

    def _remember_given_up(self, gap: Gap) -> None:
        """Remember the numbers, to tell late messages from duplicates; forget the oldest range when there are too many.

        The integers between two numbers of a stepped space are kept too, so that neighbouring ranges merge.
        """
        if self._given_up is None:
            self._given_up = RangeSet()
        self._given_up.add(gap.first, gap.last + self._options.space.increment - 1)
        self._bound_memory(self._given_up)

    def _bound_memory(self, given_up: RangeSet) -> None:
        while len(given_up) > self._options.remember:
            self._horizon = given_up.pop_first()[1] + 1

    # -- behind the expected number -------------------------------------------------------------------------------------

    def _behind(self, position: int, item: Held[M]) -> list[Effect[M]]:
        given_up = self._given_up is not None and position in self._given_up
        epoch, sequence = self._current_epoch(), self._options.space.wrap(position)
        if given_up or position < self._horizon:
            detail = "its gap was given up" if given_up else "before the start, or older than what is remembered"
            effects = self._late(sequence, epoch, item, detail)
        else:
            self._now = item.arrival
            effects = [self._entry(Reason.DUPLICATE, position, position, item.arrival, "released before", item.message)]
        if given_up and self._given_up is not None:
            self._given_up.discard(position, position + self._options.space.increment - 1)
            self._bound_memory(self._given_up)
        return effects + self._watch_sync(position, item.arrival)

    def _late(self, sequence: int, epoch: int, item: Held[M], detail: str) -> list[Effect[M]]:
        if self._options.on_late is OnLate.RAISE:
            raise self._late_error(sequence, detail)
        self._now = item.arrival
        effects: list[Effect[M]] = []
        if self._options.on_late is OnLate.SIDE_OUTPUT:
            effects.append(Late(self.key, epoch, sequence, item.message))
        entry = LedgerEntry(self.key, epoch, Reason.LATE, sequence, sequence, 1, item.arrival, detail, item.message)
        return [*effects, entry]

    def _late_error(self, sequence: int, detail: str) -> LateMessage:
        return LateMessage(
            f"message {sequence} of key {self.key!r} came too late: {detail}; drop it, or choose another late policy"
        )

    def _watch_sync(self, position: int, now: float) -> list[Effect[M]]:
        if self._options.resync_limit is None:
            return []
        if self._sync is None:
            self._sync = self._new_sync_watch()
        if not self._sync.behind(position):
            return []
        detail = f"{self._options.resync_limit} messages in a row behind what is expected"
        lost = SyncLost(self.key, self._current_epoch(), self._options.space.wrap(position))
        return [self._entry(Reason.SYNC_LOST, position, position, now, detail), lost]

    def _new_sync_watch(self) -> SyncWatch:
        assert self._options.resync_limit is not None
        return SyncWatch(self._options.space, self._options.resync_limit)

    # -- helpers --------------------------------------------------------------------------------------------------------

    def _current_epoch(self) -> int:
        assert self._epoch is not None
        return self._epoch

    def _discard_held(self, now: float, detail: str) -> list[Effect[M]]:
        if self._backlog is None:
            return []
        held = sorted(self._backlog.held.items())
        return [self._entry(Reason.DISCARDED, at, at, now, detail, item.message) for at, item in held]

    def _entry(
        self, reason: Reason, first: int, last: int, time: float, detail: str, message: M | None = None
    ) -> LedgerEntry[M]:
        space = self._options.space
        size = (last - first) // space.increment + 1
        return LedgerEntry(
            self.key, self._current_epoch(), reason, space.wrap(first), space.wrap(last), size, time, detail, message
        )
