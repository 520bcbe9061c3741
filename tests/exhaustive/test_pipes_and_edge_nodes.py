"""Small worlds of pipes and edge nodes: every state that they can reach keeps what the machines promise."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.pipes.handover_order import InOrder
from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import Status
from tests.exhaustive import edge_nodes, pipes
from tests.exhaustive.clones import clone
from tests.exhaustive.explorer import Row, Scope, Violation, World, assert_table_is_exact, explore

NEEDS_FOUR_MESSAGES: dict[Row, str] = {
    ("pipe receiver missing", "give up", "pipe receiver missing"): "two gaps at once: reached by a large world",
}


@pytest.mark.parametrize(
    ("scope", "out_of_small_scope"),
    [(pipes.SCOPE, NEEDS_FOUR_MESSAGES), (edge_nodes.SCOPE, {})],
    ids=lambda value: value.machine if isinstance(value, Scope) else "",
)
def test_every_reachable_state_keeps_the_promises_and_the_tables_are_exact(scope, out_of_small_scope):
    rows: set[Row] = set()
    for world in scope.small:
        rows |= explore(world, most_states=20_000).rows
    assert_table_is_exact(scope.table, rows, out_of_small_scope)


def small_world(scope: Scope, name: str) -> World[Any, Any]:
    return next(world for world in scope.small if world.name.endswith(name))


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        (pipes.SCOPE, "absolute indexed, room for one"),
        (pipes.SCOPE, "absolute indexed, short queue"),
        (edge_nodes.SCOPE, "clock wrong at birth"),
        (edge_nodes.SCOPE, "cleared"),
    ],
)
def test_states_with_the_same_fingerprint_answer_alike(scope, name):
    assert explore(small_world(scope, name), check_merges=True).merges_checked > 10


@pytest.mark.parametrize(("scope", "name"), [(pipes.SCOPE, "absolute indexed"), (edge_nodes.SCOPE, "two sessions")])
def test_a_copy_of_a_state_shares_nothing_that_changes(scope, name):
    world = small_world(scope, name)
    state = world.start()
    for _ in range(6):
        for command in list(world.commands(state)):
            before, twin = world.fingerprint(state), clone(state)
            assert world.fingerprint(twin) == before
            world.apply(twin, command)
            assert world.fingerprint(state) == before
        world.apply(state, list(world.commands(state))[-1])


def test_a_receiver_that_confirms_what_its_output_has_not_taken_is_found(monkeypatch):
    monkeypatch.setattr(InOrder, "taken", property(lambda self: self.wanted))
    with pytest.raises(Violation, match="confirmed") as found:
        explore(small_world(pipes.SCOPE, "pipe, absolute indexed"))
    assert len(found.value.script) == 7


def test_a_death_that_leaves_devices_online_is_found(monkeypatch):
    def mark_all(self, status: Status, was: Status | None = None):
        return []

    monkeypatch.setattr(EdgeNode, "_mark_all", mark_all)
    with pytest.raises(Violation, match="should be offline") as found:
        explore(small_world(edge_nodes.SCOPE, "edge node, two sessions"))
    assert len(found.value.script) == 2
