"""Small worlds of lanes: few keys, few messages at a time, every command, and histories of any length.

A world is closed: messages may be pushed for ever, as long as no more than ``messages`` of a key are known at a time (waiting,
out, about to change, or dead letters), so whatever follows from a state is seen, however long it takes to get there.

Theory of operation
-------------------
Each transition is held against ``NaiveLanes``. The model is made anew from the machine's own state before the command, does the
same command, and must then be what the machine's new state says (``model_of``). So the model needs no copy, and the machine is
compared in every reachable state with every command. What a machine no longer knows and a model still does (how far a key was
settled) is kept beside the machine, as a caller would.

Fingerprints contain queues and schedules by their content, offsets and tokens by rank, times relative to now. Keys are told
apart by what is in them, and consumers by what they hold, so states that differ in names alone are one. Errors are data that no
decision depends on; they are compared after every command, but do not make states differ.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import inf
from typing import Any, ClassVar, NamedTuple

from seriatim.core.deadlines import Deadlines, LeaseDeadlines
from seriatim.core.lanes.lane import TABLE, Lane, LaneEvent, LaneState, LooseLane
from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.offset_queue import OffsetQueue
from seriatim.core.lanes.tenants import TenantLanes, _Tenant
from seriatim.core.lanes.types import (
    Delivery,
    Keep,
    LaneEffect,
    Lease,
    OnExhausted,
    ReleaseAfter,
    RetryMode,
    RetryPolicy,
    Settled,
)
from seriatim.errors import FailedPrecondition, IllegalTransition, NotFound, RedriveRefused, StaleLease
from tests.core.lanes.crashes import crashed
from tests.core.lanes.naive_lanes import NaiveLanes, NaiveMessage
from tests.exhaustive.explorer import Row, Scope, World
from tests.exhaustive.lanes_invariants import Key, check_naively, check_structure, deadlines_of, leases_of
from tests.proof import counted

BATCH_VERBS = frozenset({"give_back_somewhere", "settle_all", "give_up", "hand_back", "extend"})
CRASHES = frozenset({"crash", "crash_before_leases"})  # which messages were in a batch is known to the store alone
CORE_VERBS = frozenset({"push", "take", "settle", "give_back", "advance", "confirm", "pause", "resume", "stale"})

CHANGES = {"settled": "settled", "dead-lettered": "dead", "removed": "removed", "redriven": "redriven"}
ERROR = "bad"


class Command(NamedTuple):
    """A verb, and what it is about: the message with this rank among those that are known of a key, or a consumer."""

    verb: str
    key: Key = None
    rank: int = -1
    argument: Hashable = None

    def __str__(self) -> str:
        about = [] if self.verb in WITHOUT_KEY else [f"{self.key}[{self.rank}]" if self.rank >= 0 else str(self.key)]
        about += [] if self.argument is None else [str(self.argument)]
        return f"{self.verb}({', '.join(about)})"


WITHOUT_KEY = frozenset({"take", "advance", "crash", "crash_before_leases", "stale"})


class Watched(Lanes):
    """Notes every transition. What most messages do is not decided by ``_refresh``, so it is watched as well."""

    rows: ClassVar[set[Row]] = set()

    def _note(self, before: LaneState, event: LaneEvent, after: LaneState) -> None:
        self.rows.add((before.value, event.value, after.value))

    def _refresh(self, lane: Lane, event: LaneEvent, now: float | None) -> None:
        before = lane.state
        super()._refresh(lane, event, now)
        self._note(before, event, lane.state)

    def take(
        self, now: float, lease_time: float, limit: int = 1, consumer: Hashable = None, batch: int = 1
    ) -> list[Lease]:
        leases: list[Lease] = []
        while limit > 0 and (taken := super().take(now, lease_time, min(batch, limit), consumer, batch)):
            leases += taken
            for lease in taken:
                limit -= len(lease.offsets)
                self._note(LaneState.READY, LaneEvent.TAKE, self._lanes[lease.key].state)
        return leases

    def settle_into(
        self, settled: list[int], token: int, through: int | None = None, now: float | None = None
    ) -> Hashable:
        lease = self.lease(token)
        lane = self._lanes[lease.key] if lease else None
        before = lane.state if lane else LaneState.EMPTY
        holder = super().settle_into(settled, token, through, now)
        assert lane is not None, "a token that is not held was accepted"
        self._note(before, LaneEvent.SETTLE, lane.state)
        return holder

    def confirm_all(self, offsets: Iterable[int], now: float | None = None) -> None:
        for offset in offsets:
            pending = self._unconfirmed.get(offset)
            before = pending[0].state if pending else LaneState.EMPTY
            super().confirm_all([offset], now)
            assert pending is not None, "a confirmation that nobody waited for was accepted"
            self._note(before, LaneEvent.CONFIRM, pending[0].state)


class WatchedTenantLanes(Watched, TenantLanes):
    """The same, with a limit for each tenant."""


@dataclass(slots=True)
class Situation:
    """The machine, and what its caller knows besides: the next offset, and the highest one settled of each key."""

    lanes: Lanes
    next_offset: int = 1
    settled: dict[str, int] = field(default_factory=dict)


class LanesWorld(World[Situation, Command]):
    def __init__(
        self,
        delivery: Delivery,
        *,
        keys: tuple[Key, ...] = ("a",),
        messages: int = 3,
        consumers: str = "x",
        verbs: frozenset[str] | None = None,
        lease_time: int = 1,
        symmetric: bool = True,
        batch: int = 1,
    ) -> None:
        self.delivery = delivery
        self.keys = keys
        self.messages = messages
        self.consumers = consumers
        self.verbs = verbs = ALL_VERBS if verbs is None else verbs
        self.lease_time = lease_time
        self.symmetric = symmetric
        self.batch = batch
        self.ties = len(keys) * delivery.window > 1 or None in keys
        self.crashes = not verbs.isdisjoint({"crash", "crash_before_leases"})
        self.failure_cap = delivery.retry.max_attempts or 3
        self.name = self._name()
        self.rows = set()

    def _name(self) -> str:
        retry, delivery = self.delivery.retry, self.delivery
        attempts = "any number of attempts" if retry.max_attempts is None else f"attempts {retry.max_attempts}"
        verbs = "all verbs" if self.verbs == ALL_VERBS else f"{len(self.verbs)} verbs"
        tenants = "" if delivery.tenant_limit is None else f"limit of a tenant {delivery.tenant_limit}, "
        keys = ", ".join("no key" if key is None else key for key in self.keys)
        batch = f" in batches of {self.batch}" if self.batch > 1 else ""
        return (
            f"{keys}: {self.messages} messages each{batch}, {counted(len(self.consumers), 'consumers')}, "
            f"window {delivery.window}, {delivery.release}, {retry.mode}, {retry.on_exhausted}, {attempts}, "
            f"keep {delivery.keep}, {tenants}{verbs}"
        )

    # -- the machine ----------------------------------------------------------------------------------------------------

    def start(self) -> Situation:
        Watched.rows = self.rows
        lanes = (Watched if self.delivery.tenant_limit is None else WatchedTenantLanes)(self.delivery)
        lanes.advance(0)
        return Situation(lanes)

    def copy(self, state: Situation) -> Situation:
        return Situation(copy_of(state.lanes), state.next_offset, dict(state.settled))

    def commands(self, state: Situation) -> Iterator[Command]:
        for verb, make in COMMANDS.items():
            if verb in self.verbs:
                yield from make(self, state, verb)

    def apply(self, state: Situation, command: Command) -> bool:
        step = Step(self, state)
        accepted: bool = getattr(step, command.verb)(command)
        if accepted:
            assert_same_model(model_of(state), step.model)
            if self.batch > 1:
                assert under_suspicion(model_of(state)) == under_suspicion(step.model)
            assert sorted(state.lanes.superseded) == sorted(step.model.superseded)
            state.lanes.superseded = []
        return accepted

    def check(self, state: Situation) -> None:
        check_structure(state.lanes, self.delivery)
        model = model_of(state)
        check_naively(self.copy(state).lanes, model)

    def fingerprint(self, state: Situation) -> object:
        return Fingerprint(self, state).value()


# -- copying a machine --------------------------------------------------------------------------------------------------


def copy_of(lanes: Lanes) -> Lanes:
    """What ``deepcopy`` would make, twenty times as fast."""
    new = object.__new__(type(lanes))
    known = vars(new)
    known.update(vars(lanes))
    copies = {lane: _copy_of_lane(lane) for lane in lanes._lanes.values()}
    for ghost in lanes._ring:
        if ghost not in copies:
            copies[ghost] = _copy_of_lane(ghost)
    known["_lanes"] = {key: copies[lane] for key, lane in lanes._lanes.items()}
    known["_ring"] = deque([copies[lane] for lane in lanes._ring])
    known["_blocked"] = {copies[lane]: None for lane in lanes._blocked}
    known["_held"] = {
        holder: OrderedDict((copies[lane], None) for lane in held) for holder, held in lanes._held.items()
    }
    known["_leased"] = leased = dict(lanes._leased)
    known["_given"] = dict(lanes._given)
    known["overtaken"] = list(lanes.overtaken)
    known["superseded"] = list(lanes.superseded)
    known["_unconfirmed"] = {at: (copies[lane], change) for at, (lane, change) in lanes._unconfirmed.items()}
    known["_dead"] = {key: list(dead) for key, dead in lanes._dead.items()}
    known["_troubles"] = {
        offset: type(trouble)(
            copies[trouble.lane],
            trouble.failures,
            trouble.not_before,
            trouble.error,
            trouble.steps_aside,
            trouble.spent,
            trouble.since,
        )
        for offset, trouble in lanes._troubles.items()
    }
    known["_expiry"] = _copy_of_expiry(lanes._expiry, leased)
    known["_delays"] = _copy_of_delays(lanes._delays)
    if isinstance(lanes, TenantLanes):
        tenants = {name: _copy_of_tenant(tenant, copies) for name, tenant in lanes._tenants.items()}
        known["_tenants"], known["_standing"] = tenants, deque([tenants[one.name] for one in lanes._standing])
    return new


def _copy_of_tenant(tenant: _Tenant, copies: dict[Lane, Lane]) -> _Tenant:
    new = _Tenant(tenant.name)
    new.ready, new.out, new.stands = deque([copies[lane] for lane in tenant.ready]), set(tenant.out), tenant.stands
    new.changed = tenant.changed
    return new


def _copy_of_lane(lane: Lane) -> Lane:
    new: Lane = object.__new__(type(lane))
    new.key, new.window, new.in_flight, new.pending = lane.key, lane.window, lane.in_flight, lane.pending
    new.last_settled, new.paused, new.holder = lane.last_settled, lane.paused, lane.holder
    new.in_ring, new.is_held, new.turn, new.state = lane.in_ring, lane.is_held, lane.turn, lane.state
    new.since, new.alone_until = lane.since, lane.alone_until
    new.waiting = queue = object.__new__(OffsetQueue)
    old = lane.waiting
    queue.front, queue._first = old.front, old._first
    queue._array = None if old._array is None else old._array[:]
    queue._removed = None if old._removed is None else set(old._removed)
    new.flight = lane.flight
    new.acked = None if lane.acked is None else dict(lane.acked)
    new.aside = None if lane.aside is None else set(lane.aside)
    if isinstance(lane, LooseLane):
        assert isinstance(new, LooseLane)
        new.holders = dict(lane.holders)
    return new


def _copy_of_expiry(expiry: LeaseDeadlines, live: dict[int, Lease]) -> LeaseDeadlines:
    new = object.__new__(LeaseDeadlines)
    new._live = live
    new._tokens, new._times = expiry._tokens.copy(), expiry._times.copy()
    new._moved, new._heap = dict(expiry._moved), list(expiry._heap)
    return new


def _copy_of_delays(delays: Deadlines[int]) -> Deadlines[int]:
    new: Deadlines[int] = object.__new__(Deadlines)
    new._queue, new._last, new._order = delays._queue.copy(), delays._last, delays._order
    new._moved, new._heap = dict(delays._moved), list(delays._heap)
    return new


# -- the machine's state as the model knows it --------------------------------------------------------------------------


def model_of(state: Situation) -> NaiveLanes:
    """The model in the state that the machine is in."""
    lanes = state.lanes
    model = NaiveLanes(lanes._delivery)
    model.now = lanes._now
    model.settled = dict(state.settled)
    ties = _expiry_order(lanes)
    for key, lane in lanes._lanes.items():
        if lane.paused:
            model.paused.add(key)
        model.messages += _queued_messages(lanes, lane)
        model.alone_until[key] = lane.alone_until
        for lease in leases_of(lanes, lane):
            for message in (_message(lanes, key, offset) for offset in lease.offsets):
                message.where = "out" if lease.token in lanes._leased else "acked"
                message.token, message.lease = lease.token, lease
                message.consumer = lane.holder_of(lease.token)
                message.deadline = ties.get(lease.token, inf)
                model.messages.append(message)
    redriven = {message.offset: message for message in model.messages}
    for offset, (lane, change) in lanes._unconfirmed.items():
        changing = redriven[offset] if change == "redriven" else _message(lanes, lane.key, offset)
        changing.overtaken = offset not in lanes._dead.get(lane.key, ())
        model.pending.append((CHANGES[change], changing))
    for key, dead in lanes._dead.items():
        model.dead += [NaiveMessage(key, offset) for offset in dead if offset not in lanes._unconfirmed]
    return model


def _queued_messages(lanes: Lanes, lane: Lane) -> Iterator[NaiveMessage]:
    for where, offsets in (("waiting", lane.waiting), ("aside", lane.aside or ())):
        for offset in offsets:
            message = _message(lanes, lane.key, offset)
            trouble = lanes._troubles.get(offset)
            message.where = "spent" if trouble is not None and trouble.spent else where
            yield message


def _message(lanes: Lanes, key: Key, offset: int) -> NaiveMessage:
    trouble = lanes._troubles.get(offset)
    if trouble is None:
        return NaiveMessage(key, offset)
    is_aside = trouble.steps_aside and trouble.not_before > lanes._now
    where = "aside" if is_aside else "waiting"
    return NaiveMessage(key, offset, where, trouble.failures, trouble.not_before, trouble.error)


def _expiry_order(lanes: Lanes) -> dict[int, float]:
    """Deadlines for the model. Which of two leases that fall due at once goes first is the machine's choice, so theirs differ
    by a little. Times are whole numbers, so a deadline that is less than 1 early comes at the same time."""
    order = sorted((when, moved, token) for token, (when, moved) in deadlines_of(lanes).items())
    return {token: when - 0.5 + place / 1000 for place, (when, _, token) in enumerate(order)}


def assert_same_model(machine: NaiveLanes, model: NaiveLanes) -> None:
    seen, expected = _summary(machine), _summary(model)
    assert seen == expected, f"the machine has\n  {seen}\nand the model\n  {expected}"


def under_suspicion(model: NaiveLanes) -> set[int]:
    """The messages that go one at a time, because they were in a batch that failed."""
    return {m.offset for m in model.messages if m.offset <= model.alone_until.get(m.key, -1)}


def _summary(model: NaiveLanes) -> tuple[object, ...]:
    messages = sorted(map(_shown(model), model.messages))
    pending = sorted((change, message.offset) for change, message in model.pending)
    dead = sorted(message.offset for message in model.dead)
    return messages, pending, dead, model.paused


def _shown(model: NaiveLanes) -> Callable[[NaiveMessage], tuple[Any, ...]]:
    def show(message: NaiveMessage) -> tuple[Any, ...]:
        out = message.where in ("out", "acked")
        has_holder = out and model.delivery.window > 1 and message.key is not None
        return (
            message.offset,
            str(message.key),
            message.where,
            message.failures,
            message.not_before if message.not_before > model.now else -inf,
            str(message.error),
            message.token if out else 0,
            message.consumer if has_holder else "",
            round(message.deadline + 0.499) if message.where == "out" else 0,
        )

    return show


# -- commands -----------------------------------------------------------------------------------------------------------


def known_offsets(lanes: Lanes, key: Key) -> list[int]:
    """Every message of a key that the machine knows anything about."""
    lane = lanes._lanes.get(key)
    known = set(lanes._dead.get(key, ()))
    if lane is not None:
        known.update(lane.waiting, lane.aside or (), lanes._out(lane))
        known.update(offset for offset, (changing, _) in lanes._unconfirmed.items() if changing is lane)
    return sorted(known)


def leased_offsets(lanes: Lanes, key: Key) -> dict[int, int]:
    """The tokens of what is in flight, by offset."""
    lane = lanes._lanes.get(key)
    leases = [] if lane is None else leases_of(lanes, lane)
    return {offset: lease.token for lease in leases for offset in lease.offsets}


def _for_each_key(world: LanesWorld, state: Situation, verb: str) -> Iterator[Command]:
    return (Command(verb, key) for key in world.keys)


def _while_there_is_room(world: LanesWorld, state: Situation, verb: str) -> Iterator[Command]:
    for key in world.keys:
        if len(known_offsets(state.lanes, key)) < world.messages:
            yield Command(verb, key)


def _for_each_message(world: LanesWorld, state: Situation, verb: str) -> Iterator[Command]:
    """Each that is known, and one that is not."""
    for key in world.keys:
        for rank in range(len(known_offsets(state.lanes, key)) + 1):
            yield Command(verb, key, rank)


def _for_each_lease(world: LanesWorld, state: Situation, verb: str) -> Iterator[Command]:
    for key in world.keys:
        known = known_offsets(state.lanes, key)
        for offset in leased_offsets(state.lanes, key):
            yield Command(verb, key, known.index(offset))


def _for_each_batch(world: LanesWorld, state: Situation, verb: str) -> Iterator[Command]:
    batches = {lease.offset for lease in state.lanes.leases() if lease.behind}
    for command in _for_each_lease(world, state, verb):
        if known_offsets(state.lanes, command.key)[command.rank] in batches:
            yield command


def _extensions(world: LanesWorld, state: Situation, verb: str) -> Iterator[Command]:
    for command in _for_each_lease(world, state, verb):
        yield command._replace(argument=0)
        yield command._replace(argument=world.lease_time + 1)


def _takes(world: LanesWorld, state: Situation, verb: str) -> Iterator[Command]:
    for consumer in world.consumers:
        yield Command(verb, argument=consumer)
    if len(world.keys) > 1:
        yield Command(verb, argument=world.consumers[0] * 2)


def _steps_of_time(world: LanesWorld, state: Situation, verb: str) -> Iterator[Command]:
    """A clock that went back lets no time pass."""
    yield Command(verb, argument=-1)
    yield Command(verb, argument=1)


def _once(world: LanesWorld, state: Situation, verb: str) -> Iterator[Command]:
    yield Command(verb)


COMMANDS: dict[str, Callable[[LanesWorld, Situation, str], Iterator[Command]]] = {
    "push": _while_there_is_room,
    "delayed_push": _while_there_is_room,
    "take": _takes,
    "settle": _for_each_lease,
    "give_back": _for_each_lease,
    "give_back_later": _for_each_lease,
    "give_back_somewhere": _for_each_batch,
    "settle_all": _for_each_batch,
    "give_up": _for_each_lease,
    "give_up_rest": _for_each_lease,
    "hand_back": _for_each_lease,
    "extend": _extensions,
    "advance": _steps_of_time,
    "confirm": _for_each_message,
    "pause": _for_each_key,
    "resume": _for_each_key,
    "dead_letter": _for_each_key,
    "dead_letter_rest": _for_each_key,
    "skip": _for_each_key,
    "retry": _for_each_key,
    "remove": _for_each_message,
    "redrive": _for_each_message,
    "forget_dead_letter": _for_each_message,
    "crash": _once,
    "crash_before_leases": _once,
    "stale": _once,
}


ALL_VERBS = frozenset(COMMANDS)


def refused(error: type[Exception], command: Callable[[], object]) -> bool:
    """The machine must refuse this. False, as ``World.apply`` says it."""
    try:
        command()
    except error:
        return False
    raise AssertionError(f"not refused with {error.__name__}")


class Step:
    """One command, given to machine and model. Each method returns whether the machine accepted it."""

    def __init__(self, world: LanesWorld, state: Situation) -> None:
        self.world = world
        self.state = state
        self.lanes = state.lanes
        self.model = model_of(state)
        self.now = self.lanes._now

    def offset(self, command: Command) -> int:
        """The offset that a command means; one that nobody knows when its rank is too high."""
        known = known_offsets(self.lanes, command.key)
        return known[command.rank] if command.rank < len(known) else self.state.next_offset

    def same(self, effects: Iterable[LaneEffect], expected: Iterable[LaneEffect]) -> bool:
        """The effects are those that the model has, and the caller remembers what is settled."""
        effects, expected = list(effects), list(expected)
        assert effects == expected, f"the machine said {effects}, and the model {expected}"
        for effect in effects:
            if isinstance(effect, Settled) and effect.key is not None:
                self.state.settled[effect.key] = max(effect.offset, self.state.settled.get(effect.key, -1))
        return True

    # -- messages in, messages out --------------------------------------------------------------------------------------

    def push(self, command: Command, delay: int = 0) -> bool:
        offset = self.state.next_offset
        self.state.next_offset += 1
        self.lanes.push(command.key, offset, self.now, delay)
        self.model.push(command.key, offset, self.now, delay)
        return True

    def delayed_push(self, command: Command) -> bool:
        return self.push(command, delay=1)

    def take(self, command: Command) -> bool:
        """Up to as many messages as the argument has letters, which name the consumer."""
        wanted, consumer, first = len(str(command.argument)), str(command.argument)[0], self.lanes.next_token
        room, batch = wanted * self.world.batch, self.world.batch
        leases = self.lanes.take(self.now, self.world.lease_time, room, consumer, batch)
        for lease in leases:
            assert (lease.key, lease.offset) in self.model.takeable(consumer), f"{lease} was not to be given out"
            assert list(lease.offsets) == self.model.batch_of(lease.key, lease.offset, min(batch, room))
            room -= len(lease.offsets)
            message = self.model.find(lease.key, lease.offset)
            assert message is not None
            assert lease.attempt == message.failures + 1
            assert lease.deadline == self.now + self.world.lease_time
            self.model.taken(lease, consumer)
        assert not room or not self.model.takeable(consumer), "something more could have been given out"
        assert [lease.token for lease in leases] == list(range(first, first + len(leases))), "tokens rise by 1"
        return True

    def token(self, command: Command) -> int:
        return leased_offsets(self.lanes, command.key)[self.offset(command)]

    def settle(self, command: Command) -> bool:
        token, through = self.token(command), self.offset(command)
        if self.model.leased(token) is None:
            return refused(StaleLease, lambda: self.lanes.settle(token))
        return self.same(self.lanes.settle(token, through), self.model.settle(token, through))

    def settle_all(self, command: Command) -> bool:
        token = self.token(command)
        return self.same(self.lanes.settle(token), self.model.settle(token))

    def give_back(
        self, command: Command, delay: float | None = None, count: bool = True, somewhere: bool = False
    ) -> bool:
        token, at = self.token(command), None if somewhere else self.offset(command)
        if self.model.leased(token) is None:
            return refused(StaleLease, lambda: self.lanes.give_back(token, self.now, delay, ERROR, count))
        effects = self.lanes.give_back(token, self.now, delay, ERROR, count, at)
        return self.same(effects, self.model.give_back(token, self.now, delay, ERROR, count, at))

    def give_back_somewhere(self, command: Command) -> bool:
        """A batch failed, and nobody says where."""
        return self.give_back(command, somewhere=True)

    def give_back_later(self, command: Command) -> bool:
        return self.give_back(command, delay=1)

    def hand_back(self, command: Command) -> bool:
        """Return a delivery that nobody tried."""
        return self.give_back(command, count=False)

    def give_up(self, command: Command, rest: bool = False) -> bool:
        token, at = self.token(command), self.offset(command)
        if self.model.leased(token) is None:
            return refused(StaleLease, lambda: self.lanes.give_up(token, self.now, ERROR, rest))
        effects = self.lanes.give_up(token, self.now, ERROR, rest, at)
        return self.same(effects, self.model.give_up(token, ERROR, rest, at, self.now))

    def give_up_rest(self, command: Command) -> bool:
        return self.give_up(command, rest=True)

    def extend(self, command: Command) -> bool:
        token, lease_time = self.token(command), command.argument
        assert isinstance(lease_time, int)
        if self.model.leased(token) is None:
            return refused(StaleLease, lambda: self.lanes.extend(token, self.now, lease_time))
        for message in self.model.batch(token):
            message.deadline = self.now + lease_time
        assert self.lanes.extend(token, self.now, lease_time) == self.now + lease_time
        return True

    def stale(self, command: Command) -> bool:
        """Tokens that were never given, or are not held any more, change nothing."""
        ended = next((token for token in range(self.lanes.next_token - 1, 0, -1) if token not in self.lanes._leased), 0)
        for token in {0, ended, self.lanes.next_token}:
            refused(StaleLease, partial(self.lanes.settle, token))
            refused(StaleLease, partial(self.lanes.give_back, token, self.now, 1, ERROR))
            refused(StaleLease, partial(self.lanes.extend, token, self.now, 1))
        return False

    def advance(self, command: Command) -> bool:
        seconds = command.argument
        assert isinstance(seconds, int)
        return self.same(self.lanes.advance(self.now + seconds), self.model.advance(self.now + seconds))

    def confirm(self, command: Command) -> bool:
        offset = self.offset(command)
        if offset not in {message.offset for _, message in self.model.pending}:
            return refused(IllegalTransition, lambda: self.lanes.confirm(offset))
        self.lanes.confirm(offset)
        self.model.confirm(offset)
        return True

    # -- an operator's hand ---------------------------------------------------------------------------------------------

    def pause(self, command: Command) -> bool:
        if command.key in self.model.paused:
            return refused(IllegalTransition, lambda: self.lanes.pause(command.key))
        self.lanes.pause(command.key)
        self.model.paused.add(command.key)
        return True

    def resume(self, command: Command) -> bool:
        if command.key not in self.model.paused:
            return refused(IllegalTransition, lambda: self.lanes.resume(command.key))
        return self.same(self.lanes.resume(command.key), self.model.resume(command.key))

    def dead_letter(self, command: Command, rest: bool = False) -> bool:
        key, head = command.key, self.model.head(command.key)
        if head is None:
            return refused(NotFound, lambda: self.lanes.dead_letter(key, None, rest))
        if not rest and head in self.model.changing(key):
            return refused(FailedPrecondition, lambda: self.lanes.dead_letter(key))
        return self.same(self.lanes.dead_letter(key, None, rest), self.model.dead_letter(key, None, rest))

    def dead_letter_rest(self, command: Command) -> bool:
        return self.dead_letter(command, rest=True)

    def skip(self, command: Command) -> bool:
        key, head = command.key, self.model.head(command.key)
        if head is None:
            return refused(NotFound, lambda: self.lanes.skip(key))
        if head in self.model.changing(key):
            return refused(FailedPrecondition, lambda: self.lanes.skip(key))
        return self.same(self.lanes.skip(key), self.model.skip(key))

    def retry(self, command: Command) -> bool:
        key = command.key
        if not self.model.waiting_for_time(key):
            return refused(FailedPrecondition, lambda: self.lanes.retry(key, self.now))
        return self.same(self.lanes.retry(key, self.now), self.model.retry(key, self.now))

    def remove(self, command: Command) -> bool:
        key, offset = command.key, self.offset(command)
        message = self.model.find(key, offset)
        if offset in {changing.offset for changing in self.model.changing(key)}:
            return refused(FailedPrecondition, lambda: self.lanes.remove(key, offset))
        if message is None or message.where == "acked":
            return refused(NotFound, lambda: self.lanes.remove(key, offset))
        if message.where == "out":
            return refused(FailedPrecondition, lambda: self.lanes.remove(key, offset))
        assert self.lanes.remove(key, offset) == (key, offset)
        self.model.remove(message)
        return True

    def redrive(self, command: Command) -> bool:
        key, offset = command.key, self.offset(command)
        dead = next((each for each in self.model.dead if (each.key, each.offset) == (key, offset)), None)
        if dead is None or not self.model.may_be_redriven(dead):
            return refused(RedriveRefused, lambda: self.lanes.redrive(key, offset))
        assert self.lanes.redrive(key, offset) == (key, offset)
        self.model.redrive(dead)
        return True

    def forget_dead_letter(self, command: Command) -> bool:
        """A caller gives up dead letters that are stored as such."""
        key, offset = command.key, self.offset(command)
        dead = [each for each in self.model.dead if (each.key, each.offset) == (key, offset)]
        if not dead and self.lanes._is_dead(key, offset):
            return False
        self.lanes.forget_dead_letter(key, offset)
        self.model.dead = [each for each in self.model.dead if each not in dead]
        return bool(dead)

    # -- crashes --------------------------------------------------------------------------------------------------------

    def crash(self, command: Command, count_leases: bool = True) -> bool:
        self.state.lanes = crashed(self.lanes, count_leases)
        self.model.crash(count_leases)
        self.state.settled = {}
        return True

    def crash_before_leases(self, command: Command) -> bool:
        """The records of the leases that are out had not been written."""
        return self.crash(command, count_leases=False)


# -- when two states are one --------------------------------------------------------------------------------------------


class Fingerprint:
    def __init__(self, world: LanesWorld, state: Situation) -> None:
        self.world = world
        self.state = state
        self.lanes = state.lanes
        self.now = state.lanes._now
        self.known = {key: known_offsets(self.lanes, key) for key in world.keys}
        # After a crash lanes are filled in the order of all offsets; otherwise only the order within a key matters.
        everything = sorted(offset for known in self.known.values() for offset in known) if world.crashes else ()
        self.ranks = {offset: rank for rank, offset in enumerate(everything)}
        if not world.crashes:
            self.ranks = {at: rank for known in self.known.values() for rank, at in enumerate(known)}

    def value(self) -> object:
        parts = sorted((self._key(key), index) for index, key in enumerate(self.world.keys))
        if not self.world.symmetric:
            parts.sort(key=lambda part: part[1])
        place = {self.world.keys[index]: number for number, (_, index) in enumerate(parts)}
        lanes = self.lanes
        several = len(self.world.keys) > 1  # a lane that is alone is next wherever it stands
        ring = tuple(place[lane.key] for lane in lanes._ring if several and lane.state is not LaneState.EMPTY)
        turns = (ring, *self._tenants(place)) if isinstance(lanes, TenantLanes) else ring
        return tuple(part for part, _ in parts), turns, self._holders(place), self._expiry(place), self._delays()

    def _tenants(self, place: dict[Key, int]) -> Iterator[tuple[int, ...]]:
        """The lanes of each tenant, in turn: first the tenants that have turns, in their order, then the others."""
        assert isinstance(self.lanes, TenantLanes)
        assert not self.world.symmetric, "which keys belong together makes a difference"
        waiting = [tenant for tenant in self.lanes._tenants.values() if not tenant.stands]
        for tenant in (*self.lanes._standing, *sorted(waiting, key=lambda one: str(one.name))):
            yield tenant.stands, *(place[lane.key] for lane in tenant.ready)

    def _key(self, key: Key) -> tuple[Any, ...]:
        lane, known = self.lanes._lanes.get(key), self.known[key]
        highest = self.state.settled.get(key or "", -1)
        settled = sum(offset < highest for offset in known)
        dead = self._places(self.lanes._dead.get(key, ()))
        if lane is None:
            return (key is None, settled, dead)
        changes = sorted(
            (self.ranks[at], str(self.lanes._unconfirmed[at][1])) for at in known if at in self.lanes._unconfirmed
        )
        flight = tuple(
            (*(self.ranks[offset] for offset in lease.offsets), lease.token in self.lanes._leased)
            for lease in leases_of(self.lanes, lane)
        )
        return (
            key is None,
            settled,
            dead,
            lane.paused,
            self._places(lane.waiting),
            self._places(lane.aside or ()),
            flight,
            tuple(changes),
            tuple(trouble for offset in known if (trouble := self._trouble(offset)) is not None),
            sum(offset < lane.last_settled for offset in known),
            sum(offset <= lane.alone_until for offset in known) if self.world.batch > 1 else 0,
        )

    def _places(self, offsets: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(self.ranks[offset] for offset in offsets))

    def _trouble(self, offset: int) -> tuple[Any, ...] | None:
        """A delay that is over makes no difference any more, except for the order in which spent messages are found."""
        trouble = self.lanes._troubles.get(offset)
        if trouble is None:
            return None
        failures = min(trouble.failures, self.world.failure_cap)
        if trouble.spent:
            return self.ranks[offset], failures, trouble.steps_aside, self._time(trouble.not_before), True
        if trouble.not_before > self.now:
            return self.ranks[offset], failures, trouble.steps_aside, trouble.not_before - self.now, False
        return (self.ranks[offset], failures) if failures else None

    def _time(self, when: float) -> float:
        """Relative to now; it makes no difference how long ago something was."""
        return -9.0 if when == -inf else max(-1.0, when - self.now)

    def _holders(self, place: dict[Key, int]) -> tuple[Any, ...]:
        """Who holds what, with consumers numbered as they come, and in which order lanes wait for their turn."""
        if self.world.delivery.window == 1:
            return ()
        lanes = sorted(self.lanes._lanes.values(), key=lambda lane: place[lane.key])
        holders: dict[Hashable, int] = {None: 0}
        held = tuple(holders.setdefault(lane.holder, len(holders)) for lane in lanes)
        waiting = sorted((lane for lane in lanes if lane.state is LaneState.READY), key=lambda lane: lane.turn)
        return held, tuple(place[lane.key] for lane in waiting)

    def _expiry(self, place: dict[Key, int]) -> tuple[Any, ...]:
        """Leases in the order in which they fall due. Whether a deadline was moved matters where it may tie with another.

        New leases are queued behind the others as long as no lease in the queue, live or not, ends later than they do.
        """
        order = sorted((when, moved, token) for token, (when, moved) in deadlines_of(self.lanes).items())
        leases = tuple(
            (
                place[self.lanes._leased[token].key],
                self.ranks[self.lanes._leased[token].offset],
                when - self.now,
                moved and self.world.ties,
            )
            for when, moved, token in order
        )
        times = self.lanes._expiry._times
        return leases, max(0.0, times[-1] - self.now - self.world.lease_time) if times else 0.0

    def _delays(self) -> tuple[Any, ...]:
        """What waits for its time, in the order in which it falls due."""
        delays = self.lanes._delays
        queued = [(when, 0, offset) for offset, when in delays._queue.items()]
        moved = sorted((when, order, offset) for when, order, offset in delays._moved.values())
        entries = sorted([*queued, *moved], key=lambda entry: entry[0])
        return tuple((self.ranks[at], self._time(when), order > 0) for when, order, at in entries), self._time(
            delays._last
        )


# -- the worlds ---------------------------------------------------------------------------------------------------------


def delivery(
    window: int = 1,
    release: ReleaseAfter = ReleaseAfter.DURABLE,
    mode: RetryMode = RetryMode.BLOCK,
    on_exhausted: OnExhausted = OnExhausted.DEAD_LETTER,
    max_attempts: int | None = 2,
    backoff: int = 0,
    keep: Keep = Keep.ALL,
    tenant_limit: int | None = None,
) -> Delivery:
    retry = RetryPolicy(backoff, 2 * backoff, mode, max_attempts, on_exhausted)
    return Delivery(retry, window, release, keep, tenant_limit)


def _small() -> Iterator[LanesWorld]:
    yield LanesWorld(delivery(), messages=2)
    yield LanesWorld(delivery(2, ReleaseAfter.RECEIPT, RetryMode.OVERTAKE, OnExhausted.PAUSE), messages=2)
    yield LanesWorld(delivery(2, ReleaseAfter.RECEIPT, on_exhausted=OnExhausted.DEAD_LETTER_REST), messages=2)
    yield LanesWorld(delivery(2, max_attempts=1), keys=("a", "b"), messages=1, consumers="xy", verbs=CORE_VERBS)
    yield LanesWorld(delivery(keep=Keep.LATEST), messages=2)
    yield LanesWorld(delivery(1, ReleaseAfter.RECEIPT), messages=3, batch=3, verbs=CORE_VERBS | BATCH_VERBS)


def tenants_world(
    limit: int,
    keys: tuple[Key, ...],
    messages: int,
    verbs: frozenset[str] | None = CORE_VERBS,
    keep: Keep = Keep.ALL,
    release: ReleaseAfter = ReleaseAfter.DURABLE,
) -> LanesWorld:
    options = delivery(release=release, keep=keep, tenant_limit=limit)
    return LanesWorld(options, keys=keys, messages=messages, verbs=verbs, symmetric=False)


def _large() -> Iterator[LanesWorld]:
    """Every combination of options with one key and every verb; then more messages, more keys, and messages without a key."""
    for window, release, mode, policy in product((1, 2), ReleaseAfter, RetryMode, OnExhausted):
        yield LanesWorld(delivery(window, release, mode, policy), messages=2)
        yield LanesWorld(delivery(window, release, mode, policy, keep=Keep.LATEST), messages=2)
    yield LanesWorld(delivery(), messages=3)
    for mode, policy in product(RetryMode, OnExhausted):
        yield LanesWorld(delivery(1, ReleaseAfter.RECEIPT, mode, policy), messages=3)
    yield LanesWorld(delivery(2, ReleaseAfter.RECEIPT, max_attempts=None, backoff=1), messages=2)
    yield LanesWorld(delivery(1, ReleaseAfter.RECEIPT, RetryMode.OVERTAKE, max_attempts=None, backoff=1), messages=2)
    yield LanesWorld(delivery(), keys=(None,), messages=2)
    yield LanesWorld(delivery(1, ReleaseAfter.RECEIPT), keys=("a", None), messages=2, verbs=CORE_VERBS)
    yield LanesWorld(delivery(), keys=("a", "b"), messages=1, consumers="xy")
    yield LanesWorld(delivery(2, ReleaseAfter.RECEIPT), keys=("a", "b"), messages=2, consumers="xy", verbs=CORE_VERBS)
    one_attempt = delivery(1, ReleaseAfter.RECEIPT, max_attempts=1)
    yield LanesWorld(one_attempt, keys=("a", "b"), messages=3, verbs=CORE_VERBS)
    yield LanesWorld(one_attempt, keys=("a", "b"), messages=2, verbs=ALL_VERBS - CRASHES)
    yield LanesWorld(one_attempt, keys=("a", "b"), messages=3, verbs=ALL_VERBS - CRASHES)
    for release, mode, policy in product(ReleaseAfter, RetryMode, OnExhausted):
        yield LanesWorld(delivery(1, release, mode, policy), messages=2, batch=2, verbs=ALL_VERBS - CRASHES)
    for mode, policy in product(RetryMode, OnExhausted):
        without_operators = CORE_VERBS | BATCH_VERBS
        yield LanesWorld(delivery(1, ReleaseAfter.RECEIPT, mode, policy), messages=3, batch=3, verbs=without_operators)
    # What needs three messages at once, or a window with room for two changes, with as few verbs as lead there.
    for window, verbs in (
        (3, "crash"),
        (2, "crash dead_letter redrive"),
        (3, "delayed_push settle dead_letter skip remove"),
    ):
        few = frozenset({"push", "take", "confirm", "advance"} | set(verbs.split()))
        yield LanesWorld(delivery(window, max_attempts=1), messages=3, verbs=few)
    yield tenants_world(1, ("a/1", "a/2"), messages=1, verbs=None)
    yield tenants_world(1, ("a/1", "a/2"), messages=2, release=ReleaseAfter.RECEIPT, keep=Keep.LATEST)
    yield tenants_world(1, ("a/1", "a/2", "b/1"), messages=1, release=ReleaseAfter.RECEIPT)
    yield tenants_world(1, ("a/1", "a/2", None), messages=1, release=ReleaseAfter.RECEIPT)
    yield tenants_world(2, ("a/1", "a/2", "a/3"), messages=1, release=ReleaseAfter.RECEIPT)


SCOPE = Scope("lanes", TABLE, small=list(_small()), large=list(_large()))
