"""Worlds that are simulated: nothing is found in them, and each runs the same way every time."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seriatim import Message, PubSub, Subscription, Topic
from tests.simulation.run import draw, run
from tests.simulation.shrink import report

SEEDS = 2000
PARTS = 20


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_found_in_simulated_worlds(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        program = draw(seed)
        findings = run(program).findings
        assert not findings, report(program, findings).script


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_runs_the_same_way_twice(seed: int) -> None:
    first, second = run(draw(seed)), run(draw(seed))
    assert first.trace == second.trace
    assert first.digest == second.digest


def test_a_seed_runs_the_same_way_in_another_process_with_other_hashes() -> None:
    code = "from tests.simulation.run import draw, run\nprint(*[run(draw(seed)).digest for seed in range(40, 60)])"
    digests = set()
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
        digests.add(ran.stdout)
    assert len(digests) == 1


NOT_SIMULATED = {"PubSub.blocking"}
"""It needs threads, as ``Queue`` does."""


def test_every_verb_of_the_public_api_is_simulated() -> None:
    code = [path.read_text() for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")]
    nodes = [node for text in code for node in ast.walk(ast.parse(text))]
    called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    called |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    verbs = {
        f"{kind.__name__}.{name}": name
        for kind in (Message, PubSub, Subscription, Topic)
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name))
    }
    assert {verb for verb, name in verbs.items() if name not in called} == NOT_SIMULATED
