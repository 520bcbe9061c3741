"""The commands of the long runs: mistakes are answered, and nothing is run then."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from tests.command_line import INTERRUPTED, exit_with


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("simulation --seeds 0", "--seeds: must be a whole number, 1 or more: '0'"),
        ("simulation --seeds=-5", "--seeds: must be a whole number, 1 or more: '-5'"),
        ("simulation --seeds abc", "--seeds: must be a whole number, 1 or more: 'abc'"),
        ("simulation --jobs 0", "--jobs: must be a whole number, 1 or more: '0'"),
        ("simulation --seed 17 --keep a,b", "--keep: must be numbers of steps, such as 3,5,9, or none: 'a,b'"),
        ("simulation --keep 3", "--keep, --calm and --trace need --seed"),
        ("simulation --seed 17 --record", "--record is for a run of many seeds"),
        ("exhaustive --only edges", "--only: invalid choice: 'edges'"),
        ("exhaustive --jobs 0", "--jobs: must be a whole number, 1 or more: '0'"),
        ("nemesis --minutes=-1", "--minutes: must be a number above 0: '-1'"),
        ("nemesis --minutes nan", "--minutes: must be a number above 0: 'nan'"),
        ("nemesis --round 0", "--round: must be a number above 0: '0'"),
        ("nemesis --mode sqlight", "--mode: invalid choice: 'sqlight'"),
    ],
)
def test_a_mistake_is_answered_without_a_trace(command: str, answer: str, monkeypatch, capsys):
    name, *words = command.split()
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit) as ended:
        import_module(f"tests.{name}.__main__").main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert answer in said.err
    assert said.out == ""


def test_a_command_that_is_interrupted_says_so_and_no_more(capsys):
    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        exit_with(interrupted)
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"
