"""Two minutes of the nemesis: one short round of each mode that costs little. ``make nemesis`` goes on for longer."""

from __future__ import annotations

import time

import pytest

from tests.nemesis.__main__ import MODES
from tests.nemesis.leftovers import remove_leftovers
from tests.nemesis.round import Round

CHEAP = [name for name, mode in MODES.items() if mode.is_cheap]
TORMENT_S = 120 / len(CHEAP) - 12
"""What is left of two minutes when each round has started its programs and drained its store."""


@pytest.mark.parametrize("mode", CHEAP)
def test_nothing_is_lost_repeated_or_reordered_whatever_happens_to_the_programs(mode: str):
    remove_leftovers()
    report = Round(MODES[mode], seed=int(time.time()), seconds=TORMENT_S).run()
    assert report.faults, "nothing was disturbed"
    assert report.found == [], f"seed {report.seed}, kept: {report.folder}"
