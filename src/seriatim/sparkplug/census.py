"""Which edge nodes a topic and its ledger know, read from their messages alone: the same for a host at work and for one long
gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

NO_NODE = "malformed-topic"
"""The reason of the entries in a ledger that are about no node."""

_STEP = 5_000


class _Record(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def attributes(self) -> Mapping[str, str] | None: ...


class _Log(Protocol):
    def read(self, topic_id: int, first: int, limit: int) -> Iterable[_Record]: ...


@dataclass(slots=True)
class NodeSummary:
    """An edge node, as far as its kept messages tell."""

    node: str
    status: str = "unknown"
    bd_seq: int | None = None
    births: int = 0
    seq: int | None = None
    messages: int = 0
    flagged: int = 0
    """How many messages were stored without a birth, or while nobody knew how the node stood."""
    entries: int = 0
    """How many entries the ledger has about the node."""
    devices: dict[str, bool] = field(default_factory=dict)
    """Whether each device is online."""

    def add(self, attributes: Mapping[str, str]) -> None:
        """The next message of the node."""
        kind = attributes.get("kind", "")
        self.messages += 1
        self.flagged += "flag" in attributes
        if "seq" in attributes:
            self.seq = int(attributes["seq"])
        if kind == "NBIRTH":
            self.births += 1
            self.bd_seq = int(attributes["bdSeq"])
        if kind in ("NBIRTH", "NDEATH"):
            self.status = "online" if kind == "NBIRTH" else "offline"
            self.devices = dict.fromkeys(self.devices, False)
        elif kind in ("DBIRTH", "DDEATH"):
            self.devices[attributes["device"]] = kind == "DBIRTH"


def census_of(log: _Log, topic_id: int, ledger_id: int | None = None) -> list[NodeSummary]:
    """The edge nodes of a topic and its ledger, sorted by name."""
    nodes: dict[str, NodeSummary] = {}
    for record in _records(log, topic_id):
        if record.key is not None and record.attributes and "kind" in record.attributes:
            nodes.setdefault(record.key, NodeSummary(record.key)).add(record.attributes)
    for entry in _records(log, ledger_id) if ledger_id is not None else ():
        if entry.key is not None and (entry.attributes or {}).get("reason") != NO_NODE:
            nodes.setdefault(entry.key, NodeSummary(entry.key)).entries += 1
    return [nodes[name] for name in sorted(nodes)]


def _records(log: _Log, topic_id: int) -> Iterator[_Record]:
    first = 0
    while batch := list(log.read(topic_id, first, _STEP)):
        yield from batch
        first = batch[-1].offset + 1
