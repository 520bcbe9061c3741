"""The fleet of the demo, and the network that its readings cross."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from seriatim.core.ranges import RangeSet
from seriatim.demo.fleet import GAP_TIMEOUT, Crossing, Fleet

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
    assert arrivals[2].received_at - arrivals[1].received_at > timedelta(seconds=GAP_TIMEOUT)


def test_the_network_delays_by_less_than_what_is_missing_is_waited_for():
    sent: dict[int, float] = {}
    arrivals = list(Crossing(Fleet(devices=100, messages=50, drop=0, duplicate=0)))
    for arrival in arrivals:
        if 1 < arrival.reading.sequence < 49:
            sent.setdefault(arrival.reading.sequence, arrival.received_at.timestamp())
    latest = {arrival.reading.sequence: arrival.received_at.timestamp() for arrival in arrivals}
    assert max(latest[sequence] - first for sequence, first in sent.items()) < GAP_TIMEOUT


def test_a_payload_says_everything_of_a_reading():
    arrival = next(iter(Crossing(FLEET)))
    assert json.loads(arrival.payload()) == {
        "device": "device-0001",
        "sequence": 1,
        "temperature": arrival.reading.temperature,
        "received_at": "2030-01-01T00:00:00.001+00:00",
    }
