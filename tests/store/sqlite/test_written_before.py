"""What an earlier version wrote goes on: stores of killed owners, in SQLite and PostgreSQL, and a backup."""

from __future__ import annotations

import asyncio

import pytest

from seriatim import PubSub
from seriatim.store.sqlite.restore import restore_backup
from tests import postgres
from tests.store.sqlite import written_before


@pytest.fixture(params=["store", "backup", "postgres"])
def url(request, tmp_path):
    """The store itself, the one that its backup becomes, and one in PostgreSQL."""
    if request.param == "postgres":
        return written_before.load(postgres.server())
    written_before.unpack(tmp_path)
    if request.param == "backup":
        restore_backup(tmp_path / "backup.db", tmp_path / "restored.db")
        return f"sqlite:///{tmp_path}/restored.db"
    return f"sqlite:///{tmp_path}/store.db"


def test_keys_attempts_pauses_and_dead_letters_are_as_they_were_left(url):
    async def look() -> None:
        async with PubSub(url) as pubsub:
            ship = pubsub.subscription("ship")
            keys = {view.key: view for view in await ship.keys()}
            assert set(keys) == {"a", "c"}
            assert keys["a"].depth == 2
            is_delivery_known = "store.db" in url  # a commit followed there before the process was killed
            assert (keys["a"].attempts, keys["a"].error) == (
                (2, "the process ended during delivery") if is_delivery_known else (1, "the printer is out of paper")
            )
            assert keys["c"].why is not None
            assert "waits for a decision" in keys["c"].why
            (letter,) = await ship.dead_letters()
            assert (letter.ordering_key, letter.error) == ("b", "no such address")
            assert [snapshot.name for snapshot in await pubsub.snapshots()] == ["at the start"]

    asyncio.run(look())


def test_delivery_goes_on_in_order_and_the_filter_still_holds(url):
    async def go_on() -> None:
        async with PubSub(url) as pubsub, asyncio.timeout(20):
            ship, red = pubsub.subscription("ship"), pubsub.subscription("red")
            await ship.resume_key("c")
            await pubsub.topic("orders").publish(b"a4", ordering_key="a", attributes={"colour": "red"})
            got = [data async for data in handled(ship, 4)]
            assert [data for data in got if data != b"c1"] == [b"a2", b"a3", b"a4"]
            assert [data async for data in handled(red, 2)] == [b"a3", b"a4"]

    asyncio.run(go_on())


def test_a_seek_to_the_snapshot_delivers_everything_again(url):
    async def seek() -> None:
        async with PubSub(url) as pubsub, asyncio.timeout(20):
            ship = pubsub.subscription("ship")
            await ship.resume_key("c")
            await ship.seek(snapshot="at the start")
            got = [data async for data in handled(ship, 6)]
            texts = [text.encode() for _, text in written_before.MESSAGES if text != "b1"]  # a dead letter stays one
            assert sorted(got) == sorted(texts)
            assert [data for data in got if data.startswith(b"a")] == [b"a1", b"a2", b"a3"]

    asyncio.run(seek())


async def handled(subscription, count):
    stream = subscription.messages(max_messages=1)
    async for message in stream:
        await message.ack_durable()
        yield message.data
        count -= 1
        if count == 0:
            break
    stream.close()
