"""Small worlds of pipes and edge nodes: every state that they can reach keeps what the machines promise."""

from __future__ import annotations

import pytest

from tests.exhaustive import edge_nodes, pipes
from tests.exhaustive.explorer import Row, Scope, assert_table_is_exact, explore

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
