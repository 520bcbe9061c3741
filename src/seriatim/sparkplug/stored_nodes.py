"""The edge nodes whose messages a host has stored, read from its store, whether the host is running or not.

The positions of a node's writers (``writer_names``) give its state, and stay when its messages are deleted. The number of
messages and ledger entries, and the state of devices, come from the kept messages; for a node without writers everything does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from seriatim.core.sparkplug.messages import Bookmark, Kind
from seriatim.sparkplug.writer_names import BOOKMARKS, NO_SESSION, SESSIONS, NodeSession, node_of_writer, session_writer

NO_NODE = "malformed-topic"
"""The reason of ledger entries that concern no node."""

_STEP = 5_000


class _Record(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def attributes(self) -> Mapping[str, str] | None: ...


class _Store(Protocol):
    def writers(self, prefix: str) -> Iterable[tuple[str, int]]: ...
    def read(self, topic_id: int, first: int, limit: int) -> Iterable[_Record]: ...


@dataclass(slots=True)
class NodeSummary:
    """The state of an edge node according to its store."""

    node: str
    status: str = "unknown"
    bd_seq: int | None = None
    births: int = 0
    """The least number of births stored: older hosts did not count them, so only their kept births are known."""
    seq: int | None = None
    messages: int = 0
    flagged: int = 0
    """How many messages were stored without a birth, or while the node was stale."""
    entries: int = 0
    """How many ledger entries there are about the node."""
    devices: dict[str, bool] = field(default_factory=dict)
    """Whether each device is online, as far as devices appear in kept messages."""


@dataclass(slots=True)
class _Counting:
    """A node while its kept messages are counted. Those of earlier epochs than its session do not affect its state."""

    node: NodeSummary
    bookmark: Bookmark | None = None
    session: NodeSession = NO_SESSION
    birth_is_kept: bool = False
    """Whether the birth of the session is kept: then the births of its devices are, too."""

    def add(self, attributes: Mapping[str, str]) -> None:
        """Count the next message of the node."""
        node, kind, seq = self.node, attributes["kind"], _number(attributes, "seq")
        node.messages += 1
        node.flagged += "flag" in attributes
        node.seq = node.seq if seq is None else seq
        if kind == Kind.NBIRTH:
            node.births += 1
            node.bd_seq = _number(attributes, "bdSeq")
            self.birth_is_kept = self._is_of_session(attributes)
        if kind in (Kind.NBIRTH, Kind.NDEATH):
            node.status = "online" if kind == Kind.NBIRTH else "offline"
            node.devices = dict.fromkeys(node.devices, False)
        elif (device := attributes.get("device")) is not None:
            if kind != Kind.DDATA:
                node.devices[device] = kind == Kind.DBIRTH and self._is_of_session(attributes)
            elif not self.birth_is_kept and "flag" not in attributes:  # its birth is no longer kept
                node.devices[device] = self._is_of_session(attributes)

    def _is_of_session(self, attributes: Mapping[str, str]) -> bool:
        epoch = _number(attributes, "epoch")
        return epoch is None or epoch >= self.session.epoch

    def summary(self) -> NodeSummary:
        """The node with the state of its writers, which is newer than any message."""
        node, bookmark, session = self.node, self.bookmark, self.session
        if session.changes:
            node.status = "online" if session.online else "offline"
            node.bd_seq, node.births = session.bd_seq, max(node.births, session.births)
        elif bookmark and bookmark.born:  # stored when hosts kept bookmarks alone
            node.status, node.bd_seq = "online", bookmark.bd_seq
        if bookmark and bookmark.born:
            node.seq = (bookmark.expected - 1) % 256
        if node.status == "offline":
            node.devices = dict.fromkeys(node.devices, False)
        return node


def census_of(store: _Store, topics: Mapping[str, int], topic: str, ledger: str) -> list[NodeSummary]:
    """The edge nodes of a topic and its ledger, in order of name. ``topics`` maps the names of all topics to their ids."""
    nodes = _stored_nodes(store, topics, topic)
    for record in _records(store, topics[topic]):
        if record.key is not None and record.attributes and "kind" in record.attributes:
            nodes.setdefault(record.key, _Counting(NodeSummary(record.key))).add(record.attributes)
    for entry in _records(store, topics[ledger]) if ledger in topics else ():
        if entry.key is not None and (entry.attributes or {}).get("reason") != NO_NODE:
            nodes.setdefault(entry.key, _Counting(NodeSummary(entry.key))).node.entries += 1
    return [nodes[name].summary() for name in sorted(nodes)]


def _stored_nodes(store: _Store, topics: Iterable[str], topic: str) -> dict[str, _Counting]:
    """The nodes that have writers. If several hosts have stored a node, the one with the newest timestamp counts."""
    sessions = dict(store.writers(f"{SESSIONS} "))
    found: dict[str, _Counting] = {}
    for name, at in store.writers(f"{BOOKMARKS} "):
        node = node_of_writer(name, topic, topics)
        if node is None:
            continue
        bookmark = Bookmark.unpack(at)
        other = found.get(str(node))
        if other is None or other.bookmark is None or _age(other.bookmark) < _age(bookmark):
            session = NodeSession.unpack(sessions.get(session_writer(name), 0))
            found[str(node)] = _Counting(NodeSummary(str(node)), bookmark, session)
    return found


def _age(bookmark: Bookmark) -> tuple[int, int]:
    return (-1 if bookmark.newest is None else bookmark.newest, bookmark.given)


def _number(attributes: Mapping[str, str], name: str) -> int | None:
    """A numeric attribute; None if it is not a number, as anybody may publish to a topic."""
    text = attributes.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _records(store: _Store, topic_id: int) -> Iterator[_Record]:
    first = 0
    while batch := list(store.read(topic_id, first, _STEP)):
        yield from batch
        first = batch[-1].offset + 1
