"""The open benchmark: a run that was out of order, lost something or did something twice has no figure."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench.ordering import __main__ as ordering
from bench.ordering import peers
from bench.ordering.participants import PARTICIPANTS, Participant
from bench.ordering.picture import drawn
from bench.ordering.work import (
    BEGIN,
    DONE,
    FAILED,
    SCENARIOS,
    SPECIAL,
    SPECIAL_MESSAGES,
    Journal,
    Objection,
    Scenario,
    Work,
    judge,
)

WORK = Work(Scenario("plain"), 40)
FAILING = Work(Scenario("failing", failing=True), 40)
KEY = max(set(WORK.keys), key=lambda key: list(WORK.keys).count(key))
FIRST, SECOND, *_ = (number for number, key in enumerate(WORK.keys) if key == KEY)

Events = list[tuple[str, int]]


def events_of(work: Work) -> Events:
    """A run as it should be."""
    tries = [[(BEGIN, n), (FAILED, n)] * work.failures(n) + [(BEGIN, n), (DONE, n)] for n in range(work.messages)]
    return [event for events in tries for event in events]


def without(events: Events, number: int) -> Events:
    return [event for event in events if event[1] != number]


def inverted(events: Events) -> Events:
    other = {FIRST: SECOND, SECOND: FIRST}
    return [(what, other.get(number, number)) for what, number in events]


@pytest.mark.parametrize("work", [WORK, FAILING, Work(SCENARIOS[3], 300)], ids=lambda work: work.scenario.name)
def test_a_run_as_it_should_be_has_a_figure(work):
    judge(work, events_of(work))


@pytest.mark.parametrize(
    ("events", "objection"),
    [
        (inverted(events_of(WORK)), f"inversion: message {SECOND} of '{KEY}' came before {FIRST}"),
        (without(events_of(WORK), 39), "loss: 1 of 40 messages were not done"),
        (events_of(WORK)[:-1], "loss: 1 of 40"),
        ([*events_of(WORK), (BEGIN, 3), (DONE, 3)], "duplicate: message 3"),
        ([*events_of(WORK), (BEGIN, 3)], "duplicate: message 3"),
        ([(BEGIN, FIRST), (BEGIN, SECOND), *events_of(WORK)], f"overlap: {SECOND} of '{KEY}' began while {FIRST}"),
        ([(BEGIN, FIRST), *events_of(WORK)], "overlap"),
        ([(DONE, 0), *events_of(WORK)], "was not in flight"),
        ([*events_of(WORK), (BEGIN, 40), (DONE, 40)], "never published"),
        ([], "loss: 40 of 40"),
    ],
)
def test_a_run_with_a_planted_fault_has_none(events, objection):
    with pytest.raises(Objection, match=objection):
        judge(WORK, events)


def test_a_failing_key_that_did_not_fail_as_often_as_it_should_has_no_figure():
    with pytest.raises(Objection, match="failed 0 times, and not 1"):
        judge(FAILING, [event for n in range(40) for event in ((BEGIN, n), (DONE, n))])


def test_the_special_key_is_there_however_few_messages_there_are():
    for messages in (SPECIAL_MESSAGES, 300, 20_000):
        assert list(Work(Scenario("slow", slow=True), messages).keys).count(SPECIAL) >= SPECIAL_MESSAGES


def participant(tmp_path: Path, body: str) -> Participant:
    """One whose client is a few lines of Python."""
    package = tmp_path / "bench" / "ordering"
    package.mkdir(parents=True)
    (tmp_path / "bench" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "worker.py").write_text(f"import json, sys\nwork = json.loads(sys.argv[3])\n{body}\n")
    one = PARTICIPANTS["ours, embedded"]
    return Participant(one.client, one.server, one.missing, lambda: "test", environment={"PYTHONPATH": str(tmp_path)})


ORDERLY = "events = [(what, n) for n in range(work['messages']) for what in ('begin', 'done')]\n"
SAY = "print(json.dumps({'seconds': [0.5, 0.5], 'events': events}))"


@pytest.mark.parametrize(
    ("body", "figure"),
    [
        (ORDERLY + SAY, "200/s"),
        (ORDERLY + "events = events[2:]\n" + SAY, "no figure: loss: 1 of 100 messages were not done"),
        (ORDERLY + "events += events[:2]\n" + SAY, "no figure: duplicate"),
        ("raise SystemExit('the server has gone')", "no figure: it failed: the server has gone"),
    ],
    ids=["orderly", "loss", "duplicate", "crash"],
)
def test_the_table_has_a_figure_only_for_runs_without_an_objection(body, figure, tmp_path, monkeypatch):
    monkeypatch.setattr(ordering, "ROOT", tmp_path)
    size = ordering.Size(100, 100, 0.0, 1, 5.0, SCENARIOS[:1])
    bench = ordering.Bench(size, {"somebody": participant(tmp_path, body)})
    bench.measure()
    (row, left_out) = bench.rows({"absent": "apt install it"})
    assert row[SCENARIOS[0].name].startswith(figure)
    assert ("no figure" in figure) == (bench.readings() == {})
    assert left_out["version and settings"] == "left out: apt install it"


def test_whoever_has_a_server_that_does_not_start_is_left_out(tmp_path, monkeypatch):
    def broken() -> AbstractContextManager[str]:
        raise RuntimeError("no port")

    monkeypatch.setattr(ordering, "ROOT", tmp_path)
    one = participant(tmp_path, ORDERLY + SAY)
    size = ordering.Size(100, 100, 0.0, 1, 5.0, SCENARIOS[:1])
    bench = ordering.Bench(size, {"broken": replace(one, server=broken), "somebody": one})
    bench.measure()
    good, left_out = bench.rows({})
    assert good[SCENARIOS[0].name] == "200/s"
    assert left_out["version and settings"] == "left out: its server did not start: no port"


def test_a_figure_of_too_few_rounds_says_so_and_ours_has_its_ratio_to_the_commit_before():
    scenario = SCENARIOS[0]
    size = ordering.Size(100, 100, 0.0, 3, 5.0, [scenario])
    one = PARTICIPANTS["ours, embedded"]
    bench = ordering.Bench(size, {"ours": one, "ours, before": one})
    bench.results["ours", scenario.name] = ordering.Result([300.0, 200.0, 500.0])
    bench.results["ours, before", scenario.name] = ordering.Result([100.0, 100.0])
    ours, before = bench.rows({})
    assert (ours[scenario.name], before[scenario.name]) == ("300/s (2.50x before)", "100/s (2 of 3 rounds)")


def test_whoever_comes_when_the_time_is_over_has_no_figure(tmp_path):
    size = ordering.Size(100, 100, 0.0, 1, -1.0, SCENARIOS[:1])
    bench = ordering.Bench(size, {"somebody": participant(tmp_path, ORDERLY + SAY)})
    bench.measure()
    assert bench.rows({})[0][SCENARIOS[0].name] == "no figure: out of time"


def test_the_dispatcher_keeps_order_and_tries_a_message_again_before_the_next_one_of_its_key():
    acked: list[Any] = []

    async def ack(message: Any) -> None:
        acked.append(message)

    async def scenario() -> Journal:
        journal = Journal(FAILING)
        dispatcher = peers.Dispatcher(journal, ack)
        for number in range(FAILING.messages):
            dispatcher.add(number, number)
        async with asyncio.timeout(60):
            await dispatcher.finish()
        return journal

    judge(FAILING, asyncio.run(scenario()).events)
    assert sorted(acked) == list(range(FAILING.messages))


@pytest.mark.parametrize("scenario", [SCENARIOS[3], SCENARIOS[6]], ids=lambda scenario: scenario.name)
def test_ours_has_a_figure(scenario):
    work = Work(scenario, 60)

    async def run() -> Journal:
        journal = Journal(work)
        async with asyncio.timeout(60):
            await peers.embedded("", work, journal)
        return journal

    judge(work, asyncio.run(run()).events)


def test_the_picture_shows_figures_and_who_has_none():
    picture = drawn(["a", "b"], ["x", "y & z"], {("x", "a"): 1234.0, ("x", "b"): None, ("y & z", "a"): 5.0})
    words = [element.text for element in ET.fromstring(picture).iter() if element.text]
    assert words.count("no figure") == 2
    assert {"1,234", "5", "x", "y & z"} <= set(words)
