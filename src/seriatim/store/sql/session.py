"""What a dialect offers to the parts that all SQL stores share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from seriatim.errors import FailedPrecondition, SeriatimError

Row = Sequence[Any]


class Session(ABC):
    """One transaction on a connection that knows the named queries of its dialect and raises our errors.

    What is run may fail later than it is asked for, but never unnoticed: the next answer, or the commit, then fails. After a
    storage error, or when the transaction is over, nothing more is asked: the database may have rolled its transaction back
    already, and what came after it would be half of one.
    """

    broken: SeriatimError | None = None
    """Why nothing may be asked any more."""

    @abstractmethod
    def rows(self, query: str, *values: object) -> list[Row]:
        """Everything that a query finds."""

    @abstractmethod
    def run(self, query: str, *values: object) -> None:
        """Change something."""

    @abstractmethod
    def run_many(self, query: str, rows: Iterable[Row]) -> None:
        """The same change for many rows."""

    @abstractmethod
    def run_script(self, script: str) -> None:
        """Several statements without values, inside the transaction under way."""

    def misfits(self) -> list[tuple[str, str]]:
        """Tables with rows that hold something else than their columns are for, and what. Most databases can't have any."""
        return []

    def end(self) -> None:
        """Nothing may be asked any more."""
        self.broken = FailedPrecondition("this transaction is over: begin a new one")

    def require_unbroken(self) -> None:
        """Raise again what went wrong before, if anything did."""
        if self.broken is not None:
            raise self.broken

    def broken_by(self, error: SeriatimError) -> SeriatimError:
        """Remember an error, to be raised now and whenever something more is asked."""
        self.broken = error
        return error
