"""The faulty route: a route through a faulty network, the same for the same seed."""

from __future__ import annotations

from seriatim.core.guarantees import Guarantee
from seriatim.testing import FaultyRoute
from tests.pipes.chains import received_through


def through(seed: int, **faults) -> list[int]:
    return received_through(FaultyRoute(seed, **faults), 100)


def test_without_faults_it_is_a_route_like_any_other():
    assert through(1) == list(range(1, 101))


def test_its_faults_are_those_of_its_seed():
    faults = {"drop": 0.2, "duplicate": 0.2, "shuffle": 10, "delay": (0.0, 0.1)}
    assert through(1, **faults) == through(1, **faults) != through(2, **faults)


def test_it_does_what_it_is_told_and_promises_nothing():
    assert len(through(1, drop=0.5)) < 80
    assert len(through(1, duplicate=0.5)) > 120
    assert sorted(through(1, shuffle=20)) == list(range(1, 101)) != through(1, shuffle=20)
    assert FaultyRoute(1).explain().guarantee == Guarantee.NONE


def test_what_comes_when_nobody_listens_is_lost():
    async def scenario() -> list[bytes]:
        import asyncio

        route, heard = FaultyRoute(1), list[bytes]()
        sender = await route.open_sender(lambda _: None)
        sender.send(b"early")
        await asyncio.sleep(1)
        receiver = await route.open_receiver(heard.append)
        sender.send(b"in time")
        await asyncio.sleep(1)
        await receiver.close()
        sender.send(b"late")
        await asyncio.sleep(1)
        await sender.ready()
        await sender.close()
        return heard

    from seriatim.testing import run_in_virtual_time

    assert run_in_virtual_time(scenario()) == [b"in time"]
