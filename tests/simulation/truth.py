"""What is true about leases, whoever believes what.

The owner of a store is watched: which leases it gives out, how each of them ends, and what it accepts about them. Handlers
write down here what they are about to say. So an ack, a nack or a dead letter that is accepted has to be one that a handler
said, with the same words, under a lease that still held.

A lease of a batch is followed message by message, and rule 9 of the lanes is held against it: its messages are next to each
other, an ack ends it for the messages up to the one that it names and no others, and when somebody fails it ends for all.

A handler in a linked process may begin with a message whose lease was lost a moment ago, as long as the news is on its way:
that is not promised. Once the news has arrived, or the delivery was read together with it, no handler may begin; nor when the
lease is over by the process' own clock, whatever has become of its owner. The owner itself knows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

from seriatim.engine.consumer import Consumer
from seriatim.engine.deliveries import Deliveries
from seriatim.engine.engine import EPOCH_BITS
from seriatim.engine.link.remote import RemoteAttachment, RemoteBroker
from seriatim.engine.outcomes import Outcomes
from tests.simulation.loop import PROCESS, Process

Name = tuple[str, int, int]
"""A message under a lease: its subscription, the token, and its offset."""

ROUNDING_S = 1e-5
"""Wall clocks have no more digits than that."""

LATE_S = 0.05
"""By then an expired lease is taken back, unless its owner was stopped."""

Ending = Literal["", "acked", "nacked", "expired", "given up", "taken back"]


class Said(NamedTuple):
    """What a handler says when its message failed."""

    delay: float | None
    error: object
    offset: int | None = None
    """Of the message that failed; None when a batch did, and nobody knows where."""
    rest: bool | None = None
    """Whether it is given up together with the rest of its key; None when it is not given up."""


class Cause(NamedTuple):
    """Why leases end at the moment."""

    ending: Ending = "taken back"
    token: int | None = None
    """Only that of this token; None: every lease."""
    offset: int | None = None
    """Of an ack the last message that it settles, of a failure the one that failed; None: nobody knows which one."""


TAKEN_BACK = Cause()


@dataclass(slots=True)
class Given:
    """A message under a lease, from the moment in which the owner of the store gave it out. Stamps order what happens at one
    time."""

    sub: str
    token: int
    key: str | None
    offset: int
    attempt: int
    at: float
    stamp: int
    lasts: float
    until: float
    covered: int = 1
    """How many messages the lease covered when it was given out."""
    handed_stamp: float = inf
    """When its message was read, and its consumer got it."""
    ended_by: Ending = ""
    ended_at: float = inf
    ended_stamp: float = inf
    said: Said | None = None
    """With which words it failed."""
    is_suspect: bool = False
    """Whether it was part of a batch that failed, and nobody knows where."""

    @property
    def epoch(self) -> int:
        """Which opening of the store gave it out."""
        return epoch_of(self.token)

    @property
    def has_failed(self) -> bool:
        """Whether it counts as a delivery attempt."""
        return self.ended_by in ("nacked", "expired", "given up")


def epoch_of(token: int) -> int:
    return token >> EPOCH_BITS


class Superseded(NamedTuple):
    """A message was left behind by a newer one of its key, at this time."""

    by: int
    at: float
    stamp: int


class Leases:
    """Every lease that was given out, how it ended, and when processes read of it."""

    def __init__(
        self,
        now: Callable[[], float],
        stamp: Callable[[], int],
        wall: Callable[[], float],
        news_s: float,
        find: Callable[[str, str], None],
        owner_of: Callable[[int], Process | None],
    ) -> None:
        self._now = now
        self._stamp = stamp
        self._wall = wall
        self._news_s = news_s
        self._find = find
        self._owner_of = owner_of
        self.given: dict[Name, Given] = {}
        self._by_token: dict[tuple[str, int], list[Given]] = {}
        self._acks: set[Name] = set()
        self._nacks: dict[tuple[str, int], list[Said]] = {}
        self._cause = TAKEN_BACK
        self.superseded: dict[tuple[str, int], Superseded] = {}
        """By subscription and offset: what was left behind by newer messages."""
        self._expired: list[Given] = []
        self._ended: dict[int, float] = {}  # by the epoch of an owner who died
        self._read: dict[tuple[str, int], float] = {}
        self._over: dict[tuple[str, int], float] = {}  # when a client knows by its own clock that a lease is over
        self._lag: dict[RemoteBroker, float] = {}  # how long the fastest frame of a connection was on its way
        self._names: dict[RemoteAttachment, str] = {}
        self._subscribed: dict[Consumer, str] = {}

    # -- what handlers say ------------------------------------------------------------------------------------------------

    def say_ack(self, name: Name) -> None:
        """A handler is about to ack."""
        self._acks.add(name)

    def say_nack(self, name: Name, delay: float | None, error: object, *, is_somewhere: bool = False) -> None:
        """A handler is about to nack, or fails; with a batch nobody may know where."""
        self._nacks.setdefault(name[:2], []).append(Said(delay, error, None if is_somewhere else name[2]))

    def say_dead_letter(self, name: Name, error: object, rest: bool) -> None:
        """A handler is about to give its message up."""
        self._nacks.setdefault(name[:2], []).append(Said(None, error, name[2], rest))

    # -- what the owner does ----------------------------------------------------------------------------------------------

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Watch the real classes."""
        with self._owner_observed(), self._acceptance_observed(), self._clients_observed():
            yield

    @contextmanager
    def _owner_observed(self) -> Iterator[None]:
        """What the owner gives out, and how that ends."""
        give, hand_over, let_go = Deliveries._give, Deliveries._hand_over, Consumer.let_go
        let_time_pass = Deliveries.let_time_pass

        def note_giving(deliveries: Deliveries, consumer: Any, leases: Any) -> int:
            self._subscribed[consumer] = name = deliveries._host.name
            for lease in leases:
                self._note_given(name, lease, consumer.batch)
            return give(deliveries, consumer, leases)

        def note_handing_over(deliveries: Deliveries, consumer: Any, messages: Any) -> None:
            for lease, _ in messages:
                self.given[deliveries._host.name, lease.token, lease.offset].handed_stamp = self._stamp()
            hand_over(deliveries, consumer, messages)

        def note_end(consumer: Consumer, lease: Any, left: int = 0) -> int:
            gone = let_go(consumer, lease, left)
            self._note_end(self._subscribed[consumer], lease.token, left)
            return gone

        def note_expiry(deliveries: Deliveries) -> None:
            with self._because(Cause("expired")):
                let_time_pass(deliveries)
            self._check_expired()

        with (
            patch.object(Deliveries, "_give", note_giving),
            patch.object(Deliveries, "_hand_over", note_handing_over),
            patch.object(Deliveries, "let_time_pass", note_expiry),  # of the timer, and of whoever looks
            patch.object(Consumer, "let_go", note_end),
        ):
            yield

    @contextmanager
    def _acceptance_observed(self) -> Iterator[None]:
        """What the owner accepts from consumers. What it refuses raises."""
        ack, nack, extend, dead_letter = Outcomes.ack, Outcomes.nack, Outcomes.extend, Outcomes.dead_letter
        write_superseded = Outcomes.write_superseded

        def note_ack(outcomes: Outcomes, lease: Any, *args: Any) -> None:
            name = outcomes._host.name, lease.token, lease.offsets[-1]
            with (
                self._because(Cause("acked", lease.token, lease.offsets[-1])),
                self._accepting("ack", name, name in self._acks),
            ):
                ack(outcomes, lease, *args)

        def note_nack(outcomes: Outcomes, lease: Any, delay: float | None = None, error: Any = None) -> None:
            sub, out = outcomes._host.name, self._out(outcomes._host.name, lease.token)
            is_whole, first = bool(lease.behind), out[0].offset if out else lease.offset
            failed = lease.offset if not is_whole else first if len(out) == 1 else None
            meant = {failed, None} if len(out) == 1 else {failed}
            words = [one for one in self._nacks.get((sub, lease.token), []) if one.rest is None and one.offset in meant]
            name = sub, lease.token, first if is_whole else lease.offset
            with (
                self._because(Cause("nacked", lease.token, failed)),
                self._accepting("nack", name, any(one.delay == delay for one in words)),
            ):
                nack(outcomes, lease, delay, error)
            self._note_words(sub, lease.token, failed, words)

        def note_dead_letter(outcomes: Outcomes, lease: Any, reason: Any = None, *, rest: bool = False) -> None:
            name = sub, token, offset = outcomes._host.name, lease.token, lease.offset
            words = [one for one in self._nacks.get((sub, token), []) if one.rest is not None and one.offset == offset]
            with (
                self._because(Cause("given up", token, offset)),
                self._accepting("dead letter", name, any(one.rest == rest for one in words)),
            ):
                dead_letter(outcomes, lease, reason, rest=rest)
            self._note_words(sub, token, offset, words)

        def note_superseded(outcomes: Outcomes) -> None:
            for _, offset, by in outcomes._host.lanes.superseded:
                self._note_superseded(outcomes._host.name, offset, by)
            write_superseded(outcomes)

        def note_extension(outcomes: Outcomes, lease: Any, seconds: float) -> float:
            out = self._out(outcomes._host.name, lease.token)
            first = out[0].offset if out else lease.offset  # a lease goes on while it covers any message
            with self._accepting("extend", (outcomes._host.name, lease.token, first), is_said=True):
                deadline = extend(outcomes, lease, seconds)
            for given in out:
                given.until = self._now() + seconds
            return deadline

        with (
            patch.object(Outcomes, "ack", note_ack),
            patch.object(Outcomes, "nack", note_nack),
            patch.object(Outcomes, "dead_letter", note_dead_letter),
            patch.object(Outcomes, "extend", note_extension),
            patch.object(Outcomes, "write_superseded", note_superseded),
        ):
            yield

    @contextmanager
    def _accepting(self, what: str, name: Name, is_said: bool) -> Iterator[None]:
        """What is accepted has to be said by a handler, while its lease holds."""
        is_stale = self.lost_at(name) is not None
        yield
        if is_stale:
            self._find("stale accepted", f"{what} of {self.given[name]}, which was lost before")
        elif not is_said:
            self._find("accepted what nobody said", f"{what} of {self.given[name]}")

    @contextmanager
    def _because(self, cause: Cause) -> Iterator[None]:
        """Whatever ends meanwhile ends for this reason."""
        self._cause = cause
        try:
            yield
        finally:
            self._cause = TAKEN_BACK

    def _note_words(self, sub: str, token: int, failed: int | None, words: Sequence[Said]) -> None:
        """A failure was accepted, and these are the words with which it was reported."""
        if failed is not None and words:
            self.given[sub, token, failed].said = words[-1]

    def _out(self, sub: str, token: int) -> list[Given]:
        """The messages that a lease still covers."""
        return [given for given in self._by_token.get((sub, token), []) if given.ended_at == inf]

    def _note_given(self, sub: str, lease: Any, most: int) -> None:
        now, lasts, covered = self._now(), lease.deadline - self._wall(), len(lease.offsets)
        if covered > most or list(lease.offsets) != sorted(lease.offsets):
            self._find("wrong batch", f"{lease}, and {most} messages were asked for")
        for news in (self._read, self._over):  # of a subscription of this name that was deleted
            news.pop((sub, lease.token), None)
        self._by_token[sub, lease.token] = given = [
            Given(sub, lease.token, lease.key, each, lease.attempt, now, self._stamp(), lasts, now + lasts, covered)
            for each in lease.offsets
        ]
        self.given.update(((sub, lease.token, one.offset), one) for one in given)

    def _note_end(self, sub: str, token: int, left: int) -> None:
        """A lease ends, or goes on with the last ``left`` of its messages."""
        out, cause = self._out(sub, token), self._cause
        if cause.token not in (None, token):
            cause = TAKEN_BACK
        gone = out[: len(out) - left]
        if cause.ending == "acked" and [one for one in out if one.offset <= (cause.offset or 0)] != gone:
            self._find("wrong part of a batch settled", f"{gone} of {out} up to {cause.offset}")
        for given in gone:
            is_meant = cause.ending not in ("nacked", "given up") or given.offset == cause.offset
            given.ended_by = cause.ending if is_meant else "taken back"
            given.is_suspect = cause.ending in ("nacked", "expired") and cause.offset is None and len(out) > 1
            given.ended_at, given.ended_stamp = self._now(), self._stamp()
            if given.ended_by == "expired":
                self._expired.append(given)
            late, process = self._now() - given.until, PROCESS.get()
            was_stopped = process is not None and process.continued_at >= given.until
            if late > LATE_S and not was_stopped:
                self._find("lease outlived its deadline", f"{given}: by {late:.3f} s")

    def _check_expired(self) -> None:
        """Nothing expires before its time. With a window, what was given out behind what expires is taken back with it. When
        a batch expires nobody knows which of its messages failed."""
        expired, self._expired = self._expired, []
        due = {given.key: given.token for given in reversed(expired) if given.until - self._now() <= ROUNDING_S}
        for given in expired:
            if given.is_suspect:
                given.ended_by = "taken back"
            if given.until - self._now() <= ROUNDING_S:
                continue
            given.ended_by = "taken back"
            if given.key is None or given.token < due.get(given.key, inf):
                self._find("lease expired early", f"{given}: by {given.until - self._now():.3f} s")

    def _note_superseded(self, sub: str, offset: int, by: int) -> None:
        """Only the latest message of a key is kept, and this one waits before a newer one."""
        self.superseded[sub, offset] = Superseded(by, self._now(), self._stamp())
        leased = [one for one in self.given.values() if (one.sub, one.offset, one.ended_at) == (sub, offset, inf)]
        for given in leased:
            if given.epoch not in self._ended and given.epoch == max(one.epoch for one in self.given.values()):
                self._find("superseded while it was leased", f"{given} by {by}")

    @contextmanager
    def _clients_observed(self) -> Iterator[None]:
        attach, deliver, extend = RemoteBroker.attach, RemoteAttachment.deliver, RemoteAttachment.extend
        compare_clocks = RemoteBroker._compare_clocks

        def note_name(broker: RemoteBroker, subscription: str, consumer: Any) -> Any:
            attachment = attach(broker, subscription, consumer)
            assert isinstance(attachment, RemoteAttachment)
            self._names[attachment] = subscription
            return attachment

        def note_clock(broker: RemoteBroker, clock: Any) -> None:
            self._note_lag(broker, clock.time)
            compare_clocks(broker, clock)

        def note_reading(attachment: RemoteAttachment, delivery: Any) -> None:
            name, now = self._names[attachment], self._now()
            over = delivery.sent + delivery.ack_deadline + self._note_lag(attachment._remote, delivery.sent)
            for one in delivery.delivered:
                self._read[name, one.lease.token] = now
                self._over[name, one.lease.token] = over
            deliver(attachment, delivery)

        def note_extension(attachment: RemoteAttachment, lease: Any, seconds: float) -> None:
            extend(attachment, lease, seconds)
            self._over[self._names[attachment], lease.token] = self._now() + seconds

        with (
            patch.object(RemoteBroker, "attach", note_name),
            patch.object(RemoteBroker, "_compare_clocks", note_clock),
            patch.object(RemoteAttachment, "deliver", note_reading),
            patch.object(RemoteAttachment, "extend", note_extension),
        ):
            yield

    def _note_lag(self, broker: RemoteBroker, sent: float) -> float:
        """A frame that was sent at this time is read now: at least that long was the fastest of its connection on its way."""
        lag = self._lag[broker] = min(self._lag.get(broker, inf), self._now() - sent)
        return lag

    def forget(self) -> None:
        """Let go of everything that belongs to a process."""
        self._names.clear()
        self._lag.clear()
        self._subscribed.clear()

    def owner_died(self, epoch: int) -> None:
        self._ended.setdefault(epoch, self._now())

    # -- what processes can know ------------------------------------------------------------------------------------------

    def lost_at(self, name: Name) -> float | None:
        """When a lease was lost; None while it holds."""
        known = self.given[name].ended_at
        return self._ended.get(epoch_of(name[1])) if known == inf else known

    def could_know(self, name: Name, process: Process) -> bool:
        """Whether a process that begins with a message now could know that its lease is lost."""
        lost = self.lost_at(name)
        if self._now() > self._over.get(name[:2], inf) + ROUNDING_S:
            return True
        if lost is not None and self._owner_of(epoch_of(name[1])) is process:
            return True
        if lost is None or self._now() <= max(lost + self._news_s, process.deaf_until):
            return False
        if process.continued_at < self._now():
            return True
        # It was continued just now. That a connection is over is read after everything that came over it.
        return not process.has_lost_a_peer and self._read.get(name[:2], self._now()) == self._now()
