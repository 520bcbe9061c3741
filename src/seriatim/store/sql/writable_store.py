"""The writing methods of a store on any SQL database. A dialect adds how a transaction begins and ends."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from seriatim.errors import FailedPrecondition
from seriatim.store.base import Transaction, UpkeepReport
from seriatim.store.sql.cleanup import Sweep
from seriatim.store.sql.pool import Pool
from seriatim.store.sql.reader import SqlReader
from seriatim.store.sql.session import Session
from seriatim.store.sql.write_operations import Known, SqlTransaction
from seriatim.store.staged_messages import check_staged

AnySession = TypeVar("AnySession", bound=Session)


class SqlWriter(SqlReader, Generic[AnySession]):
    """What only the owner may do: one atomic transaction at a time."""

    _epoch: int

    def __init__(self, pool: Pool[Any]) -> None:
        super().__init__(pool)
        self._turn = threading.Lock()
        self._writing_thread: int | None = None
        self._sweep = Sweep()
        self._known = Known()

    @property
    def epoch(self) -> int:
        return self._epoch

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._unit_of_work() as session:
            transaction = SqlTransaction(session, self._known)
            yield transaction
            transaction.finish()

    def check_staged(self, file: str, messages: int) -> None:
        check_staged(Path(file), messages)

    def upkeep(self, now: float) -> UpkeepReport:
        try:
            with self._unit_of_work() as session:
                report = self._sweep.piece(session, now)
                more = self._tidy(session)
                for window in self._known.windows.values():
                    window.forget(now)
        except BaseException:
            self._sweep = Sweep()
            raise
        return report._replace(more_to_do=report.more_to_do or more)

    @abstractmethod
    def _new_session(self) -> AnySession:
        """A session for the next transaction."""

    @abstractmethod
    def _begin(self, session: AnySession) -> None:
        """Begin a transaction; StoreLost if another owner has raised the epoch."""

    @abstractmethod
    def _commit(self, session: AnySession) -> None:
        """Commit it; OutcomeUnknown if it is unknown whether it was committed."""

    @abstractmethod
    def _roll_back(self, session: AnySession) -> None:
        """Roll it back."""

    def _tidy(self, session: AnySession) -> bool:  # noqa: ARG002 - a dialect may need it
        """What else a dialect does in a piece of clean-up; True when there is more to do."""
        return False

    @contextmanager
    def _unit_of_work(self) -> Iterator[AnySession]:
        self._require_usable()
        self._refuse_inside_transaction()
        with self._turn:
            self._require_usable()
            session = self._new_session()
            self._writing_thread = threading.get_ident()
            try:
                self._begin(session)
                yield session
                session.require_unbroken()
                self._commit(session)
            except BaseException:
                self._known = Known()  # some of it may have come from what was rolled back
                self._roll_back(session)
                raise
            finally:
                self._writing_thread = None
                session.end()

    def _refuse_inside_transaction(self) -> None:
        if self._writing_thread == threading.get_ident():
            raise FailedPrecondition("a transaction is under way in this thread: end it first")
