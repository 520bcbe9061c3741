"""The simulation finds what it is meant to find."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if "unseen" in entry])
def test_what_no_simulation_can_see_names_a_test_that_exists(name: str) -> None:
    path, _, test = ENTRIES[name]["test"].partition("::")
    assert f"def {test}(" in Path(ROOT / path).read_text()


def test_every_line_of_the_list_of_repairs_is_taken_out_or_is_shown_by_a_test_that_exists() -> None:
    page = Path(ROOT / "docs" / "explanation" / "proof.md").read_text()
    shown = re.findall(r"^\| ([AB]\d+) \| [^|]+ \| `([^`]+)::(\w+)` \|$", page, re.MULTILINE)
    for line, path, test in shown:
        assert f"def {test}(" in Path(ROOT / path).read_text(), line
    lines = {f"A{number}" for number in range(1, 21)} | {f"B{number}" for number in range(1, 10)}
    taken_out = {name.split()[0] for name in ENTRIES}
    assert lines - taken_out == {line for line, _, _ in shown}


@pytest.mark.parametrize(
    "name",
    [
        "A11 create topic: applied by the caller",
        "A5 an async handler raises anything",
        "A8 attributes are copied",
        "Planted: a filter forgotten at reload",
        "Planted: a stale ack over the link",
    ],
)
def test_a_mend_that_is_taken_out_is_found(name: str) -> None:
    found = search(ENTRIES[name], 0, 600)
    assert found["seed"] != "-", found
