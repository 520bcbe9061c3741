"""One Spark session for all tests that use ``spark``: the scheduler keeps them in one process (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.fast import refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from seriatim.spark.local.session import local_session

    refuse("Spark")
    session = local_session("tests")
    yield session
    session.stop()
