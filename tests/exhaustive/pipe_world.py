"""A small world around the two ends of a pipe.

The network is the set of all frames that were ever sent. Any of them may arrive at any time, in any order, once, often or
never: that is every loss, every repeat and every disorder there can be, however many frames are under way. Each end has a
clock of its own, which jumps to that end's next deadline: a frame may take any time, so either end's patience may be over
before it arrives. Timeouts don't follow the round trip here (the shortest is the longest), so frames go without stamps.

A pipe knows no keys. Its messages are in one order, and so are those of each key among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from seriatim.core.guarantees import Guarantee, Stage
from seriatim.core.pipes import receiver as pipe_receiver
from seriatim.core.pipes import sender as pipe_sender
from seriatim.core.pipes.handover_order import InAnyOrder, InOrder, Intake
from seriatim.core.pipes.protocol import (
    FRAMES,
    Confirm,
    Data,
    DeliveredRun,
    Finished,
    Frame,
    Hello,
    PipeEffect,
    PipeOptions,
    across_crashes,
    pipe_stage,
)
from seriatim.core.pipes.receiver import MAX_RANGES, PipeReceiver, ReceiverEvent
from seriatim.core.pipes.sender import PipeSender, SenderEvent
from seriatim.core.resequencing.options import LedgerEntry, OnGap
from seriatim.core.transition_table import TransitionTable
from seriatim.errors import CapacityExceeded
from tests.exhaustive.clones import clone
from tests.exhaustive.explorer import Row, World

FIRST_INDEX = 1
"""Of a sender that remembers."""

MOST_TURNS = 100
"""So many turns over a network that loses nothing are enough for everything to come."""


SHORT_WHILE = 0.5
"""Half of the shortest timeout."""


class Command(tuple[Any, ...]):
    """A verb and its arguments."""

    __slots__ = ()

    def __str__(self) -> str:
        return " ".join(map(str, self))


class WatchedSender(PipeSender):
    """A sender that writes down its transitions."""

    __slots__ = ()
    rows: ClassVar[set[Row]] = set()

    def _enter(self, event: SenderEvent) -> None:
        before = self._state
        super()._enter(event)
        self.rows.add(_row(pipe_sender.TABLE, before, event, self._state))


class WatchedReceiver(PipeReceiver):
    """A receiver that writes down its transitions."""

    __slots__ = ()
    rows: ClassVar[set[Row]] = set()

    def _enter(self, event: ReceiverEvent) -> None:
        before = self._state
        super()._enter(event)
        self.rows.add(_row(pipe_receiver.TABLE, before, event, self._state))


def _row(table: TransitionTable[Any, Any], before: StrEnum, event: StrEnum, after: StrEnum) -> Row:
    return f"{table.name} {before}", str(event), f"{table.name} {after}"


def both_tables() -> TransitionTable[Any, Any]:
    """The tables of sender and receiver as one, with the names of the machines before those of the states."""
    rows: dict[Any, dict[Any, frozenset[Any]]] = {}
    for table in (pipe_sender.TABLE, pipe_receiver.TABLE):
        for transition in table:
            before, event, after = _row(table, *transition)
            row = rows.setdefault(before, {})
            row[event] = row.get(event, frozenset()) | {after}
    return TransitionTable("pipe", next(iter(rows)), rows)


@dataclass(frozen=True)
class PipeScope:
    """The pipe, what its ends remember, and how much happens to it. ``ready`` messages are pushed before it begins."""

    name: str
    options: PipeOptions
    durable_sender: bool = True
    durable_receiver: bool = True
    messages: int = 3
    ready: int = 0
    sender_crashes: int = 0
    receiver_crashes: int = 0
    max_ranges: int = MAX_RANGES
    max_bytes: int = 60_000
    loses_frames: bool = True
    prompt_output: bool = False
    """Whether the output takes at once what is handed over."""
    is_idle_at_times: bool = False
    """Whether the receiver's clock may move by ``SHORT_WHILE`` although nothing is due."""

    def promised(self, crashed: bool) -> Guarantee:
        """What ``explain`` says of this pipe."""
        route = Guarantee.NONE if self.loses_frames else Guarantee.NO_LOSS
        stage = pipe_stage(self.options, Stage("network", route, reliability=0.5 if self.loses_frames else 1.0))
        if crashed:
            durable = {"durable_sender": self.durable_sender, "durable_receiver": self.durable_receiver}
            stage = across_crashes(stage, self.options, **durable)
        return stage.passes


