"""Seek, snapshots, filters and backups as programs use them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from seriatim import PubSub
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, StaleLease
from seriatim.store import restore_backup


@pytest.fixture
def run(tmp_path):
    def run(scenario, url: str = "memory://") -> None:
        async def whole() -> None:
            async with asyncio.timeout(20), PubSub(url) as pubsub:
                topic = pubsub.topic("t")
                await topic.create(retain_settled=3600)
                sub = topic.subscription("s")
                await sub.create(enable_message_ordering=True)
                await scenario(pubsub, topic, sub)

        asyncio.run(whole())

    return run


async def take(sub, count: int) -> list[bytes]:
    """Take and ack so many messages."""
    got: list[bytes] = []
    async for message in sub:
        got.append(message.data)
        await message.ack_durable()
        if len(got) == count:
            break
    return got


def test_seek_to_a_message_a_time_and_a_snapshot(run):
    async def scenario(pubsub, topic, sub):
        ids = [await topic.publish(data, ordering_key="k") for data in (b"a", b"b", b"c")]
        await take(sub, 1)
        await sub.snapshot("mark", lasts=60)
        assert [each.name for each in await pubsub.snapshots()] == ["mark"]
        await take(sub, 2)
        await sub.seek(message_id=ids[2])
        assert await take(sub, 1) == [b"c"]
        await sub.seek(snapshot="mark")
        assert await take(sub, 2) == [b"b", b"c"]
        await sub.seek(time=datetime.now(UTC) - timedelta(hours=1))
        assert await take(sub, 3) == [b"a", b"b", b"c"]
        await sub.seek(time=0.0)
        assert await take(sub, 3) == [b"a", b"b", b"c"]
        await pubsub.delete_snapshot("mark")
        assert await pubsub.snapshots() == []

    run(scenario)


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ({}, "give a time, a message_id or a snapshot"),
        ({"time": 0.0, "snapshot": "x"}, "seek needs exactly one target"),
        ({"message_id": "first"}, "'first' is not the id of a message"),
        ({"message_id": "7"}, "offset 7 was not given to any message yet"),
        ({"time": datetime(2026, 1, 1)}, "has no time zone: give a datetime with one"),  # noqa: DTZ001 - that is the point
    ],
)
def test_a_place_that_is_none_is_refused(run, place, complaint):
    async def scenario(pubsub, topic, sub):
        with pytest.raises(InvalidArgument, match=complaint):
            await sub.seek(**place)

    run(scenario)


def test_a_stream_does_not_show_what_a_seek_took_back_and_an_ack_of_it_is_refused(run):
    async def scenario(pubsub, topic, sub):
        for key in "abc":
            await topic.publish(key.encode(), ordering_key=key)
        stream = sub.messages()
        mine = await anext(stream)
        await sub.seek(message_id="1")
        with pytest.raises(StaleLease):
            mine.ack()
        assert sorted([(await anext(stream)).data, (await anext(stream)).data]) == [b"b", b"c"]

    run(scenario)


def test_a_filter_is_given_when_a_subscription_is_created(run):
    async def scenario(pubsub, topic, sub):
        red = topic.subscription("red")
        await red.create(filter='attributes.colour = "red"')
        await topic.publish(b"1", attributes={"colour": "blue"})
        await topic.publish(b"2", attributes={"colour": "red"})
        assert await take(red, 1) == [b"2"]
        with pytest.raises(InvalidArgument, match="the filter is wrong at character 1"):
            await topic.subscription("other").create(filter="colour = red")

    run(scenario)


def test_a_backup_is_taken_and_restored(run, tmp_path):
    async def scenario(pubsub, topic, sub):
        await topic.publish(b"a", ordering_key="k")
        await pubsub.backup(tmp_path / "backup.db")
        with pytest.raises(AlreadyExists):
            await pubsub.backup(tmp_path / "backup.db")

    async def after() -> None:
        async with PubSub(f"sqlite:///{tmp_path}/restored.db") as pubsub:
            assert await take(pubsub.subscription("s"), 1) == [b"a"]

    run(scenario, f"sqlite:///{tmp_path}/live.db")
    restore_backup(tmp_path / "backup.db", tmp_path / "restored.db")
    asyncio.run(after())


def test_a_seek_to_what_is_gone_names_the_earliest(tmp_path):
    async def scenario() -> None:
        async with PubSub() as pubsub:
            topic = pubsub.topic("t")
            await topic.create()
            sub = topic.subscription("s")
            await sub.create()
            await topic.publish(b"gone")
            await take(sub, 1)
            await pubsub.broker.clean_up()
            with pytest.raises(FailedPrecondition, match="the earliest offset is 1"):
                await sub.seek(message_id="0")

    asyncio.run(scenario())
