"""What a host stores about its nodes beside their messages, as positions of writers, and under which names.

Each node has two writers. The position of one is its *bookmark* (``core.edge_messages``), which moves with every message; that
of the other is its *session*, which moves with births and deaths. Both are written in the transaction of the messages that
move them, and stay when those messages are deleted: so whoever lists the nodes needs no message.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

from seriatim.core.edge_messages import Kind, Ordered
from seriatim.core.limits import MAX_NAME_BYTES
from seriatim.errors import InvalidArgument
from seriatim.sparkplug.topics import NodeId, check_id, parse_node

BOOKMARKS = "sparkplug"
SESSIONS = "sparkplug-session"

_BITS = (32, 64, 32, 1)
"""Of births, bdSeq, epoch, and whether the node is online."""


class Session(NamedTuple):
    """The last session of a node. As one number it only grows: ``changes`` comes first."""

    changes: int = 0
    """How many births and deaths were stored, ever."""
    births: int = 0
    bd_seq: int = 0
    epoch: int = 0
    """That of its birth."""
    online: bool = False

    def behind(self, ordered: Ordered[Any]) -> Session:
        """The session when the next message of the node is stored."""
        message = ordered.message
        if message.kind is Kind.NBIRTH:
            return Session(self.changes + 1, self.births + 1, message.bd_seq or 0, ordered.epoch, online=True)
        if message.kind is Kind.NDEATH:
            return self._replace(changes=self.changes + 1, online=False)
        return self

    def pack(self) -> int:
        packed = self.changes
        for value, bits in zip((self.births, self.bd_seq, self.epoch, self.online), _BITS, strict=True):
            packed = packed << bits | value
        return packed

    @classmethod
    def unpack(cls, packed: int) -> Session:
        fields = []
        for bits in reversed(_BITS):
            fields.append(packed & ((1 << bits) - 1))
            packed >>= bits
        online, epoch, bd_seq, births = fields
        return cls(packed, births, bd_seq, epoch, bool(online))


NO_SESSION = Session()


def writer_name(what: str, host: str, topic: str, node: NodeId) -> str:
    """The name of the writer whose position is the bookmark or the session of a node."""
    return _short_enough(f"{what} {host} {topic} {node}")


def session_writer(bookmark_writer: str) -> str:
    """The name of the other writer of the same node."""
    return _short_enough(SESSIONS + bookmark_writer.removeprefix(BOOKMARKS))


def _short_enough(name: str) -> str:
    """A store takes no longer names, and a node may have one: then a digest stands for it."""
    what = name.partition(" ")[0]
    return name if len(name.encode()) <= MAX_NAME_BYTES else f"{what} {sha256(name.encode()).hexdigest()}"


def node_of_writer(name: str, topic: str, topics: Iterable[str]) -> NodeId | None:
    """Which node of ``topic`` a writer stands for; None when it stands for none of them, or its name was too long.

    Ids and the names of topics may hold spaces, so a name can be read in several ways if several of all ``topics`` are in it:
    then the first of them is meant, and of two that begin there the longer one.
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
