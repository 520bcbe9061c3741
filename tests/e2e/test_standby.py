"""An active program and its standby on PostgreSQL, through the whole API: killed, stopped, and woken up again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seriatim import PubSub
from seriatim.errors import StoreBusy
from tests.postgres import server

CHILD = Path(__file__).with_name("active_child.py")
SHORT = 0.6
"""Seconds: a lease that runs out soon."""


@contextmanager
def active(url: str) -> Iterator[subprocess.Popen[str]]:
    """A program that owns the store, and holds its first message."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, CHILD, url], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            assert hear(child) == "holding 0"
            yield child
        finally:
            child.kill()


def hear(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def take_over(url: str, count: int = 3) -> list[bytes]:
    """Stand by until the store is free, and work off what is there."""

    async def work() -> list[bytes]:
        async with asyncio.timeout(60), PubSub(url, standby=True) as pubsub:
            got = []
            async for message in pubsub.subscription("shipping"):
                got.append(message.data)
                await message.ack_durable()
                if len(got) == count:
                    break
            assert (await pubsub.subscription("shipping").stats()).total == 0
            return got

    return asyncio.run(work())


def test_a_standby_goes_on_where_a_killed_program_was():
    url = server().new_url(lease=30.0)
    with active(url) as child:
        child.kill()
        child.wait()
        assert take_over(url) == [b"0", b"1", b"2"]


def test_a_stopped_program_is_replaced_and_can_change_nothing_when_it_wakes_up():
    url = server().new_url(lease=SHORT)
    with active(url) as child:
        child.send_signal(signal.SIGSTOP)
        assert take_over(url) == [b"0", b"1", b"2"], "what it held is given out again, in order"
        child.send_signal(signal.SIGCONT)
        assert child.stdin is not None
        child.stdin.write("go on\n")
        child.stdin.flush()
        assert [hear(child), hear(child)] == ["StoreLost", "StoreLost"]
    assert take_over_nothing(url) == 0


def take_over_nothing(url: str) -> int:
    async def look() -> int:
        async with PubSub(url, standby=True) as pubsub:
            return (await pubsub.subscription("shipping").stats()).total

    return asyncio.run(look())


def test_without_standby_an_owned_store_is_busy_and_says_who_owns_it():
    url = server().new_url(lease=30.0)

    async def second() -> None:
        async with PubSub(url):
            pass

    with active(url) as child, pytest.raises(StoreBusy, match=f"process {child.pid}"):
        asyncio.run(second())


def test_a_standby_can_stop_waiting_and_leaves_the_store_to_others():
    url = server().new_url(lease=30.0)

    async def impatient() -> None:
        async with asyncio.timeout(0.3), PubSub(url, standby=True):
            pass

    with active(url) as child:
        with pytest.raises(TimeoutError):
            asyncio.run(impatient())
        child.kill()
        child.wait()
        assert take_over(url) == [b"0", b"1", b"2"]
