"""Looks at the store that open pages share."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.console.samples import AT_ONCE, MAX_LOOKS, OLDEST_S, SPARED, Looks
from seriatim.testing import run_in_virtual_time


class Store:
    def __init__(self, took: float) -> None:
        self.took, self.asked = took, 0

    async def look(self) -> int:
        self.asked = number = self.asked + 1
        await asyncio.sleep(self.took)
        return number


def test_many_pages_at_once_look_once():
    async def scenario():
        looks, store = Looks(), Store(0.01)
        assert await asyncio.gather(*(looks.share("keys", store.look) for _ in range(20))) == [1] * 20

    run_in_virtual_time(scenario())


def test_the_more_a_look_costs_the_longer_it_serves_but_not_for_long():
    async def scenario():
        for took, serves in ((0.01, SPARED * 0.01), (10.0, OLDEST_S)):
            looks, store = Looks(), Store(took)
            await looks.share("keys", store.look)
            await asyncio.sleep(serves * 0.9)
            assert await looks.share("keys", store.look) == 1
            assert await looks.share("others", store.look) == 2
            await asyncio.sleep(serves * 0.2)
            assert await looks.share("keys", store.look) == 3

    run_in_virtual_time(scenario())


def test_a_change_makes_every_look_old_even_one_under_way():
    async def scenario():
        looks, store = Looks(), Store(1.0)
        under_way = asyncio.ensure_future(looks.share("keys", store.look))
        await asyncio.sleep(0.5)
        looks.clear()
        assert await looks.share("keys", store.look) == 2
        assert await under_way == 1
        assert await looks.share("keys", store.look) == 2

    run_in_virtual_time(scenario())


def test_a_look_that_failed_is_repeated_and_one_that_is_given_up_goes_on_for_others():
    async def scenario():
        looks, store = Looks(), Store(1.0)

        async def fail():
            raise LookupError("no such thing")

        with pytest.raises(LookupError):
            await looks.share("keys", fail)
        first = asyncio.ensure_future(looks.share("keys", store.look))
        second = asyncio.ensure_future(looks.share("keys", store.look))
        await asyncio.sleep(0.5)
        first.cancel()
        assert await second == 1

    run_in_virtual_time(scenario())


def test_they_are_bounded():
    async def scenario():
        looks, store = Looks(), Store(1.0)
        for number in range(MAX_LOOKS + 5):
            await looks.share(number, store.look)
        assert len(looks._found) == MAX_LOOKS

    run_in_virtual_time(scenario())


def test_looks_of_one_token_take_turns_and_others_do_not_wait_for_them():
    async def scenario():
        looks, store = Looks(), Store(1.0)
        flood = [asyncio.ensure_future(looks.take_turn("eye", store.look)) for _ in range(100)]
        await asyncio.sleep(0.5)
        assert store.asked == AT_ONCE
        await asyncio.gather(looks.take_turn("ops", store.look), looks.share("keys", store.look))
        assert sum(one.done() for one in flood) == AT_ONCE
        await asyncio.gather(*flood)

    run_in_virtual_time(scenario())
