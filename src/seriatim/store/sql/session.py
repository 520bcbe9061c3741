"""What a dialect offers to the parts that all SQL stores share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from seriatim.errors import FailedPrecondition, SeriatimError

Row = Sequence[Any]
Result = TypeVar("Result")


class Session(Protocol):
    """A connection that knows the named queries of its dialect and raises our errors.

    What is run may fail later than it is asked for, but never unnoticed: the next answer, or the commit, then fails.
    """

    def rows(self, query: str, *values: object) -> list[Row]:
        """Everything that a query finds."""

    def run(self, query: str, *values: object) -> None:
        """Change something."""

    def run_many(self, query: str, rows: Iterable[Row]) -> None:
        """The same change for many rows."""

    def run_script(self, script: str) -> None:
        """Several statements without values, inside the transaction under way."""

    def require_unbroken(self) -> None:
        """Raise again what went wrong before, or that the transaction is over."""


class UnitOfWork(ABC):
    """Asks a database, until something goes wrong or the transaction is over.

    After a storage error nothing more is asked: the database may have rolled its transaction back already, and what came after
    it would be half of one.
    """

    failures: type[Exception]
    """What the library of the database raises."""

    def __init__(self) -> None:
        self._over: SeriatimError | None = None

    def end(self) -> None:
        """Nothing may be asked any more."""
        self._over = FailedPrecondition("this transaction is over: begin a new one")

    def require_unbroken(self) -> None:
        """Raise again what went wrong before, if anything did."""
        if self._over is not None:
            raise self._over

    def _ask(self, function: Callable[..., Result], *arguments: object) -> Result:
        self.require_unbroken()
        try:
            return function(*arguments)
        except self.failures as error:
            self._over = self._as_store_error(error)
            raise self._over from error

    @abstractmethod
    def _as_store_error(self, error: Exception) -> SeriatimError:
        """What an error of the database means to us: InvalidArgument when it is about a value, and a StoreError otherwise."""
