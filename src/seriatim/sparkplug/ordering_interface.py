"""The interface of an ordering service.

Code that takes a ``MessageOrderingService`` works with ``OrderingService`` and with implementations of your own: one that
counts, one that records for a test, one that forwards to another process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from seriatim.core.sparkplug.messages import EdgeMessage, Ordered, RebirthRequested
from seriatim.sparkplug.topics import NodeId

M = TypeVar("M")

RebirthRequestCallback: TypeAlias = Callable[[RebirthRequested], object]
"""Send this request to its node."""
PendingMessagesCallback: TypeAlias = Callable[[list[Ordered[M]]], object]
"""A timeout released these messages of one node, in this order."""


class MessageOrderingService(Protocol[M]):
    """Takes the messages of edge nodes, and returns them in order."""

    def process_message_order(self, node: NodeId, message: EdgeMessage[M]) -> Sequence[Ordered[M]]:
        """Process one message. Returns what it released, in order: nothing, the message itself, or others with it."""
        ...

    def clear_message_order_cache(self, node: NodeId, device: str | None = None) -> Sequence[EdgeMessage[M]]:
        """Forget a node, or one of its devices. Returns the messages held for it."""
        ...
