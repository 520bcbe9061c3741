"""How Spark's Java is ended, shown with other programs. With Java itself: tests/e2e/test_demo.py."""

from __future__ import annotations

import logging
import subprocess

import pytest

from seriatim.spark import ending


def start(script: str) -> subprocess.Popen[bytes]:
    """A program that leads a session of its own, and says when it is ready."""
    leader = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    assert leader.stdout is not None
    assert leader.stdout.readline() == b"ready\n"
    leader.stdout.close()
    return leader


def test_what_a_program_has_started_is_waited_for():
    leader = start("sleep 0.5 & echo ready; wait")
    assert len(list(ending._members(leader.pid))) == 2
    ending._end(leader)
    assert list(ending._members(leader.pid)) == []


@pytest.mark.parametrize("script", ["trap '' TERM; echo ready; sleep 60; sleep 60", "sleep 60 & echo ready; wait"])
def test_what_does_not_end_by_itself_is_killed(script, monkeypatch):
    monkeypatch.setattr(ending, "PATIENCE", 0.2)
    leader = start(script)
    ending._end(leader)
    assert leader.returncode is not None
    assert list(ending._members(leader.pid)) == []


def test_of_what_nobody_logs_in_a_name_only_that_of_py4j_is_left_out():
    def of(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", None, None)

    assert not ending._is_not_of_py4j(of("/lib/py4j/java_gateway.py"))
    assert ending._is_not_of_py4j(of("/lib/mine/java_gateway.py"))
