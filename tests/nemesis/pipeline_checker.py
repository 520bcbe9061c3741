"""Judges what a pipeline wrote. It knows what was published and what was promised, not how Spark or the kernel work; n log n.

    lost            a row that was published is neither in the ordered topic nor in the ledger
    ghost           a row that nobody published was written
    repeated        a row is in the ordered topic twice
    counted twice   a row is in order and in the ledger, or in the ledger twice
    reordered       a row of a key is behind one with a later number
    unreported      numbers are missing between two ordered rows, and the ledger does not say so
    phantom         the ledger says that a number was lost, and it is there, or says so twice
    sinks differ    the table does not have the rows of the topic, in the same order and at the right positions, or the late
                    rows are not those of the ledger
    wrong verdict   a plain resequencer, told the same rows, decides otherwise

The verdict on a row follows from the rows of its key alone if they were published in the order of their times. A publish whose
outcome nobody knew may be out of that order. Then the verdicts on that key are not judged; everything else is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.nemesis.checker import Anomaly

ORDERED, LATE, DUPLICATE, LOST = "ordered", "late", "duplicate", "lost"

Id = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """A row that was published. Its time is like no other's, so key and time say which one it is."""

    key: str
    number: int
    at: float

    @property
    def id(self) -> Id:
        return self.key, self.at


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledger entry: about a row (``at``), or about the numbers from ``first`` to ``last``."""

    key: str
    reason: str
    at: float | None = None
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """What is in the sinks, each in its order."""

    ordered: Sequence[Row]
    table: Sequence[tuple[Row, int]]
    """With the place of the row among those of its key."""
    ledger: Sequence[Entry]
    late: Sequence[Id]


def check_pipeline(published: Sequence[Row], written: Written, gap_timeout: float) -> list[Anomaly]:
    """All anomalies. ``published`` is in the order of the log."""
    return [
        *_accounts(published, written),
        *_disorder(written.ordered),
        *_holes(written),
        *_sinks(written),
        *_verdicts(published, written, gap_timeout),
    ]


def _anomaly(kind: str, id_: Id, detail: str, number: int = -1) -> Anomaly:
    return Anomaly(kind, "pipeline", id_[0], number, f"row of {id_[1]}: {detail}" if id_[1] >= 0 else detail)


def _accounts(published: Sequence[Row], written: Written) -> Iterator[Anomaly]:
    """Ordered rows and ledger together are the input, each row once."""
    known = {row.id: row for row in published}
    ordered = Counter(row.id for row in written.ordered)
    entered = Counter((entry.key, entry.at) for entry in written.ledger if entry.at is not None)
    for row in written.ordered:
        if known.get(row.id) != row:
            yield _anomaly("ghost", row.id, f"{known.get(row.id)} was published", row.number)
    for id_, row in known.items():
        if id_ not in ordered and id_ not in entered:
            yield _anomaly("lost", id_, "neither in order nor in the ledger", row.number)
        if ordered[id_] > 1:
            yield _anomaly("repeated", id_, f"{ordered[id_]} times in the topic", row.number)
        if entered[id_] + (id_ in ordered) > 1:
            yield _anomaly(
                "counted twice", id_, f"ordered {ordered[id_]} times, entered {entered[id_]} times", row.number
            )
    for id_ in entered.keys() - known.keys():
        yield _anomaly("ghost", id_, "is in the ledger, and was never published")


def _disorder(ordered: Sequence[Row]) -> Iterator[Anomaly]:
    highest: dict[str, int] = {}
    for row in ordered:
        if row.number < highest.get(row.key, 0):
            yield _anomaly("reordered", row.id, f"{row.number} is behind {highest[row.key]}", row.number)
        highest[row.key] = max(row.number, highest.get(row.key, 0))


def _holes(written: Written) -> Iterator[Anomaly]:
    reported: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for entry in written.ledger:
        if entry.reason == LOST:
            reported[entry.key].update(range(entry.first, entry.last + 1))
    released: defaultdict[str, set[int]] = defaultdict(set)
    for row in written.ordered:
        released[row.key].add(row.number)
    for key in released.keys() | reported.keys():
        missing = set(range(1, max(released[key], default=0))) - released[key]
        for number in sorted(missing - reported[key].keys()):
            yield _anomaly("unreported", (key, -1), f"{number} is missing", number)
        for number, count in reported[key].items():
            if count > 1 or number not in missing:
                yield _anomaly("phantom", (key, -1), f"{number} is reported as lost {count} times", number)


def _sinks(written: Written) -> Iterator[Anomaly]:
    topic: defaultdict[str, list[tuple[Row, int]]] = defaultdict(list)
    for row in written.ordered:
        topic[row.key].append((row, len(topic[row.key])))
    table: defaultdict[str, list[tuple[Row, int]]] = defaultdict(list)
    for row, position in written.table:
        table[row.key].append((row, position))
    for key in topic.keys() | table.keys():
        if topic[key] != table[key]:
            first = next(
                (pair for pair in zip(topic[key], table[key], strict=False) if pair[0] != pair[1]), "one is longer"
            )
            yield _anomaly("sinks differ", (key, -1), f"topic and table: {first}")
    late = (entry for entry in written.ledger if entry.reason == LATE)
    entered = Counter((entry.key, -1.0 if entry.at is None else entry.at) for entry in late)
    for id_ in (entered - Counter(written.late)) + (Counter(written.late) - entered):
        yield _anomaly("sinks differ", id_, "in the ledger as late, or among the late rows, not both")


# -- a plain resequencer ------------------------------------------------------------------------------------------------


def _verdicts(published: Sequence[Row], written: Written, gap_timeout: float) -> Iterator[Anomaly]:
    found: dict[Id, str] = {row.id: ORDERED for row in written.ordered}
    for entry in written.ledger:
        if entry.at is not None:
            found[entry.key, entry.at] = entry.reason
    keys: defaultdict[str, list[Row]] = defaultdict(list)
    for row in published:
        keys[row.key].append(row)
    for rows in keys.values():
        if not all(one.at < other.at for one, other in pairwise(rows)):
            continue
        for row, verdict in zip(rows, resequence(rows, gap_timeout), strict=True):
            if found.get(row.id, verdict) != verdict:
                yield _anomaly("wrong verdict", row.id, f"is {found[row.id]}, and should be {verdict}", row.number)


def resequence(rows: Sequence[Row], gap_timeout: float) -> list[str]:
    """The verdict on each row of a key, in the order of arrival; '' for one that still waits at the end.

    The first number is 1. A number that is jumped over is awaited for ``gap_timeout`` from then on, and then given up.
    """
    verdicts = ["" for _ in rows]
    expected, highest = 1, 0
    held: dict[int, int] = {}
    due: dict[int, float] = {}
    given_up: set[int] = set()
    for place, row in enumerate(rows):
        while expected <= highest and (expected in held or due[expected] <= row.at):
            expected = _go_on(expected, held, given_up, verdicts)
        if row.number < expected:
            verdicts[place] = LATE if row.number in given_up else DUPLICATE
            given_up.discard(row.number)
        elif row.number in held:
            verdicts[place] = DUPLICATE
        else:
            due |= dict.fromkeys(range(max(highest, expected - 1) + 1, row.number), row.at + gap_timeout)
            highest = max(highest, row.number)
            held[row.number] = place
            while expected in held:
                expected = _go_on(expected, held, given_up, verdicts)
    return verdicts


def _go_on(expected: int, held: dict[int, int], given_up: set[int], verdicts: list[str]) -> int:
    if expected in held:
        verdicts[held.pop(expected)] = ORDERED
    else:
        given_up.add(expected)
    return expected + 1
