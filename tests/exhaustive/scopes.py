"""Every machine whose small worlds are exhausted."""

from __future__ import annotations

from tests.exhaustive import edge_nodes, lanes, pipes, resequencer
from tests.exhaustive.explorer import Scope

_ALL: tuple[Scope, ...] = (lanes.SCOPE, resequencer.SCOPE, pipes.SCOPE, edge_nodes.SCOPE)
SCOPES = {scope.machine: scope for scope in _ALL}
