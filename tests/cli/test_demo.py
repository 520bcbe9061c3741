"""``seriatim demo``."""

from __future__ import annotations

import json

import pytest

from seriatim.cli.demo import Demo, Network, Reading, command
from seriatim.core.traces import TraceChecker
from seriatim.testing import FaultyNetwork

SMALL = ["demo", "--devices", "7", "--messages", "60", "--drop", "0.05", "--duplicate", "0.1", "--shuffle", "40"]


def test_a_disordered_trace_becomes_strict_and_everything_is_accounted_for(seriatim):
    report = json.loads(seriatim(*SMALL, "--json").stdout)
    before, after, ledger = report["before"], report["after"], report["ledger"]
    assert before["guarantee"] == "none"
    assert before["reordered"] > 0
    assert after["guarantee"] == "strict"
    assert (after["duplicates"], after["reordered"]) == (0, 0)
    assert after["received"] + ledger["duplicate"] + ledger.get("late", 0) == before["received"]
    assert report["most_in_flight_per_device"] == 1
    assert report["redeliveries"] > 0


def test_a_perfect_network_gives_absolute_order_and_an_empty_ledger(seriatim):
    report = json.loads(seriatim(*SMALL, "--drop", "0", "--duplicate", "0", "--shuffle", "0", "--json").stdout)
    assert report["before"] == report["after"]
    assert report["after"]["guarantee"] == "absolute"
    assert report["ledger"] == {}


def test_the_same_seed_gives_the_same_report_and_another_seed_another(seriatim):
    first, again, other = (seriatim(*SMALL, "--json", "--seed", seed).stdout for seed in ("5", "5", "6"))
    assert first == again != other


def test_the_tables_show_both_sides_and_the_ledger(seriatim):
    lines = seriatim(*SMALL).stdout.splitlines()
    assert lines[0] == "420 readings sent"
    assert [line.split()[-1] for line in lines if line.startswith(("from the network", "at the consumers"))] == [
        "none",
        "strict",
    ]
    assert lines[-2].startswith("ledger: ")
    assert lines[-1].endswith("at most 1 in flight per device")


def test_disorder_at_the_consumers_would_be_reported_as_a_failure(seriatim, monkeypatch):
    class Blind(TraceChecker):
        def observe(self, sequence):
            super().observe(1)

    monkeypatch.setattr("seriatim.cli.demo.TraceChecker", Blind)
    result = seriatim(*SMALL)
    assert result.exit_code == 1
    assert "did not see strict order" in result.stderr


@pytest.mark.parametrize("wrong", [["--drop", "1.5"], ["--devices", "0"], ["--shuffle", "-1"]])
def test_a_wrong_value_is_a_usage_error(seriatim, wrong):
    assert seriatim("demo", *wrong).exit_code == 2


def test_the_network_is_the_faulty_one_of_the_testing_kit():
    demo = Demo(2, 5, Network(seed=1, drop=0.0, duplicate=0.0, shuffle=3))
    line: FaultyNetwork[Reading] = FaultyNetwork(1, shuffle=3)
    assert demo._network.carry(demo._readings()) == line.transmit(list(demo._readings()))
    assert command.name == "demo"
