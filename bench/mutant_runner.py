"""A pytest plugin that runs tests on many mutants: each in a fork of the process that has collected the tests already.

mutmut runs pytest anew for each mutant, which costs more than the quick tests of a pure machine. ``--mutants`` names a file
with the tests of each mutant, ``--outcomes`` the file for what became of them. bench/mutate.py uses it.

What kills one mutant often kills its neighbours: the tests that failed for earlier mutants of a function, or else of the
module, are tried first, and then the others in the order of the file. A test that ran out of time is not remembered.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import NoReturn

import pytest

PATIENCE = 2
"""A mutant may use this many seconds of the processor, and as many times what its tests took, before it counts as endless."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants", type=Path, required=True, help="JSON: for each mutant its tests and their seconds")
    parser.addoption("--outcomes", type=Path, required=True, help="JSON: what became of each mutant")
    parser.addoption("--children", type=int, default=1, help="mutants that run at the same time")


def pytest_runtestloop(session: pytest.Session) -> bool:
    options = session.config.option
    plans: dict[str, tuple[list[str], float]] = json.loads(options.mutants.read_text())
    items = {item.nodeid: item for item in session.items}
    outcomes: dict[str, str] = {}
    running: dict[int, tuple[str, int]] = {}
    killers: Counter[tuple[str, str]] = Counter()
    waiting = iter(plans.items())
    gc.freeze()  # what is there already is not looked through, and copied, by every fork
    while start_some(session, waiting, items, running, killers, options.children) or running:
        pid, status = os.wait()
        mutant, failed = running.pop(pid)
        outcomes[mutant] = outcome(os.waitstatus_to_exitcode(status))
        note_killer(killers, mutant, read_told(failed))
        options.outcomes.write_text(json.dumps(outcomes))
    return True


def read_told(pipe: int) -> str:
    os.set_blocking(pipe, False)  # what a test has left behind may hold the other end
    try:
        return os.read(pipe, 4096).decode()
    except BlockingIOError:
        return ""
    finally:
        os.close(pipe)


def function_of(mutant: str) -> str:
    return mutant.rpartition("__mutmut_")[0]


def note_killer(killers: Counter[tuple[str, str]], mutant: str, test: str) -> None:
    if test:
        killers[function_of(mutant), test] += 1
        killers["", test] += 1


def in_turn(killers: Counter[tuple[str, str]], mutant: str, tests: list[str]) -> list[str]:
    """The tests of a mutant, those first that killed the most mutants of its function, then of its module."""
    function = function_of(mutant)
    return sorted(tests, key=lambda test: (-killers[function, test], -killers["", test]))


def start_some(
    session: pytest.Session,
    waiting: Iterator[tuple[str, tuple[list[str], float]]],
    items: dict[str, pytest.Item],
    running: dict[int, tuple[str, int]],
    killers: Counter[tuple[str, str]],
    most: int,
) -> bool:
    """Start mutants until as many run as may; False when there is no other."""
    while len(running) < most:
        mutant, (tests, seconds) = next(waiting, ("", ([], 0.0)))
        if not mutant:
            return False
        reaching = [items[test] for test in in_turn(killers, mutant, tests)]
        failed, teller = os.pipe()
        pid = os.fork()
        if pid == 0:
            run_mutant(session, mutant, reaching, seconds, teller)
        os.close(teller)
        running[pid] = mutant, failed
    return True


def run_mutant(session: pytest.Session, mutant: str, items: list[pytest.Item], seconds: float, teller: int) -> NoReturn:
    """Run tests on a mutant until one fails, in a process of its own, whose exit code tells what became of it.

    The test that failed is written to ``teller``.
    """
    code = 1
    try:
        os.environ["MUTANT_UNDER_TEST"] = mutant
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, sys.stdout.fileno())
        os.dup2(silence, sys.stderr.fileno())
        limit = ceil(PATIENCE * (1 + seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60 * limit)  # for one that sleeps; a busy machine may give it a small part of a core
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os.write(teller, item.nodeid.encode())
                break
        else:
            code = 0
    finally:
        os._exit(code)


def outcome(exit_code: int) -> str:
    if exit_code == 0:
        return "survived"
    return "timed out" if exit_code in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM) else "killed"
