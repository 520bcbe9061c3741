"""The names of the writers whose positions hold the state of a host's nodes.

Each node has two writers. The position of one is its *bookmark* (``core.sparkplug.messages``), which moves with every message;
that of the other is its *session*, which moves with births and deaths. Both are written in one transaction with the messages
that move them, and stay when those messages are deleted, so that nodes can be listed without their messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

from seriatim.core.sparkplug.messages import Kind, Ordered, pack_bits, unpack_bits
from seriatim.core.text_checks import MAX_NAME_BYTES
from seriatim.errors import InvalidArgument
from seriatim.sparkplug.topics import NodeId, check_id, parse_node

BOOKMARKS = "sparkplug"
SESSIONS = "sparkplug-session"

_BITS = (32, 64, 32, 1)
"""Of births, bdSeq, epoch, and whether the node is online."""


class NodeSession(NamedTuple):
    """The last session of a node. Packed into a number it only grows, because ``changes`` comes first."""

    changes: int = 0
    """How many births and deaths were ever stored."""
    births: int = 0
    bd_seq: int = 0
    epoch: int = 0
    """The epoch of its birth."""
    online: bool = False

    def behind(self, ordered: Ordered[Any]) -> NodeSession:
        """The session after the next message of the node."""
        message = ordered.message
        if message.kind is Kind.NBIRTH:
            return NodeSession(self.changes + 1, self.births + 1, message.bd_seq or 0, ordered.epoch, online=True)
        if message.kind is Kind.NDEATH:
            return self._replace(changes=self.changes + 1, online=False)
        return self

    def pack(self) -> int:
        return pack_bits(self.changes, (self.births, self.bd_seq, self.epoch, self.online), _BITS)

    @classmethod
    def unpack(cls, packed: int) -> NodeSession:
        changes, births, bd_seq, epoch, online = unpack_bits(packed, _BITS)
        return cls(changes, births, bd_seq, epoch, bool(online))


NO_SESSION = NodeSession()


def writer_name(what: str, host: str, topic: str, node: NodeId) -> str:
    """The name of the writer whose position is the bookmark or the session of a node."""
    return _short_enough(f"{what} {host} {topic} {node}")


def session_writer(bookmark_writer: str) -> str:
    """The name of the other writer of the same node."""
    return _short_enough(SESSIONS + bookmark_writer.removeprefix(BOOKMARKS))


def _short_enough(name: str) -> str:
    """The name, or a digest of it if it is too long for a store."""
    what = name.partition(" ")[0]
    return name if len(name.encode()) <= MAX_NAME_BYTES else f"{what} {sha256(name.encode()).hexdigest()}"


def node_of_writer(name: str, topic: str, topics: Iterable[str]) -> NodeId | None:
    """The node of ``topic`` that a writer belongs to; None if it belongs to none, or if its name was too long.

    Ids and topic names may contain spaces, so a name is ambiguous if it contains several of all ``topics``: then the first one
    counts, and of two at the same place the longer one.
    """
    _, _, rest = name.partition(" ")
    found = [(at, -len(each), each) for each in topics if (at := rest.find(f" {each} ")) > 0]
    if not found or min(found)[2] != topic:
        return None
    host, _, node = rest.partition(f" {topic} ")
    with suppress(InvalidArgument):
        check_id("host id", host)
        return parse_node(node)
    return None
