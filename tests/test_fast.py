"""The list of fast tests is honest: what it names exists, and what begins a server is refused."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests import fast, mosquitto, postgres
from tests.server.served import ServerProcess, ServerThread

FOLDER = Path(__file__).parent


def test_every_folder_and_module_on_the_list_exists():
    assert [name for name in fast.FOLDERS if not (FOLDER / name).is_dir()] == []
    assert [name for name in fast.MODULES if not (FOLDER / f"test_{name}.py").is_file()] == []


@pytest.mark.parametrize(
    "begin",
    [
        postgres.Server,
        lambda: mosquitto.Mosquitto.start(object.__new__(mosquitto.Mosquitto)),
        lambda: ServerThread("memory://", None, None, None, None),
        lambda: ServerProcess("memory://"),
    ],
    ids=["PostgreSQL", "MQTT", "Pub/Sub in a thread", "Pub/Sub in a process"],
)
def test_a_fast_test_can_not_begin_a_server(begin, monkeypatch):
    monkeypatch.setattr(fast, "chosen", True)
    with pytest.raises(pytest.fail.Exception, match="a fast test begins"):
        begin()


def test_a_fast_test_can_not_begin_spark(monkeypatch):
    from tests.spark.conftest import spark

    monkeypatch.setattr(fast, "chosen", True)
    with pytest.raises(pytest.fail.Exception, match="a fast test begins Spark"):
        next(inspect.unwrap(spark)())
