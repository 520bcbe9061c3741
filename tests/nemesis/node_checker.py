"""Judges what a Sparkplug host made of its nodes' messages. It knows only what was sent and what was promised; n log n.

For one node, by what its topic and its ledger hold:
    ghost              a message that no node sent, or not so, was stored or entered in the ledger
    repeated           a message was stored twice
    reordered          a message was stored behind a later one
    counted twice      a message was stored or entered more often than it was sent
    unreported         numbers are missing between two stored messages, and the ledger does not say so
    phantom            the ledger says that numbers were lost, and none are missing there
    wrong death        a stored death is not that of the session that was born last
    wrong session      a message was stored as one of a session that is not its own, without a flag
    misnamed           a metric of a message without a flag has no name, or the wrong one
    lost               a message that was sent while nothing was disturbed was not stored
    dropped            a copy that was sent while nothing was disturbed is not accounted for

MQTT with QoS 0 may lose whatever is under way when something breaks, and a killed host loses what it had in memory. So a
message that was sent while things broke need not arrive. But whatever is missing *between* two stored messages must be
reported: the ledger has the missing numbers, once each. A birth starts afresh: nobody can know what was lost right before it.
The same holds when the host was restarted while the node was not born (flag ``before-birth``). A loss of a multiple of 256
leaves no hole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.nemesis.checker import Anomaly

MODULUS = 256
BEFORE_BIRTH = "before-birth"


@dataclass(frozen=True, slots=True)
class Sent:
    """One copy of a message, when it was sent. The stamp says which message it is."""

    node: str
    stamp: int
    kind: str
    seq: int | None
    birth: str
    bd_seq: int
    is_calm: bool = False
    """Whether nothing was disturbed then, so that it must arrive."""

    @property
    def wire(self) -> tuple[str, int | None]:
        return self.kind, self.seq


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in the topic of the host."""

    node: str
    stamp: int
    kind: str
    seq: int | None
    epoch: int = 1
    flag: str = ""
    bd_seq: int | None = None
    value: int | None = None
    """The metric that repeats the stamp, by its name."""

    @property
    def wire(self) -> tuple[str, int | None]:
        return self.kind, self.seq


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry in the ledger: about a message, or about the numbers from ``first`` to ``last``."""

    node: str
    reason: str
    stamp: int | None = None
    first: int = 0
    last: int = 0
    epoch: int = 1

    @property
    def numbers(self) -> list[int]:
        return between((self.first - 1) % MODULUS, (self.last + 1) % MODULUS)


@dataclass(slots=True)
class _Node:
    """Everything about one node, each in its order."""

    key: str
    sent: dict[int, Sent] = field(default_factory=dict)
    copies: Counter[int] = field(default_factory=Counter)
    stored: list[Stored] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def anomaly(self, kind: str, number: int, detail: str) -> Anomaly:
        return Anomaly(kind, "telemetry", self.key, number, detail)


def check_nodes(sent: Sequence[Sent], stored: Sequence[Stored], entries: Sequence[Entry]) -> list[Anomaly]:
    """All anomalies. ``stored`` is in the order of the topic."""
    nodes: defaultdict[str, _Node] = defaultdict(lambda: _Node(""))
    for one in sent:
        node = nodes[one.node]
        node.sent[one.stamp] = one
        node.copies[one.stamp] += 1
    for message in stored:
        nodes[message.node].stored.append(message)
    for entry in entries:
        nodes[entry.node].entries.append(entry)
    found: list[Anomaly] = []
    for key, node in nodes.items():
        node.key = key
        for check in (_ghosts, _repeats, _disorder, _overcounted, _holes, _deaths, _sessions, _names, _losses):
            found += check(node)
    return found


def between(one: int, other: int) -> list[int]:
    """The numbers that are missing between two messages."""
    return [(one + 1 + step) % MODULUS for step in range((other - one - 1) % MODULUS)]


def _ghosts(node: _Node) -> Iterator[Anomaly]:
    for message in node.stored:
        sent = node.sent.get(message.stamp)
        if sent is None or sent.wire != message.wire:
            yield node.anomaly("ghost", message.stamp, f"{message} was stored, and {sent} sent")
        elif message.bd_seq not in (None, sent.bd_seq):
            yield node.anomaly("ghost", message.stamp, f"{message} is of another session than {sent}")
    for entry in node.entries:
        if entry.stamp is not None and entry.stamp not in node.sent:
            yield node.anomaly("ghost", entry.stamp, f"{entry} is about nothing that was sent")


def _repeats(node: _Node) -> Iterator[Anomaly]:
    for stamp, count in Counter(message.stamp for message in node.stored).items():
        if count > 1:
            yield node.anomaly("repeated", stamp, f"stored {count} times")


def _disorder(node: _Node) -> Iterator[Anomaly]:
    """A will is stamped when its session begins, so deaths have no place by their stamps."""
    newest = -1
    for message in node.stored:
        if message.kind == "NDEATH":
            continue
        if message.stamp < newest:
            yield node.anomaly("reordered", message.stamp, f"behind {newest}: {message}")
        newest = max(newest, message.stamp)


def _overcounted(node: _Node) -> Iterator[Anomaly]:
    accounted = Counter(message.stamp for message in node.stored)
    accounted += Counter(entry.stamp for entry in node.entries if entry.stamp is not None)
    for stamp, count in accounted.items():
        if stamp in node.sent and count > node.copies[stamp]:
            yield node.anomaly(
                "counted twice", stamp, f"sent {node.copies[stamp]} times, and accounted for {count} times"
            )


def _holes(node: _Node) -> Iterator[Anomaly]:
    """What is missing is entered in the epoch of the last message before."""
    lost = [entry for entry in node.entries if entry.reason == "lost"]
    reported = Counter((entry.epoch, number) for entry in lost for number in entry.numbers)
    for before, message, may_be_unknown in _neighbours(node.stored):
        missing = Counter((before.epoch, number) for number in between(before.seq or 0, message.seq or 0))
        unreported = missing - reported
        if unreported and not may_be_unknown:
            numbers = sorted(number for _, number in unreported)
            yield node.anomaly("unreported", message.stamp, f"{numbers} are missing between {before} and {message}")
        if not unreported or not may_be_unknown:
            reported -= missing
    for (epoch, number), count in (+reported).items():
        yield node.anomaly("phantom", number, f"reported as lost in epoch {epoch}, {count} times too often")


def _neighbours(stored: Sequence[Stored]) -> Iterator[tuple[Stored, Stored, bool]]:
    """The message before, a message that has to continue it, and whether nobody may know what is missing in between."""
    before: Stored | None = None
    for message in stored:
        if message.kind not in ("NBIRTH", "NDEATH") and before is not None and before.seq is not None:
            begins_unborn = message.flag == BEFORE_BIRTH and message.epoch != before.epoch
            yield before, message, begins_unborn
        before = message


def _deaths(node: _Node) -> Iterator[Anomaly]:
    living: int | None = None
    for message in node.stored:
        if message.kind == "NBIRTH":
            living = message.bd_seq
        elif message.kind == "NDEATH":
            if message.bd_seq != living:
                yield node.anomaly("wrong death", message.stamp, f"session {living} lives, and {message} was stored")
            living = None


def _sessions(node: _Node) -> Iterator[Anomaly]:
    living = ""
    for message in node.stored:
        sent = node.sent.get(message.stamp)
        if sent is None:
            continue
        if message.kind == "NBIRTH":
            living = sent.birth
        elif message.kind != "NDEATH" and not message.flag and sent.birth != living:
            yield node.anomaly("wrong session", message.stamp, f"{sent} is taken for one of birth {living or 'none'}")


def _names(node: _Node) -> Iterator[Anomaly]:
    for message in node.stored:
        if message.kind != "NDEATH" and not message.flag and message.value != message.stamp:
            yield node.anomaly("misnamed", message.stamp, f"its metric says {message.value}")


def _losses(node: _Node) -> Iterator[Anomaly]:
    stored = {message.stamp for message in node.stored}
    accounted = Counter(stored) + Counter(entry.stamp for entry in node.entries if entry.stamp is not None)
    for stamp, sent in node.sent.items():
        if not sent.is_calm:
            continue
        if stamp not in stored:
            yield node.anomaly("lost", stamp, f"{sent} was sent undisturbed")
        elif accounted[stamp] < node.copies[stamp]:
            yield node.anomaly(
                "dropped", stamp, f"{node.copies[stamp]} copies were sent, {accounted[stamp]} accounted for"
            )
