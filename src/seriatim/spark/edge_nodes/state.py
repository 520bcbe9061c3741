"""What one partition of the stream knows about its edge nodes, and the change that a batch makes to it.

Rules
-----
1. A node is one row of ``nodes``: its saved machine as JSON, how many messages it has released, when something falls due in
   it, and how many messages it holds. Those lie in ``rows``, node by node: first what waits ahead of a gap, then what waits
   for a birth. A message is its row, so the JSON has only its number and its time.
2. A change has the nodes that a batch touched, whole: they replace what was known of them. Nodes hold little (``capacity``), so
   to write all of a node costs no more than to say what changed in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.backlog import Held
from seriatim.core.edge_messages import EdgeMessage, Status
from seriatim.core.resequencer import SavedResequencer
from seriatim.core.sparkplug import NodeState, SavedNode
from seriatim.errors import StateMismatch
from seriatim.spark.kernel.arrays import Bools, Ints, flat
from seriatim.spark.kernel.partition import adopted, assigned, joined_rows, with_waits

EDGE_NODES = "edge nodes"


# -- a node as text -----------------------------------------------------------------------------------------------------


def text_of(saved: SavedNode[Any]) -> str:
    """A saved node without its messages; ``messages_of`` has those."""
    queue = _plain(saved.queue) | {"held": [(number, item.arrival) for number, item in saved.queue.held]}
    return json.dumps(_plain(saved) | {"waiting": [arrival for _, arrival in saved.waiting], "queue": queue})


def messages_of(saved: SavedNode[Any]) -> list[EdgeMessage[Any]]:
    """The messages that a saved node holds, as their rows are kept."""
    return [item.message for _, item in saved.queue.held] + [message for message, _ in saved.waiting]


def saved_of(text: str, messages: Iterator[EdgeMessage[Any]]) -> SavedNode[Any]:
    """The node that was made into a text and messages, of which it takes its own."""
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
    """The same, if it says what this version keeps of such a thing, and nothing else."""
    wanted = {field.name for field in fields(kind)}
    if found.keys() != wanted:
        lacks, strange = (
            ", ".join(sorted(names)) or "nothing" for names in (wanted - found.keys(), found.keys() - wanted)
        )
        raise StateMismatch(
            f"the state of an edge node was written by another version of Seriatim: it lacks {lacks} and has {strange} that is "
            "not known here; go on with that version, or start over with a new checkpoint and a new state folder"
        )
    return found


def _plain(saved: Any) -> dict[str, Any]:
    return {field.name: getattr(saved, field.name) for field in fields(saved)}


# -- the nodes of a partition -------------------------------------------------------------------------------------------


@dataclass
class NodeChange:
    """The nodes that a batch touched, and the rows of what they hold."""

    clock: float
    nodes: pa.Table
    rows: pa.Table

    @property
    def entries(self) -> int:
        """How many nodes and messages it is about: how much has to be written."""
        return int(self.nodes.num_rows + self.rows.num_rows)

    def tables(self) -> list[pa.Table]:
        """The change as it is written; the clock is written elsewhere."""
        return [self.nodes, self.rows]


def node_schema(key_type: pa.DataType) -> pa.Schema:
    columns = {"machine": pa.string(), "position": pa.int64(), "due": pa.float64(), "held": pa.int64()}
    return pa.schema({"key": key_type, **columns})


class NodePartition:
    """The nodes of one partition. ``apply`` changes it in place."""

    def __init__(self, key_type: pa.DataType, schema: pa.Schema) -> None:
        self.clock = -inf
        self.nodes: pa.Table = node_schema(key_type).empty_table()
        self.rows: pa.Table = schema.empty_table()

    def __len__(self) -> int:
        return int(self.nodes.num_rows)

    @property
    def keys(self) -> pa.Array:
        return flat(self.nodes["key"])

    # -- looking --------------------------------------------------------------------------------------------------------

    @property
    def held_count(self) -> int:
        return int(self.rows.num_rows)

    @property
    def gap_count(self) -> int:
        return sum(len(json.loads(text)["queue"]["gaps"]) for text in self.nodes["machine"].to_pylist())

    def next_due(self) -> float:
        """When something falls due next; infinite for never."""
        return float(np.min(self.nodes["due"].to_numpy(), initial=inf))

    def concerned(self, keys: pa.Array, clock: float) -> Bools:
        """Marks the nodes of some keys, and those in which something falls due by ``clock``."""
        mask: Bools = self._has(keys) | (self.nodes["due"].to_numpy() <= clock)
        return mask

    def _has(self, keys: pa.Array) -> Bools:
        mask: Bools = pc.is_in(self.nodes["key"], value_set=keys).to_numpy()
        return mask

    def only(self, mask: Bools) -> NodeChange:
        """Some of the nodes, and the rows that they hold."""
        rows = self.rows.filter(pa.array(np.repeat(mask, self.nodes["held"].to_numpy())))
        return NodeChange(self.clock, self.nodes.filter(pa.array(mask)), rows)

    def waiting(self) -> pa.Table:
        """The rows that wait, by node. What waits for a birth waits for no number; numbers are counted on without end."""
        waits = [wait for text in self.nodes["machine"].to_pylist() for wait in _waits_in(json.loads(text))]
        columns = list(zip(*waits, strict=True)) or [()] * 4
        kinds = (pa.float64(), pa.int64(), pa.int64(), pa.float64())
        return with_waits(self.rows, [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)])

    # -- changing -------------------------------------------------------------------------------------------------------

    def adopt(self, schema: pa.Schema) -> None:
        """Give the rows that wait the columns that the query has now."""
        self.rows = adopted(self.rows, self.held_count, schema)

    def apply(self, change: NodeChange, places: None = None) -> None:  # noqa: ARG002 - there is no search to be spared
        """Make it what it is after the batch."""
        others = self.only(~self._has(flat(change.nodes["key"])))
        self.clock = change.clock
        self.nodes = pa.concat_tables([others.nodes, change.nodes]).combine_chunks()
        self.rows = joined_rows(others.rows, change.rows).combine_chunks()

    # -- as a whole -----------------------------------------------------------------------------------------------------

    def as_change(self) -> NodeChange:
        """The change that makes an empty partition into this one."""
        return NodeChange(self.clock, self.nodes, self.rows)

    @classmethod
    def change_of(cls, clock: float, tables: list[pa.Table]) -> NodeChange:
        """A change as it was written."""
        return NodeChange(clock, *tables)

    @classmethod
    def from_change(cls, change: NodeChange) -> NodePartition:
        self = cls(change.nodes.schema.field("key").type, change.rows.schema)
        self.apply(change)
        return self

    def split(self, assign: Callable[[pa.Array], Ints], count: int) -> list[NodePartition]:
        """One partition for each number from 0 to ``count - 1`` that ``assign`` gives the keys."""
        targets = assigned(assign, self.keys, count)
        return [self.from_change(self.only(targets == number)) for number in range(count)]

    @classmethod
    def join(cls, parts: list[NodePartition]) -> NodePartition:
        """All nodes of several partitions in one."""
        whole = cls.from_change(parts[0].as_change())
        for part in parts[1:]:
            whole.apply(NodeChange(max(whole.clock, part.clock), part.nodes, part.rows))
        return whole


def _waits_in(node: dict[str, Any]) -> Iterator[tuple[float, int | None, int | None, float | None]]:
    """For each message that a node holds: since when, for which numbers, and until when."""
    first, last, due = node["queue"]["gaps"][0][:3] if node["queue"]["gaps"] else (None, None, None)
    for _, arrival in node["queue"]["held"]:
        yield arrival, first, last, due if due is not None and isfinite(due) else None
    for arrival in node["waiting"]:
        yield arrival, None, None, node["waiting_due"]
