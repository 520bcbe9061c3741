"""A small world around one edge node's session machine.

The messages of a few sessions are given. Any of them may arrive at any time, in any order, once, often or never: that covers
every loss, repeat, race and disorder of a broker, and nodes that break the rules. Time passes one tick at a time. What the
machine says is held against a reader of the rules (``edge_reader.py``), and against the books: whatever comes in is given out,
entered, ignored or held, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from seriatim.core.resequencing.options import LedgerEntry, Reason
from seriatim.core.resequencing.resequencer import SavedResequencer
from seriatim.core.sparkplug.edge_node import LEFT_OVER, EdgeNode, NodeEvent, NodeState
from seriatim.core.sparkplug.messages import (
    Bookmark,
    DeathIgnored,
    EdgeMessage,
    Kind,
    NodeEffect,
    NodeOrdering,
    OnTimeout,
    Ordered,
    RebirthRequested,
    ReleasedBy,
    Status,
    StatusChanged,
)
from seriatim.core.sparkplug.rebirth import RebirthGovernor
from tests.exhaustive.clones import clone
from tests.exhaustive.edge_reader import Reader
from tests.exhaustive.explorer import Row, World

Message = EdgeMessage[str]
Effects = list[NodeEffect[str]]

TICK = 1.0
HEALING_STAMPS = ((1, 1_000), (1_000, 1))
"""Of a birth and of what follows it: the clock may have been wrong before the birth, or be wrong at it."""


class Command(tuple[Any, ...]):
    """A verb and its arguments."""

    __slots__ = ()

    def __str__(self) -> str:
        return " ".join(_short(each) if isinstance(each, EdgeMessage) else str(each) for each in self)


def _short(message: Message) -> str:
    parts = [message.body]
    parts += [] if message.bd_seq is None else [f"bdSeq {message.bd_seq}"]
    parts += [] if message.timestamp is None else [f"stamped {message.timestamp}"]
    return ", ".join(parts)


class WatchedNode(EdgeNode[str]):
    """A node that writes down its transitions."""

    __slots__ = ()
    rows: ClassVar[set[Row]] = set()

    def _enter(self, event: NodeEvent, target: NodeState) -> None:
        before = self._state
        super()._enter(event, target)
        self.rows.add((before.value, event.value, target.value))

    def clear(self, now: float) -> Effects:
        before = self._state
        effects = super().clear(now)
        self.rows.add((before.value, NodeEvent.CLEAR.value, self._state.value))
        return effects


@dataclass(frozen=True)
class EdgeScope:
    """The options, the messages that may arrive, and the verbs beside them."""

    name: str
    options: NodeOrdering
    messages: tuple[Message, ...]
    verbs: tuple[str, ...] = ()


class EdgeState:
    """A node, its reader, and the time."""

    __slots__ = ("node", "now", "reader", "scope")

    def __init__(self, scope: EdgeScope) -> None:
        self.scope = scope
        self.node: EdgeNode[str] = WatchedNode(scope.options, "k")
        self.reader = Reader(scope.options)
        self.now = 0.0

    # -- what can happen ----------------------------------------------------------------------------------------------

    def commands(self) -> Iterator[Command]:
        yield Command(["tick"])
        for message in self.scope.messages:
            yield Command(["arrives:", message])
        for verb in self.scope.verbs:
            yield Command(verb.split(" of "))

    def apply(self, command: Command) -> None:
        verb, *arguments = command
        before = Counter(self.node.held())
        since = self._waiting_since()
        given, wanted, due = self.node.bookmark().given, self.node.rebirth_outstanding, self.node.order_deadline
        has_cleared = any(type(waiting.message) is not EdgeMessage for waiting in self.node._waiting)
        if verb == "resume":  # what was held and what was asked for died with the process
            before, wanted = Counter(), False
        if verb == "tick":
            self.now += TICK
            effects = self.node.advance(self.now)
        elif verb == "arrives:":
            before[arguments[0]] += 1
            effects = self._arrive(arguments[0])
        else:
            effects = self._operate(verb, *arguments)
        is_idle = verb == "tick" and (due is None or due > self.now)
        self._count_reasons(is_idle, effects, wanted)
        if has_cleared and self.node.state is NodeState.ASSUMED:
            self.reader.assume()  # because of messages that were cleared, and so are not given out
        for effect in effects:
            self.reader.hear(effect, self.now)
        self._check_books(before, effects, given)
        self._check_statuses(effects)
        self._check_requests(effects, wanted)
        if verb == "tick":
            self._check_patience(effects, since)

    def _arrive(self, message: Message) -> Effects:
        if message.kind is Kind.NBIRTH:
            return self._birth(message)
        if message.kind is Kind.NDEATH:
            return self._death(message)
        effects = self.node.receive(message, self.now)
        if any(
            isinstance(each, LedgerEntry) and each.detail == LEFT_OVER and each.message is message for each in effects
        ):
            birth = self.reader.birth
            assert birth is not None, f"{message.body} is left over, and there was no birth"
            is_recent = self.now - birth.at <= self.scope.options.reorder_timeout
            assert is_recent, f"{message.body} came too long after the birth for its stamp to decide"
        return effects

    def _birth(self, message: Message) -> Effects:
        allowed = self.reader.verdicts_on_birth(message, self.now)
        effects = self.node.receive(message, self.now)
        entries = [effect for effect in effects if isinstance(effect, LedgerEntry) and effect.message is message]
        verdict = entries[0].reason if entries else None
        assert verdict in allowed, f"the birth was {verdict or 'taken'}, and may be {allowed}"
        return effects

    def _death(self, message: Message) -> Effects:
        ends, before = self.reader.ends_session(message), self.node.snapshot()
        self.reader.remember_death(message, self.now)
        effects = self.node.receive(message, self.now)
        if ends:
            assert any(isinstance(effect, Ordered) for effect in effects), "the death of the living session was ignored"
        else:
            assert [type(effect) for effect in effects] == [DeathIgnored], "a death of another session was not ignored"
            assert self.node.snapshot() == before, "a death that was ignored changed something"
        return effects

    def _operate(self, verb: str, device: str = "") -> Effects:
        match verb:
            case "disconnect":
                self.reader.is_connected = False
                self.reader.lost()
                return self.node.disconnect()
            case "reconnect":
                self.reader.is_connected = True
                return self.node.reconnect(self.now)
            case "ask":
                return self.node.ask("a test", self.now)
            case "clear":
                effects = self.node.clear(self.now)
                self.reader.forget()
                return effects
            case "clear device":
                self.reader.devices.pop(device, None)
                return self.node.clear_device(device, self.now)
            case _:
                self.reader.resumed()
                bookmark = Bookmark.unpack(self.node.bookmark().pack())
                self.node = WatchedNode.resume(bookmark, self.scope.options, "k")
                return self.node.reconnect(self.now)

    # -- what must hold of each step ----------------------------------------------------------------------------------

    def _waiting_since(self) -> float | None:
        """Since when the message waits that has waited longest."""
        held = [item.arrival for _, item in self.node._queue.held()]
        return min([*held, *(waiting.arrival for waiting in self.node._waiting)], default=None)

    def _count_reasons(self, is_idle: bool, effects: Effects, wanted: bool) -> None:
        """How many requests there may be from now on. Whatever happens may be another reason; time alone is none."""
        asked = [effect for effect in effects if isinstance(effect, RebirthRequested)]
        if not wanted and (asked or self.node.rebirth_outstanding):
            self.reader.most_requests = self.scope.options.rebirth_attempts
            assert not asked or asked[0].attempt == 1, "the first request is not counted as the first"
        elif not is_idle:
            self.reader.most_requests = max(self.reader.most_requests, 1)

    def _check_books(self, before: Counter[Message], effects: Effects, given: int) -> None:
        """Whatever came in is given out, entered, ignored or still held: once."""
        said = [effect for effect in effects if isinstance(effect, Ordered | LedgerEntry | DeathIgnored)]
        after = Counter(effect.message for effect in said if effect.message is not None)
        after.update(self.node.held())
        assert after == before, f"{_bodies(before - after)} vanished, and {_bodies(after - before)} came from nowhere"
        assert self.node.bookmark().given == given + len(said), "the bookmark does not count what was given out"

    def _check_statuses(self, effects: Effects) -> None:
        node, reader = self.node, self.reader
        assert node.status is reader.status, f"the node is {node.status}, and should be {reader.status}"
        assert dict(node.devices) == reader.devices, f"devices are {node.devices}, and should be {reader.devices}"
        last = {effect.device: effect.status for effect in effects if isinstance(effect, StatusChanged)}
        for device, status in last.items():
            is_now = node.status if device is None else node.devices.get(device, Status.OFFLINE)
            assert status is is_now, f"{device or 'the node'} was said to be {status}, and is {is_now}"

    def _check_requests(self, effects: Effects, wanted: bool) -> None:
        """Trouble is a reason to ask, and a birth or a death an end to asking."""
        is_wanted = self.node.rebirth_outstanding
        kinds = [effect.message.kind for effect in effects if isinstance(effect, Ordered)]
        trouble = [e for e in effects if isinstance(e, LedgerEntry) and e.reason in (Reason.LOST, Reason.SYNC_LOST)]
        if Kind.NDEATH in kinds or (Kind.NBIRTH in kinds and not trouble):
            assert not is_wanted, "a rebirth is wanted although the node was born, or died"
        if is_wanted and not wanted and self.reader.is_connected:
            asked = any(isinstance(effect, RebirthRequested) for effect in effects)
            assert asked or self.node.deadline is not None, "a rebirth is wanted, and nobody will ask for it"

    def _check_patience(self, effects: Effects, since: float | None) -> None:
        """What time alone brings about was due, and what it loses is asked for."""
        options = self.scope.options
        due = [e for e in effects if isinstance(e, Ordered | LedgerEntry)]
        if due:
            assert since is not None, "time released something, and nothing waited"
            assert since + options.reorder_timeout <= self.now, "a message did not wait for as long as it may"
            released = {effect.released_by for effect in due if isinstance(effect, Ordered)}
            assert released <= {ReleasedBy.TIMEOUT}, f"time released messages by {released}"
        if options.send_rebirth_when_timeout and any(getattr(e, "reason", None) is Reason.LOST for e in due):
            assert self.node.rebirth_outstanding, "messages were lost, and no rebirth is wanted"

    # -- what must hold everywhere ------------------------------------------------------------------------------------

    def check(self) -> None:
        node, options, snapshot = self.node, self.scope.options, self.node.snapshot()
        assert node.deadline is None or node.deadline > self.now, "something is overdue"
        assert len(snapshot.held) <= options.capacity, "more messages are held than there is room for"
        assert len(snapshot.waiting) <= options.capacity, "more messages wait for a birth than there is room for"
        if options.on_timeout is not OnTimeout.HOLD:
            assert not node.held_count or node.order_deadline is not None, "messages wait for ever"
            for held in snapshot.held:
                assert held.since + options.reorder_timeout > self.now, f"{held.message.body} waits for too long"
            self._check_that_a_birth_heals()
        if self.reader.asked_at > -inf:
            anew = self.reader.asked_at + self.reader.backoff + 2 * options.rebirth_backoff_limit
            assert node.forgettable_at == anew, "the next request waits for another time than the rules say"
        restored = EdgeNode.restore(node.save(), options, "k")
        assert restored.save() == node.save(), "a node that was saved is restored as another"

    def _check_that_a_birth_heals(self) -> None:
        """After a silence a birth and what follows come out as they are sent, whatever their stamps are."""
        for born, stamp in HEALING_STAMPS:
            node, now = clone(self.node), self.now + self.scope.options.reorder_timeout + TICK
            while (deadline := node.deadline) is not None and deadline <= now:
                node.advance(deadline)
            healing = [EdgeMessage(Kind.NBIRTH, "healing birth", 200, born, None, node.bd_seq or 0)]
            healing += [EdgeMessage(Kind.NDATA, f"healed {seq}", seq, stamp) for seq in (201, 202)]
            for message in healing:
                out = [e for e in node.receive(message, now) if isinstance(e, Ordered) and e.message is message]
                assert out, f"{message.body} does not come out although a birth heals"
                assert out[0].flag is None, f"{message.body} is flagged {out[0].flag} although a birth heals"


class EdgeWorld(World[EdgeState, Command]):
    """One edge node, and a broker that does whatever it likes."""

    def __init__(self, scope: EdgeScope) -> None:
        self.scope, self.name = scope, f"edge node, {scope.name}"
        self.rows: set[Row] = set()

    def start(self) -> EdgeState:
        WatchedNode.rows = self.rows
        return EdgeState(self.scope)

    def commands(self, state: EdgeState) -> Iterator[Command]:
        return state.commands()

    def apply(self, state: EdgeState, command: Command) -> bool:
        state.apply(command)
        return True

    def copy(self, state: EdgeState) -> EdgeState:
        return clone(state)

    def check(self, state: EdgeState) -> None:
        state.check()

    def fingerprint(self, state: EdgeState) -> object:
        return of_the_node(state.node, state.now), state.reader.fingerprint(state.node.epoch, state.now)


def _bodies(messages: Iterable[Message]) -> list[str]:
    return [message.body for message in messages]


# --- what makes a node differ from another ----------------------------------------------------------------------------


def of_the_node(node: EdgeNode[str], now: float) -> tuple[object, ...]:
    timeout = node._options.reorder_timeout
    born = min(now - node._born_at, timeout + TICK)
    deaths = [death for death in node._deaths if now - death.arrival <= timeout]
    waiting = [(waiting.message, waiting.arrival) for waiting in node._waiting]
    return (
        node._state.value,
        node._status.value,
        tuple(sorted((device, status.value) for device, status in node._devices.items())),
        node._birth and tuple(node._birth),
        born,
        tuple((death.bd_seq, now - death.arrival, death.newest) for death in deaths),
        node._newest,
        node._began,
        node._adrift,
        _messages(waiting, node, now),
        None if node._waiting_due is None else node._waiting_due - now,
        node._moved_on if node._waiting else None,
        _of_the_queue(node._queue.save(), node, now),
        _of_the_governor(node._rebirth, now),
    )


def _messages(arrivals: Iterable[tuple[Message, float]], node: EdgeNode[str], now: float) -> tuple[object, ...]:
    """Messages with when they came: how long ago, up to the timeout, in which order, and how long after the birth."""
    listed, timeout = list(arrivals), node._options.reorder_timeout
    ranks = {arrival: rank for rank, arrival in enumerate(sorted({arrival for _, arrival in listed}))}
    return tuple(
        (
            type(message).__name__,
            message.body,
            message.timestamp,
            min(now - arrival, timeout + TICK),
            arrival - node._born_at <= timeout,
            ranks[arrival],
        )
        for message, arrival in listed
    )


def _of_the_queue(saved: SavedResequencer[Message], node: EdgeNode[str], now: float) -> tuple[object, ...]:
    here = saved.expected
    if here is None:
        return (saved.epoch is None,)
    held = sorted(saved.held)
    return (
        here % 256,
        here - saved.horizon,
        saved.epoch == node.epoch,
        tuple(position - here for position, _ in held),
        _messages(((item.message, item.arrival) for _, item in held), node, now),
        tuple((lo - here, hi - here, max(due - now, -TICK), *more) for lo, hi, due, *more in saved.gaps),
        tuple((first - here, last - here) for first, last in saved.given_up),
        saved.behind_run,
        None if saved.behind_last is None else saved.behind_last - here,
    )


def _of_the_governor(governor: RebirthGovernor, now: float) -> tuple[object, ...]:
    """All but its reason and how often it asked, which it only reports."""
    begins_anew = -2 * governor._options.rebirth_backoff_limit - TICK
    return (
        governor.outstanding,
        governor._left,
        max(governor._allowed - now, begins_anew),
        governor._delay,
        governor.reachable,
    )
