"""Pipes over a network that drops, repeats and shuffles, on a manual clock, with crashes and restarts of either end.

What a pipe promises is compared with what came out, for every combination of ends that remember and ends that do not: the
promises are those of ``pipe_stage`` and ``across_crashes``, so that what ``explain`` says is what is tested here.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

from seriatim.core.guarantees import Guarantee, Level, Stage, level
from seriatim.core.pipes.protocol import PipeKind, PipeOptions, across_crashes, pipe_stage
from seriatim.core.resequencing.options import OnGap, Reason
from seriatim.core.traces import classify
from tests.core.pipes.pipe_simulation import World, bad_network

UNRELIABLE = Stage("network", Guarantee.NONE, reliability=0.8)
SEEDS = range(20_000 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 1_000)
MESSAGES = 200


def random_options(random: Random) -> PipeOptions:
    """Any pipe that there is, with small and large windows and frames, hasty and patient."""
    kind = random.choice(list(PipeKind))
    chosen = Level.ABSOLUTE if kind is PipeKind.RESEND else random.choice([*Level][1:])
    timeout = random.choice([0.05, 0.2, 1.0])
    return PipeOptions(
        kind,
        chosen,
        window=random.choice([1, 7, 32, 256]),
        queue=random.choice([1, 16, 64, 512]),
        capacity=random.choice([4, 64, 1024]),
        timeout=timeout,
        max_timeout=timeout * random.choice([2, 16]),
        gap_timeout=random.choice([None, 0.03]) if chosen in {Level.MONOTONIC, Level.STRICT} else None,
        request_after=random.choice([0.0, 0.01, 0.1]),
        confirm_every=random.choice([None, 1, 5]),
        confirm_after=random.choice([0.0, 0.01]),
        frame_messages=random.choice([1, 3, 50]),
    )


def random_world(seed: int) -> World:
    random = Random(seed)
    faults: dict[str, Any] = {
        "drop": random.choice([0.0, 0.05, 0.2, 0.4]),
        "duplicate": random.choice([0.0, 0.2]),
        "shuffle": random.choice([0, 5, 50]),
        "delay": random.choice([(0.0, 0.0), (0.001, 0.02), (0.0, 0.5)]),
    }
    options = random_options(random)
    return World(
        options,
        bad_network(seed, **faults),
        bad_network(-1 - seed, **faults),
        durable_sender=random.random() < 0.5,
        durable_receiver=options.kind is not PipeKind.RESEND and random.random() < 0.5,
        output_delay=random.choice([0.0, 0.0, 0.05]),
    )


def send_all(world: World, messages: int, random: Random, crashes: int) -> int:
    """Push messages as the pipe has room for them, and let the ends crash in between; returns how often they did."""
    sent = crashed = 0
    crash_at = sorted(random.randrange(messages) for _ in range(crashes))
    while sent < messages:
        for _ in range(random.randint(1, 30)):
            if sent < messages and world.push(b"%d" % sent):
                sent += 1
        world.step()
        while crash_at and crash_at[0] < sent:
            crash_at.pop(0)
            crashed += 1
            which = random.choice(["sender", "receiver", "both"])
            if which != "receiver":
                world.start_sender()
            if which != "sender":
                world.start_receiver()
    world.run_until_confirmed()
    return crashed


def promised(world: World, crashed: bool) -> Guarantee:
    stage = pipe_stage(world.options, UNRELIABLE)
    if crashed:
        durable = {"durable_sender": world.durable_sender, "durable_receiver": world.durable_receiver}
        stage = across_crashes(stage, world.options, **durable)
    return stage.passes


@pytest.mark.soak
@pytest.mark.parametrize("block", range(10))
def test_whatever_the_network_does_and_whoever_crashes_a_pipe_keeps_what_it_promises(block):
    for seed in SEEDS[block::10]:
        world, random = random_world(seed), Random(-seed)
        crashed = send_all(world, MESSAGES, random, crashes=random.choice([0, 0, 1, 4]))
        verdict = classify([int(message) for message in world.received], sent=list(range(MESSAGES)))
        missing = promised(world, crashed > 0) & ~verdict.guarantee
        assert not missing, f"seed {seed}: {missing.in_words()} was promised; {verdict.witness}"


@pytest.mark.parametrize("kind", [PipeKind.INDEXED, PipeKind.SEQUENTIAL])
@pytest.mark.parametrize("seed", range(20))
def test_an_absolute_pipe_whose_ends_remember_is_absolute_across_any_number_of_crashes(kind, seed):
    options = PipeOptions(kind, window=20, timeout=0.05, frame_messages=4)
    world = World(options, bad_network(seed, shuffle=5), bad_network(-seed, shuffle=5))
    assert send_all(world, MESSAGES, Random(seed), crashes=30) == 30
    assert world.received == [b"%d" % number for number in range(MESSAGES)]


def test_an_absolute_pipe_delivers_a_hundred_thousand_messages_exactly_once_and_in_order():
    """Through a network that drops 20 %, duplicates 20 % and shuffles within 50."""
    options = PipeOptions(window=4096, queue=8192, capacity=4096, frame_messages=4)
    forth, back = bad_network(1), bad_network(2)
    world = World(options, forth, back)
    sent = 0
    while sent < 100_000:
        while sent < 100_000 and world.push(b"%d" % (sent + 1)):
            sent += 1
        world.step()
    world.run_until_confirmed()
    assert [int(message) for message in world.received] == list(range(1, 100_001))
    assert forth.dropped > 1_000 < forth.duplicated
    assert forth.displaced > 1_000


def test_nothing_less_than_the_pipe_would_do_here():
    network = bad_network(1)
    for number in range(1_000):
        network.send(number, 0.0)
    assert classify(network.drain(), sent=list(range(1_000))).guarantee == Guarantee.NONE


# --- any reference of a message confirms it -------------------------------------------------------------------------


def slow_network():
    return bad_network(1, drop=0.0, duplicate=0.0, shuffle=0, delay=(5.0, 5.0))


@pytest.mark.parametrize("kind", list(PipeKind))
def test_a_round_trip_longer_than_the_timeout_makes_progress(kind):
    options = PipeOptions(kind, timeout=0.1, max_timeout=3.2, window=16)
    world = World(options, slow_network(), slow_network(), durable_receiver=False)
    send_all(world, 50, Random(1), crashes=0)
    assert sorted(map(int, world.received)) == list(range(50))
    rounds = 50 if kind is PipeKind.SEQUENTIAL else 50 / 16 + 1
    assert world.now <= 11 * (rounds + 2), "each round trip brings its window further"


def test_a_long_round_trip_costs_few_copies_once_it_is_known():
    options = PipeOptions(PipeKind.SEQUENTIAL, timeout=0.1, max_timeout=60.0)
    world = World(options, slow_network(), slow_network())
    send_all(world, 100, Random(1), crashes=0)
    assert world.forth.sent < 100 * 8, "the timeout stays long until a message is confirmed that was sent once"


# --- what is lost is said -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_strict_pipe_accounts_for_every_message_that_it_does_not_hand_over(seed):
    options = PipeOptions(
        level=Level.STRICT, gap_timeout=0.1, timeout=5.0, max_timeout=5.0, window=1000, frame_messages=1
    )
    world = World(options, bad_network(seed, shuffle=3), bad_network(-seed, shuffle=3), durable_receiver=False)
    send_all(world, MESSAGES, Random(seed), crashes=0)
    received = {int(message) for message in world.received}
    given_up = {n for entry in world.ledger if entry.reason is Reason.LOST for n in range(entry.first, entry.last + 1)}
    assert received < set(range(MESSAGES)), "the network did lose some"
    first = world.sender.next_index - MESSAGES
    assert {number for number in range(MESSAGES) if number not in received} <= {n - first for n in given_up}


def test_a_pipe_that_holds_needs_a_route_that_loses_nothing_and_then_loses_nothing():
    options = PipeOptions(level=Level.STRICT, on_gap=OnGap.HOLD, window=64, frame_messages=1)
    for seed in range(20):
        lossless = bad_network(seed, drop=0.0, shuffle=20)
        world = World(options, lossless, bad_network(-seed, drop=0.4), durable_receiver=False)
        send_all(world, MESSAGES, Random(seed), crashes=0)
        assert [int(message) for message in world.received] == list(range(MESSAGES))


def test_the_model_would_notice(monkeypatch):
    """A pipe that hands repeats over is found by the first seeds already."""
    from seriatim.core.pipes.handover_order import InOrder

    def take(self, first, messages, now, /):
        return [self._hand_over(first, messages)], False

    monkeypatch.setattr(InOrder, "take", take)
    verdicts = []
    for seed in range(10):
        options = PipeOptions(window=16, frame_messages=1)
        world = World(options, bad_network(seed), bad_network(-seed))
        world.push(b"0")
        for number in range(1, 30):
            world.push(b"%d" % number)
            world.step()
        verdicts.append(classify([int(message) for message in world.received]).guarantee)
    assert level(min(verdicts)) is not Level.ABSOLUTE


# --- timeouts follow the round trip ---------------------------------------------------------------------------------


def lossy_world(seed: int, **options) -> World:
    """A fifth of all frames is lost, and a frame takes a millisecond."""
    lines = [bad_network(number, drop=0.2, duplicate=0.0, shuffle=0, delay=(0.001, 0.001)) for number in (seed, -seed)]
    return World(PipeOptions(**options), *lines)


def send_at_once(world: World, messages: int) -> float:
    """How long it takes until everything is confirmed, when nothing but the pipe itself causes a wait."""
    began = now = world.now
    assert all(world.push(b"%d" % number) for number in range(messages))
    while world.sender.kept:
        now = world.now
        world.step()
    return now - began


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_sequential_pipe_loses_little_time_to_lost_messages(seed):
    world = lossy_world(seed, kind=PipeKind.SEQUENTIAL)
    assert send_at_once(world, 2_000) < 2_000 * 0.015, (
        "a third of the round trips fail, and each costs about one timeout"
    )
    assert world.forth.sent < 2_000 * 2


def test_the_end_of_an_indexed_pipe_takes_about_as_long_in_every_run():
    times = sorted(send_at_once(lossy_world(seed, window=64, frame_messages=4), 300) for seed in range(1, 101))
    assert times[50] < 0.3
    assert times[95] < 1.0
    assert times[-1] < 3.0


def test_a_round_trip_that_becomes_longer_is_learned():
    world = lossy_world(1, kind=PipeKind.SEQUENTIAL, max_timeout=60.0)
    send_at_once(world, 500)
    world.forth, world.back = slow_network(), slow_network()
    send_at_once(world, 100)
    assert world.forth.sent < 100 + 30, "copies are sent until the new round trip is known, and no longer"
