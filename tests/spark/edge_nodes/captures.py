"""Captured Sparkplug traffic for tests: random traces as rows, and what the ordering service makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from random import Random
from typing import Any, NamedTuple

from seriatim.core.resequencing.options import LedgerEntry
from seriatim.core.sparkplug.messages import DeathIgnored, EdgeMessage, Kind, NodeOrdering, Ordered
from seriatim.spark.edge_nodes.tie_breaking import ranks
from seriatim.sparkplug import NodeId, OrderingService
from seriatim.testing.clock import ManualClock
from tests.core.sparkplug.edge_traces import edge_trace

SCHEMA = (
    "node string, kind string, seq bigint, bd_seq bigint, timestamp bigint, device string, arrival double, body string"
)
END = 1e9


class Captured(NamedTuple):
    """A message as a capture keeps it."""

    node: str
    kind: str | None
    seq: int | None
    bd_seq: int | None
    timestamp: int | None
    device: str | None
    arrival: float | None
    body: str

    def message(self) -> EdgeMessage[str]:
        return EdgeMessage(Kind(self.kind or ""), self.body, self.seq, self.timestamp, self.device, self.bd_seq)


def capture(random: Random, nodes: int, sessions: int, tick: float | None = None) -> list[Captured]:
    """What some nodes sent, in the order of its arrival.

    No two arrive at the same time, unless the clock of the capture only ``tick``s: then those are in the order of their ranks.
    """
    rows = [
        Captured(f"g/n{node}", m.kind.value, m.seq, m.bd_seq, m.timestamp, m.device, at + node / 1e8, m.body)
        for node in range(nodes)
        for m, at in edge_trace(random, random.randint(1, sessions))
    ]
    if tick is not None:
        rows = [row for moment in _moments(_ticking(rows, tick)) for row in moment]
    return sorted(rows, key=lambda row: row.arrival or 0)


def _ticking(rows: list[Captured], tick: float) -> list[Captured]:
    return [row._replace(arrival=(row.arrival or 0) // tick * tick) for row in rows]


def _moments(rows: list[Captured]) -> Iterable[list[Captured]]:
    """What came from one node at one time, in the order in which it is to be taken."""

    def moment(row: Captured) -> tuple[Any, ...]:
        return row.node, row.arrival

    for _, together in groupby(sorted(rows, key=moment), moment):
        found = list(together)
        yield [row for _, row in sorted(zip(ranks([row.message() for row in found]), found, strict=True), key=_by_body)]


def _by_body(ranked: tuple[Any, Captured]) -> tuple[Any, str]:
    return ranked[0], ranked[1].body


def places_to_cut(rows: list[Captured]) -> list[int]:
    """Where one batch may end and the next begin, so that what came at one time is in one batch."""
    return [0, *(at for at in range(1, len(rows)) if rows[at].arrival != rows[at - 1].arrival), len(rows)]


class Results(NamedTuple):
    """What came out: per node the ordered messages with epoch and flag, and the ledger as it was written."""

    ordered: dict[str, list[tuple[Any, ...]]]
    ledger: dict[str, list[tuple[Any, ...]]]


def service_tells(rows: Iterable[Captured], options: NodeOrdering, *, is_whole: bool, end: float = END) -> Results:
    """What the service gives out when the messages reach it at their times; at the end of a table what is left is cleared."""
    listener = _Listener(options)
    for row in rows:
        listener.receive(row)
    listener.let_pass(end)
    if is_whole:
        listener.clear()
    return listener.told


class _Listener:
    """A service under a manual clock, and what its callbacks were told."""

    def __init__(self, options: NodeOrdering) -> None:
        self.told = Results({}, {})
        self._clock, self._timeout = ManualClock(), options.reorder_timeout
        self._is_over = False
        self._nodes: dict[NodeId, None] = {}
        self._service: OrderingService[str] = OrderingService(
            self._on_message,
            options,
            on_rebirth=lambda _: None,
            on_ledger=self._on_ledger,
            on_ignored=self._on_ignored,
            clock=self._clock.now,
            timer=False,
        )

    def receive(self, row: Captured) -> None:
        """What waits does so for one timeout from an arrival on: then the clock rings, and the service looks what is due."""
        assert row.arrival is not None
        self.let_pass(row.arrival)
        node = NodeId(*row.node.split("/"))
        self._nodes[node] = None
        self._clock.call_at(row.arrival + self._timeout, self._service.advance)
        self._service.process(node, row.message())

    def let_pass(self, now: float) -> None:
        self._clock.set(now)
        self._service.advance()

    def clear(self) -> None:
        self._is_over = True
        for node in self._nodes:
            self._service.clear(node)

    def _on_message(self, ordered: Ordered[str]) -> None:
        messages = self.told.ordered.setdefault(str(ordered.key), [])
        messages.append((ordered.message.body, ordered.epoch, ordered.flag))

    def _on_ledger(self, entry: LedgerEntry[EdgeMessage[str]]) -> None:
        numbers = (str(entry.reason), entry.epoch, entry.first, entry.last, entry.size)
        time = None if self._is_over else entry.time
        self._write(entry.key, (*numbers, time, entry.detail, None if entry.message is None else entry.message.body))

    def _on_ignored(self, death: DeathIgnored[str]) -> None:
        self._write(death.key, ("ignored", None, None, None, 1, self._clock.now(), death.detail, death.message.body))

    def _write(self, node: Any, entry: tuple[Any, ...]) -> None:
        self.told.ledger.setdefault(str(node), []).append(entry)


def told_in(rows: Iterable[Any]) -> Results:
    """Tagged rows in the same words; positions must be what they are to be."""
    told = Results({}, {})
    for row in rows:
        if row["_tag"] == "ordered":
            before = told.ordered.setdefault(row["node"], [])
            assert row["_position"] == len(before)
            before.append((row["body"], row["_epoch"], row["_flag"]))
        else:
            assert row["_tag"] == "ledger"
            numbers = tuple(row[name] for name in ("_reason", "_epoch", "_first", "_last", "_size", "_time"))
            told.ledger.setdefault(row["node"], []).append((*numbers, row["_detail"], row["body"]))
    return told
