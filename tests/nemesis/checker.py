"""Judges histories. It knows nothing of the engine, only what was promised, and costs n log n.

For one subscription:
    lost            a confirmed publish was neither acked, dead-lettered nor taken out by the end
    duplicated      what was published once was delivered as two messages, with different ids
    stored twice    what was published again with its ``dedup_id`` became another message, with another id
    ghost           a message whose publish was refused, or that nobody published, was delivered
    reordered       a message was delivered although an earlier one of its key, published before it, was still unsettled
    repeated        a message was delivered after its ack had been confirmed
    brought back    a message was delivered after an operator had been told that it is taken out
    went back       a message was delivered again after the ack of a later one of its key had been confirmed
    settled twice   two of these were confirmed for one message: an ack, a dead letter, an operator's taking it out
    two in flight   two handlers of one key overlapped, and the acks of both were accepted
    stale accepted  two acks of one message were confirmed under different leases
    attempts        a message was delivered more often than promised

What is in doubt counts in favour of the engine: an ack that was sent and not answered may have been accepted. A message that
was under way to its client when it was settled or taken out by another may still be handled; it counts when its ack is
accepted, or when it comes so late that its client must have known.

A batch is several messages under one lease: each of them may begin before those in front of it are settled, as long as these
are in the batch and begin first.

A message that is published again, by a client that got no answer or by a redrive to the end of the topic, has another id. These
copies are messages of their own, and their place in the order of the key is not judged.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from tests.nemesis.history import Event

Name = tuple[str, int]
_LeaseName = tuple[str, int]
"""A client, and the number that it gave to the lease."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: str
    sub: str
    key: str
    number: int
    detail: str


@dataclass(frozen=True, slots=True)
class Promises:
    """What a subscription promises beyond order.

    ``is_drained``: at the end everything was settled. ``orders_unconfirmed``: a message whose publish was never confirmed keeps
    its place; through a network it may arrive after messages that were published later. ``noticed_after_s``: by then a client
    that was stopped or cut off has read what waited for it, and knows which leases it has lost. After a cut it takes as long
    again as the cut lasted: TCP doubles the time between its attempts to send. One that got no processor for a while says so
    itself (``stalled``), and needs as long again, too.
    ``is_stored_once``: nobody publishes a message again but with its ``dedup_id``, so it has one id.
    """

    sub: str
    max_attempts: int | None = None
    is_drained: bool = True
    orders_unconfirmed: bool = True
    noticed_after_s: float = 1.0
    is_stored_once: bool = False


@dataclass(slots=True)
class _Message:
    """What is known about one message."""

    key: str
    number: int
    published_at: float = inf
    began_at: float = inf
    id: str = ""
    ids: set[str] = field(default_factory=set)
    dedup_id: str = ""
    is_refused: bool = False
    delivered: list[Event] = field(default_factory=list)
    acks: list[Event] = field(default_factory=list)
    acked: list[Event] = field(default_factory=list)
    settled_at: float = inf
    """From when on it may be settled: its first ack that was sent, its dead letter, or an operator."""
    has_copies: bool = False

    @property
    def accepted_leases(self) -> set[tuple[str, int]]:
        return {(event.who, event.lease) for event in self.acked}

    @property
    def is_there(self) -> bool:
        """Whether it certainly came into the log."""
        return self.published_at < inf or bool(self.delivered)


def check(events: Sequence[Event], promises: Promises, dead: Iterable[Name] = ()) -> list[Anomaly]:
    """All anomalies. ``dead`` names the messages that were found as dead letters at the end."""
    copies = _Copies() if promises.is_stored_once else _find_copies(events, promises.sub)
    events = _without_zombies(events, promises.noticed_after_s)
    messages = _collect(copies.separate(events), promises.sub)
    for name in copies.keys.keys() & messages.keys():
        messages[name].has_copies = True
    takings, dead = _find_takings(events, promises.sub), set(dead)
    _settle(messages, dead, takings)
    return [
        *_ghosts(messages, promises.sub),
        *_duplicates(messages, promises),
        *_losses(messages, promises),
        *_disorder(messages, promises),
        *_repeats(messages, promises),
        *_returns(messages, promises, takings),
        *_settled_twice(messages, promises.sub, dead, takings),
        *_overlaps(messages, promises.sub),
    ]


