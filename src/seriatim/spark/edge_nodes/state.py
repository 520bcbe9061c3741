"""The state of the edge nodes of one partition, and the change that a batch makes to it.

Rules
-----
1. A node consists of its saved machine as JSON, the number of messages it has released, its next deadline, and its held rows:
   first those ahead of a gap, then those that wait for a birth. A message is a row, so the JSON has only its number and its
   time.
2. A change has the complete nodes that a batch touched, which replace the former ones. Nodes hold little (``capacity``), so
   writing a complete node costs no more than writing its changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from seriatim.core.resequencing.gaps import Held
from seriatim.core.resequencing.resequencer import SavedResequencer
from seriatim.core.sparkplug.edge_node import NodeState, SavedNode
from seriatim.core.sparkplug.messages import EdgeMessage, Status
from seriatim.errors import StateMismatch
from seriatim.spark.kernel.arrays import Columns, Ints, Owned, arange
from seriatim.spark.kernel.key_state import HELD, KEY, Content, Times
from seriatim.spark.kernel.keys import raw_keys
from seriatim.spark.kernel.partition_state import StackedPartition, Tally, with_waits

EDGE_NODES = "edge nodes"
MACHINE_TEXT = "machine"


# -- a node as text -----------------------------------------------------------------------------------------------------


def text_of(saved: SavedNode[Any]) -> str:
    """A saved node without its messages; ``messages_of`` has those."""
    queue = _plain(saved.queue) | {"held": [(number, item.arrival) for number, item in saved.queue.held]}
    return json.dumps(_plain(saved) | {"waiting": [arrival for _, arrival in saved.waiting], "queue": queue})


def messages_of(saved: SavedNode[Any]) -> list[EdgeMessage[Any]]:
    """The messages that a saved node holds, as their rows are kept."""
    return [item.message for _, item in saved.queue.held] + [message for message, _ in saved.waiting]


def saved_of(text: str, messages: Iterator[EdgeMessage[Any]]) -> SavedNode[Any]:
    """The node that was saved as a text; its messages are taken from the iterator."""
    node = _with_fields(SavedNode, json.loads(text))
    queue = _with_fields(SavedResequencer, node["queue"])
    held = tuple((number, Held(next(messages), arrival, None)) for number, arrival in queue["held"])
    gaps, given_up = (tuple(map(tuple, queue[name])) for name in ("gaps", "given_up"))
    replaced = {
        "state": NodeState(node["state"]),
        "status": Status(node["status"]),
        "devices": tuple((device, Status(status)) for device, status in node["devices"]),
        "birth": node["birth"] and tuple(node["birth"]),
        "deaths": tuple(map(tuple, node["deaths"])),
        "waiting": tuple((next(messages), arrival) for arrival in node["waiting"]),
        "queue": SavedResequencer(**{**queue, "held": held, "gaps": gaps, "given_up": given_up}),
    }
    return SavedNode(**{**node, **replaced})


def _with_fields(kind: type, found: dict[str, Any]) -> dict[str, Any]:
    """The same fields, if they are exactly those that this version saves."""
    wanted = {field.name for field in fields(kind)}
    if found.keys() != wanted:
        lacks, strange = (
            ", ".join(sorted(names)) or "nothing" for names in (wanted - found.keys(), found.keys() - wanted)
        )
        raise StateMismatch(
            f"the state of an edge node was written by another version of Seriatim: it lacks {lacks} and has {strange} that is "
            "not known here; continue with that version, or start over with a new checkpoint and a new state folder"
        )
    return found


def _plain(saved: Any) -> dict[str, Any]:
    return {field.name: getattr(saved, field.name) for field in fields(saved)}


# -- the nodes of a partition -------------------------------------------------------------------------------------------


@dataclass
class NodeFacts(Columns):
    """One row a node: how many messages it has released, and how many gaps it has."""

    position: Ints
    gaps: Ints


@dataclass
class NodeRows(Owned):
    """The rows that nodes hold."""

    row: Ints


def content_of(
    times: Times, nodes: Sequence[tuple[Any, str, int, float, int]], keys: pa.DataType, rows: pa.Table
) -> Content:
    """Nodes as a change: key, saved machine, position, when something falls due, and how many of the rows it holds."""
    columns: list[Any] = list(zip(*nodes, strict=True)) or [()] * 5
    gaps = [len(json.loads(text)["queue"]["gaps"]) for text in columns[1]]
    owner = np.repeat(arange(len(nodes)), np.array(columns[4], np.int64))
    return Content(
        times=times,
        texts={KEY: raw_keys(pa.array(columns[0], keys)), MACHINE_TEXT: raw_keys(pa.array(columns[1], pa.string()))},
        facts=NodeFacts(np.array(columns[2], np.int64), np.array(gaps, np.int64)),
        due=np.array(columns[3], np.float64),
        fresh=np.ones(len(nodes), np.bool_),
        gone=np.zeros(len(nodes), np.bool_),
        lists={HELD: NodeRows(owner, arange(len(owner)))},
        rows=rows,
    )


class NodePartition(StackedPartition):
    """The nodes of one partition."""

    facts = NodeFacts
    lists: ClassVar[dict[str, type[Owned]]] = {HELD: NodeRows}
    texts = (KEY, MACHINE_TEXT)

    def waiting(self) -> pa.Table:
        """The rows that wait, by node. What waits for a birth waits for no number; numbers are counted on without end."""
        content = self.whole_by_key()
        waits = [wait for text in machines_in(content) for wait in _waits_in(json.loads(text))]
        columns = list(zip(*waits, strict=True)) or [()] * 4
        kinds = (pa.float64(), pa.int64(), pa.int64(), pa.float64())
        return with_waits(content.rows, [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)])

    @classmethod
    def count(cls, content: Content) -> Tally:
        return Tally(len(content), len(content.lists[HELD]), int(content.facts.gaps.sum()))  # type: ignore[attr-defined]

    @classmethod
    def read_tables(cls, clock: float, tables: list[pa.Table]) -> Content:
        """A change as versions of the first format had it."""
        nodes, rows = tables
        listed = zip(*(nodes[name].to_pylist() for name in ("key", "machine", "position", "due", "held")), strict=True)
        return content_of(Times(clock), list(listed), nodes.schema.field(KEY).type, rows)


def machines_in(content: Content) -> list[str]:
    return [text.decode() for text in content.texts[MACHINE_TEXT].to_pylist()]


def _waits_in(node: dict[str, Any]) -> Iterator[tuple[float, int | None, int | None, float | None]]:
    """For each message that a node holds: since when, for which numbers, and until when."""
    first, last, due = node["queue"]["gaps"][0][:3] if node["queue"]["gaps"] else (None, None, None)
    for _, arrival in node["queue"]["held"]:
        yield arrival, first, last, due if due is not None and isfinite(due) else None
    for arrival in node["waiting"]:
        yield arrival, None, None, node["waiting_due"]
