"""The kernel for edge nodes: one micro-batch of captured Sparkplug traffic, put in order by the core's session machine.

Rules
-----
1. Rows and state go in; ordered rows, ledger and the change of the state come out. There is no IO and no clock, and equal input
   gives equal output.
2. Each node runs the core's ``EdgeNode``. Before each row, in order of arrival, the node advances to each of its deadlines up
   to that time, one after another, as with a timer; and after the last row, or without one, to those up to the time of the
   batch. Time never runs backwards for a known node. Rows of a node that arrived at the same time are processed in the order of
   ``tie_breaking.py``, regardless of their order in the table.
3. Messages that wait for a birth at the end of a table (``is_whole``) are discarded, as when a node is cleared.
4. Ordered rows come first, node by node, each with its position, its epoch and its flag. Everything else follows in the order
   of events: ledger entries, and ignored deaths, which are entries here. Invalid rows come last, and are otherwise ignored.
5. Rebirth requests and status changes are not part of the output: no node can answer any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from seriatim.core.resequencing.options import LedgerEntry
from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import (
    DeathIgnored,
    EdgeMessage,
    Kind,
    NodeEffect,
    NodeOrdering,
    OnTimeout,
    Ordered,
    check_message,
)
from seriatim.errors import InvalidArgument
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.edge_nodes.state import (
    EDGE_NODES,
    NodePartition,
    content_of,
    machines_in,
    messages_of,
    saved_of,
    text_of,
)
from seriatim.spark.edge_nodes.tie_breaking import ranks
from seriatim.spark.kernel.arrays import Ints, Objects, arange, filled
from seriatim.spark.kernel.arrival_order import row_sort_keys
from seriatim.spark.kernel.batch import NO_SOURCE, Entries
from seriatim.spark.kernel.intake import NOT_FINITE, TOO_FAR_AHEAD, OnInvalid, check_columns, refuse
from seriatim.spark.kernel.interfaces import MACHINE, BatchOutcome
from seriatim.spark.kernel.key_state import HELD, Times
from seriatim.spark.kernel.keys import require_same_keys
from seriatim.spark.kernel.output import Output, output_schema
from seriatim.spark.kernel.partition_state import Tally, joined_rows
from seriatim.spark.tagged import FLAG, Tag

IGNORED = "ignored"
"""The reason of a death that ended no session."""
KINDS = {str(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Which columns say what a message of an edge node is, besides those that ``ColumnRoles`` has."""

    kind: str
    bd_seq: str
    timestamp: str | None
    device: str | None
    arrival: tuple[str, ...]
    """Which of the rows that are equal in these came first is unknown: the time of arrival, and an offset if there is one."""


