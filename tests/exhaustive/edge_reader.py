"""What somebody who reads the rules of edge nodes knows from what was received and said, and what the rules allow next.

The reader keeps no message and decides no order: it only objects.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from seriatim.core.resequencing.options import LedgerEntry, Reason
from seriatim.core.sparkplug.edge_node import NodeState
from seriatim.core.sparkplug.messages import (
    BeforeBirth,
    EdgeMessage,
    Flag,
    Kind,
    NodeEffect,
    NodeOrdering,
    OnTimeout,
    Ordered,
    RebirthRequested,
    ReleasedBy,
    Status,
)


class Stamps(NamedTuple):
    """The earliest and the latest stamp that a session released."""

    earliest: int
    latest: int


class Death(NamedTuple):
    bd_seq: int
    at: float
    stamps: Stamps | None
    """Of the session that it ended; None when it ended none, or nothing was stamped."""


class Birth(NamedTuple):
    seq: int | None
    timestamp: int | None
    at: float


class Reader:
    """Follows one edge node."""

    __slots__ = (
        "asked_at",
        "backoff",
        "bd_seq",
        "birth",
        "deaths",
        "devices",
        "epoch",
        "is_connected",
        "most_requests",
        "options",
        "seq",
        "session",
        "stamps",
        "status",
    )

    def __init__(self, options: NodeOrdering) -> None:
        self.options = options
        self.epoch = 0
        self.asked_at, self.backoff, self.most_requests = -inf, 0.0, 0
        self.is_connected = True
        self.forget()

    def forget(self) -> None:
        """The node is cleared: only its epochs and its requests are remembered."""
        self.session, self.status = NodeState.UNBORN, Status.OFFLINE
        self.devices: dict[str, Status] = {}
        self.bd_seq: int | None = None
        self.birth: Birth | None = None
        self.stamps: Stamps | None = None
        self.deaths: tuple[Death, ...] = ()
        self.seq: int | None = None  # released last in this epoch

    def fingerprint(self, epoch: int, now: float) -> tuple[object, ...]:
        timeout = self.options.reorder_timeout
        quiet = 3 * self.options.rebirth_backoff_limit
        return (
            self.session.value,
            self.status.value,
            tuple(sorted((device, status.value) for device, status in self.devices.items())),
            epoch > self.epoch,
            self.seq,
            self.bd_seq,
            self.birth and (*self.birth[:2], min(now - self.birth.at, timeout + 1)),
            self.stamps and tuple(self.stamps),
            tuple((*_plain(death), now - death.at) for death in self._recent(now)),
            min(now - self.asked_at, quiet + 1),
            self.backoff,
            self.most_requests,
            self.is_connected,
        )

    # -- what may become of a birth or a death ------------------------------------------------------------------------

    def verdicts_on_birth(self, message: EdgeMessage[str], now: float) -> set[Reason | None]:
        """Why a birth may be refused; None among them: it may be taken."""
        late = {self._is_late(message, death) for death in self._recent(now) if death.bd_seq == message.bd_seq}
        if True in late:
            return {Reason.LATE}
        return {self._if_not_late(message, now)} | ({Reason.LATE} if late - {False} else set())

    def _is_late(self, message: EdgeMessage[str], death: Death) -> bool | None:
        """Whether its own death was seen; None when that depends on whether the clock was right at birth."""
        if message.timestamp is None or death.stamps is None or message.timestamp <= death.stamps.earliest:
            return True
        return False if message.timestamp > death.stamps.latest else None

    def _if_not_late(self, message: EdgeMessage[str], now: float) -> Reason | None:
        if self.session is not NodeState.BORN or self.birth is None or message.timestamp is None:
            return None
        is_copy = (message.bd_seq, message.seq, message.timestamp) == (self.bd_seq, *self.birth[:2])
        return Reason.DUPLICATE if is_copy and now - self.birth.at <= self.options.reorder_timeout else None

    def ends_session(self, message: EdgeMessage[str]) -> bool:
        return self.session is NodeState.BORN and message.bd_seq is not None and message.bd_seq == self.bd_seq

    def remember_death(self, message: EdgeMessage[str], now: float) -> None:
        """A death whose number is ahead of the living session keeps nobody out."""
        ended = message.bd_seq
        is_alive = self.session is NodeState.BORN and self.bd_seq is not None
        if ended is None or (is_alive and 0 < (ended - (self.bd_seq or 0)) % 256 < 128):
            return
        recent = self._recent(now)
        known = [death.stamps for death in recent if death.bd_seq == ended]
        stamps = self.stamps if self.ends_session(message) else known[0] if known else None
        self.deaths = (*(death for death in recent if death.bd_seq != ended), Death(ended, now, stamps))

    def _recent(self, now: float) -> list[Death]:
        return [death for death in self.deaths if now - death.at <= self.options.reorder_timeout]

    # -- what is said -------------------------------------------------------------------------------------------------

    def hear(self, effect: NodeEffect[str], now: float) -> None:
        if isinstance(effect, Ordered):
            self._ordered(effect, now)
        elif isinstance(effect, RebirthRequested):
            self._asked(now)
        elif isinstance(effect, LedgerEntry) and effect.reason is Reason.SYNC_LOST and "no birth" in effect.detail:
            self.birth = None
            self.lost()

    def _ordered(self, effect: Ordered[str], now: float) -> None:
        message = effect.message
        if message.kind is Kind.NDEATH:
            assert effect.flag is None
            self._ended()
            return
        self._number(effect)
        if message.kind is Kind.NBIRTH:
            self._born(message, now)
        elif self.session in (NodeState.UNBORN, NodeState.DEAD):
            self._assumed(effect)
        if message.timestamp is not None:
            known = self.stamps or Stamps(message.timestamp, message.timestamp)
            self.stamps = Stamps(min(known.earliest, message.timestamp), max(known.latest, message.timestamp))
        if message.kind in (Kind.DBIRTH, Kind.DDEATH):
            self.devices[str(message.device)] = Status.ONLINE if message.kind is Kind.DBIRTH else Status.OFFLINE
        flag = self._flag()
        assert effect.flag is flag, f"{message.body} is flagged {effect.flag}, not {flag}"

    def _number(self, effect: Ordered[str]) -> None:
        """Numbers rise within an epoch, and epochs rise. A birth begins one."""
        assert effect.epoch >= self.epoch, f"{effect.message.body} goes back to epoch {effect.epoch}"
        assert effect.sequence == effect.message.seq is not None, f"{effect.message.body} changed its number"
        if effect.epoch == self.epoch and self.seq is not None:
            assert effect.message.kind is not Kind.NBIRTH, "a birth did not begin an epoch"
            assert 0 < (effect.message.seq - self.seq) % 256 < 128, f"{effect.message.body} came out after {self.seq}"
        self.epoch, self.seq = effect.epoch, effect.message.seq

    def _born(self, message: EdgeMessage[str], now: float) -> None:
        self.session, self.status = NodeState.BORN, Status.ONLINE
        self.devices = {device: _not_online(status) for device, status in self.devices.items()}
        self.bd_seq, self.birth, self.stamps = message.bd_seq, Birth(message.seq, message.timestamp, now), None

    def _assumed(self, effect: Ordered[str]) -> None:
        """Data is released without a birth: at once, where the options say so, or when it has waited long enough."""
        if effect.released_by is ReleasedBy.ORDER:
            at_once = self.options.before_birth is BeforeBirth.RELEASE and self.session is NodeState.UNBORN
            assert at_once, f"{effect.message.body} did not wait for a birth"
            assert effect.message.kind is not Kind.DBIRTH, "a DBIRTH did not wait for its node's birth"
        else:
            assert self.options.on_timeout is OnTimeout.RELEASE, f"{effect.message.body} was released without a birth"
        self.assume()

    def assume(self) -> None:
        """Nobody knows the session, and its messages are released all the same."""
        if self.session in (NodeState.UNBORN, NodeState.DEAD):
            self.session, self.stamps = NodeState.ASSUMED, None

    def _flag(self) -> Flag | None:
        if self.session is NodeState.ASSUMED:
            return Flag.BEFORE_BIRTH
        return Flag.STALE if self.status is Status.STALE else None

    def _ended(self) -> None:
        assert self.session is NodeState.BORN, "a session ended that did not live"
        self.session, self.status = NodeState.DEAD, Status.OFFLINE
        self.devices = dict.fromkeys(self.devices, Status.OFFLINE)

    def lost(self) -> None:
        """Nobody knows any more how the node stands."""
        self.devices = {device: _not_online(status) for device, status in self.devices.items()}
        self.status = _not_online(self.status)

    def _asked(self, now: float) -> None:
        """Each wait is twice the one before, up to a limit; a quiet time begins anew."""
        assert self.is_connected, "a rebirth was asked for although there is no way to the node"
        assert self.most_requests > 0, "a rebirth was asked for more often than there was reason to"
        allowed, limit = self.asked_at + self.backoff, self.options.rebirth_backoff_limit
        assert now >= allowed, "a rebirth was asked for again too soon"
        doubled = min(2 * self.backoff, limit)
        self.backoff = self.options.rebirth_backoff if now > allowed + 2 * limit else doubled
        self.asked_at, self.most_requests = now, self.most_requests - 1

    # -- other things that happen to a node ---------------------------------------------------------------------------

    def resumed(self) -> None:
        """A restart knows the session, and neither its devices, its deaths nor when it was asked for a rebirth."""
        born, bd_seq, stamps, seq = self.session is NodeState.BORN, self.bd_seq, self.stamps, self.seq
        self.forget()
        self.asked_at, self.backoff, self.most_requests = -inf, 0.0, 0
        self.is_connected = True
        if born:
            self.session, self.status = NodeState.BORN, Status.STALE
            self.bd_seq, self.stamps, self.seq = bd_seq, stamps, seq


def _not_online(status: Status) -> Status:
    return Status.STALE if status is Status.ONLINE else status


def _plain(death: Death) -> tuple[object, ...]:
    return death.bd_seq, death.stamps and tuple(death.stamps)