def _without_zombies(events: Sequence[Event], noticed_after_s: float) -> list[Event]:
    """Leave out handlers of leases that were lost before they began.

    A client that was stopped, cut off or starved, or whose owner died, may start a handler before it can know: that is not
    promised. What is promised is that such a handler settles nothing. So a delivery counts unless its ack was refused, or it
    came while its client was cut off or stood still, or right after that, and nothing of it was accepted.
    """
    refused = {(event.who, event.lease) for event in events if event.what in ("stale", "unsure")}
    accepted = {(event.who, event.lease) for event in events if event.what == "acked"}
    unknowing_until: dict[str, float] = {}
    cut_off_at: dict[str, float] = {}
    stalls = deque(
        sorted((event.at - float(event.body), event.at, event.who) for event in events if event.what == "stalled")
    )
    stalled_until: dict[str, float] = {}
    kept = []
    for event in events:
        while stalls and stalls[0][0] <= event.at:
            began_at, ended_at, who = stalls.popleft()
            until = ended_at + (ended_at - began_at) + noticed_after_s
            stalled_until[who] = max(until, stalled_until.get(who, until))
        if event.what == "continued":
            lasted = event.at - cut_off_at.pop(event.who, event.at)
            unknowing_until[event.who] = event.at + lasted + noticed_after_s
        elif event.what == "impaired":
            cut_off_at.setdefault(event.who, event.at)
            unknowing_until[event.who] = inf
        lease = (event.who, event.lease)
        is_doubtful = lease in refused or event.at < max(
            unknowing_until.get(event.who, -inf), stalled_until.get(event.who, -inf)
        )
        if event.what != "delivered" or lease in accepted or not is_doubtful:
            kept.append(event)
    return kept


@dataclass(slots=True)
class _Copies:
    """Messages that were published once more, told apart by their ids, which grow along the log."""

    keys: dict[Name, set[str]] = field(default_factory=dict)
    """For each message, a key of its own for each further copy."""
    leases: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """For each lease of a copy, with the number of its message, the copy's key."""

    def separate(self, events: Sequence[Event]) -> Iterator[Event]:
        """Every copy under its own key. It was published when the first one was."""
        for event in events:
            key = self.leases.get((event.who, event.lease, event.number))
            yield event if key is None else replace(event, key=key)
            if event.what == "publish":
                yield from (replace(event, key=key) for key in self.keys.get((event.key, event.number), ()))


def _find_copies(events: Sequence[Event], sub: str) -> _Copies:
    copies, first = _Copies(), dict[Name, int]()
    known = [event for event in events if event.id and (event.what == "published" or _is_delivery(event, sub))]
    for event in known:
        name = (event.key, event.number)
        first[name] = min(first.get(name, int(event.id)), int(event.id))
    for event in known:
        name = (event.key, event.number)
        if event.what == "delivered" and int(event.id) != first[name]:
            key = f"{event.key} copy {event.id}"
            copies.keys.setdefault(name, set()).add(key)
            copies.leases[event.who, event.lease, event.number] = key
    return copies


def _is_delivery(event: Event, sub: str) -> bool:
    return event.what == "delivered" and event.sub == sub


def _collect(events: Iterable[Event], sub: str) -> dict[Name, _Message]:
    messages: dict[Name, _Message] = {}
    for event in events:
        if event.number < 0 or event.sub not in ("", sub):
            continue
        name = (event.key, event.number)
        message = messages.setdefault(name, _Message(*name))
        if event.what == "publish":
            message.began_at, message.dedup_id = event.at, event.dedup_id
        elif event.what == "published":
            message.published_at, message.id = event.at, event.id
            message.ids.add(event.id)
        elif event.what == "refused":
            message.is_refused = True
        elif event.what == "delivered":
            message.id = event.id or message.id
            message.ids.add(message.id)
            message.delivered.append(event)
        elif event.what == "ack":
            message.acks.append(event)
        elif event.what == "acked":
            message.acked.append(event)
        elif event.what == "stale":  # it settled nothing
            message.acks = [ack for ack in message.acks if (ack.who, ack.lease) != (event.who, event.lease)]
    return messages


@dataclass(slots=True)
class _Takings:
    """What operators took out of their keys."""

    known: dict[str, float] = field(default_factory=dict)
    """For each message id, when that began."""
    confirmed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """For each message id, when operators were told so."""
    doubtful: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """For each key, when operators began without ever learning which message it was, or whether it happened."""


