"""How Spark's Java is ended, shown with other programs. With Java itself: tests/e2e/test_demo.py."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from seriatim.spark.local import shutdown


def start(script: str) -> subprocess.Popen[bytes]:
    """A program that leads a session of its own, and says when it is ready."""
    leader = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    assert leader.stdout is not None
    assert leader.stdout.readline() == b"ready\n"
    leader.stdout.close()
    return leader


def test_what_a_program_has_started_is_waited_for():
    leader = start("sleep 0.5 & echo ready; wait")
    assert len(list(shutdown._members(leader.pid))) == 2
    shutdown._end(leader)
    assert list(shutdown._members(leader.pid)) == []


@pytest.mark.parametrize("script", ["trap '' TERM; echo ready; sleep 60; sleep 60", "sleep 60 & echo ready; wait"])
def test_what_does_not_end_by_itself_is_killed(script, monkeypatch):
    monkeypatch.setattr(shutdown, "EXIT_TIMEOUT_S", 0.2)
    leader = start(script)
    shutdown._end(leader)
    assert leader.returncode is not None
    assert list(shutdown._members(leader.pid)) == []


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    py4j = logging.getLogger("py4j")
    level = py4j.level
    yield
    py4j.setLevel(level)
    logging.getLogger().removeFilter(shutdown._is_not_of_py4j)


@pytest.mark.usefixtures("logging_as_it_was")
def test_java_is_ended_while_its_session_is_being_made(monkeypatch):
    """A context is known before it has all its parts."""
    leader = start("sleep 0.2 & echo ready; wait")
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=leader, shutdown=lambda: None))
    monkeypatch.setattr(SparkContext, "_active_spark_context", object.__new__(SparkContext))
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    shutdown.end_java()
    assert leader.returncode is not None
    assert list(shutdown._members(leader.pid)) == []
    assert SparkContext._gateway is None


def test_of_what_nobody_logs_in_a_name_only_that_of_py4j_is_left_out():
    def of(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", None, None)

    assert not shutdown._is_not_of_py4j(of("/lib/py4j/java_gateway.py"))
    assert shutdown._is_not_of_py4j(of("/lib/mine/java_gateway.py"))
