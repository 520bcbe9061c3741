"""memory:// keeps the contract of a store."""

from __future__ import annotations

import pytest

from seriatim.errors import InvalidArgument
from seriatim.store import open_store
from seriatim.store.memory import MemoryStore
from tests.store.contract.kit import topic_with_subscription
from tests.store.contract.whole import WholeContract
from tests.store.machine import store_machine


class MemoryKit:
    """What is in memory can't be opened again: it simply stays."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def reopen(self) -> None:
        pass

    def close(self) -> None:
        self.store.close()


class TestMemoryStore(WholeContract):
    @pytest.fixture
    def kit(self):
        return MemoryKit()


TestMemoryMachine = store_machine(MemoryKit).TestCase


def test_two_stores_in_memory_share_nothing():
    first, second = open_store("memory://"), open_store("memory://")
    topic_with_subscription(first)
    assert second.catalog().topics == []
    assert (first.url, first.epoch) == ("memory://", 1)


def test_what_has_no_file_can_not_be_backed_up(tmp_path):
    with pytest.raises(InvalidArgument, match="use a store with a file"):
        MemoryStore().backup(str(tmp_path / "copy"))
