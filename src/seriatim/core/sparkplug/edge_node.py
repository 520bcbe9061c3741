"""One Sparkplug edge node: its sessions, the order of its messages, and rebirth requests.

Rules
-----
1. One counter, 0 to 255 and then 0 again, belongs to the **edge node**; its devices share it. Only NDEATH has no
   number.
2. An NBIRTH begins a new *epoch*: its own seq, whatever it is, determines the next one. A rebirth within a session
   keeps its bdSeq and begins a new epoch all the same.
3. DBIRTH, DDEATH, NDATA and DDATA are put in order by the core's resequencer: judged by distance from the expected
   number, held ahead of a gap, one timer per gap, never released backwards, each number once.
4. A gap that has timed out is settled by ``on_timeout`` and is a reason for a rebirth.
5. NDEATH is matched by bdSeq alone. It ends the live session with that bdSeq; any other is ignored and reported.
6. **seq and bdSeq decide. A stamp decides only what they leave open, and for no longer than ``reorder_timeout``.**

   Births. A birth repairs the state: it is accepted regardless of its stamp and bdSeq. There are two exceptions:

   - Its own death was seen, within the last ``reorder_timeout``: same bdSeq, and not stamped after everything that the
     ended session released. Stamped after it, it is a restart of a node that does not count its sessions. A death whose
     number is ahead of the live session ends nothing and blocks no birth: some nodes announce an end under the next
     number.
   - It is a copy of the live birth, which came within the last ``reorder_timeout``: same bdSeq, seq and stamp. After
     that it is a birth of a node whose clock has stopped, or begins at the same time whenever it is switched on.

   Data, by its number:

   - The expected number is released, whatever its stamp.
   - Ahead, it is held. MQTT keeps order within a topic only, so it may be left over from the previous session: within
     ``reorder_timeout`` after the birth it is late if it is stamped before the session began. That time is known from
     the first message that is expected, or not stamped before the birth: the earlier of its stamp and the birth's.
     Until then it is unknown, because the clock may have been wrong at birth.
   - Behind, it is late or a copy; a number that was given up is late. But stamped after everything that was released,
     or without a stamp when sync was lost, it belongs to a future session, or more than half the circle was missed. It
     *waits for the birth*, and so does everything stamped after it.
   - A new birth takes over the waiting messages that were stamped after it; with the same stamp, those nearer to its
     number than to the one expected before. If the birth is stamped before messages that were released already, the
     clock was set back and only the number counts.

7. Messages that waited ``reorder_timeout`` for a birth that did not come are settled by ``on_timeout``. If the session
   continued meanwhile, messages behind are late. Otherwise the node counts elsewhere: sync is lost, the missing numbers
   are lost, and the machine continues at its number, in a new epoch and *stale* until its birth. Messages that still
   wait at a death or a birth are settled by ``on_session_end``.
8. Numbers repeat after 256, so a loss is known modulo 256: an entry *lost* has the **minimum** of missing messages.
9. After a lost connection or a restart it is unknown how many messages were missed: until a number continues what was
   released, one that is behind is a copy only if its stamp says so. Otherwise it waits as in rule 6.
10. Data of a node without any birth is released and flagged, in its own order (``before_birth=RELEASE``), or waits for
    the birth. A DBIRTH that comes first always waits.
11. The status of devices changes when their messages are *released*, so in sequence order. A birth of the node does not
    restore its devices: they are stale until their own births.
12. Anything that is not released leaves a ledger entry with its reason; every release names its cause (``ReleasedBy``).
13. Clearing a device discards its waiting messages. The counter belongs to the node, so their numbers count as seen:
    they are neither waited for nor lost.

Theory of operation
-------------------
A session is an epoch of one resequencer. Unlike other numbered sources, Sparkplug starts an epoch with a message of its
own, on a topic of its own, so the messages of an epoch can arrive before its start. They can't be pushed, because their
epoch is unknown: they wait in a small waiting room beside the resequencer. The next NBIRTH judges them. A message that
looks ahead in the live session may belong to the next one too; the resequencer holds it, and the NBIRTH removes it.

Clocks of edge nodes are set while they run, begin at 1970 after a reboot, or stand still. That is why no stamp rejects
a birth or an expected number, and why each comparison of stamps has a time limit: a wrong one costs a timeout, and the
next birth corrects it.

Time passes as in the resequencer: ``receive`` first handles everything due at ``now``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Generic, NamedTuple, TypeVar

from seriatim.core.resequencing.gaps import Held
from seriatim.core.resequencing.options import (
    Effect,
    GapReported,
    LedgerEntry,
    OnEpoch,
    Reason,
    Released,
    SyncLost,
)
from seriatim.core.resequencing.resequencer import Resequencer, SavedResequencer
from seriatim.core.sparkplug.messages import (
    OF_DATA,
    SEQ,
    BeforeBirth,
    Bookmark,
    DeathIgnored,
    EdgeMessage,
    Flag,
    HeldMessage,
    Kind,
    NodeEffect,
    NodeOrdering,
    NodeSnapshot,
    OnTimeout,
    Ordered,
    RebirthRequested,
    ReleasedBy,
    SequenceGap,
    Status,
    StatusChanged,
    check_message,
)
from seriatim.core.sparkplug.rebirth import RebirthGovernor
from seriatim.core.transition_table import TransitionTable

M = TypeVar("M")
_make = tuple.__new__  # creates named tuples in C: twice as fast as calling their class

MAX_DEATHS = 32
"""The maximum number of remembered deaths: a node that ends more within ``reorder_timeout`` is broken anyway."""

LEFT_OVER = "stamped before the birth of the session"
"""The reason of a late message that is ahead of the expected one."""


class NodeState(StrEnum):
    UNBORN = "unborn"
    ASSUMED = "assumed"
    BORN = "born"
    DEAD = "dead"


class NodeEvent(StrEnum):
    ASSUME = "assume"  # data is released without a birth
    BIRTH = "birth"  # an NBIRTH is accepted
    DEATH = "death"  # the NDEATH of the live session
    FOLLOW = "follow"  # sync was lost: continue at the node's number
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
        NodeState.ASSUMED: {
            NodeEvent.BIRTH: frozenset({NodeState.BORN}),
            NodeEvent.FOLLOW: frozenset({NodeState.ASSUMED}),
            **_CLEARED,
        },
        NodeState.BORN: {
            NodeEvent.BIRTH: frozenset({NodeState.BORN}),
            NodeEvent.DEATH: frozenset({NodeState.DEAD}),
            NodeEvent.FOLLOW: frozenset({NodeState.BORN}),
            **_CLEARED,
        },
        NodeState.DEAD: _BEFORE_A_BIRTH,
    },
)


class _Birth(NamedTuple):
    """An NBIRTH. Its seq and timestamp are unknown in a session that was resumed, or continued at another number."""

    bd_seq: int
    seq: int | None
    timestamp: int | None


class _Death(NamedTuple):
    """An NDEATH, and the newest stamp of the session that it ended, if that is known."""

    bd_seq: int
    arrival: float
    newest: int | None


class _Waiting(NamedTuple, Generic[M]):
    """A message that waits for its session's birth."""

    message: EdgeMessage[M]
    arrival: float


