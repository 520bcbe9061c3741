"""A client of the link judges by the clock which leases it still holds, however late it reads what was sent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from seriatim.core.lanes.types import Lease
from seriatim.engine.consumer import Delivered
from seriatim.engine.link import frames
from seriatim.engine.link.frames import encode
from seriatim.engine.link.remote import RemoteBroker
from seriatim.errors import StaleLease
from tests.engine.conftest import Collector
from tests.engine.link.linked import linked, run_bounded

AHEAD = 5000.0
"""The owner's clock counts from somewhere else."""

DEADLINE = 10.0


@asynccontextmanager
async def owner(tmp_path):
    """An owner that says what the test wants it to say, and a client with one consumer."""
    met: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(frames.Hello(frames.VERSION, 1)) + encode(frames.Clock(clock())))
        met.set_result(writer)
        await reader.read()
        writer.close()

    path = tmp_path / "owner.sock"
    server = await asyncio.start_unix_server(meet, path)
    client, got = await RemoteBroker.connect(path), Collector()
    attachment = client.attach("s", got.consumer)
    try:
        yield await met, attachment, got
    finally:
        await client.close()
        server.close()


def clock() -> float:
    return asyncio.get_running_loop().time() + AHEAD


def deliver(offset: int, age: float = 0.0) -> frames.Deliver:
    lease = Lease(token=offset, key="k", offset=offset, attempt=1, deadline=0.0)
    return frames.Deliver(1, DEADLINE, [Delivered.of(lease, b"", None, 0.0)], clock() - age)


def test_a_delivery_that_is_read_after_its_time_is_over_is_not_handed_out(tmp_path):
    async def scenario() -> None:
        async with owner(tmp_path) as (writer, attachment, got):
            writer.write(encode(deliver(1, age=DEADLINE + 5)) + encode(deliver(2, age=DEADLINE - 5)))
            (second,) = await got.wait(1)
            assert second.lease.offset == 2
            assert attachment.holds(second.lease)

    run_bounded(scenario)


def test_a_delivery_is_not_handed_out_when_the_news_of_its_loss_came_with_it(tmp_path):
    async def scenario() -> None:
        async with owner(tmp_path) as (writer, _, got):
            writer.write(encode(deliver(1)) + encode(frames.Fence(1, 1)) + encode(deliver(2)))
            (second,) = await got.wait(1)
            assert second.lease.offset == 2
            assert got.fenced == [1]

    run_bounded(scenario)


def test_a_lease_is_held_until_its_time_is_over_and_cannot_be_extended_afterwards(tmp_path):
    async def scenario() -> None:
        async with owner(tmp_path) as (writer, attachment, got):
            writer.write(encode(deliver(1, age=DEADLINE - 0.5)))
            (first,) = await got.wait(1)
            attachment.extend(first.lease, 1.2)
            await asyncio.sleep(0.6)
            assert attachment.holds(first.lease)
            await asyncio.sleep(0.7)
            assert not attachment.holds(first.lease)
            with pytest.raises(StaleLease, match="its time was over"):
                attachment.extend(first.lease, 10)

    run_bounded(scenario)


def test_clocks_are_compared_before_anything_is_delivered(tmp_path):
    async def scenario() -> None:
        async with linked(tmp_path) as link:
            client = await RemoteBroker.connect(link.path)
            assert await client.list_topics() == []
            assert client.age_of(asyncio.get_running_loop().time() - 100) == pytest.approx(100, abs=10)
            await client.close()

    run_bounded(scenario)
