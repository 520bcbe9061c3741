"""Sparkplug's topics, read and written.

``spBv1.0/GROUP/KIND/NODE[/DEVICE]`` and ``spBv1.0/STATE/HOST``. An id is any text that MQTT allows between two slashes: it may
hold ``:``, ``.``, spaces of any kind, characters that only look like a slash, and every script with the invisible joiners that
some need; but not ``/``, ``+``, ``#``, controls or ends of lines, and it is not empty. So ``GROUP/NODE`` names a node without
doubt.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from unicodedata import category

from seriatim.core.edge_messages import OF_DEVICES, Kind
from seriatim.errors import InvalidArgument

NAMESPACE = "spBv1.0"
STATE = "STATE"
COMMANDS = frozenset({"NCMD", "DCMD"})
MAX_ID_BYTES = 500
"""The longest id: two of them, the name of a node, fit into a key."""

MAX_KEPT = 128
"""The longest topic that is kept, read, for the next time: others may be a stranger's, and very many."""
_FORBIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Controls, halves of characters, and the ends of lines and paragraphs."""
_KINDS = {str(kind): kind for kind in Kind}


class NodeId(NamedTuple):
    """The name of an edge node."""

    group: str
    node: str

    def __str__(self) -> str:
        return f"{self.group}/{self.node}"


class Address(NamedTuple):
    """Who speaks, and what about."""

    node: NodeId
    kind: Kind
    device: str | None


def check_id(what: str, text: object) -> str:
    """``text`` itself when it can be an id, otherwise InvalidArgument."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be text, not {type(text).__name__}")
    if not text or any(character in "/+#" or category(character) in _FORBIDDEN for character in text):
        raise InvalidArgument(
            f"{what} {text!r} is no Sparkplug id: one is not empty and has no /, + or #, no controls and no ends of lines"
        )
    if len(text.encode()) > MAX_ID_BYTES:
        raise InvalidArgument(f"{what} is longer than {MAX_ID_BYTES} bytes")
    return text


def check_node(node: object) -> NodeId:
    """``node`` itself when it is the name of a node, otherwise InvalidArgument."""
    if not isinstance(node, NodeId):
        raise InvalidArgument(f"an edge node is named by a NodeId, not {type(node).__name__}")
    check_id("group id", node.group)
    check_id("edge node id", node.node)
    return node


def parse_topic(topic: str) -> Address | None:
    """Whose message a topic carries; None for a command, which is not ours to order. InvalidArgument for anything else."""
    return _parse_again(topic) if len(topic) <= MAX_KEPT else _parse(topic)


def _parse(topic: str) -> Address | None:
    levels = topic.split("/")
    if len(levels) < 4 or levels[0] != NAMESPACE:
        raise InvalidArgument(f"topic {topic[:200]!r} is none of Sparkplug's")
    _, group, name, node, *rest = levels
    if name in COMMANDS:
        return None
    kind = _KINDS.get(name)
    if kind is None or len(rest) != (kind in OF_DEVICES):
        raise InvalidArgument(f"topic {topic[:200]!r} is none of Sparkplug's: {name[:20]!r} with {len(levels)} levels")
    device = check_id("device id", rest[0]) if rest else None
    return Address(check_node(NodeId(group, node)), kind, device)


_parse_again = lru_cache(maxsize=65_536)(_parse)  # nodes speak again and again


def default_ledger(topic: str) -> str:
    """The topic of the ledger, unless another is named."""
    return f"{topic}-ledger"


def command_topic(node: NodeId) -> str:
    """Where a node listens for commands."""
    return f"{NAMESPACE}/{node.group}/NCMD/{node.node}"


def birth_topic(node: NodeId) -> str:
    """Where a node says that it is born."""
    return f"{NAMESPACE}/{node.group}/{Kind.NBIRTH}/{node.node}"


def parse_node(text: str) -> NodeId:
    """The node that ``GROUP/NODE`` names, otherwise InvalidArgument."""
    group, slash, node = text.partition("/")
    if not slash:
        raise InvalidArgument(f"{text!r} names no edge node: write GROUP/NODE")
    return check_node(NodeId(group, node))


def state_topic(host: str) -> str:
    """Where a host application says whether it is there."""
    return f"{NAMESPACE}/{STATE}/{check_id('host id', host)}"


def is_state_topic(topic: str) -> bool:
    """Whether a host application speaks of itself. A group may be named STATE, too: its topics have more levels."""
    return topic.startswith(f"{NAMESPACE}/{STATE}/") and topic.count("/") == 2
