"""The fleet of the demo, and the network that its readings cross."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from datetime import timedelta

import pytest

from seriatim.cli.demo.command import FULL, QUICK
from seriatim.core.ranges import RangeSet
from seriatim.demo.fleet import ARRIVALS_PER_SECOND, GAP_TIMEOUT_S, Crossing, Fleet
from seriatim.demo.folder import PIPELINE

FLEET = Fleet(devices=5, messages=80, seed=3, drop=0.1, duplicate=0.1, shuffle=40)


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others():
    assert list(Crossing(FLEET)) == list(Crossing(FLEET)) != list(Crossing(replace(FLEET, seed=4)))


def test_what_did_not_arrive_was_dropped_and_what_arrived_twice_was_duplicated():
    crossing = Crossing(FLEET)
    arrivals = list(crossing)
    missing = sum(RangeSet(numbers.gaps(1, 80)).count() for numbers in crossing.arrived.values())
    assert crossing.sent == FLEET.sent == 400
    assert missing == crossing.dropped > 0
    assert len(arrivals) == crossing.arrivals == 400 - crossing.dropped + crossing.duplicated
    assert len({arrival.reading for arrival in arrivals}) == 400 - crossing.dropped


def test_times_only_rise():
    times = [arrival.received_at for arrival in Crossing(FLEET)]
    assert times == sorted(set(times))


def test_beginning_and_end_of_a_device_are_confirmed_and_the_end_comes_after_a_silence():
    everything_lost = replace(FLEET, drop=1.0)
    arrivals = [arrival for arrival in Crossing(everything_lost) if arrival.reading.device == "device-0002"]
    assert [arrival.reading.sequence for arrival in arrivals] == [1, 79, 80]
    assert arrivals[2].received_at - arrivals[1].received_at > timedelta(seconds=GAP_TIMEOUT_S)


@pytest.mark.parametrize("fleet", [FULL, QUICK])
def test_the_network_delays_by_less_than_what_is_missing_is_waited_for(fleet):
    assert 2 * fleet.shuffle / ARRIVALS_PER_SECOND < GAP_TIMEOUT_S
    overtaken: dict[tuple[str, int], float] = {}
    highest: dict[str, int] = {}
    for (device, number, _), received_at in Crossing(fleet):
        now = received_at.timestamp()
        assert now - overtaken.pop((device, number), now) < GAP_TIMEOUT_S
        for missing in range(highest.get(device, 0) + 1, number):
            overtaken[device, missing] = now
        highest[device] = max(highest.get(device, 0), number)


def test_a_payload_says_everything_of_a_reading():
    arrival = next(iter(Crossing(FLEET)))
    assert json.loads(arrival.payload()) == {
        "device": "device-0001",
        "sequence": 1,
        "temperature": arrival.reading.temperature,
        "received_at": "2025-01-01T00:00:00.001+00:00",
    }


def test_the_pipeline_waits_as_long_as_the_fleet_takes_for_granted():
    declared = tomllib.loads(PIPELINE.read_text(encoding="utf-8"))
    assert declared["order"]["gap_timeout"] == f"{GAP_TIMEOUT_S:.0f}s"
