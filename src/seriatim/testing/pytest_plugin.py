"""Fixtures for your tests. pytest finds them by itself once Seriatim is installed.

``seriatim_in_memory``  runs an async function with a ``PubSub`` in memory, in virtual time: an hour passes in a moment
``pubsub_emulator``     a running Pub/Sub server with ``PUBSUB_EMULATOR_HOST`` set: a drop-in for Google's emulator
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from seriatim.client.pubsub import PubSub
    from seriatim.testing.emulator import PubSubEmulator

T = TypeVar("T")

TIME_LIMIT_S = 365 * 24 * 3600.0
"""In virtual time."""


@pytest.fixture
def seriatim_in_memory() -> Callable[[Callable[[PubSub], Awaitable[Any]]], Any]:
    """Call it with an async function, which gets an open ``PubSub``; returns the result of the function.

    The test fails if the function still waits after a year of virtual time, which takes a few seconds.
    """
    from seriatim.client.pubsub import PubSub
    from seriatim.testing.loop import run_in_virtual_time

    async def within_a_year(test: Callable[[PubSub], Awaitable[T]]) -> T:
        async with PubSub("memory://") as pubsub:
            try:
                async with asyncio.timeout(TIME_LIMIT_S) as limit:
                    waiting = test(pubsub)
                    if not isawaitable(waiting):
                        raise TypeError("seriatim_in_memory takes an async function: write 'async def'")
                    return await waiting
            except TimeoutError:
                if limit.expired():
                    pytest.fail(
                        "the test still waits after a year of virtual time: look for an event that nobody sets, or a message "
                        "that nobody publishes"
                    )
                raise

    def run(test: Callable[[PubSub], Awaitable[T]]) -> T:
        if not callable(test):
            raise TypeError("seriatim_in_memory takes an async function, which it calls with an open PubSub")
        if _is_in_a_loop():
            raise RuntimeError(
                "call seriatim_in_memory in a test that is a plain function: it runs an event loop of its own"
            )
        return run_in_virtual_time(within_a_year(test))

    return run


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.fixture
def pubsub_emulator() -> Iterator[PubSubEmulator]:
    """A new, empty server for the test. ``pubsub_emulator.host`` is its address."""
    from seriatim.testing.emulator import PubSubEmulator

    with PubSubEmulator() as emulator:
        yield emulator
