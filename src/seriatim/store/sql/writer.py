"""The writing verbs of a store on any SQL database. A dialect adds how a transaction begins and ends."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, TypeVar

from seriatim.errors import FailedPrecondition
from seriatim.store.base import Transaction, UpkeepReport
from seriatim.store.sql.reader import SqlReader
from seriatim.store.sql.session import Session
from seriatim.store.sql.transaction import Known, SqlTransaction
from seriatim.store.sql.upkeep import Sweep

AnySession = TypeVar("AnySession", bound=Session)


class SqlOwner(SqlReader, Generic[AnySession]):
    """Everything that only an owner may do: one transaction at a time, all or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._writing_thread: int | None = None
        self._sweep = Sweep()
        self._known = Known()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._unit_of_work() as session:
            yield SqlTransaction(session, self._known)

    def upkeep(self, now: float) -> UpkeepReport:
        try:
            with self._unit_of_work() as session:
                report = self._sweep.piece(session, now)
                more = self._tidy(session)
        except BaseException:
            self._sweep = Sweep()
            raise
        return report._replace(more_to_do=report.more_to_do or more)

    @abstractmethod
    def _working(self) -> AbstractContextManager[AnySession]:
        """A session in a transaction that commits when the block ends, and rolls back when it raises."""

    def _tidy(self, session: AnySession) -> bool:  # noqa: ARG002 - a dialect may need it
        """What a dialect does besides in a piece of clean-up; True when there is more to do."""
        return False

    @contextmanager
    def _unit_of_work(self) -> Iterator[AnySession]:
        self._require_usable()
        self._refuse_inside_transaction()
        with self._turn:
            self._require_usable()
            self._writing_thread = threading.get_ident()
            try:
                with self._working() as session:
                    yield session
            except BaseException:
                self._known = Known()  # some of it may have come from what was rolled back
                raise
            finally:
                self._writing_thread = None

    def _refuse_inside_transaction(self) -> None:
        if self._writing_thread == threading.get_ident():
            raise FailedPrecondition("a transaction is under way in this thread: end it first")