def _find_takings(events: Sequence[Event], sub: str) -> _Takings:
    takings, begun = _Takings(), dict[tuple[str, str], float]()
    for event in events:
        if event.sub != sub or event.what not in ("take-out", "taken-out"):
            continue
        before = begun.pop((event.who, event.key), None)
        if event.what == "taken-out" and before is not None:
            takings.known[event.id] = min(before, takings.known.get(event.id, inf))
            takings.confirmed[event.id].append(event.at)
        elif event.what == "take-out":
            begun[event.who, event.key] = event.at
            if before is not None:
                takings.doubtful[event.key].append(before)
    for (_, key), at in begun.items():
        takings.doubtful[key].append(at)
    return takings


def _settle(messages: dict[Name, _Message], dead: set[Name], takings: _Takings) -> None:
    """Find out from when on each message may have been settled."""
    first_doubts = {key: min(begun) for key, begun in takings.doubtful.items()}
    for name, message in messages.items():
        reasons = [message.acks[0].at] if message.acks else []
        if message.id in takings.known:
            reasons.append(takings.known[message.id])
        if name in dead:
            reasons += [message.delivered[-1].at] if message.delivered else [0.0]
            reasons.append(first_doubts.get(message.key, inf))
        message.settled_at = min(reasons, default=inf)
    _excuse(messages, takings)


def _excuse(messages: dict[Name, _Message], takings: _Takings) -> None:
    """An operator who never learned what became of a request may have taken out one message each time."""
    left = {key: deque(sorted(begun)) for key, begun in takings.doubtful.items()}
    for _, message in sorted(messages.items()):
        if message.is_there and message.settled_at == inf and left.get(message.key):
            message.settled_at = left[message.key].popleft()


def _ghosts(messages: dict[Name, _Message], sub: str) -> Iterator[Anomaly]:
    for message in messages.values():
        if message.delivered and message.is_refused:
            yield Anomaly(
                "ghost", sub, message.key, message.number, "delivered although its publish failed for certain"
            )
        elif message.delivered and message.began_at > message.delivered[0].at:
            yield Anomaly("ghost", sub, message.key, message.number, "delivered before anybody published it")


def _duplicates(messages: dict[Name, _Message], promises: Promises) -> Iterator[Anomaly]:
    for message in messages.values() if promises.is_stored_once else ():
        ids = sorted(message.ids - {""})
        if len(ids) > 1:
            kind = "stored twice" if message.dedup_id else "duplicated"
            detail = f"one message for who published it, and there with the ids {ids}"
            yield Anomaly(kind, promises.sub, message.key, message.number, detail)


def _losses(messages: dict[Name, _Message], promises: Promises) -> Iterator[Anomaly]:
    for message in messages.values() if promises.is_drained else ():
        if message.published_at < inf and message.settled_at == inf:
            yield Anomaly("lost", promises.sub, message.key, message.number, "confirmed, and never settled")


def _disorder(messages: dict[Name, _Message], promises: Promises) -> Iterator[Anomaly]:
    """Along each key: a delivery while an earlier message that was there before is not settled."""
    by_key: dict[str, list[_Message]] = defaultdict(list)
    for message in messages.values():
        by_key[message.key].append(message)
    for key, lane in by_key.items():
        lane.sort(key=lambda message: message.number)
        settled: list[float] = []  # when each earlier message was settled, sorted
        batches: dict[_LeaseName, list[_Message]] = defaultdict(list)
        blocker = _Message(key, -1, settled_at=-inf)  # the earlier message that was settled last
        for message in lane:
            if message.delivered:
                first = message.delivered[0]
                waiting = len(settled) - bisect_right(settled, first.at)
                if waiting > _begun_before(batches[first.who, first.lease], first):
                    last = f"{blocker.number} was settled at {blocker.settled_at:.3f} at the earliest"
                    detail = f"delivered at {first.at:.3f}, and {last}"
                    yield Anomaly("reordered", promises.sub, key, message.number, detail)
            if message.is_there if promises.orders_unconfirmed else message.published_at < inf:
                insort(settled, message.settled_at)
                blocker = max(blocker, message, key=lambda each: each.settled_at)
                for lease in {(event.who, event.lease) for event in message.delivered}:
                    batches[lease].append(message)


