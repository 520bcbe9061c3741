"""Captured Sparkplug traffic for tests: random traces as rows, and what the core's session machines make of them."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

from seriatim.core.edge_messages import DeathIgnored, EdgeMessage, Kind, NodeOrdering, Ordered
from seriatim.core.edge_nodes import EdgeNodes
from seriatim.core.resequencing import LedgerEntry
from tests.core.edge_traces import edge_trace

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


def capture(random: Random, nodes: int, sessions: int) -> list[Captured]:
    """What some nodes sent, in the order of its arrival; no two at the same time."""
    rows = [
        Captured(f"g/n{node}", m.kind.value, m.seq, m.bd_seq, m.timestamp, m.device, at + node / 1e8, m.body)
        for node in range(nodes)
        for m, at in edge_trace(random, random.randint(1, sessions))
    ]
    return sorted(rows, key=lambda row: row.arrival or 0)


class Told(NamedTuple):
    """What came out: per node the ordered messages with epoch and flag, and the ledger as it was written."""

    ordered: dict[str, list[tuple[Any, ...]]]
    ledger: dict[str, list[tuple[Any, ...]]]


def service_tells(rows: Iterable[Captured], options: NodeOrdering, *, is_whole: bool, end: float = END) -> Told:
    """What the service gives out when the messages reach it at their times; at the end of a table what is left is cleared."""
    nodes: EdgeNodes[str] = EdgeNodes(options)
    told = Told({}, {})
    for row in rows:
        assert row.arrival is not None
        _advance(nodes, row.arrival, told)
        kind = Kind(row.kind or "")
        message = EdgeMessage(kind, row.body, row.seq, row.timestamp, row.device, row.bd_seq)
        _note(nodes.receive(row.node, message, row.arrival), row.arrival, told)
    _advance(nodes, end, told)
    for node in list(nodes) if is_whole else []:
        _note(nodes.clear(node.key, end), None, told)
    return told


def _advance(nodes: EdgeNodes[str], now: float, told: Told) -> None:
    """Timers fire at their deadlines."""
    while (deadline := nodes.next_deadline) is not None and deadline <= now:
        _note(nodes.advance(deadline), deadline, told)


def _note(effects: list[Any], time: float | None, told: Told) -> None:
    for effect in effects:
        match effect:
            case Ordered(key, epoch, _, message, flag):
                told.ordered.setdefault(str(key), []).append((message.body, epoch, flag))
            case LedgerEntry(key, epoch, reason, first, last, size, when, detail, message):
                entry = (str(reason), epoch, first, last, size, None if time is None else when, detail)
                told.ledger.setdefault(str(key), []).append((*entry, None if message is None else message.body))
            case DeathIgnored(key, detail, message):
                told.ledger.setdefault(str(key), []).append(
                    ("ignored", None, None, None, 1, time, detail, message.body)
                )


def told_in(rows: Iterable[Any]) -> Told:
    """Tagged rows in the same words; positions must be what they are to be."""
    told = Told({}, {})
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
