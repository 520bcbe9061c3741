"""SIGKILL at random moments under publish, ack and nack load. The store is judged from outside."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from threading import Timer

import pytest

from seriatim.store import open_store

CHILD = Path(__file__).with_name("crash_child.py")
KILLS = {"sqlite": 20, "postgres": 10}
NUMBERS_A_LIFE = 1_000_000


class Witness:
    """Follows what the children say, over all their lives, and objects."""

    def __init__(self) -> None:
        self.published: set[tuple[str, int]] = set()
        self.settled: set[tuple[str, int]] = set()
        self.delivered: set[tuple[str, int]] = set()
        self.perhaps_settled: set[tuple[str, int]] = set()
        self.highest: dict[str, int] = defaultdict(lambda: -1)
        self._in_flight: dict[str, int] = {}
        self._acked: set[tuple[str, int]] = set()

    def new_life(self) -> None:
        """After a kill: what was acked and not confirmed may have been written all the same."""
        self._in_flight.clear()
        self.perhaps_settled |= self._acked
        self._acked.clear()

    def hear(self, what: str, key: str, number: int) -> None:
        getattr(self, f"_hear_{what.lower()}")(key, number)

    def _hear_p(self, key: str, number: int) -> None:
        self.published.add((key, number))

    def _hear_d(self, key: str, number: int) -> None:
        assert (key, number) not in self.settled, f"{key} {number} was settled and is delivered again"
        assert key not in self._in_flight, f"{key} {number} is delivered while {self._in_flight[key]} is in flight"
        assert number >= self.highest[key], f"{key} {number} is delivered after {self.highest[key]}"
        if number > self.highest[key] >= 0:
            before = (key, self.highest[key])
            is_settled = before in self.settled or before in self.perhaps_settled
            assert is_settled, f"{key} {number} overtakes {self.highest[key]}"
        self.delivered.add((key, number))
        self.highest[key] = number
        self._in_flight[key] = number

    def _hear_n(self, key: str, number: int) -> None:
        assert self._in_flight.pop(key) == number

    def _hear_t(self, key: str, number: int) -> None:
        self._acked.add((key, number))

    def _hear_a(self, key: str, number: int) -> None:
        self._acked.remove((key, number))
        self.settled.add((key, number))
        assert self._in_flight.pop(key) == number


def live(url: str, seed: int, first: int, seconds: float | None, at_work: bool = False) -> list[tuple[str, str, int]]:
    """Run a child and return what it said. It is killed after so many seconds, counted from its start or, ``at_work``, from its
    first word; None lets it finish."""
    command = [sys.executable, str(CHILD), url, str(seed), str(first)]
    with (
        TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as child,
    ):
        assert child.stdout is not None
        output = child.stdout.readline() if at_work else ""
        timer = Timer(60 if seconds is None else seconds, child.kill)
        timer.start()
        output += child.stdout.read()
        child.wait()
        timer.cancel()
        complaints.seek(0)
        assert complaints.read() == ""
    assert child.returncode == (0 if seconds is None else -9)
    lines = [line.split() for line in output.splitlines(keepends=True) if line.endswith("\n")]
    return [(what, key, int(number)) for what, key, number in lines]


def check(url: str) -> None:
    reader = open_store(url, read_only=True)
    assert list(reader.check()) == []
    reader.close()


@pytest.fixture
def url(kind, request, tmp_path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("kind", KILLS)
def test_killed_at_random_moments_nothing_is_lost_repeated_after_its_ack_or_out_of_order(url, kind, seed):
    random, witness, kills = Random(seed), Witness(), KILLS[kind]
    for life in range(kills):
        witness.new_life()
        # Some are killed while they load what the ones before left, most in the middle of their work.
        at_work = life % 4 != 3
        for said in live(url, random.randrange(10**6), life * NUMBERS_A_LIFE, random.uniform(0.05, 0.5), at_work):
            witness.hear(*said)
        if life % 10 == 9:
            check(url)
    witness.new_life()
    for said in live(url, random.randrange(10**6), -1, None):
        witness.hear(*said)
    check(url)
    assert len(witness.published) > 25 * kills
    assert witness.published - witness.delivered == set(), "a confirmed publish was lost"
    assert witness.published - witness.settled - witness.perhaps_settled == set()
    assert len(witness.perhaps_settled) <= kills * 5, "no more than one of each key can be in doubt after a kill"


@pytest.mark.parametrize(
    ("story", "objection"),
    [
        ("D0 T0 A0 D0", "was settled and is delivered again"),
        ("D0 D1", "while 0 is in flight"),
        ("D1 T1 A1 D0", "is delivered after 1"),
        ("D0 N0 D1", "overtakes 0"),
        ("D0 T0 D1", "while 0 is in flight"),
    ],
)
def test_the_witness_objects_to_every_kind_of_disorder(story, objection):
    witness = Witness()
    *before, last = [(what, int(number)) for what, number in story.split()]
    for what, number in before:
        witness.hear(what, "k", number)
    with pytest.raises(AssertionError, match=objection):
        witness.hear(last[0], "k", last[1])
