"""The exploration notices machines that are broken on purpose."""

from __future__ import annotations

import pytest

from tests.exhaustive.breakages import BREAKAGES, broken_text, witness


def test_a_breakage_is_one_edit_of_the_source_as_it_is() -> None:
    for breakage in BREAKAGES:
        compile(broken_text(breakage), breakage.module, "exec")


@pytest.mark.parametrize(
    ("what", "steps"),
    [("a second copy is held as well", 3), ("a message that is just changing is removed", 3)],
)
def test_a_breakage_is_noticed_with_the_shortest_script(what: str, steps: int) -> None:
    found = witness(next(each for each in BREAKAGES if each.what == what))
    assert found is not None
    assert found.startswith(f"{steps}: push")
