"""Small worlds of lanes and of the resequencer, exhausted: everything holds in each state that can be reached."""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import Any

import pytest

from seriatim.core.lanes.lane import Lane, LooseLane
from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import ReleaseAfter, RetryMode
from seriatim.core.resequencing.options import ResequenceOptions
from seriatim.core.resequencing.resequencer import TABLE, Resequencer
from seriatim.core.sequence import SequenceSpace
from tests.exhaustive import lanes, resequencer
from tests.exhaustive.explorer import assert_table_is_exact, explore, replay
from tests.exhaustive.scopes import SCOPES


@pytest.mark.parametrize("machine", ["lanes", "resequencer"])
def test_everything_holds_in_every_state_of_the_small_worlds_of(machine: str) -> None:
    for world in SCOPES[machine].small:
        found = explore(world, most_states=20_000)
        sys.stdout.write(f"{machine}, {found}\n")
        assert found.depth > 3, "a world in which nothing happens"
    if machine == "resequencer":  # of other tables, some rows need larger worlds
        rows = set().union(*(world.rows for world in SCOPES[machine].small))
        assert_table_is_exact(TABLE, rows)


@pytest.mark.parametrize("keys", [("a/1", "a/2"), ("a/1", "b/1")], ids=["one tenant", "two tenants"])
def test_everything_holds_in_every_state_of_a_small_world_of_tenants(keys: tuple[str, ...]) -> None:
    world = lanes.tenants_world(1, keys, messages=1, verbs=lanes.CORE_VERBS | {"skip"})
    found = explore(world, most_states=20_000)
    sys.stdout.write(f"{found}\n")
    assert found.depth > 3


def test_a_message_that_was_dead_lettered_behind_a_settled_one_can_not_go_back_after_a_crash_either() -> None:
    """Machine and model agree on it, although the crash undoes that the later message was settled."""
    world = lanes.LanesWorld(lanes.delivery(mode=RetryMode.OVERTAKE), messages=2)
    overtaken = [("push", -1), ("push", -1), ("take", -1), ("give_back_later", 0), ("take", -1), ("settle", 1)]
    dead_lettered = [*overtaken, ("dead_letter", -1), ("confirm", 0), ("crash", -1)]
    script = [lanes.Command(verb, "a", rank, "x" if verb == "take" else None) for verb, rank in dead_lettered]
    state = replay(world, script)
    assert state.lanes.offsets("a", 3) == [2]
    assert not state.lanes.is_returnable("a", 1)


# -- fingerprints leave nothing out -------------------------------------------------------------------------------------


def test_what_is_the_same_for_the_explorer_is_the_same_resequencer() -> None:
    for world in resequencer.worlds(ahead=2, span=5):
        assert explore(world, check_merges=True).merges_checked > 5


def test_what_is_the_same_for_the_explorer_is_the_same_map_of_lanes() -> None:
    verbs = lanes.ALL_VERBS - {"delayed_push", "hand_back", "stale"}
    for world in (
        lanes.LanesWorld(lanes.delivery(max_attempts=1), messages=1),
        lanes.LanesWorld(lanes.delivery(2, max_attempts=1), messages=2, verbs=lanes.CORE_VERBS),
        lanes.LanesWorld(lanes.delivery(2), keys=("a", "b"), messages=1, verbs=lanes.CORE_VERBS, symmetric=False),
        lanes.LanesWorld(lanes.delivery(release=ReleaseAfter.RECEIPT, max_attempts=1), messages=2, verbs=verbs),
    ):
        assert explore(world, check_merges=True).merges_checked > 5


# -- copies are whole ---------------------------------------------------------------------------------------------------


def test_a_copy_of_lanes_knows_every_attribute() -> None:
    world = lanes.LanesWorld(lanes.delivery(2, max_attempts=3), keys=("a", None), messages=3)
    commands = ["push a", "push a", "delayed_push -", "push -", "take x", "take x", "take x", "give_back_later a"]
    script = [named(*command.split()) for command in commands]
    state = replay(world, script)
    original, copied, deep = state.lanes, lanes.copy_of(state.lanes), deepcopy(state.lanes)
    assert values(copied) == values(original) == values(deep)
    assert all(getattr(copied, name) is not getattr(original, name) for name in MUTABLE)
    copied.push("a", 99, now=0)
    copied.advance(50)
    assert values(original) == values(deep), "a copy shares nothing that changes"


MUTABLE = [
    name for name, value in vars(Lanes()).items() if isinstance(value, dict | list | set) or "Dead" in str(value)
]


def named(verb: str, about: str) -> lanes.Command:
    if verb == "take":
        return lanes.Command(verb, argument=about)
    return lanes.Command(verb, None if about == "-" else about, 0 if verb == "give_back_later" else -1)


def values(thing: Any) -> Any:
    """Everything in an object, as plain data, with lanes shown once in full and elsewhere by key."""
    if isinstance(thing, Lanes):
        full = {key: {name: values(getattr(lane, name)) for name in slots(lane)} for key, lane in thing._lanes.items()}
        return {name: values(value) for name, value in vars(thing).items()} | {"_lanes": full}
    if isinstance(thing, Lane):
        return f"lane {thing.key}"
    if isinstance(thing, dict):
        return [(values(key), values(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | set) or type(thing).__name__ in ("deque", "array"):
        return [values(each) for each in thing]
    names = getattr(type(thing), "__slots__", ())
    return (
        {name: values(getattr(thing, name)) for name in names}
        if names and type(thing).__module__ != "builtins"
        else thing
    )


def slots(lane: Lane) -> list[str]:
    return [*Lane.__slots__, *(LooseLane.__slots__ if isinstance(lane, LooseLane) else ())]


def test_a_copy_of_a_resequencer_knows_every_attribute() -> None:
    options = ResequenceOptions(space=SequenceSpace(16), gap_timeout=1)
    machine: Resequencer[int] = Resequencer(options, "k")
    for sequence in (5, 7, 9, 12, 3):
        machine.push(sequence, sequence, now=0)
    machine.skip(0)
    machine.push(3, 3, now=0)
    copied, deep = resequencer.copy_of(machine), deepcopy(machine)
    assert copied.save() == machine.save()
    copied.push(10, 10, now=5)
    copied.push(6, 6, now=5)
    copied.advance(50)
    assert machine.save() == deep.save() != copied.save()