@dataclass(frozen=True)
class NodeKernel:
    """Puts the micro-batches of a partition in order, one after another. ``is_whole``: no more rows come after this batch."""

    options: NodeOrdering
    roles: ColumnRoles
    columns: MessageColumns
    on_invalid: OnInvalid = OnInvalid.LEDGER
    is_whole: bool = False

    @property
    def timeout(self) -> float:
        return self.options.reorder_timeout

    def meaning(self) -> dict[str, str]:
        """Whose state it is, and what its rows mean."""
        names = ("kind", "bd_seq", "timestamp", "device")
        return {MACHINE: EDGE_NODES, **{name: repr(getattr(self.columns, name)) for name in names}}

    @property
    def waits(self) -> str:
        return f"{self.options.reorder_timeout} {self.options.on_timeout is OnTimeout.HOLD}"

    @property
    def partition_type(self) -> type[NodePartition]:
        return NodePartition

    def new_partition(self, schema: pa.Schema) -> NodePartition:
        check_columns(self.roles, schema)
        output_schema(schema)
        return NodePartition(schema.field(self.roles.key).type, schema)

    def run(
        self,
        partition: NodePartition,
        table: pa.Table,
        now: float | None,
        order: Ints | None = None,
        latest: float = inf,
    ) -> BatchOutcome:
        """Decide one batch, at the time ``now``. The partition is not changed: apply the outcome's change to it.

        The rows of a node arrived in the order in which they are in the table, or in that of ``order``, numbers of rows.
        Without a ``now`` it is the time of the latest row. A row later than ``latest`` is invalid.
        """
        require_same_keys(table.schema.field(self.roles.key).type, partition.key_type)
        order = arange(table.num_rows) if order is None else order
        arrivals, invalid, complaints = self._take_in(table, order, latest)
        if self.on_invalid is OnInvalid.RAISE:
            refuse(invalid, complaints, table, self.roles)
        clock = max(
            [-inf if now is None else now, partition.clock, *(time for rows in arrivals.values() for time, _ in rows)]
        )
        known = partition.look_up(pa.array(list(arrivals), partition.key_type), clock)
        content = known.content
        held = partition.rows_at(content.lists[HELD].row)
        messages = joined_rows(table, held).combine_chunks()
        work = _Work(clock)
        keys, saved = known.keys.take(pa.array(known.present)).to_pylist(), iter(self._messages(held, table.num_rows))
        for key, text, position in zip(keys, machines_in(content), content.facts.position.tolist(), strict=True):  # type: ignore[attr-defined]
            work.position = position
            node = EdgeNode.restore(saved_of(text, saved), self.options, key)
            self._decide(work, node, arrivals.pop(key, []), partition.clock)
        for key, rows in arrivals.items():
            work.position = 0
            self._decide(work, EdgeNode(self.options, key), rows, -inf)
        change = content_of(
            Times(clock, clock), work.nodes, partition.key_type, messages.take(pa.array(work.held, pa.int64()))
        )
        gaps = change.facts.gaps.sum() - content.facts.gaps.sum()  # type: ignore[attr-defined]
        return BatchOutcome(
            _output(Output(messages, self.roles.key), work, invalid, complaints),
            change,
            Tally(len(change) - len(keys), len(work.held) - held.num_rows, int(gaps)),
        )

    # -- in -------------------------------------------------------------------------------------------------------------

    def _take_in(self, table: pa.Table, order: Ints, latest: float) -> tuple[dict[Any, list[_Arrival]], Ints, Objects]:
        """The messages of each node as they arrived, and the rows that can't be judged, with the reasons."""
        keys, times = (table[name].to_pylist() for name in (self.roles.key, self.roles.time))
        messages, rows = self._messages(table, 0), order.tolist()
        found = ((row, _fault(keys[row], times[row], messages[row], latest)) for row in rows)
        faults = {row: fault for row, fault in found if fault is not None}
        arrivals: dict[Any, list[_Arrival]] = {}
        for row in self._settled([row for row in rows if row not in faults], keys, messages, table):
            arrivals.setdefault(keys[row], []).append((times[row], messages[row]))
        complaints = filled(len(faults), None)
        complaints[:] = list(faults.values())
        return arrivals, np.array(list(faults), np.int64), complaints

    def _settled(
        self, order: list[int], keys: list[Any], messages: list[EdgeMessage[int]], table: pa.Table
    ) -> list[int]:
        """The rows in order, those of one node and one instant in the order of ``tie_breaking``."""
        instants = list(zip(*(table[name].to_pylist() for name in self.columns.arrival), strict=True))
        together: dict[Any, list[int]] = {}
        for row in order:
            together.setdefault((instants[row], keys[row]), []).append(row)
        if len(together) == len(order):  # as a rule
            return order
        return [row for rows in together.values() for row in _sorted_instant(rows, messages, table)]

    def _messages(self, rows: pa.Table, first: int) -> list[EdgeMessage[int]]:
        """The rows as messages, whose bodies are their numbers from ``first`` on."""
        names, nothing = self.columns, [None] * rows.num_rows
        kinds = [KINDS.get(kind, kind) for kind in rows[names.kind].to_pylist()]
        stamps = nothing if names.timestamp is None else rows[names.timestamp].cast(pa.int64()).to_pylist()
        devices = nothing if names.device is None else rows[names.device].to_pylist()
        numbers = range(first, first + rows.num_rows)
        seqs, sessions = (rows[name].to_pylist() for name in (self.roles.sequence, names.bd_seq))
        return list(map(EdgeMessage, kinds, numbers, seqs, stamps, devices, sessions))

    # -- the machine at work --------------------------------------------------------------------------------------------

    def _decide(self, work: _Work, node: EdgeNode[int], arrivals: list[_Arrival], floor: float) -> None:
        for time, message in arrivals:
            floor = max(floor, time)
            self._advance(work, node, floor)
            work.note(node.receive(message, floor), floor)
        self._advance(work, node, work.clock)
        if self.is_whole:
            work.note(node.clear(work.clock), work.clock)
        work.end(node)

    @staticmethod
    def _advance(work: _Work, node: EdgeNode[int], now: float) -> None:
        while (deadline := node.order_deadline) is not None and deadline <= now:
            work.note(node.advance(deadline), deadline)


