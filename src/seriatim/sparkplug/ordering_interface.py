"""What an ordering service does, whoever implements it.

Code that takes a ``MessageOrderingService`` works with ``OrderingService`` and with an implementation of your own: one that
counts, one that records for a test, one that forwards to another process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from seriatim.core.edge_messages import EdgeMessage, Ordered, RebirthRequested
from seriatim.sparkplug.topics import NodeId

M = TypeVar("M")

RebirthRequestCallback: TypeAlias = Callable[[RebirthRequested], object]
"""Send this request to its node."""
PendingMessagesCallback: TypeAlias = Callable[[list[Ordered[M]]], object]
"""A timeout released these messages of one node, in this order."""


class MessageOrderingService(Protocol[M]):
    """Messages of edge nodes in, the same messages in order out."""

    def process_message_order(self, node: NodeId, message: EdgeMessage[M]) -> Sequence[Ordered[M]]:
        """Take in one message. Returns what it released, in order: nothing, the message itself, or others with it."""
        ...

    def clear_message_order_cache(self, node: NodeId, device: str | None = None) -> Sequence[EdgeMessage[M]]:
        """Forget a node, or one of its devices. Returns what was held of it."""
        ...
