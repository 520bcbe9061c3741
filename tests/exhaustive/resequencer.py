"""Small worlds of the resequencer: numbers a few steps around the expected one, every command, and histories of any length.

A world is closed: numbers may count up for ever, sessions may follow each other for ever, but a message is never further from
the expected number (or, before the start is known, from the lowest one) than the world's reach.

Theory of operation
-------------------
Each transition is held against ``NaiveResequencer``, which is made anew from the machine's own state before the command, does
the same command, and must then be what the machine's new state says. Fingerprints contain numbers relative to the expected one,
times relative to now, and of what was given up only as much as a message within reach can meet. Payloads do not make states
differ, since no decision depends on them; their digests do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, NamedTuple

from seriatim.core.ranges import RangeSet
from seriatim.core.resequencing.options import (
    Effect,
    LedgerEntry,
    OnDuplicate,
    OnEpoch,
    OnGap,
    OnLate,
    OnOverflow,
    Reason,
    Released,
    ResequenceOptions,
    Start,
    StartRule,
)
from seriatim.core.resequencing.resequencer import TABLE, Event, Resequencer, State
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import CapacityExceeded, IllegalTransition, LateMessage
from tests.core.resequencing.naive_resequencer import NaiveResequencer, _Missing
from tests.exhaustive.explorer import Row, Scope, World

FIRST = 100
"""The number around which a session starts."""


class Command(NamedTuple):
    """A verb; for ``push``, how many steps from the expected number, in which epoch as seen from this one, and so on."""

    verb: str
    steps: int = 0
    epoch: int = 0
    room: bool = True
    seconds: int = 0
    digest: int = 0

    def __str__(self) -> str:
        if self.verb == "advance":
            return f"advance({self.seconds:+})"
        if self.verb != "push":
            return f"{self.verb}()"
        more = [f"epoch{self.epoch:+}"] * bool(self.epoch) + ["no room"] * (not self.room)
        more += [f"{self.seconds} s later"] * bool(self.seconds) + ["another digest"] * bool(self.digest)
        return f"push({', '.join([f'{self.steps:+}', *more])})"


class WatchedResequencer(Resequencer[int]):
    """Notes every transition."""

    __slots__ = ()
    rows: ClassVar[set[Row]] = set()

    def _enter(self, event: Event) -> None:
        before = self._state
        super()._enter(event)
        self.rows.add((before.value, event.value, self._state.value))


@dataclass(slots=True)
class Situation:
    """The machine, and what its callers know: how many messages there were, and the latest epoch."""

    machine: Resequencer[int]
    sent: int = 0
    epoch: int = 0


class ResequencerWorld(World[Situation, Command]):
    def __init__(self, name: str, options: ResequenceOptions, *, behind: int = 2, ahead: int = 3) -> None:
        self.name = name
        self.options = options
        self.rows = set()
        self.step = options.space.increment
        self.ahead = ahead
        self.behind = behind
        if options.space.modulus is not None:  # all of the circle
            span = options.space.modulus // self.step
            self.ahead, self.behind = (span - 1) // 2, span // 2

    def start(self) -> Situation:
        WatchedResequencer.rows = self.rows
        machine = WatchedResequencer(self.options, "k")
        machine.advance(0)
        return Situation(machine)

    def copy(self, state: Situation) -> Situation:
        return Situation(copy_of(state.machine), state.sent, state.epoch)

    # -- commands -------------------------------------------------------------------------------------------------------

    def commands(self, state: Situation) -> Iterator[Command]:
        yield from (Command(verb) for verb in ("skip", "flush", "clear", "make_room", "pass_run", "restart"))
        yield from (Command("advance", seconds=seconds) for seconds in (-1, 1))
        yield from (Command("push", steps) for steps in self._reach(state.machine))
        yield from (Command("push", steps, room=False) for steps in (0, 1, 2))
        yield from (Command("push", steps, seconds=1) for steps in (0, 1))
        yield from (Command("push", steps, epoch=1) for steps in (-1, 0, 1))
        yield from (Command("push", steps, epoch=1, room=False) for steps in (0, 1))
        yield Command("push", epoch=-1)
        if self.options.on_duplicate is OnDuplicate.CONFLICT:
            yield from (Command("push", steps, digest=1) for steps in (1, 2))

    def _reach(self, machine: Resequencer[int]) -> range:
        """How far from the expected number a message may be; what is gathered must not spread further than that."""
        if machine.state is not State.GATHERING or self.options.space.modulus is not None:
            return range(-self.behind, self.ahead + 1)
        assert machine._backlog is not None
        spread = (machine._backlog.end - machine._horizon) // self.step - 1
        return range(spread - self.ahead, self.ahead + 1)

    def apply(self, state: Situation, command: Command) -> bool:
        machine, model = state.machine, model_of(state.machine)
        before = [item.message for _, item in machine.held()]
        expected = machine._expected
        try:
            effects = self._act(state, model, command)
        except (IllegalTransition, LateMessage, CapacityExceeded):
            return False
        if effects is None:
            return False
        assert_same_model(model_of(state.machine), model)
        if command.verb == "push":
            before.append(state.sent)
        check_accounts(before, effects, [item.message for _, item in state.machine.held()])
        if command.epoch == 0 and command.verb != "clear" and expected is not None:
            check_order(effects, expected, state.machine._expected, self.options.space)
        return True

    def _act(self, state: Situation, model: NaiveResequencer[int], command: Command) -> Sequence[Effect[int]] | None:
        """Give the command to machine and model. None when it has to change nothing."""
        match command.verb:
            case "push":
                return self._push(state, model, command)
            case "pass_run":
                return self._pass_run(state, model)
            case "restart":
                state.machine = WatchedResequencer.restore(state.machine.save(), self.options, "k")
                return None
            case _:
                return self._operate(state.machine, model, command)

    def _operate(self, machine: Resequencer[int], model: NaiveResequencer[int], command: Command) -> list[Effect[int]]:
        now = machine._now + command.seconds
        legal = {"skip": bool(model.missing), "make_room": bool(model.held)}
        if command.verb == "make_room" and self.options.overflow is not OnOverflow.GIVE_UP:
            raise IllegalTransition("nobody calls make_room unless gaps are given up for it")
        if not legal.get(command.verb, True):
            assert_refused(IllegalTransition, lambda: getattr(machine, command.verb)(now + 9))
        effects: list[Effect[int]] = getattr(machine, command.verb)(now)
        assert_same_effects(effects, getattr(model, command.verb)(now))
        return effects

    def _push(self, state: Situation, model: NaiveResequencer[int], command: Command) -> list[Effect[int]]:
        machine, now = state.machine, state.machine._now + command.seconds
        epoch, message = state.epoch + command.epoch, state.sent + 1
        sequence = self._sequence(machine, command)

        def push() -> list[Effect[int]]:
            return machine.push(sequence, message, now, epoch=epoch, digest=command.digest, room=command.room)

        try:
            expected = model.push(sequence, message, now, epoch, command.digest, command.room)
        except (LateMessage, CapacityExceeded) as refusal:
            assert_refused(type(refusal), push)
        effects = push()
        assert_same_effects(effects, expected)
        state.sent, state.epoch = message, max(state.epoch, epoch)
        return effects

    def _sequence(self, machine: Resequencer[int], command: Command) -> int:
        """The number that is so many steps from what is expected, or from the first one of a session."""
        options = self.options
        origin = int(options.start.value) if options.start.rule is StartRule.LITERAL else FIRST
        if command.epoch == 0 and machine._expected is not None:
            origin = machine._expected
        elif command.epoch == 0 and machine.state is State.GATHERING:
            origin = machine._horizon
        return options.space.wrap(origin + command.steps * self.step)

    def _pass_run(self, state: Situation, model: NaiveResequencer[int]) -> list[Effect[int]] | None:
        """Two messages at once, which are released when they are just what is expected."""
        machine = state.machine
        first = FIRST if machine.expected is None else machine.expected
        if not machine.pass_run(first, 2, machine._now):
            assert model.held or model.expected is None
            return None
        assert model.expected is not None
        assert not machine.pass_run(first, 2, machine._now), "the same run passes once"
        for _ in range(2):
            model.push(self.options.space.wrap(model.expected), 0, machine._now, model._epoch(), None, True)
        return []

    # -- what holds, and when two states are one ------------------------------------------------------------------------

    def check(self, state: Situation) -> None:
        check_structure(state.machine, self.options)

    def fingerprint(self, state: Situation) -> object:
        machine, backlog = state.machine, state.machine._backlog
        now = machine._now
        gathering = machine._start_deadline is not None
        origin = machine._horizon if gathering else machine._expected or 0
        with_digests = self.options.on_duplicate is OnDuplicate.CONFLICT
        # Once messages are gathered no longer, when they came makes no difference any more.
        oldest = (self.options.gap_timeout or 0) if gathering else 0
        return (
            machine._state.value,
            machine._epoch is None,
            max(0.0, machine._start_deadline - now) if machine._start_deadline is not None else -1.0,
            tuple(
                (at - origin, float(min(oldest, now - item.arrival)), with_digests and item.digest)
                for at, item in sorted(backlog.held.items() if backlog else ())
            ),
            backlog.end - origin if backlog else 0,
            tuple(
                (gap.first - origin, gap.last - origin, max(0.0, gap.deadline - now), gap.requests, gap.reported)
                for gap in machine._open_gaps()
            ),
            self._memory(machine, origin),
        )

    def _memory(self, machine: Resequencer[int], origin: int) -> tuple[Any, ...]:
        """What is known of numbers behind, as far as a message within reach can meet it."""
        lowest = -(self.behind + 1) * self.step
        ranges = [(max(first - origin, lowest), max(last - origin, lowest)) for first, last in machine._given_up or ()]
        sync = machine._sync
        run = (sync.run, sync.last - origin) if sync and sync.last is not None and sync.last - origin >= lowest else ()
        horizon = 0 if machine._start_deadline is not None else max(machine._horizon - origin, lowest)
        return tuple(ranges), run, horizon


def copy_of(machine: Resequencer[int]) -> Resequencer[int]:
    """What ``deepcopy`` would make, much faster."""
    new: Resequencer[int] = object.__new__(type(machine))
    for name in Resequencer.__slots__:
        setattr(new, name, getattr(machine, name))
    if machine._backlog is not None:
        backlog = machine._backlog
        new._backlog = copied = object.__new__(type(backlog))
        copied.held, copied.head, copied.end = dict(backlog.held), backlog.head, backlog.end
        copied.gaps = [type(gap)(gap.first, gap.last, gap.deadline, gap.requests, gap.reported) for gap in backlog.gaps]
    if machine._given_up is not None:
        new._given_up = given_up = RangeSet()
        given_up._starts, given_up._ends = list(machine._given_up._starts), list(machine._given_up._ends)
    if machine._sync is not None:
        sync = machine._sync
        new._sync = type(sync)(sync.space, sync.limit, sync.run, sync.last)
    return new


# -- the machine's state as the model knows it --------------------------------------------------------------------------


def model_of(machine: Resequencer[int]) -> NaiveResequencer[int]:
    """The model in the state that the machine is in."""
    options, step = machine._options, machine._options.space.increment
    model: NaiveResequencer[int] = NaiveResequencer(options, machine.key)
    model.now, model.epoch = machine._now, machine._epoch
    model.expected, model.start_deadline = machine._expected, machine._start_deadline
    model.oldest_known = machine._horizon
    if machine._backlog is not None:
        model.held = {at: (item.message, item.arrival, item.digest) for at, item in machine._backlog.held.items()}
    for gap in machine._open_gaps():
        for number in range(gap.first, gap.last + 1, step):
            model.missing[number] = _Missing(gap.deadline, gap.requests, gap.reported)
    for first, last in machine._given_up or ():
        model.given_up.update(range(first, last + 1, step))
    if machine._sync is not None and machine._sync.last is not None:
        model.behind = [machine._sync.last - step * back for back in reversed(range(machine._sync.run))]
    return model


def assert_same_model(machine: NaiveResequencer[int], model: NaiveResequencer[int]) -> None:
    seen, expected = _summary(machine), _summary(model)
    assert seen == expected, f"the machine has\n  {seen}\nand the model\n  {expected}"


def _summary(model: NaiveResequencer[int]) -> tuple[object, ...]:
    missing = {number: (each.deadline, each.requests, each.reported) for number, each in model.missing.items()}
    known = () if model.expected is None else (model.oldest_known, _run(model))
    return (
        (model.now, model.epoch, model.expected, model.start_deadline),
        dict(sorted(model.held.items())),
        dict(sorted(missing.items())),
        model.given_up,
        known,
    )


def _run(model: NaiveResequencer[int]) -> list[int]:
    """The messages behind that continue each other, up to the last one."""
    run: list[int] = []
    for number in reversed(model.behind):
        if run and number + model.options.space.increment != run[-1]:
            break
        run.append(number)
    return run


def assert_same_effects(effects: Sequence[Effect[int]], expected: Sequence[Effect[int]]) -> None:
    assert effects == expected, f"the machine said\n  {effects}\nand the model\n  {expected}"


def assert_refused(refusal: type[Exception], command: Any) -> None:
    """The machine must refuse this; raises what it refuses with."""
    try:
        command()
    except refusal:
        raise
    raise AssertionError(f"not refused with {refusal.__name__}")


# -- what holds ---------------------------------------------------------------------------------------------------------


def check_accounts(before: list[int], effects: Sequence[Effect[int]], held: list[int]) -> None:
    """Every message that was held, or came, is held still, was released, or is in the ledger: once."""
    left = [effect.message for effect in effects if isinstance(effect, Released)]
    left += [effect.message for effect in effects if isinstance(effect, LedgerEntry) and effect.message is not None]
    assert sorted(before) == sorted(left + held), f"of {before}, {left} left and {held} are held"


def check_order(effects: Sequence[Effect[int]], first: int, end: int | None, space: SequenceSpace) -> None:
    """Numbers are released in order, each at most once, and those that are passed over are in the ledger."""
    position = first
    for effect in effects:
        if not isinstance(effect, Released | LedgerEntry):
            continue
        if isinstance(effect, LedgerEntry) and effect.reason not in (Reason.LOST, Reason.DEAD_LETTER):
            continue
        number, size = (effect.first, effect.size) if isinstance(effect, LedgerEntry) else (effect.sequence, 1)
        assert space.wrap(position) == number, f"{number} came when {space.wrap(position)} was expected"
        position += size * space.increment
    assert end is None or not effects or position in (end, first)


def check_structure(machine: Resequencer[int], options: ResequenceOptions) -> None:
    """Each number from the expected one to the end is held or missing, in rising gaps with rising deadlines."""
    assert machine.held_count <= options.held_limit
    assert machine.state is machine._derived_state()
    assert machine.deadline == model_of(machine).deadline()
    backlog = machine._backlog
    if backlog is None:
        assert machine.state in (State.NEW, State.FLOWING)
        return
    assert backlog.held, "an empty backlog is kept"
    gaps = machine._open_gaps()
    if machine.state is State.GATHERING:
        assert machine._horizon == min(backlog.held)
        assert not gaps
        return
    assert machine._expected is not None
    missing = [number for gap in gaps for number in range(gap.first, gap.last + 1, options.space.increment)]
    assert gaps[0].first == machine._expected
    assert sorted([*backlog.held, *missing]) == list(range(machine._expected, backlog.end, options.space.increment))
    assert all(gap.first <= gap.last for gap in gaps)
    assert missing == sorted(missing)
    deadlines = [gap.deadline for gap in gaps if not gap.reported]
    assert deadlines == sorted(deadlines)
    assert all(gap.deadline == inf for gap in gaps if gap.reported)


def worlds(ahead: int, span: int) -> list[ResequencerWorld]:
    circle = SequenceSpace(span)
    options = {
        "first seen, skip": ResequenceOptions(gap_timeout=2, remember=2),
        "at a number, request, discard epochs": ResequenceOptions(
            start=Start.at(FIRST),
            gap_timeout=2,
            on_gap=OnGap.REQUEST,
            max_requests=1,
            on_epoch=OnEpoch.DISCARD,
            remember=2,
        ),
        "lowest within 1, capacity 2": ResequenceOptions(
            start=Start.lowest_within(1), gap_timeout=1, capacity=2, remember=2
        ),
        "lowest within 1, drop what finds no room": ResequenceOptions(
            start=Start.lowest_within(1),
            gap_timeout=1,
            capacity=2,
            on_overflow=OnOverflow.DROP,
            on_epoch=OnEpoch.DISCARD,
            remember=2,
        ),
        "hold, refuse what finds no room": ResequenceOptions(
            gap_timeout=1, on_gap=OnGap.HOLD, capacity=2, on_late=OnLate.RAISE, on_epoch=OnEpoch.DISCARD, remember=2
        ),
        "hold, drop what finds no room": ResequenceOptions(
            start=Start.at(FIRST), gap_timeout=1, on_gap=OnGap.HOLD, on_overflow=OnOverflow.DROP, capacity=2, remember=2
        ),
        "dead-letter, last duplicate wins": ResequenceOptions(
            gap_timeout=1,
            on_gap=OnGap.DEAD_LETTER,
            on_late=OnLate.SIDE_OUTPUT,
            on_duplicate=OnDuplicate.LAST,
            remember=1,
        ),
        "conflicts, timeout 0": ResequenceOptions(gap_timeout=0, on_duplicate=OnDuplicate.CONFLICT, remember=2),
        "no timeout, steps of 3": ResequenceOptions(space=SequenceSpace(increment=3), capacity=1, remember=1),
        f"circle of {span}": ResequenceOptions(space=circle, gap_timeout=1, resync_after=2, remember=2),
        f"circle of {span}, lowest within 1, hold": ResequenceOptions(
            space=circle,
            start=Start.lowest_within(1),
            gap_timeout=1,
            on_gap=OnGap.HOLD,
            on_overflow=OnOverflow.DROP,
            remember=2,
        ),
        f"circle of {span}, at a number, refuse late ones": ResequenceOptions(
            space=circle, start=Start.at(3), gap_timeout=1, on_late=OnLate.RAISE, capacity=2, remember=2
        ),
    }
    return [ResequencerWorld(name, each, ahead=ahead) for name, each in options.items()]


SCOPE = Scope("resequencer", TABLE, small=worlds(ahead=3, span=6), large=worlds(ahead=5, span=8))