class _Cleared(EdgeMessage[M]):
    """A message that was discarded with its device while it waited. It keeps its place, and is not released."""


@dataclass(frozen=True, slots=True)
class SavedNode(Generic[M]):
    """Everything that a node's order and its ledger depend on, as plain data, without rebirth requests."""

    state: NodeState
    status: Status
    devices: tuple[tuple[str, Status], ...]
    epoch: int
    given: int
    birth: tuple[int, int | None, int | None] | None
    born_at: float
    deaths: tuple[tuple[int, float, int | None], ...]
    newest: int | None
    began: int | None
    adrift: bool
    waiting: tuple[tuple[EdgeMessage[M], float], ...]
    waiting_due: float | None
    moved_on: bool
    queue: SavedResequencer[EdgeMessage[M]]


class EdgeNode(Generic[M]):
    """The session machine of one edge node. See the module's rules."""

    __slots__ = (
        "_adrift",
        "_began",
        "_birth",
        "_born_at",
        "_deaths",
        "_devices",
        "_epoch",
        "_given",
        "_moved_on",
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
        """Forget the node, except its number of epochs and messages, and when a rebirth was requested."""
        self._queue: Resequencer[EdgeMessage[M]] = Resequencer(self._resequencing, self.key)
        self._state = NodeState.UNBORN
        self._status = Status.OFFLINE
        self._devices: dict[str, Status] = {}
        self._birth: _Birth | None = None
        self._born_at = -inf
        self._deaths: tuple[_Death, ...] = ()
        self._newest: int | None = None
        """The newest stamp that was released since the last birth."""
        self._began: int | None = None
        """What is stamped before this is left over from the session before; None while that is not confirmed."""
        self._adrift = False
        """Whether a number behind may be a new one, as far as numbers tell."""
        self._waiting: list[_Waiting[M]] = []
        self._waiting_due: float | None = None
        self._moved_on = False
        """Whether the session went on where it was while messages waited: then sync is not lost."""

    # -- state ----------------------------------------------------------------------------------------------------------

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
        """How many times sequence numbers restarted."""
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
        """The number of messages that wait: ahead of a gap, or for a birth."""
        return len(self.held())

    def held(self) -> list[EdgeMessage[M]]:
        """The messages that wait: first those ahead of a gap, by number, then those that wait for a birth."""
        held = [item.message for _, item in self._queue.held()] + [waiting.message for waiting in self._waiting]
        return _not_cleared(held)

    @property
    def gaps(self) -> tuple[SequenceGap, ...]:
        """The missing numbers before held messages."""
        return tuple(SequenceGap(first, last) for first, last in self._queue.missing())

    def snapshot(self) -> NodeSnapshot[M]:
        """The current state of the node."""
        return NodeSnapshot(
            key=self.key,
            status=self._status,
            devices=dict(self._devices),
            epoch=self._epoch,
            bd_seq=self.bd_seq,
            expected=self.expected,
            held=_as_held((item.message, item.arrival) for _, item in self._queue.held()),
            waiting=_as_held(self._waiting),
            gaps=self.gaps,
            deadline=self.order_deadline,
            rebirth_outstanding=self.rebirth_outstanding,
        )

    @property
    def rebirth_outstanding(self) -> bool:
        return self._rebirth.outstanding

    @property
    def is_blank(self) -> bool:
        """Whether nothing has happened since the node was created or cleared."""
        return self._state is NodeState.UNBORN and not (self._waiting or self._deaths or self._rebirth.outstanding)

    @property
    def forgettable_at(self) -> float:
        """The time from which forgetting a blank node makes no difference to its rebirths."""
        return self._rebirth.begins_anew

    @property
    def deadline(self) -> float | None:
        """When ``advance`` has something to do; None: never."""
        return _earliest(self.order_deadline, self._rebirth.due)

    @property
    def order_deadline(self) -> float | None:
        """When ``advance`` releases messages or gives some up; None: never. (Rebirth requests have other times.)"""
        return _earliest(self._queue.deadline, self._waiting_due)

    def bookmark(self) -> Bookmark:
        """The node's position, after everything that was released."""
        expected = self._queue.expected
        born = self._state is NodeState.BORN
        return Bookmark(self._given, self._epoch, self.bd_seq or 0, expected or 0, born, self._newest)

    @classmethod
    def resume(cls, bookmark: Bookmark, options: NodeOrdering | None = None, key: Hashable = None) -> EdgeNode[M]:
        """A node at a bookmark: stale, because it is unknown what was missed since."""
        self = cls(options, key)
        self._given, self._epoch = bookmark.given, bookmark.epoch
        if bookmark.born:
            self._state, self._status = NodeState.BORN, Status.STALE
            self._birth = _Birth(bookmark.bd_seq, None, None)
            self._newest, self._adrift = bookmark.newest, True
            self._count_from(bookmark.expected, horizon=bookmark.expected - 256)
        return self

    def save(self) -> SavedNode[M]:
        return SavedNode(
            state=self._state,
            status=self._status,
            devices=tuple(self._devices.items()),
            epoch=self._epoch,
            given=self._given,
            birth=self._birth,
            born_at=self._born_at,
            deaths=self._deaths,
            newest=self._newest,
            began=self._began,
            adrift=self._adrift,
            waiting=tuple(self._waiting),
            waiting_due=self._waiting_due,
            moved_on=self._moved_on,
            queue=self._queue.save(),
        )

    @classmethod
    def restore(cls, saved: SavedNode[M], options: NodeOrdering | None = None, key: Hashable = None) -> EdgeNode[M]:
        """A node that exactly continues the saved one, given the same options, except that no rebirth request is
        outstanding. With other options nothing waits longer than they allow."""
        self = cls(options, key)
        self._state, self._status, self._devices = saved.state, saved.status, dict(saved.devices)
        self._epoch, self._given, self._newest = saved.epoch, saved.given, saved.newest
        self._birth, self._born_at = saved.birth and _Birth(*saved.birth), saved.born_at
        self._deaths = tuple(_Death(*death) for death in saved.deaths)
        self._began, self._adrift = saved.began, saved.adrift
        self._waiting = [_Waiting(message, arrival) for message, arrival in saved.waiting]
        self._waiting_due, self._moved_on = saved.waiting_due, saved.moved_on
        if self._waiting and (self._waiting_due is not None or self._options.on_timeout is not OnTimeout.HOLD):
            self._waiting_due = _earliest(self._waiting_due, self._waiting[0].arrival + self._options.reorder_timeout)
        self._queue = Resequencer.restore(saved.queue, self._resequencing, key)
        return self

    # -- commands -------------------------------------------------------------------------------------------------------

    def receive(self, message: EdgeMessage[M], now: float) -> list[NodeEffect[M]]:
        """Process one message. An invalid one raises and changes nothing."""
        check_message(message)
        if (
            message.kind in OF_DATA
            and self._state is NodeState.BORN
            and self._began is not None
            and not self._waiting
            and self._rebirth.due is None
            and self._queue.epoch == self._epoch
            and self._queue.pass_run(message.seq or 0, 1, now)
        ):  # nearly every message: the next one of a session whose beginning is known, while nothing waits
            return [self._passed_on(message, message.seq, self._epoch, ReleasedBy.ORDER)]
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
        """Let time pass: decide everything that is due by ``now``."""
        out: list[NodeEffect[M]] = []
        if (gap := self._queue.deadline) is not None and gap <= now:
            ask = self._options.send_rebirth_when_timeout
            self._take(self._queue.advance(now), out, ReleasedBy.TIMEOUT, ask=ask)
        if self._waiting_due is not None and self._waiting_due <= now:
            self._waited_enough(now, out, ReleasedBy.TIMEOUT)
        if (due := self._rebirth.due) is not None and due <= now:
            out.append(RebirthRequested(self.key, *self._rebirth.ask(now)))
        return out

    def disconnect(self) -> list[NodeEffect[M]]:
        """The connection to the node is lost: everything online is stale."""
        self._rebirth.reachable = False
        self._adrift = self._queue.expected is not None
        return self._mark_all(Status.STALE, was=Status.ONLINE)

    def reconnect(self, now: float) -> list[NodeEffect[M]]:
        """The connection to the node is restored: request the birth of a stale node."""
        self._rebirth.reachable = True
        if self._status is Status.STALE:
            self._rebirth.want("what was sent while there was no connection is unknown")
        return self.advance(now)

    def ask(self, reason: str, now: float) -> list[NodeEffect[M]]:
        """There is another reason for a rebirth, such as a metric with an unknown name."""
        self._rebirth.want(reason)
        return self.advance(now)

    def clear(self, now: float) -> list[NodeEffect[M]]:
        """Forget the node. Held messages are discarded, with ledger entries."""
        TABLE.check(self._state, NodeEvent.CLEAR, NodeState.UNBORN)
        out: list[NodeEffect[M]] = []
        self._take(self._queue.clear(now), out, ReleasedBy.SESSION_END)
        out += self._entries(Reason.DISCARDED, [waiting.message for waiting in self._waiting], now, "cleared")
        out += self._mark_all(Status.OFFLINE)
        self._rebirth.end()
        self._forget()
        return out

    def clear_device(self, device: str, now: float) -> list[NodeEffect[M]]:
        """Forget the status of a device. Its held messages are discarded, with ledger entries; the node's count
        continues."""
        discarded = [message for message in self.held() if message.device == device]
        out: list[NodeEffect[M]] = [*self._entries(Reason.DISCARDED, discarded, now, "its device was cleared")]
        if discarded:
            self._keep_places_of(device)
        self._mark(device, Status.OFFLINE, None, out)
        del self._devices[device]
        return out

    def _keep_places_of(self, device: str) -> None:
        """Mark the waiting messages of a device as cleared, in their places."""

        def cleared(message: EdgeMessage[M]) -> EdgeMessage[M]:
            return _Cleared(*message) if message.device == device else message

        saved = self._queue.save()
        held = tuple((position, item._replace(message=cleared(item.message))) for position, item in saved.held)
        self._queue = Resequencer.restore(replace(saved, held=held), self._resequencing, self.key)
        self._waiting = [waiting._replace(message=cleared(waiting.message)) for waiting in self._waiting]

    # -- births ---------------------------------------------------------------------------------------------------------

    def _on_birth(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        assert message.bd_seq is not None
        assert message.seq is not None
        birth = _Birth(message.bd_seq, message.seq, message.timestamp)
        if refusal := self._refusal(birth, now):
            reason, detail = refusal
            out += self._entries(reason, [message], now, detail)
            return
        coming = self._take_out(lambda seq, held: self._belongs_to(birth, seq, held.message))
        coming += self._end_session(birth, now, out)
        self._enter(NodeEvent.BIRTH, NodeState.BORN)
        self._birth, self._born_at, self._epoch = birth, now, self._epoch + 1
        self._newest, self._began, self._adrift = message.timestamp, None, False
        self._rebirth.end()
        self._mark(None, Status.ONLINE, message.timestamp, out)
        for device, status in self._devices.items():
            if status is Status.ONLINE:
                self._mark(device, Status.STALE, message.timestamp, out)
        self._push(message, now, out)
        # If a leftover message has the same number as another one, the other one takes precedence.
        for waiting in sorted(coming, key=lambda each: (_is_stamped_before(each.message, birth), each.arrival)):
            self._on_numbered(waiting.message, now, out, ReleasedBy.GAP_FILLED)

    def _refusal(self, birth: _Birth, now: float) -> tuple[Reason, str] | None:
        """Why an NBIRTH is rejected, or None."""
        stamp = birth.timestamp
        for death in self._recent_deaths(now):
            is_restart = stamp is not None and death.newest is not None and stamp > death.newest
            if death.bd_seq == birth.bd_seq and not is_restart:
                return Reason.LATE, "its session has already ended"
        is_equal = birth == self._birth and self._state is NodeState.BORN and stamp is not None
        if is_equal and now - self._born_at <= self._options.reorder_timeout:
            return Reason.DUPLICATE, "this birth was seen before"
        return None

    def _take_out(self, is_meant: Callable[[int, Held[EdgeMessage[M]]], bool]) -> list[_Waiting[M]]:
        """Remove some of the held messages, and return them."""
        meant, others = list[_Waiting[M]](), list[tuple[int, Held[EdgeMessage[M]]]]()
        for seq, item in self._queue.held():
            if is_meant(seq, item):
                meant.append(_Waiting(item.message, item.arrival))
            else:
                others.append((seq, item))
        if meant:  # continue as if only the others had arrived ahead of the expected one, each at its time
            saved = replace(self._queue.save(), now=-inf, held=(), gaps=())
            self._queue = Resequencer.restore(saved, self._resequencing, self.key)
            for seq, item in sorted(others, key=lambda entry: entry[1].arrival):
                self._queue.push(seq, item.message, item.arrival, epoch=self._epoch)
        return meant

    def _belongs_to(self, birth: _Birth, seq: int, message: EdgeMessage[M]) -> bool:
        """Whether a held message belongs to the session that begins, and not to the one that ends."""
        if message.timestamp is None or birth.timestamp is None:
            return False
        if message.timestamp != birth.timestamp and not self._was_set_back(birth):
            return message.timestamp > birth.timestamp
        assert birth.seq is not None
        assert self._queue.expected is not None
        return (seq - birth.seq - 1) % 256 < (seq - self._queue.expected) % 256

    def _was_set_back(self, birth: _Birth) -> bool:
        """Whether the clock was set back before this birth, so that stamps before and after it can't be compared."""
        return self._newest is not None and birth.timestamp is not None and birth.timestamp < self._newest

    def _end_session(self, birth: _Birth, now: float, out: list[NodeEffect[M]]) -> list[_Waiting[M]]:
        """Settle held messages, and waiting ones that were sent before the birth. Returns those that still wait."""
        waiting, is_in_sync = self._waiting, self._is_in_sync()
        ended_at = inf if self._state in (NodeState.BORN, NodeState.ASSUMED) else self._died_at()
        if self._was_set_back(birth):
            ended_at = -inf
        is_ended = [_is_stamped_before(each.message, birth) and each.arrival < ended_at for each in waiting]
        ended = [each.message for each, has_ended in zip(waiting, is_ended, strict=True) if has_ended]
        self._stop_waiting()
        if ended and self._options.on_session_end is OnEpoch.DISCARD:
            out += self._entries(Reason.DISCARDED, ended, now, "its session ended")
        elif ended and (is_in_sync or self._state is NodeState.DEAD):
            self._judge_by_number(ended, now, out, ReleasedBy.SESSION_END)
        elif ended:
            self._follow(ended, now, out, ReleasedBy.SESSION_END)
        self._end_epoch(now, out)
        return [each for each, has_ended in zip(waiting, is_ended, strict=True) if not has_ended]

    def _died_at(self) -> float:
        """When the death of the last session came; waiting messages sent before the next birth belong to it."""
        deaths = [death.arrival for death in self._deaths if death.bd_seq == self.bd_seq]
        return deaths[-1] if deaths and self._state is NodeState.DEAD else -inf

    def _end_epoch(self, now: float, out: list[NodeEffect[M]]) -> None:
        """Settle the messages held in the epoch that ends."""
        release = self._options.on_session_end is OnEpoch.RELEASE
        self._take(self._queue.flush(now) if release else self._queue.clear(now), out, ReleasedBy.SESSION_END)

    # -- deaths ---------------------------------------------------------------------------------------------------------

    def _on_death(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        if message.bd_seq is None:
            self._ignore(message, "it carries no bdSeq, so it is unknown which session ended", out)
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
        """Its birth may still arrive, even if the death itself is ignored."""
        if living is not None and _is_ahead(ended, living):
            return  # announced under the number of the next session, which may follow
        recent = self._recent_deaths(now)
        known = [death.newest for death in recent if death.bd_seq == ended]
        newest = self._newest if ended == living else known[0] if known else None
        others = [death for death in recent if death.bd_seq != ended]
        self._deaths = (*others, _Death(ended, now, newest))[-MAX_DEATHS:]

    def _recent_deaths(self, now: float) -> list[_Death]:
        return [death for death in self._deaths if now - death.arrival <= self._options.reorder_timeout]

    def _ignore(self, message: EdgeMessage[M], detail: str, out: list[NodeEffect[M]]) -> None:
        self._given += 1
        out.append(DeathIgnored(self.key, detail, message))

    # -- messages with a number -----------------------------------------------------------------------------------------

    def _on_numbered(
        self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]], by: ReleasedBy = ReleasedBy.ORDER
    ) -> None:
        """``by``: what released the message if it is the expected one."""
        if self._state in (NodeState.UNBORN, NodeState.DEAD):
            self._before_birth(message, now, out)
        elif self._waits_for_a_birth(message):
            self._wait(message, now, out)
        else:
            self._confirm_beginning(message, now, out)
            if message.seq != self._queue.expected and self._is_left_over(message, now):
                out += self._entries(Reason.LATE, [message], now, LEFT_OVER)
            else:
                self._push(message, now, out, by)

    def _before_birth(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        release = self._options.before_birth is BeforeBirth.RELEASE and self._state is NodeState.UNBORN
        if release and not self._waiting and message.kind is not Kind.DBIRTH:
            self._rebirth.want("data of a node that was never born")
            self._assume([message], now, out, ReleasedBy.ORDER)
        else:
            self._wait(message, now, out)

    def _waits_for_a_birth(self, message: EdgeMessage[M]) -> bool:
        """Whether it belongs to a future session, or the node counts elsewhere: neither late nor a copy."""
        seq, expected = message.seq, self._queue.expected
        assert seq is not None
        assert expected is not None
        if self._waiting:  # does it follow a waiting message, by its stamp or, without stamps, by its number?
            last = self._waiting[-1].message
            if message.timestamp is None and last.timestamp is None:
                if seq == ((last.seq or 0) + 1) % 256:
                    return True
            elif self._is_stamped_after_what_waits(message):
                return True
        if SEQ.distance(seq, expected) >= 0 or self._queue.was_given_up(seq):
            return False
        if message.timestamp is None or self._newest is None:
            return self._adrift
        return message.timestamp > self._newest

    def _is_stamped_after_what_waits(self, message: EdgeMessage[M]) -> bool:
        if message.timestamp is None:
            return False
        stamps = [waiting.message.timestamp for waiting in self._waiting if waiting.message.timestamp is not None]
        return bool(stamps) and message.timestamp > min(stamps)

    def _confirm_beginning(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        """The expected number, or any message not stamped before the birth, shows if the birth's stamp was right."""
        born = self._birth.timestamp if self._birth and self._state is NodeState.BORN else None
        if self._began is not None or born is None or message.timestamp is None:
            return
        if message.timestamp < born and message.seq != self._queue.expected:
            return
        self._began = min(born, message.timestamp)
        if message.timestamp < born:
            self._newest = message.timestamp  # the clock was wrong at birth
        left_over = self._take_out(lambda _, held: self._is_left_over(held.message, held.arrival))
        out += self._entries(Reason.LATE, [each.message for each in left_over], now, LEFT_OVER)

    def _is_left_over(self, message: EdgeMessage[M], arrival: float) -> bool:
        if self._began is None or message.timestamp is None:
            return False
        return message.timestamp < self._began and arrival - self._born_at <= self._options.reorder_timeout

    def _push(
        self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]], by: ReleasedBy = ReleasedBy.ORDER
    ) -> None:
        assert message.seq is not None
        is_expected = self._queue.epoch != self._epoch or self._queue.expected == message.seq
        effects = self._queue.push(message.seq, message, now, epoch=self._epoch)
        if is_expected:
            self._take(effects[:1], out, by)
            self._take(effects[1:], out, ReleasedBy.GAP_FILLED)
        else:
            self._take(effects, out, ReleasedBy.CAPACITY, ask=True)
        if any(isinstance(effect, SyncLost) for effect in effects):
            self._adrift = self._newest is None or message.timestamp is None

    def _assume(self, messages: list[EdgeMessage[M]], now: float, out: list[NodeEffect[M]], by: ReleasedBy) -> None:
        """Release messages without a birth."""
        self._end_epoch(now, out)
        self._enter(NodeEvent.ASSUME, NodeState.ASSUMED)
        self._newest = None
        self._begin_epoch_with(messages, now, out, by)

    def _begin_epoch_with(
        self, messages: list[EdgeMessage[M]], now: float, out: list[NodeEffect[M]], by: ReleasedBy
    ) -> None:
        """Release messages in the order of their numbers, relative to the first, which is the node's position."""
        self._epoch, self._began, self._adrift = self._epoch + 1, None, False
        for message in _in_order(messages, messages[0].seq or 0):
            self._push(message, now, out, by)
        self._take(self._queue.flush(now), out, by)

    # -- waiting for a birth --------------------------------------------------------------------------------------------

    def _wait(self, message: EdgeMessage[M], now: float, out: list[NodeEffect[M]]) -> None:
        if len(self._waiting) >= self._options.capacity:
            if self._waiting_due is None:  # by policy they are held until a birth, so no room can be made
                out += self._entries(Reason.OVERFLOW, [message], now, "no room to wait for a birth")
                return
            self._waited_enough(now, out, ReleasedBy.CAPACITY)
            self._on_numbered(message, now, out)
            return
        if not self._waiting:
            self._waiting_due = now + self._options.reorder_timeout
            self._moved_on = False
        self._waiting.append(_Waiting(message, now))
        if self._queue.held_count:
            self._waiting += self._take_out(lambda _, held: self._is_stamped_after_what_waits(held.message))

    def _waited_enough(self, now: float, out: list[NodeEffect[M]], by: ReleasedBy) -> None:
        """No birth arrived in time."""
        if self._options.send_rebirth_when_timeout:
            self._rebirth.want("messages waited for a birth that did not come")
        self._waiting_due = None
        if self._options.on_timeout is OnTimeout.HOLD:
            return
        messages = [waiting.message for waiting in self._waiting]
        has_session = self._state in (NodeState.BORN, NodeState.ASSUMED)
        is_in_sync = self._is_in_sync()
        self._stop_waiting()
        if has_session and is_in_sync:
            self._judge_by_number(messages, now, out, by)
        elif self._options.on_timeout is OnTimeout.RELEASE:
            (self._follow if has_session else self._assume)(messages, now, out, by)
        elif has_session:
            self._drop_and_follow(messages, now, out)
        else:
            out += self._entries(Reason.DISCARDED, messages, now, "no birth came")

    def _stop_waiting(self) -> None:
        self._waiting, self._waiting_due = [], None

    def _is_in_sync(self) -> bool:
        """Whether the session continued, judging by the released and waiting messages."""
        expected, numbers = self._queue.expected, {waiting.message.seq for waiting in self._waiting}
        if self._moved_on or expected is None:
            return True
        # Stamps show what is new. Without them, one or two messages before the expected one are treated as copies.
        copies = 2 if self._adrift else 0
        run = next(count for count in range(257) if (expected - 1 - count) % 256 not in numbers or count == 256)
        return expected in numbers and run <= copies

    def _judge_by_number(
        self, messages: list[EdgeMessage[M]], now: float, out: list[NodeEffect[M]], by: ReleasedBy
    ) -> None:
        assert self._queue.expected is not None
        for message in _in_order(messages, self._queue.expected):
            self._push(message, now, out, by)

    def _follow(self, messages: list[EdgeMessage[M]], now: float, out: list[NodeEffect[M]], by: ReleasedBy) -> None:
        """Continue at the node's number, with messages that were not expected.

        Sync is lost, unless the held messages lead up to them: then more than half the circle came after a gap.
        """
        had_held = self._queue.held_count > 0
        self._take(self._queue.flush(now), out, by)
        if had_held and self._is_still_to_come(messages):
            self._judge_by_number(messages, now, out, by)
            self._take(self._queue.flush(now), out, by)
        else:
            self._lose_sync(messages, now, out)
            self._begin_epoch_with(messages, now, out, by)

    def _drop_and_follow(self, messages: list[EdgeMessage[M]], now: float, out: list[NodeEffect[M]]) -> None:
        """The same, if held and waiting messages are to be dropped: continue after them."""
        had_held = self._queue.held_count > 0
        self._give_gaps_up(now, out)
        if had_held and self._is_still_to_come(messages):
            self._judge_by_number(messages, now, out, ReleasedBy.TIMEOUT)
            return
        self._lose_sync(messages, now, out)
        self._epoch, self._began, self._adrift = self._epoch + 1, None, False
        dropped = _in_order(messages, messages[0].seq or 0)
        out += self._entries(Reason.DISCARDED, dropped, now, "no birth came")
        following = ((dropped[-1].seq or 0) + 1) % 256
        self._count_from(following, horizon=following)

    def _is_still_to_come(self, messages: list[EdgeMessage[M]]) -> bool:
        first = _in_order(messages, messages[0].seq or 0)[0].seq
        return SEQ.distance(first or 0, self._queue.expected or 0) >= 0

    def _give_gaps_up(self, now: float, out: list[NodeEffect[M]]) -> None:
        """Settle held messages as if every gap had timed out."""
        for effect in self._queue.advance(inf):
            self._take(
                [effect._replace(time=now) if isinstance(effect, LedgerEntry) else effect], out, ReleasedBy.TIMEOUT
            )
        self._queue = Resequencer.restore(replace(self._queue.save(), now=now), self._resequencing, self.key)

    def _lose_sync(self, messages: list[EdgeMessage[M]], now: float, out: list[NodeEffect[M]]) -> None:
        """Record what is missing before these messages. The state of the node is unknown from now on."""
        expected, first = self._queue.expected, _in_order(messages, messages[0].seq or 0)[0].seq
        assert expected is not None
        assert first is not None
        detail = f"{first} is behind {expected}, the next expected number, and no birth came"
        out.append(LedgerEntry(self.key, self._epoch, Reason.SYNC_LOST, first, first, 1, now, detail))
        if missing := (first - expected) % 256:
            detail, last = f"sync was lost; {at_least(missing)}", (first - 1) % 256
            out.append(LedgerEntry(self.key, self._epoch, Reason.LOST, expected, last, missing, now, detail))
        self._given += 1 + bool(missing)
        self._enter(NodeEvent.FOLLOW, self._state)
        self._birth = self._birth and _Birth(self._birth.bd_seq, None, None)
        out += self._mark_all(Status.STALE, was=Status.ONLINE)

    def _count_from(self, expected: int, horizon: int) -> None:
        nothing: SavedResequencer[EdgeMessage[M]] = Resequencer[EdgeMessage[M]](self._resequencing, self.key).save()
        start = replace(nothing, epoch=self._epoch, expected=expected, horizon=horizon)
        self._queue = Resequencer.restore(start, self._resequencing, self.key)

    # -- output ---------------------------------------------------------------------------------------------------------

    def _take(
        self, effects: list[Effect[EdgeMessage[M]]], out: list[NodeEffect[M]], by: ReleasedBy, *, ask: bool = False
    ) -> None:
        """Return the resequencer's effects. ``ask``: whether its losses are a reason for a rebirth."""
        for effect in effects:
            if isinstance(effect, Released):
                self._release(effect, out, by)
            elif isinstance(effect, LedgerEntry):
                if isinstance(effect.message, _Cleared):
                    continue
                self._given += 1
                out.append(self._as_far_as_known(effect))
                if ask and effect.reason is Reason.LOST:
                    self._rebirth.want("messages are missing")
            elif isinstance(effect, GapReported) and ask:
                self._rebirth.want("messages are missing")
            elif isinstance(effect, SyncLost):
                self._rebirth.want("the node counts elsewhere")

    def _as_far_as_known(self, entry: LedgerEntry[EdgeMessage[M]]) -> LedgerEntry[EdgeMessage[M]]:
        """Numbers repeat, so the number of lost messages is unknown. And a bookmark does not contain the numbers given
        up, so a resumed session can't distinguish late messages from copies."""
        if entry.reason is Reason.LOST:
            return entry._replace(detail=f"{entry.detail}; {at_least(entry.size)}")
        is_resumed = self._birth is not None and self._birth.seq is None
        if entry.reason is not Reason.DUPLICATE or not is_resumed:
            return entry
        return entry._replace(detail="behind what was released before a restart: a copy, or late")

    def _release(self, released: Released[EdgeMessage[M]], out: list[NodeEffect[M]], by: ReleasedBy) -> None:
        message = released.message
        if message.kind is Kind.DBIRTH and not isinstance(message, _Cleared):
            self._mark(message.device, Status.ONLINE, message.timestamp, out)
        elif message.kind is Kind.DDEATH and not isinstance(message, _Cleared):
            self._mark(message.device, Status.OFFLINE, message.timestamp, out)
        ordered = self._passed_on(message, released.sequence, released.epoch, by)
        if not isinstance(message, _Cleared):
            out.append(ordered)

    def _passed_on(self, message: EdgeMessage[M], sequence: int | None, epoch: int, by: ReleasedBy) -> Ordered[M]:
        """The session continues with this message."""
        stamp, flag = message.timestamp, None
        if stamp is not None:
            self._newest = stamp if self._newest is None else max(stamp, self._newest)
            self._began = None if self._began is None else min(stamp, self._began)
        self._adrift = False
        self._moved_on |= by is ReleasedBy.ORDER or by is ReleasedBy.GAP_FILLED
        self._given += not isinstance(message, _Cleared)
        if self._state is NodeState.ASSUMED:
            flag = Flag.BEFORE_BIRTH
        elif self._status is Status.STALE:
            flag = Flag.STALE
        return _make(Ordered, (self.key, epoch, sequence, message, flag, by))

    def _mark(self, device: str | None, status: Status, stamp: int | None, out: list[NodeEffect[M]]) -> None:
        if device is None:
            before, self._status = self._status, status
        else:
            before, self._devices[device] = self._devices.get(device, Status.OFFLINE), status
        if before is not status:
            out.append(StatusChanged(self.key, device, status, stamp))

    def _mark_all(self, status: Status, was: Status | None = None) -> list[NodeEffect[M]]:
        """Mark the devices, then the node; with the host's time."""
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

    def _entries(
        self, reason: Reason, messages: list[EdgeMessage[M]], now: float, detail: str
    ) -> list[LedgerEntry[EdgeMessage[M]]]:
        entered = [(message, message.seq or 0) for message in _not_cleared(messages)]
        self._given += len(entered)
        return [LedgerEntry(self.key, self._epoch, reason, n, n, 1, now, detail, message) for message, n in entered]


def _as_held(arrivals: Iterable[tuple[EdgeMessage[M], float]]) -> tuple[HeldMessage[M], ...]:
    return tuple(HeldMessage(message, since) for message, since in arrivals if not isinstance(message, _Cleared))


def _not_cleared(messages: list[EdgeMessage[M]]) -> list[EdgeMessage[M]]:
    return [message for message in messages if not isinstance(message, _Cleared)]


def at_least(lost: int) -> str:
    """The number of missing messages, as text, given the missing numbers."""
    return f"at least {lost} missing: numbers repeat after 256"


def _in_order(messages: Iterable[EdgeMessage[M]], pivot: int) -> list[EdgeMessage[M]]:
    """Sorted by their numbers, relative to one of them."""
    return sorted(messages, key=lambda message: SEQ.unwrap(message.seq or 0, pivot))


def _is_stamped_before(message: EdgeMessage[M], birth: _Birth) -> bool:
    stamp, born = message.timestamp, birth.timestamp
    return stamp is not None and born is not None and stamp < born


def _is_ahead(bd_seq: int, other: int) -> bool:
    """Whether a session follows another, as far as its number shows."""
    return 0 < (bd_seq - other) % 256 < 128


def _earliest(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else min(one, other)
