from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import postgres
from tests.mosquitto import Mosquitto


@pytest.fixture
def mosquitto(tmp_path) -> Iterator[Mosquitto]:
    """A broker of its own for each test: what is retained in one must not be seen in another."""
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def store(tmp_path) -> str:
    """The address of a new store."""
    return f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def any_store(request, tmp_path) -> str:
    """The same, for tests of what a host owes to its store."""
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else postgres.server().new_url()
