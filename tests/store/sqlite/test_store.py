"""sqlite:///file keeps the contract of a store."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from seriatim.store.sqlite.store import SqliteStore
from tests.conftest import fast_folder
from tests.store.contract.whole import WholeContract
from tests.store.machine import in_small_pieces, store_machine


class SqliteKit:
    """A file, opened again as often as asked."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.mkdtemp(dir=fast_folder()))
        self.store = SqliteStore(self._folder / "store.db")

    def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self._folder / "store.db")

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self._folder)


class TestSqliteStore(WholeContract):
    @pytest.fixture
    def kit(self, tmp_path):
        kit = SqliteKit(tmp_path)
        yield kit
        kit.store.close()


TestSqliteMachine = store_machine(SqliteKit).TestCase
TestSqliteMachineInSmallPieces = store_machine(in_small_pieces(SqliteKit)).TestCase
