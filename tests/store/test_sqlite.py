"""sqlite:///file keeps the contract of a store."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from seriatim.store.sql import upkeep
from seriatim.store.sqlite import SqliteStore
from tests.store.contract import WholeContract
from tests.store.machine import store_machine


class SqliteKit:
    """A file, opened again as often as asked."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.mkdtemp())
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


SMALL_PIECES = {
    "PACKS_A_PIECE": 2,
    "SETTLEMENTS_A_PIECE": 3,
    "OFFSETS_A_PIECE": 5,
    "BYTES_A_PIECE": 300,
    "LEFTOVER_MESSAGES": 6,
    "BLOCKS_A_RISE": 2,
}


class SmallPiecesKit(SqliteKit):
    """Clean-up in many small pieces, so that its seams are walked over."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        for name, value in SMALL_PIECES.items():
            self._patch.setattr(upkeep, name, value)

    def close(self) -> None:
        super().close()
        self._patch.undo()


TestSqliteMachine = store_machine(SqliteKit).TestCase
TestSqliteMachineInSmallPieces = store_machine(SmallPiecesKit).TestCase