class PipeState:
    """Both ends, every frame that was ever sent, and what the output has taken."""

    __slots__ = (
        "frames",
        "given_up",
        "highest",
        "outbox_floor",
        "position",
        "pushed",
        "receiver",
        "receiver_now",
        "scope",
        "sender",
        "sender_now",
        "taken",
        "waiting",
    )

    def __init__(self, scope: PipeScope) -> None:
        self.scope = scope
        self.sender_now = self.receiver_now = 0.0
        self.frames: frozenset[Frame] = frozenset()
        self.waiting: tuple[tuple[int, bytes], ...] = ()  # handed over, and not taken by the output yet
        self.pushed: tuple[int | None, ...] = ()  # the index of each message; None for one that was refused
        self.taken: frozenset[int] = frozenset()
        self.highest = -1  # of the messages that the output has taken
        self.given_up: frozenset[int] = frozenset()  # the indexes that a ledger names, or that died with their sender
        self.outbox_floor = FIRST_INDEX  # everything below is confirmed, and no crash forgets that
        self.position = FIRST_INDEX if scope.durable_receiver and scope.durable_sender else None
        self.sender = self._new_sender(1, FIRST_INDEX)
        self.receiver = self._new_receiver(1)
        for _ in range(scope.ready):
            self._push()

    def _new_sender(self, epoch: int, first: int) -> PipeSender:
        remembered = first if self.scope.durable_sender else None
        return WatchedSender(self.scope.options, epoch, first=remembered, max_bytes=self.scope.max_bytes)

    def _new_receiver(self, epoch: int) -> PipeReceiver:
        position = self.position if self.scope.durable_receiver else None
        return WatchedReceiver(self.scope.options, epoch, position=position, max_ranges=self.scope.max_ranges)

    # -- what can happen ----------------------------------------------------------------------------------------------

    def commands(self) -> Iterator[Command]:
        if self._is_reading_outbox or len(self.pushed) < self.scope.messages:
            yield Command(["push"])
        if self.sender.deadline is not None:
            yield Command(["sender advances"])
        if self.receiver.deadline is not None:
            yield Command(["receiver advances"])
            if self.scope.is_idle_at_times and self.receiver.deadline > self.receiver_now + SHORT_WHILE:
                yield Command(["receiver waits"])
        if self.waiting:
            yield Command(["output takes"])
        for frame in self.frames:
            yield Command(["arrives:", frame])
        yield from self._crashes()

    def _crashes(self) -> Iterator[Command]:
        if self.receiver.epoch <= self.scope.receiver_crashes:
            yield Command(["receiver crashes"])
            yield Command(["receiver leaves"])
        if self.sender.epoch <= self.scope.sender_crashes:
            for first in self._restarts():
                yield Command(["sender crashes, and begins at", first])

    def _restarts(self) -> range:
        """Where an outbox may begin after a crash, which forgets confirmations that were not written yet."""
        floor = self.sender.next_index - self.sender.kept
        return range(self.outbox_floor if self.scope.durable_sender else floor, floor + 1)

    def apply(self, command: Command) -> bool:
        """False when the sender refused a message."""
        peer, heard = self.sender.peer or 0, self.receiver.sender or 0
        verb, *arguments = command
        accepted = True
        match verb:
            case "push":
                accepted = self._push()
            case "sender advances":
                self._advance_sender()
            case "receiver advances":
                self._advance_receiver()
            case "receiver waits":
                self.receiver_now += SHORT_WHILE
            case "output takes":
                self._take()
            case "arrives:":
                self._arrive(*arguments)
            case "receiver crashes":
                self._crash_receiver()
                return True
            case "receiver leaves":
                self._of_receiver(self.receiver.farewell(self.receiver_now), set())
                self._crash_receiver()
                return True
            case _:
                self._crash_sender(*arguments)
                return True
        assert (self.sender.peer or 0) >= peer, "the sender went back to a former life of its receiver"
        assert (self.receiver.sender or 0) >= heard, "the receiver went back to a former life of its sender"
        return accepted

    @property
    def _is_reading_outbox(self) -> bool:
        """Whether a sender that was restarted has not read all of its outbox yet. It does so one by one."""
        return self.scope.durable_sender and self.sender.next_index in self.pushed

    def _push(self) -> bool:
        """The next message of the outbox, or a new one."""
        index, is_known = self.sender.next_index, self._is_reading_outbox
        number = self.pushed.index(index) if is_known else len(self.pushed)
        try:
            self._of_sender(self.sender.push(b"%d" % number, self.sender_now))
        except CapacityExceeded:
            return False
        if not is_known:
            self.pushed += (index if self.sender.next_index > index else None,)
        return True

    def _advance_sender(self) -> None:
        assert self.sender.deadline is not None
        self.sender_now = max(self.sender_now, self.sender.deadline)
        self._of_sender(self.sender.advance(self.sender_now))

    def _advance_receiver(self) -> None:
        assert self.receiver.deadline is not None
        self.receiver_now = max(self.receiver_now, self.receiver.deadline)
        held = _held(self.receiver)
        self._of_receiver(self.receiver.advance(self.receiver_now), held)

    def _take(self) -> None:
        """The output takes a message, with its position if it is durable."""
        (index, message), *rest = self.waiting
        self.waiting = tuple(rest)
        self._judge(int(message))
        self.position = max(self.position or 0, index + 1)
        self.receiver.settle(index, index + 1)

    def _arrive(self, frame: Frame) -> None:
        before = self._ends() if self._is_of_a_former_life(frame) else None
        if isinstance(frame, Hello | Data):
            held = _held(self.receiver)
            effects = self.receiver.receive(frame, self.receiver_now)
            self._of_receiver(effects, held)
        else:
            effects = self.sender.receive(frame, self.sender_now)
            self._of_sender(effects)
        if before is not None:
            assert not effects, f"a frame of a former life led to {effects}"
            assert self._ends() == before, "a frame of a former life changed something"

    def _is_of_a_former_life(self, frame: Frame) -> bool:
        """Data for a former life of the receiver is not among these: it is answered with the life that it has."""
        if isinstance(frame, Hello | Data):
            return frame.sender < (self.receiver.sender or 0)
        return frame.sender < self.sender.epoch or frame.receiver < (self.sender.peer or 0)

    def _ends(self) -> object:
        return _of_the_sender(self.sender, self.sender_now), _of_the_receiver(self.receiver, self.receiver_now)

    def _crash_receiver(self) -> None:
        self.waiting = ()
        self.receiver = self._new_receiver(self.receiver.epoch + 1)

    def _crash_sender(self, first: int) -> None:
        if self.scope.durable_sender:
            self.outbox_floor = first
        else:
            self.given_up |= set(range(first, self.sender.next_index))
        self.sender = self._new_sender(self.sender.epoch + 1, first)

    # -- what comes of it ---------------------------------------------------------------------------------------------

    def _of_sender(self, effects: list[PipeEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Finished):
                early = self._not_taken(effect.first, effect.end)
                assert not early, f"the sender let go of {early}, which the output has not taken"
            else:
                self._of_either(effect)

    def _of_receiver(self, effects: list[PipeEffect], held: set[int]) -> None:
        """``held``: the indexes that waited behind a gap before."""
        handed_over = {
            index for effect in effects if isinstance(effect, DeliveredRun) for index in range(effect.first, effect.end)
        }
        forgotten = held - _held(self.receiver) - handed_over
        assert not forgotten, f"{forgotten} had come, and were not handed over"
        for effect in effects:
            if isinstance(effect, DeliveredRun):
                self.waiting += tuple(enumerate(effect.messages, effect.first))
            else:
                self._of_either(effect)
        while self.waiting and self.scope.prompt_output:
            self._take()

    def _of_either(self, effect: PipeEffect) -> None:
        if isinstance(effect, LedgerEntry):
            self.given_up |= set(range(effect.first, effect.last + 1))
            return
        assert isinstance(effect, FRAMES), f"nobody knows what to do with {effect}"
        if isinstance(effect, Confirm):
            early = self._not_taken(0, effect.expected)
            assert not early, f"the receiver confirmed {early}, which the output has not taken"
        self.frames |= {_without_stamps(effect)}

    def _not_taken(self, first: int, end: int) -> list[int]:
        """The messages with indexes in this range that neither the output nor a ledger knows of."""
        numbers = [number for number, index in enumerate(self.pushed) if index is not None and first <= index < end]
        return [number for number in numbers if number not in self.taken and self.pushed[number] not in self.given_up]

    def _judge(self, number: int) -> None:
        promised = self.promised
        if promised & Guarantee.NO_DUPLICATE:
            assert number not in self.taken, f"message {number} came out twice"
        if promised & Guarantee.NO_INVERSION:
            assert number >= self.highest, f"message {number} came out after {self.highest}"
        self.taken |= {number}
        self.highest = max(self.highest, number)

    @property
    def promised(self) -> Guarantee:
        return self.scope.promised(self.sender.epoch > 1 or self.receiver.epoch > 1)

    # -- what must hold everywhere ------------------------------------------------------------------------------------

    def check(self) -> None:
        options, sender = self.scope.options, self.sender
        window = min(options.window, options.capacity)
        assert 0 <= sender.under_way <= window, "more is under way than the window and the receiver's room allow"
        assert sender.under_way <= sender.kept <= options.queue, "the sender keeps more than its queue holds"
        waits = len(_held(self.receiver)) + len(self.waiting)
        assert waits <= options.capacity, (
            f"{waits} messages wait in the receiver, which has room for {options.capacity}"
        )
        used = [index for index in self.pushed if index is not None]
        assert len(set(used)) == len(used), "an index was used for two messages"
        for index, message in self.waiting:
            assert self.pushed[int(message)] == index, f"index {index} was handed over with another message"

    def check_the_end(self) -> None:
        """When nothing gets lost from here on, everything that is promised comes, and what is lost is in a ledger."""
        end = clone(self)
        promised = end.promised
        if self.scope.loses_frames:
            end.frames = frozenset()
        for _ in range(MOST_TURNS):
            if end.is_quiet:
                break
            end.turn()
        if not end.is_quiet:
            waits_for_ever = self.scope.options.gap_policy is OnGap.HOLD and not promised & Guarantee.NO_LOSS
            assert waits_for_ever, "the sender never hears that everything was taken"
            return
        lost = [number for number, index in enumerate(end.pushed) if index is not None and number not in end.taken]
        if promised & Guarantee.NO_LOSS:
            assert not lost, f"{lost} never come out"
        unsaid = [number for number in lost if end.pushed[number] not in end.given_up]
        assert not unsaid, f"{unsaid} are lost, and no ledger says so"

    @property
    def is_quiet(self) -> bool:
        is_done = not (self.sender.kept or self.waiting or self._is_reading_outbox)
        return is_done and self.sender.peer is not None

    def turn(self) -> None:
        """Everything that is under way arrives, and what waits in the outbox is read; then both ends have their turn."""
        frames, self.frames = self.frames, frozenset()
        for frame in sorted(frames, key=str):
            self._arrive(frame)
        while self.waiting:
            self._take()
        while self._is_reading_outbox and self._push():
            pass
        if self.receiver.deadline is not None:
            self._advance_receiver()
        if self.sender.deadline is not None:
            self._advance_sender()

    # -- comparison ---------------------------------------------------------------------------------------------------

    def without_network(self) -> tuple[object, ...]:
        return (
            _of_the_sender(self.sender, self.sender_now),
            _of_the_receiver(self.receiver, self.receiver_now),
            self.waiting,
            self.pushed,
            tuple(sorted(self.taken)),
            tuple(sorted(self.given_up)),
            self.outbox_floor,
            self.position,
        )


class PipeWorld(World[PipeState, Command]):
    """Both ends of a pipe, and a network that does whatever it likes."""

    def __init__(self, scope: PipeScope) -> None:
        self.scope, self.name = scope, f"pipe, {scope.name}"
        self.rows: set[Row] = set()
        self._numbers: dict[Frame, int] = {}
        self._ends: set[object] = set()

    def start(self) -> PipeState:
        WatchedSender.rows = WatchedReceiver.rows = self.rows
        return PipeState(self.scope)

    def commands(self, state: PipeState) -> Iterator[Command]:
        return state.commands()

    def apply(self, state: PipeState, command: Command) -> bool:
        return state.apply(command)

    def copy(self, state: PipeState) -> PipeState:
        return clone(state)

    def check(self, state: PipeState) -> None:
        state.check()
        known = self.fingerprint(state) if not self.scope.loses_frames else state.without_network()
        if known not in self._ends:
            self._ends.add(known)
            state.check_the_end()

    def fingerprint(self, state: PipeState) -> object:
        frames = sum(1 << self._numbers.setdefault(frame, len(self._numbers)) for frame in state.frames)
        return (frames, *state.without_network())


def _without_stamps(frame: Frame) -> Frame:
    stamps: dict[str, Any] = {name: 0 for name in ("stamp", "echo") if name in frame._fields}
    return frame._replace(**stamps)


def _held(receiver: PipeReceiver) -> set[int]:
    intake = receiver._intake
    return {index for index, _ in intake._order.held()} if isinstance(intake, InOrder) else set()


def _of_the_sender(sender: PipeSender, now: float) -> tuple[object, ...]:
    """All but its round trip and how often it said hello, which make no difference to a timeout that never changes."""
    return (
        sender.epoch,
        sender._floor,
        sender._sent,
        sender._next,
        sender._seen,
        tuple(sender._messages[sender._floor - sender._base :]),
        sender._peer,
        sender._window,
        sender._deadline - now,
        sender._state.value,
    )


def _of_the_receiver(receiver: PipeReceiver, now: float) -> tuple[object, ...]:
    return (
        receiver.epoch,
        receiver._sender,
        _of_the_intake(receiver._intake, now),
        receiver._confirm_at - now,
        receiver._request_at - now,
        receiver._wanted,
        receiver._confirmed,
        receiver._state.value,
    )


def _of_the_intake(intake: Intake | None, now: float) -> object:
    if isinstance(intake, InAnyOrder):
        return tuple(intake._arrived), tuple(intake._settled)
    if not isinstance(intake, InOrder):
        return None
    saved = intake._order.save()
    return (
        intake._seen,
        tuple(intake._jumps),
        intake._repeat_waits,
        intake._start,
        intake._given_out,
        intake._taken,
        saved.expected,
        tuple(sorted((position, item.message) for position, item in saved.held)),
        tuple((first, last, deadline - now) for first, last, deadline, _, _ in saved.gaps),
        saved.given_up,
    )
