"""Implementing ordered pipes: both implementations, and how each enforces continuity and strictness."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest

from seriatim.core.guarantees import Level
from seriatim.core.pipes.protocol import Confirm, Data
from seriatim.core.traces import classify
from seriatim.errors import CapacityExceeded, FailedPrecondition, InvalidArgument
from seriatim.pipes import InProcess, Pipe, PipeOptions, indexed, resend, sequential
from seriatim.pipes.frames import decode
from seriatim.testing import FaultyRoute, run_in_virtual_time
from tests.pipes.chains import bad_route, received_through


class Tapped(FaultyRoute):
    """Remembers every frame, in either direction, in the order in which they were sent."""

    def __init__(self, **faults) -> None:
        super().__init__(1, **faults)
        self.frames: list = []
        for line in (self.forth, self.back):
            line.send = self._tap(line.send)  # type: ignore[method-assign]

    def _tap(self, send):
        def tapped(frame: bytes) -> None:
            self.frames.append(decode(frame))
            send(frame)

        return tapped

    def data(self) -> list[Data]:
        return [frame for frame in self.frames if isinstance(frame, Data) and frame.messages]

    def confirmations(self) -> list[Confirm]:
        return [frame for frame in self.frames if isinstance(frame, Confirm)]


# --- sequential processing pipe (receive queue) -----------------------------------------------------------------------


def test_sequential_p2_confirms_every_message_to_p1():
    route = Tapped()
    assert received_through(sequential(route), 20) == list(range(1, 21))
    first = route.data()[0].first
    assert {frame.expected for frame in route.confirmations()} >= {first + number for number in range(1, 21)}


def test_sequential_p1_does_not_process_a_message_before_p2_has_sent_the_previous_one():
    route, handed_over = Tapped(), list[bytes]()

    async def scenario() -> None:
        async def deliver(message: bytes) -> None:
            under_way = {frame.first for frame in route.data()}
            assert len(under_way) == len(handed_over) + 1
            await asyncio.sleep(0.01)
            handed_over.append(message)

        async with sequential(route).run(deliver) as inlet:
            for number in range(20):
                await inlet.send(b"%d" % number)

    run_in_virtual_time(scenario())
    assert len(handed_over) == 20


def test_sequential_to_enforce_continuity_the_sender_re_sends_what_was_not_confirmed():
    route = Tapped(drop=0.3)
    assert received_through(sequential(route), 50) == list(range(1, 51))
    assert len(route.data()) > 50
    assert route.forth.network.dropped > 5


def test_sequential_to_enforce_strictness_the_receiver_confirms_duplicates_without_sending_them():
    """Every confirmation is lost at first, so every message is sent again."""
    route = Tapped(delay=(0.15, 0.15))
    assert received_through(sequential(route), 20) == list(range(1, 21))
    assert len(route.data()) > 20
    assert len(route.confirmations()) > 20


def test_sequential_without_strictness_a_repeat_is_sent_again_in_its_place():
    route = Tapped(delay=(0.15, 0.15))
    received = received_through(sequential(route, level="continuous"), 20)
    verdict = classify(received, sent=range(1, 21))
    assert verdict.level is Level.CONTINUOUS
    assert verdict.duplicates > 0


# --- indexed processing pipe (send queue) -----------------------------------------------------------------------------


def test_indexed_p1_assigns_each_message_a_monotonic_continuous_index():
    route = Tapped(max_frame=142)
    received_through(indexed(route), 50)
    firsts = {frame.first: len(frame.messages) for frame in route.data()}
    starts = sorted(firsts)
    assert all(start + firsts[start] == following for start, following in pairwise(starts))
    assert sum(firsts.values()) == 50


def test_indexed_p2_sends_messages_in_index_order():
    route = Tapped(shuffle=20, max_frame=142)
    assert received_through(indexed(route), 200) == list(range(1, 201))
    assert route.forth.network.displaced > 10


def test_indexed_to_enforce_continuity_the_receiver_requests_missing_lower_indexes():
    route = Tapped(drop=0.2, max_frame=142)
    assert received_through(indexed(route), 200) == list(range(1, 201))
    asked = [frame.missing for frame in route.confirmations() if frame.missing]
    assert asked
    for frame in route.confirmations():
        assert all(frame.expected <= lo <= hi < frame.seen for lo, hi in frame.missing)


def test_indexed_to_enforce_strictness_the_receiver_drops_the_index_of_what_was_sent():
    route = Tapped(duplicate=0.9, max_frame=142)
    assert received_through(indexed(route), 200) == list(range(1, 201))
    assert route.forth.network.duplicated > 20


# --- windows, limits, back-pressure -----------------------------------------------------------------------------------


def test_a_slow_output_holds_the_sender_back():
    sent, taken, furthest = 0, 0, 0

    async def scenario() -> None:
        nonlocal sent, taken, furthest

        async def slow(_: bytes) -> None:
            nonlocal taken, furthest
            await asyncio.sleep(1)
            taken += 1
            furthest = max(furthest, sent - taken)

        async with Pipe(InProcess(), window=4, queue=10).run(slow) as inlet:
            for _ in range(50):
                await inlet.send(b"x")
                sent += 1

    run_in_virtual_time(scenario())
    assert taken == 50
    assert furthest <= 11


def test_a_sender_that_is_told_to_raise_does_not_wait():
    async def scenario() -> None:
        async with Pipe(InProcess(), queue=3, on_full="raise").sending() as out:
            for _ in range(3):
                await out.send(b"x")
            with pytest.raises(CapacityExceeded):
                await out.send(b"x")

    run_in_virtual_time(scenario())


def test_what_a_strict_pipe_gives_up_is_reported():
    entries: list = []
    route = bad_route(drop=0.3)
    received = received_through(Pipe(route, level="strict", gap_timeout=0.05, report=entries.append), 100)
    assert len(received) < 100
    assert entries


# --- the ends ---------------------------------------------------------------------------------------------------------


def test_two_ends_of_their_own_and_an_iterator_of_messages():
    async def scenario() -> list[bytes]:
        pipe, got = Pipe(bad_route()), list[bytes]()
        async with pipe.receiving() as messages, pipe.sending() as out:
            for number in range(30):
                await out.send(b"%d" % number)
            async for message in messages:
                got.append(message)
                if len(got) == 30:
                    break
        return got

    assert run_in_virtual_time(scenario()) == [b"%d" % number for number in range(30)]


def test_a_receiver_that_leaves_in_peace_has_taken_what_it_has_in_hand_and_one_that_fails_has_not():
    async def scenario(fails: bool) -> list[bytes]:
        pipe, got = Pipe(InProcess(), window=1), list[bytes]()
        async with pipe.sending() as out:
            for number in range(2):
                await out.send(b"%d" % number)
            with suppress(ZeroDivisionError):
                async with pipe.receiving() as messages:
                    async for message in messages:
                        got.append(message)
                        if fails:
                            raise ZeroDivisionError
                        break
            async with pipe.receiving() as messages:
                async for message in messages:
                    got.append(message)
                    if message == b"1":
                        break
            await out.drain()
        return got

    assert run_in_virtual_time(scenario(fails=False)) == [b"0", b"1"]
    assert run_in_virtual_time(scenario(fails=True)) == [b"0", b"0", b"1"]


def test_a_closed_pipe_says_so_to_whoever_waits():
    async def scenario() -> None:
        async with Pipe(InProcess(), queue=1).sending() as out:
            await out.send(b"x")
            waiting = asyncio.create_task(out.send(b"y"))
            draining = asyncio.create_task(out.drain())
            await asyncio.sleep(1)
        for task in (waiting, draining):
            with pytest.raises(FailedPrecondition, match="this pipe was closed"):
                await task
        with pytest.raises(FailedPrecondition, match="this pipe was closed"):
            await out.send(b"z")

    run_in_virtual_time(scenario())


def test_an_output_that_fails_stops_the_pipe_and_the_sender_hears_why():
    async def scenario() -> None:
        async def fails(_: bytes) -> None:
            raise ZeroDivisionError("no")

        async with Pipe(InProcess(), queue=5).run(fails) as inlet:
            for _ in range(100):
                await inlet.send(b"x")

    with pytest.raises(ZeroDivisionError):
        run_in_virtual_time(scenario())


def test_the_receiving_end_can_be_waited_for():
    async def scenario() -> None:
        async def fails(_: bytes) -> None:
            raise ZeroDivisionError("no")

        pipe = Pipe(InProcess())
        async with pipe.receiving(fails) as end, pipe.sending() as out:
            await out.send(b"x")
            with pytest.raises(ZeroDivisionError):
                await end.wait()
        async with pipe.receiving() as end:
            with pytest.raises(FailedPrecondition, match="iterate over its messages instead"):
                await end.wait()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (Pipe, "a pipe needs at least one route"),
        (lambda: Pipe(InProcess(), options=PipeOptions(), window=3), "as one object or by name"),
        (lambda: Pipe(bad_route(), level="strict", on_gap="hold"), "would wait for ever"),
        (lambda: resend(InProcess(), on_full="drop-oldest"), "drop nothing"),
    ],
)
def test_a_pipe_that_can_not_work_is_refused_before_anything_runs(make, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        make()
