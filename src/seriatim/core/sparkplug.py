"""One Sparkplug edge node: its sessions, its messages in order, and when it is asked to be born again.

Rules
-----
1. One counter, 0 to 255 and then 0 again, belongs to the **edge node**; its devices share it. NDEATH alone carries none.
2. An NBIRTH begins a new *epoch*: its own seq, whatever it is, says what is expected next. A rebirth within a session keeps its
   bdSeq and begins a new epoch all the same.
3. DBIRTH, DDEATH, NDATA and DDATA are put in order by the core's resequencer: judged by distance from the expected number, held
   ahead of a gap, one timer per gap, never released backwards, each number once.
4. A gap whose time is over is settled by ``on_timeout`` and is a reason for a rebirth.
5. NDEATH is matched by bdSeq alone. It ends the living session of that bdSeq; any other is ignored, and said to be.
6. MQTT keeps order within a topic only, so sessions race:

   - What is stamped before the NBIRTH of the living session is late.
   - What waits and is stamped after a new NBIRTH belongs to the new session, and waits on in it. Of the same stamp it belongs
     where its number is nearer to what is expected.
   - What can only belong to a session to come (the node is dead; or the number is behind, but the stamp newer than anything
     released) *waits for the birth*, until ``reorder_timeout`` is over. So does everything stamped after it.
   - An NBIRTH that comes within ``reorder_timeout`` after the NDEATH of its bdSeq is late, however many sessions ended in
     that time. After it, it is taken: the node does not count its sessions, and to keep it out for ever would be worse. So
     is one whose NDEATH came while an earlier session lived: some nodes announce the end of a session under the number of
     the next.
   - An NBIRTH that is stamped before the living one, and whose bdSeq is not ahead of it, is late.
   - What a death or a birth still finds waiting is settled by ``on_session_end``.
7. Data of a node that was never born is released and flagged, and the order among it is kept (``before_birth=RELEASE``), or
   waits for the birth. A DBIRTH that comes first always waits.
8. The status of devices changes when their messages are *released*, so in sequence order. A birth of the node brings no device
   back: its devices are stale until their own births.
9. Whatever is not released leaves a ledger entry with its reason.

Theory of operation
-------------------
A session is an epoch of one resequencer. What distinguishes Sparkplug from any other numbered source is that the start of an
epoch is a message of its own, on a topic of its own, so that the messages of an epoch can come before its start. They can't be
pushed, because nobody knows their epoch: they wait in a small waiting room beside the resequencer. The next NBIRTH judges them.
A message that looks ahead in the living session may belong to the next one too; it is held by the resequencer, and the NBIRTH
takes it out again.

Time passes as in the resequencer: ``receive`` first lets fall due what is due at ``now``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Generic, NamedTuple, TypeVar

from seriatim.core.backlog import Held
from seriatim.core.edge_messages import (
    SEQ,
    BeforeBirth,
    Bookmark,
    DeathIgnored,
    EdgeMessage,
    Flag,
    Kind,
    NodeEffect,
    NodeOrdering,
    OnTimeout,
    Ordered,
    RebirthRequested,
    Status,
    StatusChanged,
    check_message,
)
from seriatim.core.rebirth import RebirthGovernor
from seriatim.core.resequencer import Resequencer, SavedResequencer
from seriatim.core.resequencing import (
    Effect,
    GapReported,
    LedgerEntry,
    OnEpoch,
    Reason,
    Released,
    SyncLost,
)
from seriatim.core.table import TransitionTable

M = TypeVar("M")

MAX_DEATHS = 32
"""So many deaths of a node are remembered at most: one that ends more sessions within ``reorder_timeout`` has other worries."""


class NodeState(StrEnum):
    UNBORN = "unborn"
    ASSUMED = "assumed"
    BORN = "born"
    DEAD = "dead"


class NodeEvent(StrEnum):
    ASSUME = "assume"  # data is released although no birth was seen
    BIRTH = "birth"  # an NBIRTH is taken
    DEATH = "death"  # the NDEATH of the living session
    CLEAR = "clear"  # forget the node


_CLEARED = {NodeEvent.CLEAR: frozenset({NodeState.UNBORN})}
_BEFORE_A_BIRTH = {
    NodeEvent.ASSUME: frozenset({NodeState.ASSUMED}),
    NodeEvent.BIRTH: frozenset({NodeState.BORN}),
    **_CLEARED,
}

TABLE = TransitionTable(
    "edge node",
    NodeState.UNBORN,
    {
        NodeState.UNBORN: _BEFORE_A_BIRTH,
        NodeState.ASSUMED: {NodeEvent.BIRTH: frozenset({NodeState.BORN}), **_CLEARED},
        NodeState.BORN: {
            NodeEvent.BIRTH: frozenset({NodeState.BORN}),
            NodeEvent.DEATH: frozenset({NodeState.DEAD}),
            **_CLEARED,
        },
        NodeState.DEAD: _BEFORE_A_BIRTH,
    },
)


class _Birth(NamedTuple):
    """What an NBIRTH said; in a session that was resumed nobody knows its seq and timestamp."""

    bd_seq: int
    seq: int | None
    timestamp: int | None


class _Waiting(NamedTuple, Generic[M]):
    """A message that waits for its session's birth."""

    message: EdgeMessage[M]
    arrival: float


