"""Types of ordering: the four definitions, word by word, held against what pipes of each type deliver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import pytest

from seriatim.core.guarantees import Level
from seriatim.core.traces import classify
from seriatim.pipes import Multipath, Pipe, PipeKind
from tests.pipes.chains import bad_route, received_through

Trace = Sequence[int]


def is_monotonic(trace: Trace) -> bool:
    """A message m1 which was sent before message m2 cannot be received after m2."""
    return all(earlier <= later for earlier, later in combinations(trace, 2))


def is_strict(trace: Trace) -> bool:
    """... cannot be received after m2 or after m1."""
    return all(earlier < later for earlier, later in combinations(trace, 2))


def is_continuous(trace: Trace) -> bool:
    """Monotonic, and m2, which was sent after m1, cannot be received before m1: nothing is jumped over."""
    return is_monotonic(trace) and all(later - earlier <= 1 for earlier, later in pairwise([0, *trace]))


def is_absolute(trace: Trace) -> bool:
    """m2, which was sent after m1, can only be received after m1: neither loss nor duplicates."""
    return is_continuous(trace) and is_strict(trace)


DEFINITIONS: dict[Level, Callable[[Trace], bool]] = {
    Level.MONOTONIC: is_monotonic,
    Level.STRICT: is_strict,
    Level.CONTINUOUS: is_continuous,
    Level.ABSOLUTE: is_absolute,
}

# What each type allows of 1, 2, 3, and a trace that it forbids and the next weaker one allows.
ALLOWED: dict[Level, list[Trace]] = {
    Level.MONOTONIC: [(1, 2, 3), (1, 1, 3), (1, 3), (3,)],
    Level.STRICT: [(1, 2, 3), (1, 3), (2, 3)],
    Level.CONTINUOUS: [(1, 2, 3), (1, 1, 2, 3, 3)],
    Level.ABSOLUTE: [(1, 2, 3)],
}
FORBIDDEN: dict[Level, list[Trace]] = {
    Level.MONOTONIC: [(2, 1, 3), (1, 2, 1, 3)],
    Level.STRICT: [(1, 1, 3), (1, 2, 3, 3), (2, 1)],
    Level.CONTINUOUS: [(1, 3), (2, 3), (1, 2, 1, 2, 3)],
    Level.ABSOLUTE: [(1, 1, 2, 3), (1, 3)],
}


@pytest.mark.parametrize("level", DEFINITIONS)
def test_a_definition_and_the_checker_agree(level):
    for trace in ALLOWED[level]:
        assert DEFINITIONS[level](trace), trace
        assert level.guarantee & ~classify(trace, start=1).guarantee == 0
    for trace in FORBIDDEN[level]:
        assert not DEFINITIONS[level](trace), trace
        assert level.guarantee & ~classify(trace, start=1).guarantee != 0


def test_strict_ordering_does_not_allow_duplicates_and_that_is_its_difference_from_monotonic():
    assert is_monotonic((1, 1, 2))
    assert not is_strict((1, 1, 2))


def test_continuous_ordering_does_not_allow_loss_and_that_is_its_difference_from_monotonic():
    assert is_monotonic((1, 3))
    assert not is_continuous((1, 3))


@pytest.mark.parametrize("kind", [PipeKind.SEQUENTIAL, PipeKind.INDEXED])
@pytest.mark.parametrize("level", DEFINITIONS)
@pytest.mark.parametrize("seed", range(3))
def test_a_pipe_of_each_type_delivers_in_its_order_over_a_route_without_any(kind, level, seed):
    faults = {"drop": 0.05} if level in {Level.MONOTONIC, Level.STRICT} else {}
    pipe = Pipe(bad_route(seed, **faults), kind=kind, level=level, report=lambda _: None)
    trace = received_through(pipe, 150)
    assert len(set(trace)) > 30
    assert DEFINITIONS[level](trace)
    if level in {Level.CONTINUOUS, Level.ABSOLUTE}:
        assert trace[-1] == 150, "nothing is lost at the end either"


def test_the_bare_route_has_none_of_these_orders():
    trace = received_through(bad_route())
    assert not is_monotonic(trace)
    assert not is_continuous(sorted(trace))


# --- NOTE: all ordering properties exist per delivery, which only applies for messages sent via the same route ----------


def test_ordering_holds_per_route_and_not_across_routes():
    """Two routes, each absolutely ordered, one slower than the other."""
    fast = bad_route(1, drop=0, duplicate=0, shuffle=0, delay=(0.01, 0.01))
    slow = bad_route(2, drop=0, duplicate=0, shuffle=0, delay=(0.03, 0.03))
    both = Multipath(fast, slow)
    trace = received_through(both, 20)
    assert not is_monotonic(trace)
    assert is_absolute([(number + 1) // 2 for number in trace if number % 2])
    assert is_absolute([number // 2 for number in trace if number % 2 == 0])
    assert both.explain().level is Level.NONE


def test_a_pipe_restores_order_across_several_routes():
    slow = bad_route(2, drop=0, duplicate=0, shuffle=0, delay=(0.3, 0.5))
    assert is_absolute(received_through(Pipe(bad_route(1), slow, bad_route(3)), 300))
