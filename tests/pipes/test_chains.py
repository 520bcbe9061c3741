"""Chains explain themselves, refuse what they can't keep, and are watched at run time."""

from __future__ import annotations

import pytest

from seriatim.core.guarantees import Guarantee, Level
from seriatim.errors import GuaranteeNotMet
from seriatim.pipes import InProcess, Multipath, Pipe, Udp, Watch, ordered_map, sequential
from seriatim.testing import run_in_virtual_time
from tests.pipes.chains import Scripted, bad_route


async def echo(message: bytes) -> bytes:
    return message


async def nobody(_: bytes) -> None: ...


def test_explain_prints_each_stage_and_why():
    chain = InProcess() | Udp() | ordered_map(echo, concurrency=2)
    nothing = "gives up no inversion, no duplicate, no loss: datagrams get lost, repeated and overtaken"
    assert chain.describe().splitlines() == [
        "source: absolute",
        "1. in process: absolute, reliability 1 - keeps what arrives: local delivery",
        f"2. udp 127.0.0.1: none - {nothing}",
        "3. ordered_map(echo): none - keeps what arrives: 2 at a time, results in order",
        "end to end: none",
        "across crashes: none",
        "   in process: gives up no loss: what is under way dies with its process",
        f"   udp 127.0.0.1: {nothing.replace(', no loss:', ':')}",
        "   ordered_map(echo): keeps what arrives: what is at work dies with its process",
    ]


def test_a_pipe_is_absolute_while_its_ends_live_and_weaker_across_crashes():
    assert Pipe(Udp()).explain().level is Level.ABSOLUTE
    assert Pipe(Udp()).explain(crashes=True).guarantee == Guarantee.NONE
    assert sequential(Udp()).explain(crashes=True).level is Level.MONOTONIC
    assert (Pipe(Udp()) | ordered_map(echo)).explain().level is Level.ABSOLUTE
    assert InProcess().explain(crashes=True).level is Level.STRICT
    assert Multipath(InProcess(), InProcess()).explain(crashes=True).guarantee == Guarantee.NO_DUPLICATE


class Untouched(Scripted):
    """Fails the test when it is opened."""

    async def open(self, deliver):
        raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("needed", "crashes", "complaint"),
    [
        (Level.ABSOLUTE, False, "absolute is required, but the chain gives strict: no loss is given up at 'radio'"),
        (Level.MONOTONIC, True, "no inversion is given up at 'absolute indexed pipe over in process'"),
    ],
)
def test_a_chain_that_is_asked_for_more_than_it_gives_is_refused_before_anything_runs(needed, crashes, complaint):
    async def scenario() -> None:
        chain = Untouched("radio", Guarantee.STRICT, {}) | Pipe(InProcess())
        async with chain.run(nobody, require=needed, crashes=crashes):
            raise AssertionError("it ran")

    with pytest.raises(GuaranteeNotMet, match=complaint):
        run_in_virtual_time(scenario())


def test_what_was_opened_is_closed_when_a_later_element_can_not_be():
    async def scenario() -> None:
        route = InProcess()
        with pytest.raises(AssertionError, match="it was opened"):
            await (Untouched("radio", Guarantee.STRICT, {}) | route).open(nobody)
        await route.open_receiver(lambda _: None)  # it is free again

    run_in_virtual_time(scenario())


# --- watching -------------------------------------------------------------------------------------------------------


def watched(element, count: int = 6, **options) -> tuple[Watch, list[str]]:
    reports: list[str] = []
    watch = Watch(report=reports.append, **options)

    async def scenario() -> None:
        async with element.run(nobody, watch=watch) as inlet:
            for number in range(1, count + 1):
                await inlet.send(b"%d" % number)

    run_in_virtual_time(scenario())
    return watch, reports


@pytest.mark.parametrize(
    ("script", "level", "witness"),
    [
        ({}, Level.ABSOLUTE, None),
        ({2: []}, Level.STRICT, "2 is missing before 3"),
        ({6: []}, Level.STRICT, "6 was sent but never received"),
        ({2: [2, 2]}, Level.CONTINUOUS, "2 at index 2 was received before"),
        ({2: [3], 3: [2]}, Level.NONE, "2 at index 2 was received after 3, which was sent later"),
        ({2: [], 4: [4, 4]}, Level.MONOTONIC, "4 at index 3 was received before"),
        ({2: [0]}, Level.NONE, "0 at index 1 was never sent"),
    ],
)
def test_a_watch_reports_the_strongest_guarantee_that_held_and_the_first_violation(script, level, witness):
    watch, _ = watched(Scripted("scripted", Guarantee.ABSOLUTE, script))
    verdict = watch.verdict()
    assert verdict.level is level
    assert (verdict.witness.text if verdict.witness else None) == witness


def test_a_violation_is_reported_when_it_happens():
    _, reports = watched(Scripted("scripted", Guarantee.ABSOLUTE, {2: [3], 3: [2], 5: [5, 5]}))
    assert reports == ["2 at index 2 was received after 3, which was sent later"]


def test_a_violation_is_logged_unless_somebody_wants_to_hear_of_it(caplog, logger_as_it_was):
    async def scenario() -> None:
        async with Scripted("scripted", Guarantee.ABSOLUTE, {1: [1, 1]}).run(nobody, watch=Watch()) as inlet:
            await inlet.send(b"1")

    run_in_virtual_time(scenario())
    assert "a watched chain: 1 at index 1 was received before" in caplog.text


def test_what_is_on_its_way_is_not_lost_yet():
    watch = Watch()

    async def scenario() -> None:
        async with Pipe(bad_route()).run(nobody, watch=watch) as inlet:
            for number in range(1, 51):
                await inlet.send(b"%d" % number)
            assert watch.verdict(drained=False).level is Level.ABSOLUTE
            assert watch.verdict().level is Level.STRICT

    run_in_virtual_time(scenario())
    assert watch.verdict().level is Level.ABSOLUTE


def test_a_watch_finds_numbers_wherever_messages_carry_them():
    watch, _ = watched(Pipe(bad_route()), 50, number=lambda message: int(message) + 9, start=10)
    assert watch.verdict().level is Level.ABSOLUTE
    assert watch.verdict().received == 50


def test_the_door_of_pipes_is_as_wide_as_it_says():
    from seriatim import pipes

    assert len(set(pipes.__all__)) == len(pipes.__all__)
    assert all(hasattr(pipes, name) for name in pipes.__all__)
