"""Decodes MQTT messages into messages that can be ordered, and counts them.

Nothing here raises because of received data: what can't be decoded is ``Malformed``, with a reason. The first of each kind is
logged as a warning.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from seriatim.core.sparkplug.messages import EdgeMessage, Kind
from seriatim.errors import InvalidArgument
from seriatim.log import logger
from seriatim.sparkplug.payload import bd_seq_of, decode
from seriatim.sparkplug.topics import NodeId, parse_topic

_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


class Body(NamedTuple):
    """The payload of a message, decoded and raw."""

    payload: Any
    raw: bytes


class Malformed(NamedTuple):
    """A message that can't be ordered, and why: ``topic``, ``payload``, ``message`` or ``too-many-nodes``."""

    what: str
    detail: str
    topic: str = ""
    data: bytes = b""
    node: NodeId | None = None
    message: EdgeMessage[Body] | None = None
    """If it could be decoded; then topic and data may be missing."""


@dataclass(slots=True)
class Counts:
    """What a host application has counted since it started."""

    received: int = 0
    """All messages. Each is a command, malformed, stored, in the ledger, an ignored death, unread, or still being processed."""
    unread: int = 0
    """Messages dropped because the inbox was full, or left unread when a connection ended."""
    commands: int = 0
    """Commands of hosts to nodes, and STATE messages, which are not ordered."""
    malformed: Counter[str] = field(default_factory=Counter)
    """Malformed messages by reason: ``topic``, ``payload``, ``message``, ``too-many-nodes``."""
    stored: int = 0
    """Messages that are durable in the topic, in order."""
    ledger: Counter[str] = field(default_factory=Counter)
    """Messages that were not released, by reason; ``lost`` counts numbers that never arrived."""
    entries: int = 0
    """Entries that are durable in the ledger's topic."""
    deaths_ignored: int = 0
    unstorable: int = 0
    """Ordered messages that are too long for a topic."""
    unknown_aliases: int = 0
    rebirths: int = 0
    """Requests for a rebirth."""
    connections: int = 0

    def as_fields(self) -> dict[str, Any]:
        """All of them, by name."""
        return {
            name.name: dict(value) if isinstance(value := getattr(self, name.name), Counter) else value
            for name in fields(self)
        }

    def leave_unread(self, messages: int) -> None:
        """Count messages that were received and will not be read."""
        self.received += messages
        self.unread += messages

    def refuse(self, found: Malformed) -> None:
        """Count a malformed message, with a warning for the first of its kind."""
        what = found.what
        self.malformed[what] += 1
        say = logger.warning if self.malformed[what] == 1 else logger.debug
        whose = str(found.node) if found.node is not None else f"MQTT topic {found.topic[:200]!r}"
        say("%s: malformed (%s, %d so far), not ordered: %s", whose, what, self.malformed[what], found.detail)


def read_message(topic: str, data: bytes) -> tuple[NodeId, EdgeMessage[Body]] | Malformed | None:
    """The node and its message, not yet checked; None for a command, which is not ordered."""
    try:
        address = parse_topic(topic)
    except InvalidArgument as error:
        return Malformed("topic", str(error), topic, data)
    if address is None:
        return None
    try:
        payload = decode(data)
    except InvalidArgument as error:
        return Malformed("payload", str(error), topic, data, address.node)
    node, kind, device = address
    parts = (
        kind,
        _make(Body, (payload, data)),
        payload.seq if payload.HasField("seq") and kind is not Kind.NDEATH else None,
        payload.timestamp if payload.HasField("timestamp") else None,
        device,
        bd_seq_of(payload) if kind is Kind.NBIRTH or kind is Kind.NDEATH else None,
    )
    return node, _make(EdgeMessage, parts)
