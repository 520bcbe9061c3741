"""A backup of a live engine: whole messages of one moment, and a store that goes on from there."""

from __future__ import annotations

import asyncio

from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.store import restore_backup
from tests.engine.conftest import Collector, work_off


def test_a_backup_taken_while_messages_are_published_and_acked_is_restored_and_goes_on(tmp_path):
    async def before() -> tuple[int, int, set[int]]:
        engine = await Engine.open(f"sqlite:///{tmp_path}/live.db")
        await engine.create_topic("t")
        await engine.create_subscription("t", "s", SubscriptionOptions(message_ordering=True))
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        stop, enough, tokens = asyncio.Event(), asyncio.Event(), set[int]()
        published: list[list[int]] = []

        async def publish() -> None:
            while not stop.is_set():
                key = f"key{len(published) % 7}"
                published.append([int(id_) for id_ in await engine.publish("t", [Outgoing(key, b"x" * 500)] * 5)])
                if len(published) == 20:
                    enough.set()

        async def consume() -> None:
            while not stop.is_set():
                for one in list(got.got):
                    attachment.ack(one.lease)
                    tokens.add(one.lease.token)
                got.got.clear()
                await asyncio.sleep(0)

        work = [asyncio.create_task(publish()), asyncio.create_task(consume())]
        await enough.wait()
        durable = published[-1][-1]
        await engine.backup(str(tmp_path / "backup.db"))
        stop.set()
        await asyncio.gather(*work)
        last = published[-1][-1]
        await engine.close()
        return durable, last, tokens

    async def after(durable: int, last: int, tokens: set[int]) -> None:
        engine = await Engine.open(f"sqlite:///{tmp_path}/restored.db")
        assert list(engine._store.check()) == []
        assert engine.get_topic("t").next_offset > last, "an id that was given after the backup is not given again"
        left = len(engine.get_subscription("s").lanes)
        offsets = [record.offset for record in engine._store.read(engine.get_topic("t").id, 0, 10**6)]
        assert not offsets or offsets[-1] >= durable, "what was durable before the backup is in it"
        (id_,) = await engine.publish("t", [Outgoing("new", b"after")])
        assert (await work_off(engine, left + 1)).count(b"after") == 1
        assert int(id_) > last
        assert engine.first_token() > max(tokens), "no token is given twice"
        await engine.close()

    told = asyncio.run(before())
    restore_backup(str(tmp_path / "backup.db"), str(tmp_path / "restored.db"))
    asyncio.run(after(*told))
