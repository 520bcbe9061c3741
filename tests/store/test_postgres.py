"""postgresql://…/database keeps the contract of a store."""

from __future__ import annotations

import pytest

from seriatim.store.postgres import PostgresStore
from seriatim.store.sql import upkeep
from tests.postgres import server
from tests.store.contract import WholeContract
from tests.store.machine import store_machine
from tests.store.test_sqlite import SMALL_PIECES


class PostgresKit:
    """A schema, opened again as often as asked."""

    def __init__(self) -> None:
        self._url = server().new_url()
        self.store = PostgresStore(self._url)

    def reopen(self) -> None:
        self.store.close()
        self.store = PostgresStore(self._url)

    def close(self) -> None:
        self.store.close()


class TestPostgresStore(WholeContract):
    @pytest.fixture
    def kit(self):
        kit = PostgresKit()
        yield kit
        kit.close()


class SmallPiecesKit(PostgresKit):
    """Clean-up in many small pieces, so that its seams are walked over."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        for name, value in SMALL_PIECES.items():
            self._patch.setattr(upkeep, name, value)

    def close(self) -> None:
        super().close()
        self._patch.undo()


# What is wrong with the shared parts is found on SQLite, which is faster; a few examples show what is different here.
TestPostgresMachine = store_machine(SmallPiecesKit, one_in=12).TestCase
