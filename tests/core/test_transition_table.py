"""Transition tables: what they allow, what they refuse, and how they are drawn."""

from __future__ import annotations

from enum import StrEnum

import pytest

from seriatim.core.transition_table import TransitionTable
from seriatim.errors import IllegalTransition


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    BROKEN = "broken"


class Signal(StrEnum):
    TURN = "turn"
    HIT = "hit"
    FLASH = "flash"


@pytest.fixture
def light() -> TransitionTable[Light, Signal]:
    return TransitionTable(
        "light",
        Light.RED,
        {
            Light.RED: {
                Signal.TURN: frozenset({Light.RED, Light.GREEN}),
                Signal.HIT: frozenset({Light.BROKEN, Light.RED}),
            },
            Light.GREEN: {Signal.TURN: frozenset({Light.RED})},
            Light.BROKEN: {},
        },
    )


def test_a_table_knows_its_name_and_its_start(light):
    assert (light.name, light.start) == ("light", Light.RED)


def test_targets_are_the_states_that_an_event_may_lead_to(light):
    assert light.targets(Light.RED, Signal.TURN) == {Light.RED, Light.GREEN}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (Light.RED, "light: 'flash' is not possible while 'red'; possible now: hit, turn"),
        (Light.GREEN, "light: 'flash' is not possible while 'green'; possible now: turn"),
        (Light.BROKEN, "light: 'flash' is not possible while 'broken'; possible now: nothing"),
    ],
)
def test_an_event_that_a_state_does_not_know_is_refused(light, state, text):
    for refuse in (light.targets, lambda state, event: light.check(state, event, Light.RED)):
        with pytest.raises(IllegalTransition) as error:
            refuse(state, Signal.FLASH)
        assert error.value.message == text


def test_a_state_that_the_table_does_not_have_allows_nothing():
    table = TransitionTable[Light, Signal]("light", Light.RED, {})
    with pytest.raises(IllegalTransition) as error:
        table.targets(Light.GREEN, Signal.TURN)
    assert error.value.message == "light: 'turn' is not possible while 'green'; possible now: nothing"


def test_check_accepts_what_is_in_the_table_and_nothing_else(light):
    for state, event, target in light:
        light.check(state, event, target)
    with pytest.raises(IllegalTransition) as error:
        light.check(Light.GREEN, Signal.TURN, Light.BROKEN)
    assert error.value.message == "light: 'turn' does not lead from 'green' to 'broken'"


def test_iterating_names_every_transition_with_targets_in_alphabetical_order(light):
    assert list(light) == [
        (Light.RED, Signal.TURN, Light.GREEN),
        (Light.RED, Signal.TURN, Light.RED),
        (Light.RED, Signal.HIT, Light.BROKEN),
        (Light.RED, Signal.HIT, Light.RED),
        (Light.GREEN, Signal.TURN, Light.RED),
    ]


def test_a_table_is_drawn_with_one_arrow_for_each_pair_of_states(light):
    assert light.to_mermaid() == (
        "stateDiagram-v2\n"
        "    [*] --> red\n"
        "    red --> green: turn\n"
        "    red --> red: turn, hit\n"
        "    red --> broken: hit\n"
        "    green --> red: turn"
    )
