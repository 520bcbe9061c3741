"""Every machine whose small worlds are exhausted."""

from __future__ import annotations

from tests.exhaustive.explorer import Scope

_ALL: tuple[Scope, ...] = ()
SCOPES = {scope.machine: scope for scope in _ALL}
