"""The diagrams in the docs are those of the transition tables and of the tree."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from bench.walk import Walk, measure
from docs import architecture
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


@pytest.mark.parametrize("page", architecture.PAGES, ids=lambda page: page.name)
def test_the_tree_and_the_layers_are_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert architecture.redraw(text) == text, "stale drawings: run 'make docs'"


def test_every_drawing_is_on_a_page():
    drawn = [
        match["name"] for page in architecture.PAGES for match in architecture.BLOCK.finditer(page.read_text("utf-8"))
    ]
    assert sorted(drawn) == sorted(architecture.DRAWINGS)


def test_every_folder_says_what_it_is_for():
    assert [folder.name for folder in architecture.packages() if not architecture._purpose(folder)] == []


def test_a_message_goes_the_way_that_is_drawn(tmp_path):
    walk = Walk()
    try:
        asyncio.run(measure(f"sqlite:///{tmp_path}/walk.db", walk))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    passed = list(walk.calls)  # in the order of the first calls
    way = [passed.index((station.module, station.function)) for station in architecture.WAY]
    assert way == sorted(way)
