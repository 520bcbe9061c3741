"""The diagrams in the docs are those of the transition tables."""

from __future__ import annotations

import pytest

from docs.diagrams import BLOCK, PAGES, TABLES, redraw


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_diagrams_are_up_to_date(page):
    text = page.read_text()
    assert redraw(text) == text, "stale diagrams: run 'make docs'"


def test_every_table_is_drawn_exactly_once():
    drawn = [match["name"] for page in PAGES for match in BLOCK.finditer(page.read_text())]
    assert sorted(drawn) == sorted(TABLES)


def test_a_stale_diagram_is_noticed():
    page = PAGES[0].read_text()
    assert redraw(page.replace("--> flowing", "--> holding")) == page


def test_every_state_and_event_of_a_table_is_in_its_diagram():
    for table in TABLES.values():
        diagram = table.to_mermaid()
        for state, event, target in table:
            (arrow,) = (
                line for line in diagram.splitlines() if line.startswith(f"    {state.value} --> {target.value}: ")
            )
            assert event.value in arrow.split(": ")[1].split(", ")
