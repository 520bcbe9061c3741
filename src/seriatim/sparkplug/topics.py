"""Parsing and building Sparkplug's MQTT topics.

``spBv1.0/GROUP/KIND/NODE[/DEVICE]`` and ``spBv1.0/STATE/HOST``. An id is any text that MQTT allows between two slashes: it may
hold ``:``, ``.``, spaces of any kind, characters that only look like a slash, and every script with the invisible joiners that
some need; but not ``/``, ``+``, ``#``, controls or ends of lines, and it is not empty. So ``GROUP/NODE`` names a node without
doubt.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from unicodedata import category

from seriatim.core.sparkplug.messages import OF_DEVICES, Kind
from seriatim.errors import InvalidArgument

NAMESPACE = "spBv1.0"
STATE = "STATE"
COMMANDS = frozenset({"NCMD", "DCMD"})
MAX_ID_BYTES = 500
"""The longest id: two of them, which name a node, fit into a key."""

MAX_KEPT = 128
"""The longest topic that is cached: longer ones may come from strangers, in large numbers."""
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
    """The node, kind and device that a topic names."""

    node: NodeId
    kind: Kind
    device: str | None


def check_id(what: str, text: object) -> str:
    """``text`` itself if it is a valid id, otherwise InvalidArgument."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be text, not {type(text).__name__}")
    if not text or any(character in "/+#" or category(character) in _FORBIDDEN for character in text):
        raise InvalidArgument(
            f"{what} {text!r} is not a Sparkplug id: an id is not empty, and has no /, +, #, control character or line break"
        )
    if len(text.encode()) > MAX_ID_BYTES:
        raise InvalidArgument(f"{what} is longer than {MAX_ID_BYTES} bytes")
    return text


def check_node(node: object) -> NodeId:
    """``node`` itself if it is a valid name of a node, otherwise InvalidArgument."""
    if not isinstance(node, NodeId):
        raise InvalidArgument(f"an edge node is named by a NodeId, not {type(node).__name__}")
    check_id("group id", node.group)
    check_id("edge node id", node.node)
    return node


def parse_topic(topic: str) -> Address | None:
    """What a topic names; None for a command, which is not ordered. InvalidArgument for a topic that is not Sparkplug's."""
    return _parse_again(topic) if len(topic) <= MAX_KEPT else _parse(topic)


def _parse(topic: str) -> Address | None:
    levels = topic.split("/")
    if len(levels) < 4 or levels[0] != NAMESPACE:
        raise InvalidArgument(f"topic {topic[:200]!r} is not a Sparkplug topic")
    _, group, name, node, *rest = levels
    if name in COMMANDS:
        return None
    kind = _KINDS.get(name)
    if kind is None or len(rest) != (kind in OF_DEVICES):
        raise InvalidArgument(
            f"topic {topic[:200]!r} is not a Sparkplug topic: {name[:20]!r} with {len(levels)} levels"
        )
    device = check_id("device id", rest[0]) if rest else None
    return Address(check_node(NodeId(group, node)), kind, device)


_parse_again = lru_cache(maxsize=65_536)(_parse)  # nodes use the same topics again and again


def default_ledger(topic: str) -> str:
    """The default topic of the ledger."""
    return f"{topic}-ledger"


def command_topic(node: NodeId) -> str:
    """The topic of commands for a node."""
    return f"{NAMESPACE}/{node.group}/NCMD/{node.node}"


def birth_topic(node: NodeId) -> str:
    """The topic of a node's births."""
    return f"{NAMESPACE}/{node.group}/{Kind.NBIRTH}/{node.node}"


def parse_node(text: str) -> NodeId:
    """The node that ``GROUP/NODE`` names, otherwise InvalidArgument."""
    group, slash, node = text.partition("/")
    if not slash:
        raise InvalidArgument(f"{text!r} is not the name of an edge node: write GROUP/NODE")
    return check_node(NodeId(group, node))


def state_topic(host: str) -> str:
    """The STATE topic of a host application."""
    return f"{NAMESPACE}/{STATE}/{check_id('host id', host)}"


def is_state_topic(topic: str) -> bool:
    """Whether this is a STATE topic. A group may be named STATE, too, but its topics have more levels."""
    return topic.startswith(f"{NAMESPACE}/{STATE}/") and topic.count("/") == 2
