"""postgresql://…/database keeps the contract of a store."""

from __future__ import annotations

import pytest

from seriatim.store.postgres.store import PostgresStore
from tests.postgres import server
from tests.store.contract.whole import WholeContract
from tests.store.machine import in_small_pieces, store_machine


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


# What is wrong with the shared parts is found on SQLite, which is faster; a few examples show what is different here.
TestPostgresMachine = store_machine(in_small_pieces(PostgresKit), one_in=12).TestCase
