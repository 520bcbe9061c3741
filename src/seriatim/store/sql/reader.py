"""The reading verbs of a store on any SQL database. A dialect adds how a short transaction is opened."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from seriatim.errors import StoreBroken, StoreLost
from seriatim.store.base import (
    Catalog,
    Cursor,
    DeadLetterRow,
    DocumentRow,
    Pack,
    PausedRow,
    Position,
    Problem,
    Record,
    Span,
    TroubleRow,
)
from seriatim.store.sql import reading
from seriatim.store.sql.integrity import find_problems
from seriatim.store.sql.session import Session

TAKEN_OVER = "another process has taken it over"


def lost_because(reason: str, kind: type[StoreLost] = StoreLost) -> StoreLost:
    return kind(f"the store can't be used any more, because {reason}: open it again")


class SqlReader(ABC):
    """Owns nothing and only reads. A handle belongs to the process that opened it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._unusable: str | None = None
        self._failed = False

    @property
    def epoch(self) -> int:
        with self._reading() as session:
            return int(session.rows("epoch")[0][0])

    def catalog(self) -> Catalog:
        with self._reading() as session:
            return reading.read_catalog(session)

    def documents(self, kind: str) -> list[DocumentRow]:
        with self._reading() as session:
            return [DocumentRow(kind, name, text) for name, text in session.rows("documents", kind)]

    def writers(self, prefix: str) -> list[tuple[str, int]]:
        with self._reading() as session:
            return reading.read_writers(session, prefix)

    def cursor(self, subscription_id: int) -> Cursor:
        with self._reading() as session:
            return reading.read_cursor(session, subscription_id)

    def troubles(self, subscription_id: int) -> list[TroubleRow]:
        with self._reading() as session:
            return reading.read_troubles(session, subscription_id)

    def paused_keys(self, subscription_id: int) -> list[PausedRow]:
        with self._reading() as session:
            return reading.read_paused_keys(session, subscription_id)

    def dead_letters(self, subscription_id: int) -> list[DeadLetterRow]:
        with self._reading() as session:
            return reading.read_dead_letters(session, subscription_id)

    def positions(self, topic_id: int, first: int = 0) -> Iterator[Sequence[Position]]:
        while True:
            with self._reading() as session:
                packs = reading.read_positions(session, topic_id, first)
            if not packs:
                return
            first = packs[-1][-1].offset + 1
            yield from packs

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> list[Record]:
        with self._reading() as session:
            return reading.fetch_records(session, topic_id, offsets)

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        with self._reading() as session:
            return reading.read_records(session, topic_id, first, limit)

    def spans(self, topic_id: int, first: int, end: int) -> Iterator[Span]:
        while first < end:
            with self._reading() as session:
                spans = reading.read_spans(session, topic_id, first, end)
            if not spans:
                return
            first = spans[-1].last + 1
            yield from spans

    def packs(self, topic_id: int, first: int, end: int) -> Iterator[Pack]:
        while first < end:
            with self._reading() as session:
                packs, first = reading.read_packs(session, topic_id, first, end)
            if not packs:
                return
            yield from packs

    def earliest(self, topic_id: int) -> int:
        with self._reading() as session:
            return reading.read_earliest(session, topic_id)

    def check(self) -> Iterator[Problem]:
        return find_problems(self._reading)

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Session]:
        """A session in a transaction that sees one moment of the store."""

    def _require_usable(self) -> None:
        if self._pid != os.getpid():
            raise StoreLost("the store was opened before a fork: open it again in this process")
        if self._unusable:
            raise lost_because(self._unusable, StoreBroken if self._failed else StoreLost)

    def _break(self, why: str) -> None:
        """This handle failed; another one may do better."""
        self._unusable, self._failed = why, True
