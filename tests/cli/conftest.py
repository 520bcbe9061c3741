from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner, Result

from seriatim.cli.main import cli

Run = Callable[..., Result]
Answers = Callable[..., Any]
Start = Callable[..., subprocess.Popen[bytes]]


def signal_while_reading(process: subprocess.Popen[bytes], number: int) -> int:
    """Send a signal to a process that blocks in a read of its own, and give its exit status.

    Python sees a signal that comes in the moment before a read begins only when the next one interrupts that read.
    """
    while process.poll() is None:
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
    return process.returncode


@pytest.fixture
def seriatim(tmp_path, monkeypatch, logger_as_it_was) -> Run:
    """Run ``seriatim`` in an empty folder, with nobody's configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*args: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(cli, args, input=stdin, prog_name="seriatim")

    return run


@pytest.fixture
def told(seriatim) -> Answers:
    """Run a command that must work, with ``--json``, and give what it says: a value, or a list of those of each line."""

    def run(*args: str, stdin: str | bytes | None = None) -> Any:
        result = seriatim(*args, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        return lines[0] if len(lines) == 1 else lines

    return run


@pytest.fixture
def orders(told) -> None:
    """A topic ``orders`` with an ordered subscription ``billing``."""
    told("topics", "create", "orders")
    told("subscriptions", "create", "orders", "billing")


@pytest.fixture
def start(seriatim) -> Iterator[Start]:
    """Start ``seriatim`` as a process of its own, in the folder of ``seriatim``."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*args: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [sys.executable, "-m", "seriatim", *args]
        process = subprocess.Popen(command, env=os.environ | {"PYTHONUNBUFFERED": "1"}, **pipes)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
