"""What a dialect offers to the parts that all SQL stores share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

Row = Sequence[Any]


class Session(Protocol):
    """A connection that knows the named queries of its dialect and raises our errors."""

    def rows(self, query: str, *values: object) -> list[Row]:
        """Everything that a query finds."""

    def run(self, query: str, *values: object) -> int:
        """Change something; how many rows were changed."""

    def run_many(self, query: str, rows: Iterable[Row]) -> None:
        """The same change for many rows."""

    def run_script(self, script: str) -> None:
        """Several statements without values, inside the transaction under way."""