@dataclass(frozen=True, slots=True)
class SavedNode(Generic[M]):
    """Everything that a node's order and its ledger depend on, as plain data. Rebirth requests are not among it."""

    state: NodeState
    status: Status
    devices: tuple[tuple[str, Status], ...]
    epoch: int
    given: int
    birth: tuple[int, int | None, int | None] | None
    deaths: tuple[tuple[int, float], ...]
    newest: int | None
    waiting: tuple[tuple[EdgeMessage[M], float], ...]
    waiting_due: float | None
    queue: SavedResequencer[EdgeMessage[M]]


class EdgeNode(Generic[M]):
    """The session machine of one edge node. See the module's rules."""

    __slots__ = (
        "_birth",
        "_deaths",
        "_devices",
        "_epoch",
        "_given",
        "_newest",
        "_options",
        "_queue",
        "_rebirth",
        "_resequencing",
        "_state",
        "_status",
        "_waiting",
        "_waiting_due",
        "key",
    )

    def __init__(self, options: NodeOrdering | None = None, key: Hashable = None) -> None:
        self._options = options or NodeOrdering()
        self._resequencing = self._options.resequencing()
        self.key = key
        self._epoch = self._given = 0
        self._rebirth = RebirthGovernor(self._options)
        self._forget()

    def _forget(self) -> None:
        """Know nothing of the node but how many epochs and messages it had, and when it was asked for a rebirth."""
        self._queue: Resequencer[EdgeMessage[M]] = Resequencer(self._resequencing, self.key)
        self._state = NodeState.UNBORN
        self._status = Status.OFFLINE
        self._devices: dict[str, Status] = {}
        self._birth: _Birth | None = None
        self._deaths: tuple[tuple[int, float], ...] = ()
        self._newest: int | None = None
        self._waiting: list[_Waiting[M]] = []
        self._waiting_due: float | None = None

    # -- what it is doing -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> NodeState:
        return self._state

    @property
    def status(self) -> Status:
        return self._status

    @property
    def devices(self) -> Mapping[str, Status]:
        return self._devices

    @property
    def epoch(self) -> int:
        """How many times sequence numbers began anew."""
        return self._epoch

    @property
    def expected(self) -> int | None:
        return self._queue.expected

    @property
    def bd_seq(self) -> int | None:
        """The bdSeq of the last birth."""
        return self._birth.bd_seq if self._birth else None

    @property
    def held_count(self) -> int:
        """How many messages wait: ahead of a gap, or for a birth."""
        return self._queue.held_count + len(self._waiting)

    def held(self) -> list[EdgeMessage[M]]:
        """What waits: ahead of a gap, in the order of its numbers, and then what waits for a birth."""
        return [item.message for _, item in self._queue.held()] + [waiting.message for waiting in self._waiting]

    @property
    def rebirth_outstanding(self) -> bool:
        return self._rebirth.outstanding

    @property
    def is_blank(self) -> bool:
        """Whether nothing has happened since the node was made or cleared."""
        return self._state is NodeState.UNBORN and not (self._waiting or self._deaths or self._rebirth.outstanding)

    @property
    def forgettable_at(self) -> float:
        """From when on to forget a node that is blank makes no difference to its rebirths."""
        return self._rebirth.begins_anew

    @property
    def deadline(self) -> float | None:
        """When ``advance`` has something to do, or None."""
        return _earliest(self.order_deadline, self._rebirth.due)

    @property
    def order_deadline(self) -> float | None:
        """When ``advance`` releases messages or gives some up, or None. It asks for rebirths at other times, too."""
        return _earliest(self._queue.deadline, self._waiting_due)

    def bookmark(self) -> Bookmark:
        """Where the node stands, after everything that was given out."""
        expected = self._queue.expected
        born = self._state is NodeState.BORN
        return Bookmark(self._given, self._epoch, self.bd_seq or 0, 0 if expected is None else expected, born)

    @classmethod
    def resume(cls, bookmark: Bookmark, options: NodeOrdering | None = None, key: Hashable = None) -> EdgeNode[M]:
        """A node as a bookmark left it: stale, because nobody knows what was missed since."""
        self = cls(options, key)
        self._given, self._epoch = bookmark.given, bookmark.epoch
        if bookmark.born:
            self._state, self._status = NodeState.BORN, Status.STALE
            self._birth = _Birth(bookmark.bd_seq, None, None)
            nothing: SavedResequencer[EdgeMessage[M]] = self._queue.save()
            start = replace(nothing, epoch=bookmark.epoch, expected=bookmark.expected, horizon=bookmark.expected - 256)
            self._queue = Resequencer.restore(start, self._resequencing, key)
        return self

    def save(self) -> SavedNode[M]:
        return SavedNode(
            state=self._state,
            status=self._status,
            devices=tuple(self._devices.items()),
            epoch=self._epoch,
            given=self._given,
            birth=self._birth,
            deaths=self._deaths,
            newest=self._newest,
            waiting=tuple(self._waiting),
            waiting_due=self._waiting_due,
            queue=self._queue.save(),
        )

    @classmethod
    def restore(cls, saved: SavedNode[M], options: NodeOrdering | None = None, key: Hashable = None) -> EdgeNode[M]:
        """A node that goes on exactly where the saved one was, given the same options; only, it was asked for no rebirth."""
        self = cls(options, key)
        self._state, self._status, self._devices = saved.state, saved.status, dict(saved.devices)
        self._epoch, self._given, self._newest = saved.epoch, saved.given, saved.newest
        self._birth, self._deaths = saved.birth and _Birth(*saved.birth), saved.deaths
        self._waiting = [_Waiting(message, arrival) for message, arrival in saved.waiting]
        self._waiting_due = saved.waiting_due
        self._queue = Resequencer.restore(saved.queue, self._resequencing, key)
        return self

    # -- commands -------------------------------------------------------------------------------------------------------

    def receive(self, message: EdgeMessage[M], now: float) -> list[NodeEffect[M]]:
        """Take in one message. One that can't be judged raises and changes nothing."""
        check_message(message)
        out = self.advance(now)
        if message.kind is Kind.NBIRTH:
            self._on_birth(message, now, out)
        elif message.kind is Kind.NDEATH:
            self._on_death(message, now, out)
        else:
            self._on_numbered(message, now, out)
        if self._waiting or self._queue.held_count or self._rebirth.due is not None:
            out += self.advance(now)  # a timeout of 0 is over at once, and so is the wait for a first request
        return out

    def advance(self, now: float) -> list[NodeEffect[M]]:
        """Let time pass: whatever falls due by ``now`` is decided."""
        out: list[NodeEffect[M]] = []
        if (gap := self._queue.deadline) is not None and gap <= now:
            self._take(self._queue.advance(now), out, ask=self._options.send_rebirth_when_timeout)
        if self._waiting_due is not None and self._waiting_due <= now:
            self._waited_enough(now, out)
        if (ask := self._rebirth.due) is not None and ask <= now:
            out.append(RebirthRequested(self.key, *self._rebirth.ask(now)))
        return out

    def disconnect(self) -> list[NodeEffect[M]]:
        """The way to the node is lost: what was online is stale."""
        self._rebirth.reachable = False
        return self._mark_all(Status.STALE, was=Status.ONLINE)

    def reconnect(self, now: float) -> list[NodeEffect[M]]:
        """The way to the node is there again: a node that is stale is asked for its birth."""
        self._rebirth.reachable = True
        if self._status is Status.STALE:
            self._rebirth.want("nobody knows what was missed while there was no connection")
        return self.advance(now)

    def ask(self, reason: str, now: float) -> list[NodeEffect[M]]:
        """There is another reason for a rebirth, such as a metric that nobody can name."""
        self._rebirth.want(reason)
        return self.advance(now)

    def clear(self, now: float) -> list[NodeEffect[M]]:
        """Forget the node. What is held is discarded, with ledger entries."""
        TABLE.check(self._state, NodeEvent.CLEAR, NodeState.UNBORN)
        out: list[NodeEffect[M]] = []
        self._take(self._queue.clear(now), out, ask=False)
        out += [self._entry(Reason.DISCARDED, message, now, "cleared") for message, _ in self._waiting]
        out += self._mark_all(Status.OFFLINE)
        self._rebirth.end()
        self._forget()
        return out

    def clear_device(self, device: str) -> bool:
        """Forget the status of a device, and nothing else; False when it was not known."""
        return self._devices.pop(device, None) is not None

    # -- births ---------------------------------------------------------------------------------------------------------

    def _on_birth(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        assert message.bd_seq is not None
        assert message.seq is not None
        birth = _Birth(message.bd_seq, message.seq, message.timestamp)
        if refusal := self._refusal(birth, now):
            reason, detail = refusal
            out.append(self._entry(reason, message, now, detail))
            return
        coming = self._take_out(lambda seq, held: self._belongs_to(birth, seq, held))
        self._end_epoch(now, out)
        self._enter(NodeEvent.BIRTH, NodeState.BORN)
        self._birth, self._newest, self._epoch = birth, message.timestamp, self._epoch + 1
        self._rebirth.end()
        self._mark(None, Status.ONLINE, message.timestamp, out)
        for device, status in self._devices.items():
            if status is Status.ONLINE:
                self._mark(device, Status.STALE, message.timestamp, out)
        self._push(message, now, out)
        coming = sorted([*self._waiting, *coming], key=lambda waiting: waiting.arrival)
        self._stop_waiting()
        for waiting in coming:
            self._on_numbered(waiting.message, now, out)

    def _refusal(self, birth: _Birth, now: float) -> tuple[Reason, str] | None:
        """Why an NBIRTH is not taken, or None."""
        known = self._birth
        if any(ended == birth.bd_seq for ended, _ in self._recent_deaths(now)):
            return Reason.LATE, "its session has ended already"
        if known is None or known.timestamp is None or birth.timestamp is None:
            return None
        if birth == known and self._state is NodeState.BORN:
            return Reason.DUPLICATE, "this birth was seen before"
        if birth.timestamp < known.timestamp and not _is_ahead(birth.bd_seq, known.bd_seq):
            return Reason.LATE, "a later birth was seen before"
        return None

    def _take_out(self, is_coming: Callable[[int, EdgeMessage[M]], bool]) -> list[_Waiting[M]]:
        """The held messages that belong to a later session, no longer held."""
        held = self._queue.held()
        coming = [(seq, item) for seq, item in held if is_coming(seq, item.message)]
        if coming:
            positions = {seq for seq, _ in coming}
            self._hold_only([(seq, item) for seq, item in held if seq not in positions])
        return [_Waiting(item.message, item.arrival) for _, item in coming]

    def _belongs_to(self, birth: _Birth, seq: int, message: EdgeMessage[M]) -> bool:
        if message.timestamp is None or birth.timestamp is None or message.timestamp < birth.timestamp:
            return False
        if message.timestamp > birth.timestamp:
            return True
        assert birth.seq is not None
        assert self._queue.expected is not None
        return (seq - birth.seq - 1) % 256 < (seq - self._queue.expected) % 256

    def _hold_only(self, held: Iterable[tuple[int, Held[EdgeMessage[M]]]]) -> None:
        """Go on as if only these messages had arrived ahead of the expected one, each when it did."""
        saved = replace(self._queue.save(), now=-inf, held=(), gaps=())
        self._queue = Resequencer.restore(saved, self._resequencing, self.key)
        for seq, item in sorted(held, key=lambda entry: entry[1].arrival):
            self._queue.push(seq, item.message, item.arrival, epoch=self._epoch)

    def _end_epoch(self, now: float, out: list[NodeEffect[M]]) -> None:
        """Settle what is held in the epoch that ends."""
        release = self._options.on_session_end is OnEpoch.RELEASE
        self._take(self._queue.flush(now) if release else self._queue.clear(now), out, ask=False)

    # -- deaths ---------------------------------------------------------------------------------------------------------

    def _on_death(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        if message.bd_seq is None:
            self._ignore(message, "it carries no bdSeq, so nobody can say which session ended", out)
            return
        living = self.bd_seq if self._state is NodeState.BORN else None
        self._remember_death(message.bd_seq, living, now)
        if message.bd_seq != living:
            lives = "no session lives" if living is None else f"session {living} lives"
            self._ignore(message, f"it ends session {message.bd_seq}, and {lives}", out)
            return
        self._end_epoch(now, out)
        self._enter(NodeEvent.DEATH, NodeState.DEAD)
        self._rebirth.end()
        out += self._mark_all(Status.OFFLINE)
        self._given += 1
        out.append(Ordered(self.key, self._epoch, None, message))

    def _remember_death(self, ended: int, living: int | None, now: float) -> None:
        """Its birth may still be under way, also when the death itself is ignored."""
        if living is not None and _is_ahead(
            ended, living
        ):  # announced under the number of the next session, which may come
            return
        others = [death for death in self._recent_deaths(now) if death[0] != ended]
        self._deaths = (*others, (ended, now))[-MAX_DEATHS:]

    def _recent_deaths(self, now: float) -> list[tuple[int, float]]:
        return [death for death in self._deaths if now - death[1] <= self._options.reorder_timeout]

    def _ignore(self, message: EdgeMessage[M], detail: str, out: list[NodeEffect[M]]) -> None:
        self._given += 1
        out.append(DeathIgnored(self.key, detail, message))

    # -- messages with a number -----------------------------------------------------------------------------------------

    def _on_numbered(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        if self._state in (NodeState.UNBORN, NodeState.DEAD):
            self._before_birth(message, now, out)
        elif self._predates_birth(message):
            out.append(self._entry(Reason.LATE, message, now, "stamped before the birth of the session"))
        elif self._is_of_a_later_session(message):
            self._wait(message, now, out)
        else:
            self._push(message, now, out)

    def _before_birth(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        release = self._options.before_birth is BeforeBirth.RELEASE and self._state is NodeState.UNBORN
        if release and not self._waiting and message.kind is not Kind.DBIRTH:
            self._rebirth.want("data of a node that was never born")
            self._assume([message], now, out)
        else:
            self._wait(message, now, out)

    def _predates_birth(self, message: EdgeMessage[M]) -> bool:
        birth = self._birth
        if self._state is not NodeState.BORN or birth is None or birth.timestamp is None:
            return False
        return message.timestamp is not None and message.timestamp < birth.timestamp

    def _is_of_a_later_session(self, message: EdgeMessage[M]) -> bool:
        """Behind what is expected, yet stamped after everything that was released: neither late nor a copy."""
        expected = self._queue.expected
        if self._waiting and self._is_stamped_after_what_waits(message):
            return True
        if message.seq == expected or message.timestamp is None or self._newest is None:
            return False
        assert message.seq is not None
        assert expected is not None
        return message.timestamp > self._newest and SEQ.distance(message.seq, expected) < 0

    def _is_stamped_after_what_waits(self, message: EdgeMessage[M]) -> bool:
        stamps = [waiting.message.timestamp for waiting in self._waiting if waiting.message.timestamp is not None]
        return message.timestamp is not None and bool(stamps) and message.timestamp > min(stamps)

    def _push(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        assert message.seq is not None
        self._take(self._queue.push(message.seq, message, now, epoch=self._epoch), out, ask=True)

    def _assume(self, messages: list[EdgeMessage[M]], now: float, out: list[NodeEffect[M]]) -> None:
        """Release messages without a birth, in the order of their numbers as seen from the first to arrive."""
        self._end_epoch(now, out)
        self._enter(NodeEvent.ASSUME, NodeState.ASSUMED)
        self._epoch, self._newest = self._epoch + 1, None
        first = messages[0].seq or 0
        for message in sorted(messages, key=lambda each: SEQ.unwrap(each.seq or 0, first)):
            self._push(message, now, out)
        self._take(self._queue.flush(now), out, ask=False)

    # -- waiting for a birth --------------------------------------------------------------------------------------------

    def _wait(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        if len(self._waiting) >= self._options.capacity:
            if self._waiting_due is None:  # by policy they are held until a birth, so there is no room to be made
                out.append(self._entry(Reason.OVERFLOW, message, now, "no room to wait for a birth"))
                return
            self._waited_enough(now, out)
            self._on_numbered(message, now, out)
            return
        if not self._waiting:
            self._waiting_due = now + self._options.reorder_timeout
        self._waiting.append(_Waiting(message, now))
        if self._queue.held_count:
            self._waiting += self._take_out(lambda _, held: self._is_stamped_after_what_waits(held))

    def _waited_enough(self, now: float, out: list[NodeEffect[M]]) -> None:
        """No birth came in time."""
        if self._options.send_rebirth_when_timeout:
            self._rebirth.want("messages waited for a birth that did not come")
        self._waiting_due = None
        if self._options.on_timeout is OnTimeout.HOLD:
            return
        messages = [waiting.message for waiting in self._waiting]
        self._stop_waiting()
        if self._state in (NodeState.BORN, NodeState.ASSUMED):
            detail = "behind what is expected, stamped after it, and no birth came"
            out += [self._entry(Reason.LATE, message, now, detail) for message in messages]
        elif self._options.on_timeout is OnTimeout.RELEASE:
            self._assume(messages, now, out)
        else:
            out += [self._entry(Reason.DISCARDED, message, now, "no birth came") for message in messages]

    def _stop_waiting(self) -> None:
        self._waiting, self._waiting_due = [], None

    # -- what comes out -------------------------------------------------------------------------------------------------

    def _take(self, effects: list[Effect[EdgeMessage[M]]], out: list[NodeEffect[M]], *, ask: bool) -> None:
        """Pass on what the resequencer says. ``ask``: whether what it lost is a reason for a rebirth."""
        for effect in effects:
            if isinstance(effect, Released):
                self._release(effect, out)
            elif isinstance(effect, LedgerEntry):
                self._given += 1
                out.append(self._as_far_as_known(effect))
                if ask and effect.reason is Reason.LOST:
                    self._rebirth.want("messages are missing")
            elif isinstance(effect, GapReported) and ask:
                self._rebirth.want("messages are missing")
            elif isinstance(effect, SyncLost):
                self._rebirth.want("the node counts elsewhere")

    def _as_far_as_known(self, entry: LedgerEntry[EdgeMessage[M]]) -> LedgerEntry[EdgeMessage[M]]:
        """A bookmark does not say which numbers were given up, so a resumed session can't tell what is late from a copy."""
        is_resumed = self._birth is not None and self._birth.seq is None
        if entry.reason is not Reason.DUPLICATE or not is_resumed:
            return entry
        return entry._replace(detail="behind what was released before a restart: a copy, or late")

    def _release(self, released: Released[EdgeMessage[M]], out: list[NodeEffect[M]]) -> None:
        message = released.message
        if message.timestamp is not None and (self._newest is None or message.timestamp > self._newest):
            self._newest = message.timestamp
        if message.kind is Kind.DBIRTH:
            self._mark(message.device, Status.ONLINE, message.timestamp, out)
        elif message.kind is Kind.DDEATH:
            self._mark(message.device, Status.OFFLINE, message.timestamp, out)
        self._given += 1
        out.append(Ordered(self.key, released.epoch, released.sequence, message, self._flag()))

    def _flag(self) -> Flag | None:
        if self._state is NodeState.ASSUMED:
            return Flag.BEFORE_BIRTH
        return Flag.STALE if self._status is Status.STALE else None

    def _mark(self, device: str | None, status: Status, stamp: int | None, out: list[NodeEffect[M]]) -> None:
        if device is None:
            before, self._status = self._status, status
        else:
            before, self._devices[device] = self._devices.get(device, Status.OFFLINE), status
        if before is not status:
            out.append(StatusChanged(self.key, device, status, stamp))

    def _mark_all(self, status: Status, was: Status | None = None) -> list[NodeEffect[M]]:
        """Mark the devices, then the node; by the host's time."""
        out: list[NodeEffect[M]] = []
        for device, before in self._devices.items():
            if was in (None, before):
                self._mark(device, status, None, out)
        if was in (None, self._status):
            self._mark(None, status, None, out)
        return out

    def _enter(self, event: NodeEvent, target: NodeState) -> None:
        TABLE.check(self._state, event, target)
        self._state = target

    def _entry(self, reason: Reason, message: EdgeMessage[M], now: float, detail: str) -> LedgerEntry[EdgeMessage[M]]:
        self._given += 1
        seq = message.seq or 0
        return LedgerEntry(self.key, self._epoch, reason, seq, seq, 1, now, detail, message)


def _is_ahead(bd_seq: int, other: int) -> bool:
    """Whether a session follows another, as far as its number tells."""
    return 0 < (bd_seq - other) % 256 < 128


def _earliest(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else min(one, other)
