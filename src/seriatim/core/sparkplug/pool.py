"""Many edge nodes: one session machine each, one schedule, and one limit on rebirth requests.

Requests beyond the limit are queued, in the order in which they were made, and leave only if their node still needs
them.

A cleared node stays known, for its epochs and its backoff, until its room is needed: then it is forgotten, unless it
has sent something since or was asked for a rebirth so recently that forgetting it would reset its backoff.

``receive`` and ``advance`` consist of parts that are public too (``node``, ``take_due``, ``note``), for callers with a
lock per node: what a node decides concerns that node alone, and everything else here is short.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from seriatim.core.deadlines import Deadlines
from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import (
    Bookmark,
    EdgeMessage,
    NodeEffect,
    NodeOrdering,
    RebirthRequested,
    check_message,
)
from seriatim.core.sparkplug.rebirth import RebirthBudget
from seriatim.errors import CapacityExceeded

M = TypeVar("M")


class EdgeNodes(Generic[M]):
    """The session machines of all edge nodes, by key. ``may_forget`` is called before a node is forgotten."""

    def __init__(
        self, options: NodeOrdering | None = None, may_forget: Callable[[Hashable], bool] = lambda _: True
    ) -> None:
        self._options = options or NodeOrdering()
        self._may_forget = may_forget
        self._nodes: dict[Hashable, EdgeNode[M]] = {}
        self._deadlines: Deadlines[Hashable] = Deadlines()
        self._cleared: Deadlines[Hashable] = Deadlines()
        self._budget = RebirthBudget(self._options.rebirths_per_second)
        self._postponed: dict[Hashable, RebirthRequested] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[EdgeNode[M]]:
        return iter(self._nodes.values())

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def __getitem__(self, key: Hashable) -> EdgeNode[M]:
        """A known node; KeyError for any other."""
        return self._nodes[key]

    @property
    def next_deadline(self) -> float | None:
        """When ``advance`` has something to do; None: never."""
        due = self._deadlines.next()
        if not self._postponed:
            return due
        return self._budget.next if due is None else min(due, self._budget.next)

    def receive(self, key: Hashable, message: EdgeMessage[M], now: float) -> list[NodeEffect[M]]:
        """Process one message of the node ``key``."""
        if (node := self._nodes.get(key)) is None:
            check_message(message)
            node = self._add(key, EdgeNode(self._options, key), now)
        return self._limited(self._noted(node, node.receive(message, now)), now)

    def node(self, key: Hashable, now: float) -> EdgeNode[M]:
        """The node ``key``, which is known from now on."""
        return self._nodes.get(key) or self._add(key, EdgeNode(self._options, key), now)

    def note(self, node: EdgeNode[M], effects: list[NodeEffect[M]], now: float) -> list[NodeEffect[M]]:
        """Record the effects of a node. Returns them without the requests that are queued."""
        return self._limited(self._noted(node, effects), now)

    def advance(self, now: float) -> list[NodeEffect[M]]:
        """Let time pass: decide everything that is due by ``now``."""
        due, out = self.take_due(now)
        for node in due:
            out += self.note(node, node.advance(now), now)
        return out

    def take_due(self, now: float) -> tuple[list[EdgeNode[M]], list[NodeEffect[M]]]:
        """The nodes that the caller must advance now, and the requests that may leave."""
        return [self._nodes[key] for key in self._deadlines.pop_due(now)], self._postponed_requests(now)

    def disconnect(self) -> list[NodeEffect[M]]:
        """The broker is lost: everything online is stale."""
        return [effect for node in self for effect in self._noted(node, node.disconnect())]

    def reconnect(self, now: float) -> list[NodeEffect[M]]:
        """The broker is back: request the birth of every stale node."""
        out: list[NodeEffect[M]] = []
        for node in self:
            out += self._noted(node, node.reconnect(now))
        return self._limited(out, now)

    def ask(self, key: Hashable, reason: str, now: float) -> list[NodeEffect[M]]:
        """There is another reason to request the birth of a known node."""
        node = self._nodes[key]
        return self._limited(self._noted(node, node.ask(reason, now)), now)

    def resume(self, key: Hashable, bookmark: Bookmark, now: float) -> list[NodeEffect[M]]:
        """Continue a node at a bookmark. If it was alive then, its birth is requested."""
        node = self._add(key, EdgeNode.resume(bookmark, self._options, key), now)
        return self._limited(self._noted(node, node.reconnect(now)), now)

    def clear(self, key: Hashable, now: float) -> list[NodeEffect[M]]:
        """Forget a node, if it is known."""
        node = self._nodes.get(key)
        if node is None:
            return []
        effects = self._noted(node, node.clear(now))
        self.note_cleared(node)
        return effects

    def note_cleared(self, node: EdgeNode[M]) -> None:
        """A node was cleared: its room can be used for another."""
        self._cleared.set(node.key, node.forgettable_at)

    def clear_device(self, key: Hashable, device: str, now: float) -> list[NodeEffect[M]]:
        """Forget a device, if it is known."""
        node = self._nodes.get(key)
        return [] if node is None else self._noted(node, node.clear_device(device, now))

    def _add(self, key: Hashable, node: EdgeNode[M], now: float) -> EdgeNode[M]:
        if len(self._nodes) >= self._options.max_nodes:
            self._forget_cleared(now)
        if len(self._nodes) >= self._options.max_nodes:
            raise CapacityExceeded(f"there are already {len(self._nodes)} edge nodes, the maximum: raise max_nodes")
        self._nodes[key] = node
        return node

    def _forget_cleared(self, now: float) -> None:
        for key in self._cleared.pop_due(now):
            if not self._nodes[key].is_blank:
                continue
            if self._may_forget(key):
                del self._nodes[key]
                self._postponed.pop(key, None)
            else:
                self._cleared.set(key, now)

    def _noted(self, node: EdgeNode[M], effects: list[NodeEffect[M]]) -> list[NodeEffect[M]]:
        """The effects of a node; its deadline may have changed."""
        deadline = node.deadline
        if deadline is not None:
            self._deadlines.set(node.key, deadline)
        elif node.key in self._deadlines:
            self._deadlines.discard(node.key)
        return effects

    def _limited(self, effects: list[NodeEffect[M]], now: float) -> list[NodeEffect[M]]:
        """The effects without the requests that are queued."""
        if RebirthRequested not in map(type, effects):  # the usual case
            return effects
        out: list[NodeEffect[M]] = []
        for effect in effects:
            if isinstance(effect, RebirthRequested) and (self._postponed or not self._budget.take(now)):
                self._postponed[effect.key] = effect
            else:
                out.append(effect)
        return out

    def _postponed_requests(self, now: float) -> list[NodeEffect[M]]:
        """The queued requests that may leave."""
        out: list[NodeEffect[M]] = []
        while self._postponed:
            key = next(iter(self._postponed))
            if self._nodes[key].rebirth_outstanding:
                if not self._budget.take(now):
                    break
                out.append(self._postponed[key])
            del self._postponed[key]
        return out
