"""Messages and how far their writer has come, in one transaction."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.engine.broker import WriterMove
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, StoreFailed
from tests.engine.conftest import Collector, ids, prepare, publish, settle_down
from tests.engine.link.linked import linked, outgoing, run_bounded


def test_messages_are_written_together_with_the_position_of_their_writer(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        assert await engine.position_of("w") == 0
        assert await engine.publish_once("t", [WriterMove("w", 0, 5)], outgoing("a")) == ids(1)
        assert await engine.position_of("w") == 5
        assert (await got.wait(1))[0].record.data == b"a"

    run(scenario)


def test_a_writer_that_stands_elsewhere_writes_nothing(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        await engine.publish_once("t", [WriterMove("w", 0, 1)], outgoing("first"))
        with pytest.raises(FailedPrecondition, match="writer 'w' stands at 1 and not at 0"):
            await engine.publish_once("t", [WriterMove("w", 0, 1)], outgoing("first"))
        await settle_down(engine)
        assert (len(subscription.lanes), await engine.position_of("w")) == (1, 1)

    run(scenario)


def test_what_goes_beside_into_another_topic_is_of_the_same_transaction(run):
    async def scenario(engine):
        await prepare(engine)
        await engine.create_topic("ledger")
        beside = {"ledger": outgoing("late", "lost")}
        assert await engine.publish_once("t", [WriterMove("w", 0, 1)], outgoing("a"), beside) == ids(1)
        with pytest.raises(FailedPrecondition):
            await engine.publish_once("t", [WriterMove("w", 0, 1)], outgoing("a"), beside)
        assert (await engine.describe_topic("t")).next_offset == 2, "an offset of what was refused is not used again"
        assert await engine.publish_once("t", [WriterMove("w", 1, 2)], [], {"ledger": outgoing("more")}) == ids(2, 2)
        written = await engine.load(lambda store: list(store.read(engine.get_topic("ledger").id, 0, 10)))
        assert [record.data for record in written] == [b"late", b"lost", b"more"]

    run(scenario)


def test_many_writers_take_their_steps_together_or_none_does(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        assert await engine.publish_once(
            "t", [WriterMove("v", 0, 1), WriterMove("w", 0, 2)], outgoing("a", "b")
        ) == ids(2)
        assert [await engine.position_of(writer) for writer in "vw"] == [1, 2]
        with pytest.raises(FailedPrecondition, match="writer 'w' stands at 2 and not at 3"):
            await engine.publish_once("t", [WriterMove("v", 1, 5), WriterMove("w", 3, 5)], outgoing("c"))
        with pytest.raises(InvalidArgument, match="one move at a time"):
            await engine.publish_once("t", [WriterMove("v", 1, 5), WriterMove("v", 5, 6)], outgoing("c"))
        await settle_down(engine)
        assert [await engine.position_of(writer) for writer in "vw"] == [1, 2]
        assert len(subscription.lanes) == 2

    run(scenario)


def test_nothing_is_written_when_the_topic_beside_is_not_there_or_is_the_same(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        with pytest.raises(NotFound):
            await engine.publish_once("t", [WriterMove("w", 0, 1)], outgoing("a"), {"nowhere": outgoing("b")})
        with pytest.raises(InvalidArgument, match="to another topic"):
            await engine.publish_once("t", [WriterMove("w", 0, 1)], outgoing("a"), {"t": outgoing("b")})
        await settle_down(engine)
        assert (len(subscription.lanes), await engine.position_of("w")) == (0, 0)

    run(scenario)


def test_a_refused_writer_takes_nobody_else_in_its_commit_down(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        before = publish(engine, "before")
        refused = asyncio.ensure_future(engine.publish_once("t", [WriterMove("w", 3, 4)], outgoing("refused")))
        await asyncio.sleep(0)
        after = publish(engine, "after")
        await asyncio.gather(before, after)
        with pytest.raises(FailedPrecondition):
            await refused
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        first = (await got.wait(1))[0]
        subscription.outcomes.ack(first.lease)
        await got.wait(2)
        assert got.data == [b"before", b"after"]

    run(scenario)


def test_nothing_moves_when_the_topic_is_not_there_or_the_commit_fails(run_watched):
    async def scenario(engine, store) -> None:
        await prepare(engine)
        with pytest.raises(NotFound):
            await engine.publish_once("nowhere", [WriterMove("w", 0, 1)], outgoing("x"))
        store.failures.append(StoreFailed("the disk says no"))
        with pytest.raises(StoreFailed):
            await engine.publish_once("t", [WriterMove("w", 0, 1)], outgoing("x"))
        assert await engine.position_of("w") == 0
        assert await engine.publish_once("t", [WriterMove("w", 0, 1)], outgoing("x")) == ids(1, 2)

    run_watched(scenario)


def test_the_same_over_the_link(tmp_path):
    async def scenario() -> None:
        async with linked(tmp_path) as link:
            broker = await link.client()
            await broker.create_topic("t")
            assert await broker.publish_once("t", [WriterMove("w", 0, 1 << 90)], outgoing("a", "b")) == ids(2)
            with pytest.raises(FailedPrecondition, match="stands at"):
                await broker.publish_once("t", [WriterMove("w", 0, 1)], outgoing("a"))
            assert await broker.position_of("w") == 1 << 90
            await broker.create_topic("ledger")
            await broker.publish_once(
                "t", [WriterMove("w", 1 << 90, 1 << 91)], outgoing("c"), {"ledger": outgoing("late")}
            )
            assert (await broker.describe_topic("ledger")).next_offset == 1
            await broker.close()

    run_bounded(scenario)
