"""A small world around several edge nodes that share one schedule and one limit on rebirth requests.

Each node has a twin that is told the same and belongs to nobody: what a node decides must not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import EdgeMessage, Kind, NodeEffect, NodeOrdering, RebirthRequested
from seriatim.core.sparkplug.pool import EdgeNodes
from seriatim.errors import CapacityExceeded
from tests.exhaustive.clones import clone
from tests.exhaustive.edge_world import TICK, Command, of_the_node
from tests.exhaustive.explorer import Row, World

BIRTH = EdgeMessage(Kind.NBIRTH, "birth", 0, 10, None, 0)
DATA = EdgeMessage(Kind.NDATA, "data", 1, 11)
OF_A_NODE = ("birth", "data", "ask", "clear")
OF_ALL = ("tick", "late", "disconnect", "reconnect")
"""``late``: time passes, and whoever should call ``advance`` is late."""


@dataclass(frozen=True)
class NodesScope:
    name: str
    options: NodeOrdering
    keys: tuple[str, ...] = ("a", "b")
    verbs: tuple[str, ...] = (*OF_A_NODE, *OF_ALL)


def _always(_: Hashable) -> bool:
    return True


class NodesState:
    __slots__ = ("asked", "is_late", "nodes", "now", "options", "tokens", "twins")

    def __init__(self, options: NodeOrdering) -> None:
        self.options = options
        self.nodes: EdgeNodes[str] = EdgeNodes(options, _always)
        self.twins: dict[str, EdgeNode[str]] = {}
        self.now = 0.0
        self.is_late = False
        self.tokens = max(1.0, options.rebirths_per_second)
        self.asked: tuple[str, ...] = ()
        """The nodes whose requests wait for their turn, in the order in which they were made."""

    def apply(self, verb: str, key: str | None) -> bool:
        if key is not None:
            return self._of_a_node(verb, key)
        if verb in ("tick", "late"):
            self._pass_time()
            self.is_late = verb == "late"
            if not self.is_late:
                self._advance()
        elif verb == "disconnect":
            self._compare(self.nodes.disconnect(), [e for twin in self.twins.values() for e in twin.disconnect()])
        else:
            alone = [effect for twin in self.twins.values() for effect in twin.reconnect(self.now)]
            self._compare(self.nodes.reconnect(self.now), alone)
        return True

    def _of_a_node(self, verb: str, key: str) -> bool:
        known = key in self.nodes
        if verb in ("birth", "data"):
            message = BIRTH if verb == "birth" else DATA
            try:
                effects = self.nodes.receive(key, message, self.now)
            except CapacityExceeded:
                assert not known, "a message of a node that is known was refused"
                return False
            twin = self.twins.setdefault(key, EdgeNode(self.options, key)) if known else self._new_twin(key)
            self._compare(effects, twin.receive(message, self.now))
            return True
        if not known:
            return False
        twin = self.twins[key]
        if verb == "ask":
            self._compare(self.nodes.ask(key, "a test", self.now), twin.ask("a test", self.now))
        else:
            self._compare(self.nodes.clear(key, self.now), twin.clear(self.now))
        return True

    def _new_twin(self, key: str) -> EdgeNode[str]:
        """Room for a node may have been made by forgetting others."""
        for gone in self.twins.keys() - {node.key for node in self.nodes}:
            assert self.twins[gone].is_blank, "a node was forgotten that is not blank"
            assert self.twins[gone].forgettable_at <= self.now, "a node was forgotten, and its backoff with it"
            del self.twins[gone]
            self.asked = tuple(other for other in self.asked if other != gone)
        twin: EdgeNode[str] = EdgeNode(self.options, key)
        self.twins[key] = twin
        return twin

    def _pass_time(self) -> None:
        self.now += TICK
        self.tokens = min(max(1.0, self.options.rebirths_per_second), self.tokens + self.options.rebirths_per_second)

    def _advance(self) -> None:
        turns = list(self._turns())
        due = [str(node.key) for node in clone(self.nodes).take_due(self.now)[0]]
        deadlines = {key: twin.deadline for key, twin in self.twins.items() if twin.deadline is not None}
        overdue = [(when, key) for key, when in deadlines.items() if when <= self.now]
        assert sorted(due) == sorted(key for _, key in overdue), "what is due is not on the schedule, or too early"
        assert [deadlines[key] for key in due] == sorted(when for when, _ in overdue), "not the earliest is first"
        alone = [effect for key in due for effect in self.twins[key].advance(self.now)]
        self._compare(self.nodes.advance(self.now), alone, turns)

    def _turns(self) -> Iterator[str]:
        """The nodes whose turn it is. One that does not want its rebirth any more loses its place."""
        while self.asked:
            key, *others = self.asked
            if self.twins[key].rebirth_outstanding:
                if not self._may_leave():
                    return
                yield key
            self.asked = tuple(others)

    def _may_leave(self) -> bool:
        if self.tokens < 1 - 1e-6:
            return False
        self.tokens -= 1
        return True

    def _compare(self, said: list[NodeEffect[str]], alone: list[NodeEffect[str]], turns: Iterable[str] = ()) -> None:
        """What the nodes say is what each would say alone, only that requests may have to wait for their turn."""
        leaving = list(turns)
        for effect in alone:
            if not isinstance(effect, RebirthRequested):
                continue
            if self.asked or not self._may_leave():
                self.asked += () if effect.key in self.asked else (str(effect.key),)
            else:
                leaving.append(str(effect.key))
        left = [effect.key for effect in said if isinstance(effect, RebirthRequested)]
        assert left == leaving, f"{left} were asked for a rebirth, and it is the turn of {leaving}"
        others = [[str(e) for e in effects if not isinstance(e, RebirthRequested)] for effects in (said, alone)]
        assert sorted(others[0]) == sorted(others[1]), "a node says something else than it would alone"

    def check(self) -> None:
        assert len(self.nodes) <= self.options.max_nodes, "more nodes are known than may be"
        due = self.nodes.next_deadline
        for node in self.nodes:
            assert of_the_node(node, self.now) == of_the_node(self.twins[str(node.key)], self.now), (
                f"{node.key} depends on its neighbours"
            )
            if node.deadline is not None:
                assert due is not None, "a deadline is on no schedule"
                assert due <= node.deadline, "a deadline is on no schedule"
        wanted = [key for key in self.asked if self.twins[key].rebirth_outstanding]
        assert not wanted or due is not None, "a request waits for a turn that never comes"
        assert not wanted or self.is_late or self.tokens < 1, "a request waits although there is room for it"


class NodesWorld(World[NodesState, Command]):
    """Several edge nodes."""

    def __init__(self, scope: NodesScope) -> None:
        self.scope, self.name = scope, f"edge nodes, {scope.name}"
        self.rows: set[Row] = set()

    def start(self) -> NodesState:
        return NodesState(self.scope.options)

    def commands(self, state: NodesState) -> Iterator[Command]:
        for verb in self.scope.verbs:
            if verb in OF_ALL:
                yield Command([verb])
            else:
                yield from (Command([verb, "of", key]) for key in self.scope.keys)

    def apply(self, state: NodesState, command: Command) -> bool:
        return state.apply(command[0], command[2] if len(command) > 2 else None)

    def copy(self, state: NodesState) -> NodesState:
        return clone(state)

    def check(self, state: NodesState) -> None:
        state.check()

    def fingerprint(self, state: NodesState) -> object:
        nodes, now = state.nodes, state.now
        budget = nodes._budget
        available = min(budget._room, budget._available + max(0.0, now - budget._time) * budget._rate)
        cleared = {**nodes._cleared._queue, **{key: when for key, (when, *_) in nodes._cleared._moved.items()}}
        return (
            tuple((str(node.key), of_the_node(node, now)) for node in nodes),
            tuple(map(str, clone(nodes._deadlines).pop_due(inf))),
            tuple(map(str, nodes._postponed)),
            round(available, 6),
            round(state.tokens, 6),
            state.asked,
            state.is_late,
            # What a node has said since it was cleared keeps it known.
            tuple(sorted((str(key), max(when - now, -TICK)) for key, when in cleared.items() if nodes[key].is_blank)),
        )
