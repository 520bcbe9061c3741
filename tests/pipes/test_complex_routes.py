"""Ordering in complex routes: processors, pipelining (all pairs), and pipes that are injected to restore order."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from seriatim.core.guarantees import Guarantee, Level, level, meet
from seriatim.core.traces import classify
from seriatim.errors import GuaranteeNotMet, InvalidArgument
from seriatim.pipes import DROP, Element, InProcess, Pipe, indexed, ordered_map, resend, sequential
from seriatim.testing import run_in_virtual_time
from tests.pipes.chains import Scripted, bad_route, received_through, verdict_on

LEVELS = [*Level][1:]
QUIET: dict[str, Any] = {"report": lambda _: None}


async def uneven(message: bytes) -> bytes:
    """A worker that takes longer for some messages than for others."""
    await asyncio.sleep(1 / (1 + int(message) % 7))
    return message


# --- ordered processors ---------------------------------------------------------------------------------------------


def test_an_intermediate_worker_may_reorder_messages():
    assert verdict_on(InProcess() | ordered_map(uneven, concurrency=5, level="none") | InProcess()).level is Level.NONE


def test_an_ordered_processor_sends_its_results_in_the_order_of_the_messages():
    chain = InProcess() | ordered_map(uneven, concurrency=5) | InProcess()
    assert received_through(chain) == list(range(1, 201))


def test_an_ordered_processor_works_on_many_messages_at_once_and_on_no_more_than_it_may():
    at_work = most = 0

    async def worker(message: bytes) -> bytes:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await uneven(message)
        at_work -= 1
        return message

    assert received_through(ordered_map(worker, concurrency=4), 50) == list(range(1, 51))
    assert most == 4


async def drops_every_third(message: bytes) -> object:
    return DROP if int(message) % 3 == 0 else message


@pytest.mark.parametrize("declared", LEVELS)
def test_delivery_via_local_routes_through_an_ordered_processor_has_the_properties_of_the_processor(declared):
    async def echo(message: bytes) -> bytes:
        return message

    chain = InProcess() | ordered_map(echo, level=declared) | InProcess()
    assert chain.explain().level is declared


def test_a_worker_may_be_weaker_and_then_says_so():
    processor = ordered_map(drops_every_third, concurrency=3, worker_level="strict", name="sampler")
    assert processor.explain().level is Level.STRICT
    assert "its worker is strict" in processor.describe()
    verdict = verdict_on(processor)
    assert verdict.level is Level.STRICT
    assert verdict.lost == 66


def test_a_worker_that_drops_and_does_not_say_so_is_stopped():
    with pytest.raises(InvalidArgument, match="say worker_level='strict'"):
        received_through(ordered_map(drops_every_third))


@pytest.mark.parametrize("declared", ["absolute", "none"])
def test_a_worker_that_raises_stops_its_chain_and_whoever_sends_hears_why(declared):
    async def fails(message: bytes) -> bytes:
        if message == b"5":
            raise ZeroDivisionError("no")
        return message

    received: list[bytes] = []

    async def deliver(message: bytes) -> None:
        received.append(message)

    async def scenario() -> None:
        async with (Pipe(InProcess()) | ordered_map(fails, concurrency=2, level=declared)).run(deliver) as inlet:
            for number in range(5_000):
                await inlet.send(b"%d" % number)

    with pytest.raises(ZeroDivisionError):
        run_in_virtual_time(scenario())
    assert b"4" in received
    assert b"5" not in received
    if declared == "absolute":
        assert received == [b"0", b"1", b"2", b"3", b"4"], "nothing behind it is handed on"


# --- pipelining -----------------------------------------------------------------------------------------------------


def of_level(wanted: Level, seed: int) -> Element:
    faults = {"drop": 0.05} if wanted in {Level.MONOTONIC, Level.STRICT} else {}
    return Pipe(bad_route(seed, **faults), level=wanted, **QUIET)


@pytest.mark.parametrize(("first", "second"), product(LEVELS, LEVELS))
def test_pipelining_two_deliveries_keeps_what_both_keep(first, second):
    chain = of_level(first, 1) | of_level(second, 3)
    expected = meet(first.guarantee, second.guarantee)
    assert chain.explain().guarantee == expected
    assert expected & ~verdict_on(chain, 100).guarantee == 0


STRICT = Scripted("loses 2", Guarantee.STRICT, {2: []})
CONTINUOUS = Scripted("repeats 1", Guarantee.CONTINUOUS, {1: [1, 1]})
MONOTONIC = Scripted("loses 4, repeats 5", Guarantee.MONOTONIC, {4: [], 5: [5, 5]})


def test_pipelining_monotonic_and_continuous_delivery_results_in_monotonic_delivery():
    for chain in (MONOTONIC | CONTINUOUS, CONTINUOUS | MONOTONIC):
        assert chain.explain().level is verdict_on(chain, 6).level is Level.MONOTONIC


def test_pipelining_strict_and_non_strict_delivery_results_in_non_strict_delivery():
    for weak in (MONOTONIC, CONTINUOUS):
        for chain in (STRICT | weak, weak | STRICT):
            assert chain.explain().level is verdict_on(chain, 6).level is Level.MONOTONIC
    assert (STRICT | STRICT).explain().level is Level.STRICT


def test_a_chain_of_chains_is_a_chain():
    chain = (STRICT | InProcess()) | (InProcess() | CONTINUOUS)
    assert len(chain.elements()) == 4
    assert level(chain.stage.passes) is Level.MONOTONIC
    assert chain.explain().level is Level.MONOTONIC


# --- ordered pipes --------------------------------------------------------------------------------------------------


def test_a_pipe_in_which_the_receiver_sends_in_the_order_of_the_sender_is_an_ordered_processor():
    pipe = Pipe(bad_route())
    assert (InProcess() | pipe | InProcess()).explain().level is Level.ABSOLUTE
    assert received_through(InProcess() | pipe | InProcess()) == list(range(1, 201))


def test_ordered_pipes_can_be_injected_to_turn_unordered_delivery_on_a_route_into_ordered_delivery():
    assert verdict_on(bad_route()).level is Level.NONE
    assert verdict_on(Pipe(bad_route())).level is Level.ABSOLUTE


def test_ordered_pipes_can_be_injected_over_multiple_routes():
    routes = [bad_route(seed) for seed in range(3)]
    assert verdict_on(Pipe(*routes)).level is Level.ABSOLUTE
    assert all(route.forth.network.sent > 10 for route in routes), "each of them had its share"


def test_a_pipe_repairs_nothing_that_was_broken_before_its_sender():
    chain = Scripted("swaps", Guarantee.NONE, {1: [2], 2: [1]}) | Pipe(bad_route())
    assert received_through(chain, 4) == [2, 1, 3, 4]
    assert chain.explain().level is Level.NONE


# --- nesting --------------------------------------------------------------------------------------------------------


def test_resend_inside_index_is_absolute():
    pipe = indexed(resend(bad_route(max_frame=284), frame_messages=3), level="strict", on_gap="hold", frame_messages=2)
    assert pipe.explain().level is Level.ABSOLUTE
    assert received_through(pipe) == list(range(1, 201))


def test_resend_around_index_is_reported_as_the_weaker_result():
    route = bad_route(drop=0.1, max_frame=284)
    wrong = resend(indexed(route, level="strict", gap_timeout=0.1, frame_messages=2, **QUIET), frame_messages=2)
    assert wrong.explain().guarantee == Guarantee.NO_DUPLICATE | Guarantee.NO_LOSS
    verdict = verdict_on(wrong)
    assert verdict.guarantee == Guarantee.NO_DUPLICATE | Guarantee.NO_LOSS, "and that is what it is"
    with pytest.raises(GuaranteeNotMet, match="no inversion is given up at 'resend pipe over strict indexed pipe"):
        wrong.explain().require(Level.ABSOLUTE)


def test_resend_alone_loses_nothing_and_orders_nothing():
    verdict = classify(received_through(resend(bad_route())), sent=range(1, 201))
    assert verdict.guarantee == Guarantee.NO_DUPLICATE | Guarantee.NO_LOSS


def test_a_pipe_around_a_sequential_pipe():
    pipe = indexed(sequential(bad_route(max_frame=284)), frame_messages=2)
    assert received_through(pipe, 60) == list(range(1, 61))