_Arrival = tuple[float, EdgeMessage[int]]


def _sorted_instant(rows: list[int], messages: list[EdgeMessage[int]], table: pa.Table) -> list[int]:
    """The rows of one node that arrived together. Where messages are equal, what else their rows hold decides."""
    if len(rows) == 1:
        return rows
    found = ranks([messages[row] for row in rows])
    if len(set(found)) < len(found):
        sort_keys = row_sort_keys(table.take(pa.array(rows)), sorted(table.schema.names))
        return [row for *_, row in sorted(zip(found, sort_keys, rows, strict=True))]
    return [row for _, row in sorted(zip(found, rows, strict=True))]


def _fault(key: Any, time: float | None, message: EdgeMessage[int], latest: float) -> str | None:
    """Why a row can't be judged, or None."""
    if key is None:
        return "it has no key"
    if time is None:
        return "it has no time"
    if not isfinite(time):
        return NOT_FINITE
    if time > latest:
        return TOO_FAR_AHEAD
    try:
        check_message(message)
    except InvalidArgument as error:
        return str(error)
    return None


@dataclass
class _Work:
    """What became of the nodes of a batch so far."""

    clock: float
    position: int = 0
    """Of the next message of the node that is being decided."""
    ordered: list[tuple[int, int, int, str | None]] = field(default_factory=list)
    entries: list[tuple[Any, ...]] = field(default_factory=list)
    nodes: list[tuple[Any, str, int, float, int]] = field(default_factory=list)
    """As ``content_of`` takes them. The one that is being decided comes next."""
    held: list[int] = field(default_factory=list)

    def end(self, node: EdgeNode[int]) -> None:
        saved, due = node.save(), node.order_deadline
        held = [message.body for message in messages_of(saved)]
        self.nodes.append((node.key, text_of(saved), self.position, inf if due is None else due, len(held)))
        self.held += held

    def note(self, effects: list[NodeEffect[int]], time: float) -> None:
        for effect in effects:
            match effect:
                case Ordered(_, epoch, _, message, flag):
                    self.ordered.append((message.body, self.position, epoch, flag))
                    self.position += 1
                case LedgerEntry(_, epoch, reason, first, last, size, when, detail, message):
                    source = NO_SOURCE if message is None else message.body
                    self._enter(reason, (epoch, first, last, size), when, detail, source)
                case DeathIgnored(_, detail, message):
                    self._enter(IGNORED, (0, 0, 0, 1), time, detail, message.body)

    def _enter(self, reason: str, numbers: tuple[int, int, int, int], time: float, detail: str, source: int) -> None:
        owner, order = len(self.nodes), len(self.entries)
        self.entries.append((owner, order, Tag.LEDGER, str(reason), *numbers, time, detail, source))


def _output(output: Output, work: _Work, invalid: Ints, complaints: Objects) -> pa.Table:
    entries = Entries.from_rows(work.entries)
    keys = pa.array([work.nodes[owner][0] for owner in entries.owner], output.sources.schema.field(output.key).type)
    parts = [
        _ordered(output, work),
        output.entries(entries, keys, unknown=entries.reason == IGNORED),
        output.invalid(invalid, complaints, work.clock),
    ]
    nothing = [part.append_column(FLAG, pa.nulls(part.num_rows, FLAG.type)) for part in parts[1:]]
    return pa.concat_tables([parts[0], *nothing])


def _ordered(output: Output, work: _Work) -> pa.Table:
    columns = list(zip(*work.ordered, strict=True)) or [()] * 4
    source, position, epoch = (np.array(values, np.int64) for values in columns[:3])
    table = output.ordered(source, position)
    place = table.schema.get_field_index("_epoch")
    table = table.set_column(place, table.schema.field(place), pa.array(epoch))
    return table.append_column(FLAG, pa.array(columns[3], FLAG.type))
