"""The faulty network breaks what it was told to break, as much as it was told to, and the same way for the same seed."""

from __future__ import annotations

from collections import Counter
from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.errors import InvalidArgument
from seriatim.testing import FaultyNetwork

seeds = st.integers(0, 10_000)
probabilities = st.floats(0.0, 1.0)


def network(seed: int = 1, **faults: Any) -> FaultyNetwork[int]:
    return FaultyNetwork(seed, **faults)


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["drop", "duplicate"])
@pytest.mark.parametrize("value", [-0.01, 1.01, nan])
def test_a_probability_outside_zero_to_one_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        FaultyNetwork(1, **{name: value})  # type: ignore[arg-type]
    assert str(refusal.value) == f"{name} must be a probability from 0 to 1, not {value!r}"


def test_a_negative_shuffle_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        network(shuffle=-1)
    assert str(refusal.value) == "shuffle must be a number of places, 0 or more, not -1"


@pytest.mark.parametrize("delay", [(-0.1, 1.0), (2.0, 1.0), (0.0, nan)])
def test_a_delay_that_is_no_range_is_refused(delay: tuple[float, float]) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        network(delay=delay)
    assert str(refusal.value) == (f"delay must be a range of seconds, lowest first and not below 0, not {delay!r}")


# --- faults -------------------------------------------------------------------------------------------------------


def test_without_faults_everything_arrives_at_once_and_in_order() -> None:
    line = network()
    line.send(1, now=5.0)
    line.send(2, now=5.0)
    assert line.next_arrival() == 5.0
    assert line.receive(5.0) == [1, 2]
    assert line.next_arrival() is None
    assert line.transmit(range(100)) == list(range(100))
    assert (line.sent, line.dropped, line.duplicated, line.displaced) == (102, 0, 0, 0)


def test_dropping_everything_delivers_nothing() -> None:
    line = network(drop=1.0)
    assert line.transmit(range(10)) == []
    assert (line.sent, line.dropped) == (10, 10)


def test_duplicating_everything_delivers_each_twice_in_place() -> None:
    line = network(duplicate=1.0)
    assert line.transmit([1, 2, 3]) == [1, 1, 2, 2, 3, 3]
    assert (line.sent, line.duplicated, line.displaced) == (3, 3, 0)


def test_rates_are_near_their_settings() -> None:
    line = network(seed=7, drop=0.1, duplicate=0.2, shuffle=5)
    received = line.transmit(range(10_000))
    assert (line.sent, line.dropped, line.duplicated) == (10_000, 975, 1804)
    assert len(received) == line.sent - line.dropped + line.duplicated


def test_the_same_seed_makes_the_same_faults_and_another_seed_others() -> None:
    faults = {"drop": 0.2, "duplicate": 0.2, "shuffle": 3, "delay": (0.0, 1.0)}
    assert network(3, **faults).transmit(range(50)) == network(3, **faults).transmit(range(50))
    assert network(3, **faults).transmit(range(50)) != network(4, **faults).transmit(range(50))


@given(seeds, st.integers(0, 8))
def test_faults_do_not_depend_on_when_the_receiver_looks(seed: int, shuffle: int) -> None:
    polled, drained = (network(seed, drop=0.2, duplicate=0.2, shuffle=shuffle) for _ in range(2))
    received = []
    for message in range(40):
        polled.send(message, now=float(message))
        drained.send(message, now=float(message))
        received += polled.receive(float(message))
    assert received + polled.drain() == drained.drain()
    assert polled.displaced == drained.displaced


@given(seeds, probabilities, probabilities, st.integers(0, 8), st.floats(0.0, 3.0))
def test_nothing_is_invented_and_counters_add_up(
    seed: int, drop: float, duplicate: float, shuffle: int, delay: float
) -> None:
    line = network(seed, drop=drop, duplicate=duplicate, shuffle=shuffle, delay=(0.0, delay))
    counts = Counter(line.transmit(range(50)))
    assert set(counts) <= set(range(50))
    assert all(count <= 2 for count in counts.values())
    assert len(counts) == line.sent - line.dropped
    assert counts.total() == line.sent - line.dropped + line.duplicated


# --- shuffling ----------------------------------------------------------------------------------------------------


@given(seeds, st.integers(0, 8))
def test_a_message_is_displaced_by_at_most_the_shuffle_window(seed: int, shuffle: int) -> None:
    received = network(seed, shuffle=shuffle).transmit(range(60))
    assert sorted(received) == list(range(60))
    assert all(abs(place - message) <= shuffle for place, message in enumerate(received))


def test_the_shuffle_window_is_used_to_its_full_width() -> None:
    received = network(1, shuffle=4).transmit(range(2_000))
    moves = {place - message for place, message in enumerate(received)}
    assert moves == set(range(-4, 5))


def test_a_copy_to_be_overtaken_waits_for_later_ones_and_drain_ends_the_wait() -> None:
    line = network(3, shuffle=3)
    line.send(0, now=1.0)
    assert line.next_arrival() is None
    assert line.receive(100.0) == []
    assert line.drain() == [0]


def test_a_copy_that_was_overtaken_arrives_no_earlier_than_what_overtook_it() -> None:
    line = network(1, shuffle=1)
    received: list[tuple[float, int]] = []
    for message in range(20):
        now = float(message)
        line.send(message, now)
        received += [(now, arrived) for arrived in line.receive(now)]
    arrived = [message for _, message in received]
    assert arrived == [0, 1, 2, 4, 3, 5, 6, 7, 9, 8, 10, 11, 12, 13, 14, 16, 15, 17, 19, 18]
    assert all(now in (message, message + 1) for now, message in received)
    assert [now for now, _ in received] == sorted(now for now, _ in received)
    assert line.displaced == 4


def test_displaced_counts_copies_received_after_one_sent_later() -> None:
    line = network(2, shuffle=6)
    received = line.transmit(range(200))
    behind = sum(message < max(received[:place], default=-1) for place, message in enumerate(received))
    assert line.displaced == behind > 0


# --- delays -------------------------------------------------------------------------------------------------------


def test_a_fixed_delay_is_kept_exactly() -> None:
    line = network(delay=(2.0, 2.0))
    line.send(1, now=1.0)
    assert line.next_arrival() == 3.0
    assert line.receive(2.999) == []
    assert line.receive(3.0) == [1]


@given(seeds)
def test_delays_stay_within_their_range_and_decide_the_order(seed: int) -> None:
    line = network(seed, delay=(1.0, 4.0))
    for message in range(30):
        line.send(message, now=10.0)
    times: list[float] = []
    while (time := line.next_arrival()) is not None:
        assert line.receive(time) != []
        times.append(time)
    assert times == sorted(times)
    assert all(11.0 <= time <= 14.0 for time in times)


def test_drain_does_not_wait_for_delays_but_keeps_their_order() -> None:
    line = network(delay=(50.0, 50.0))
    line.send(1, now=2.0)
    line.send(2, now=1.0)
    assert line.drain() == [2, 1]
    assert line.next_arrival() is None


def test_messages_need_not_be_comparable() -> None:
    line: FaultyNetwork[object] = FaultyNetwork(1, duplicate=1.0, shuffle=2)
    messages = [object() for _ in range(20)]
    assert set(line.transmit(messages)) == set(messages)


def test_a_network_is_busy_while_anything_is_under_way() -> None:
    network: FaultyNetwork[int] = FaultyNetwork(1, shuffle=5, delay=(1.0, 1.0))
    busy = [network.is_busy]
    network.send(1, 0.0)
    busy.append(network.is_busy)
    network.drain()
    busy.append(network.is_busy)
    assert busy == [False, True, False]