def _begun_before(batch: Iterable[_Message], delivery: Event) -> int:
    """How many messages were not settled when another one of their batch was delivered, and had been delivered before it."""
    lease = (delivery.who, delivery.lease)
    return sum(
        message.settled_at > delivery.at
        and any((event.who, event.lease) == lease and event.at <= delivery.at for event in message.delivered)
        for message in batch
    )


def _repeats(messages: dict[Name, _Message], promises: Promises) -> Iterator[Anomaly]:
    sub = promises.sub
    for message in messages.values():
        if message.acked:
            confirmed = message.acked[0].at
            for again in message.delivered:
                if _is_too_late(again, confirmed, message, promises):
                    detail = f"delivered at {again.at:.3f} after its ack was confirmed at {confirmed:.3f}"
                    yield Anomaly("repeated", sub, message.key, message.number, detail)
        if len(message.accepted_leases) > 1:
            yield Anomaly("stale accepted", sub, message.key, message.number, "acked durably under two leases")
        highest = max((event.attempt for event in message.delivered), default=0)
        if promises.max_attempts is not None and highest > promises.max_attempts:
            yield Anomaly("attempts", sub, message.key, message.number, f"delivered for the {highest}th time")


def _returns(messages: dict[Name, _Message], promises: Promises, takings: _Takings) -> Iterator[Anomaly]:
    """Deliveries of what was settled for certain, because somebody was told so, or because the key has gone on."""
    sub, later_acks = promises.sub, _later_acks(messages)
    for name, message in messages.items():
        taken_out = min(takings.confirmed.get(message.id, ()), default=inf)
        has_place = promises.orders_unconfirmed or message.published_at < inf
        later, later_ack = later_acks[name] if has_place else (0, inf)
        for again in message.delivered:
            if _is_too_late(again, taken_out, message, promises):
                detail = f"delivered at {again.at:.3f} after an operator took it out at {taken_out:.3f}"
                yield Anomaly("brought back", sub, message.key, message.number, detail)
        for again in message.delivered[1:]:
            if _is_too_late(again, later_ack, message, promises):
                detail = f"delivered again at {again.at:.3f} after the ack of {later} was confirmed at {later_ack:.3f}"
                yield Anomaly("went back", sub, message.key, message.number, detail)


def _is_too_late(delivery: Event, settled: float, message: _Message, promises: Promises) -> bool:
    leeway = 0 if (delivery.who, delivery.lease) in message.accepted_leases else promises.noticed_after_s
    return delivery.at > settled + leeway


def _later_acks(messages: dict[Name, _Message]) -> dict[Name, tuple[int, float]]:
    """For each message, which of those behind it in its key was the first to be acked durably, and when."""
    first: dict[str, tuple[int, float]] = {}
    later: dict[Name, tuple[int, float]] = {}
    for name in sorted(messages, reverse=True):
        message = messages[name]
        later[name] = first.get(message.key, (0, inf))
        if message.acked and message.acked[0].at < later[name][1]:
            first[message.key] = (message.number, message.acked[0].at)
    return later


def _settled_twice(messages: dict[Name, _Message], sub: str, dead: set[Name], takings: _Takings) -> Iterator[Anomaly]:
    for name, message in messages.items():
        ways = ["taken out by an operator"] * len(takings.confirmed.get(message.id, ()))
        ways += ["acked"] if message.acked else []
        is_known_dead = name in dead and not message.has_copies  # or it may be the copy that is dead
        if is_known_dead and not takings.confirmed.get(message.id):  # an operator may have made it a dead letter
            ways.append("dead-lettered")
        if len(ways) > 1:
            yield Anomaly("settled twice", sub, message.key, message.number, " and ".join(ways))


def _overlaps(messages: dict[Name, _Message], sub: str) -> Iterator[Anomaly]:
    """Handlers of one key whose time from delivery to an accepted ack overlaps."""
    accepted: dict[str, list[tuple[float, float, int, tuple[str, int]]]] = defaultdict(list)
    for message in messages.values():
        leases = message.accepted_leases
        starts = {(event.who, event.lease): event.at for event in message.delivered}
        for ack in message.acks:
            lease = (ack.who, ack.lease)
            if lease in leases and lease in starts:
                accepted[message.key].append((starts[lease], ack.at, message.number, lease))
    for key, spans in accepted.items():
        spans.sort()
        for (_, end, before, lease), (start, _, number, other) in itertools.pairwise(spans):
            if start < end and other != lease:
                yield Anomaly("two in flight", sub, key, number, f"began before {before} was acked, and both acks held")
