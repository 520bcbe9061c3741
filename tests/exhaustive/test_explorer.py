"""The explorer finds every state of a world, and a shortest script for what goes wrong in it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import combinations

import pytest

from seriatim.core.transition_table import TransitionTable
from tests.exhaustive.explorer import NotExhausted, Violation, World, assert_table_is_exact, explore, replay


class Shelf:
    """A machine with known states: numbers that are put on a shelf and taken off it."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.secret = 0


class ShelfWorld(World[Shelf, tuple[str, int]]):
    name = "shelf"
    forbidden = frozenset({-1})

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.rows = set()

    def start(self) -> Shelf:
        return Shelf()

    def commands(self, state: Shelf) -> Iterable[tuple[str, int]]:
        return [(verb, number) for verb in ("put", "take") for number in range(self.size)]

    def apply(self, state: Shelf, command: tuple[str, int]) -> bool:
        verb, number = command
        if (verb == "put") == (number in state.numbers):
            return False
        if verb == "put":
            state.numbers.append(number)
        else:
            state.numbers.remove(number)
        return True

    def fingerprint(self, state: Shelf) -> object:
        return tuple(sorted(state.numbers))

    def check(self, state: Shelf) -> None:
        assert set(state.numbers) != self.forbidden, "that must not be"


def test_every_state_and_every_command_in_it_is_visited_once() -> None:
    found = explore(ShelfWorld(5))
    assert (found.states, found.transitions, found.refused, found.depth) == (32, 32 * 5, 32 * 5, 5)


@pytest.mark.parametrize("forbidden", [frozenset(some) for size in (1, 2, 4) for some in combinations(range(4), size)])
def test_a_violation_comes_with_a_shortest_script(forbidden: frozenset[int]) -> None:
    world = ShelfWorld()
    world.forbidden = forbidden
    with pytest.raises(Violation, match="shelf: that must not be") as caught:
        explore(world)
    assert sorted(caught.value.script) == [("put", number) for number in sorted(forbidden)]
    with pytest.raises(AssertionError, match="that must not be"):
        replay(world, caught.value.script)


def test_an_error_that_no_machine_should_raise_is_a_violation() -> None:
    class Broken(ShelfWorld):
        def apply(self, state: Shelf, command: tuple[str, int]) -> bool:
            return super().apply(state, command) and 1 / (3 - command[1]) > 0

    with pytest.raises(Violation, match="ZeroDivisionError") as caught:
        explore(Broken())
    assert caught.value.script == [("put", 3)]


def test_a_refused_command_that_changes_something_is_a_violation() -> None:
    class Sloppy(ShelfWorld):
        def apply(self, state: Shelf, command: tuple[str, int]) -> bool:
            accepted = super().apply(state, command)
            return accepted and command != ("take", 2)

    with pytest.raises(Violation, match="refused has changed something") as caught:
        explore(Sloppy())
    assert caught.value.script == [("put", 2), ("take", 2)]


def test_a_fingerprint_that_leaves_something_out_is_noticed() -> None:
    class Forgetful(ShelfWorld):
        """Whether number 0 may be put depends on how often number 1 was: nobody can see that."""

        def apply(self, state: Shelf, command: tuple[str, int]) -> bool:
            if command == ("put", 0) and state.secret % 2:
                return False
            accepted = super().apply(state, command)
            state.secret += accepted and command == ("put", 1)
            return accepted

    assert explore(Forgetful()).states == 16, "the secret makes no difference for what is found ..."
    with pytest.raises(Violation, match="the fingerprint leaves something out"):
        explore(Forgetful(), check_merges=True)


def test_states_that_differ_in_nothing_that_matters_may_share_a_fingerprint() -> None:
    found = explore(ShelfWorld(), check_merges=True)
    assert found.merges_checked > 0


def test_a_world_that_is_larger_than_allowed_is_not_called_exhausted() -> None:
    with pytest.raises(NotExhausted, match="shelf has more than 31 states"):
        explore(ShelfWorld(5), most_states=31)


class Light(StrEnum):
    ON = "on"
    OFF = "off"


class Press(StrEnum):
    PRESS = "press"


LIGHT = TransitionTable("light", Light.OFF, {light: {Press.PRESS: frozenset(Light)} for light in Light})
ROWS = {("on", "press", "off"), ("on", "press", "on"), ("off", "press", "on"), ("off", "press", "off")}


def test_a_table_is_exact_when_just_its_rows_were_seen() -> None:
    assert_table_is_exact(LIGHT, ROWS)
    stuck = ("on", "press", "on")
    assert_table_is_exact(LIGHT, ROWS - {stuck}, {stuck: "the button is never stuck in this world"})


def test_a_table_with_a_row_too_many_or_too_few_is_not_exact() -> None:
    with pytest.raises(AssertionError, match=r"never seen.*'off', 'press', 'off'"):
        assert_table_is_exact(LIGHT, ROWS - {("off", "press", "off")})
    with pytest.raises(AssertionError, match=r"not in the table.*'break'"):
        assert_table_is_exact(LIGHT, ROWS | {("on", "break", "off")})
    with pytest.raises(AssertionError, match="out of scope, but seen"):
        assert_table_is_exact(LIGHT, ROWS, {("on", "press", "on"): "wrong"})
