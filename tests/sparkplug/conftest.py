from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mosquitto import Mosquitto


@pytest.fixture
def mosquitto(tmp_path) -> Iterator[Mosquitto]:
    """A broker of its own for each test: what is retained in one must not be seen in another."""
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.stop()
