"""The simulation finds what it is meant to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof import ROOT
from tests.simulation.take_outs import read_entries, search

ENTRIES = {entry["name"]: entry for entry in read_entries()}


@pytest.mark.parametrize("name", ENTRIES)
def test_every_mend_to_be_taken_out_stands_in_the_code_once(name: str) -> None:
    for change in (ENTRIES[name], *ENTRIES[name].get("also", ())):
        code = Path(ROOT / "src" / "seriatim" / change["file"]).read_text()
        assert code.count(change["old"]) == 1, change["old"]


@pytest.mark.parametrize(
    "name",
    ["A11 create topic: applied by the caller", "A5 an async handler raises anything", "A8 attributes are copied"],
)
def test_a_mend_that_is_taken_out_is_found(name: str) -> None:
    found = search(ENTRIES[name], 0, 200)
    assert found["seed"] != "-", found
