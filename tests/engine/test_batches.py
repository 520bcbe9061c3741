"""Batches from files: written once for a writer and a number, whole, in their place among everything else."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.engine.engine import Engine
from seriatim.errors import DamagedStore, NotFound, OutcomeUnknown
from tests.engine.conftest import Collector, WatchedStore, ids, prepare, publish, work_off


def stored(engine: Engine) -> list[bytes]:
    return [record.data for record in engine._store.read(engine.get_topic("t").id, 0, 1000)]


def test_a_batch_is_written_once_however_often_it_is_asked_for(run, stage):
    async def scenario(engine):
        await engine.create_topic("t")
        files = [stage("a", "1", "2", "3"), stage("b", "4")]
        assert await engine.append_batch("t", "query", 0, files) == ids(4)
        assert await engine.append_batch("t", "query", 0, files) is None
        assert await engine.append_batch("t", "other query", 0, files[1:]) is not None
        assert stored(engine) == [b"1", b"2", b"3", b"4", b"4"]
        assert (await engine.metrics()).topics["t"].published == 5

    run(scenario)


def test_a_batch_that_was_written_is_known_after_a_restart(run_with_restarts, stage):
    async def first(engine):
        await engine.create_topic("t")
        assert await engine.append_batch("t", "query", 7, [stage("a", "1")]) == ids(1)

    async def second(engine):
        assert await engine.append_batch("t", "query", 7, [stage("b", "1")]) is None
        assert stored(engine) == [b"1"]

    run_with_restarts(first, second)


def test_every_file_of_a_batch_has_its_place_behind_what_was_published_before(run, stage):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "0", "1")
        files = [stage("a", "2", "3", "4"), stage("b", "5"), stage("c", "6")]
        assert await engine.append_batch("t", "query", 0, files) == ids(2, 7)
        positions = [one.offset for some in engine._store.headers(engine.get_topic("t").id, 0) for one in some]
        assert positions == list(range(7))
        assert await work_off(engine, 7) == stored(engine) == [b"%d" % number for number in range(7)]

    run(scenario)


def test_a_batch_wakes_subscribers_and_is_delivered_in_order(run, stage):
    async def scenario(engine):
        await prepare(engine)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await engine.append_batch("t", "query", 0, [stage("a", "1", "2", "3"), stage("b", "4")])
        for count in (1, 2, 3, 4):
            attachment.ack((await got.wait(count))[-1].lease)
        assert got.data == [b"1", b"2", b"3", b"4"]

    run(scenario)


def test_a_batch_and_publishes_of_the_same_commit_do_not_get_in_each_others_way(run, stage):
    async def scenario(engine):
        await prepare(engine)
        files = [stage("a", "b1", "b2", "b3")]
        futures = [publish(engine, "p1"), asyncio.ensure_future(engine.append_batch("t", "query", 0, files))]
        for number in range(2, 40):
            futures.append(publish(engine, f"p{number}"))
            await asyncio.sleep(0.0005)  # some of them ride with the batch, some before and after it
        offsets = sorted(int(id_) for part in await asyncio.gather(*futures) for id_ in part)
        assert offsets == list(range(42))
        kept = stored(engine)  # before clean-up takes what is worked off
        assert await work_off(engine, 42) == kept

    run(scenario)


def test_a_subscription_that_is_created_with_a_batch_under_way_misses_nothing_and_gets_nothing_twice(run, stage):
    async def scenario(engine):
        await engine.create_topic("t")
        for number in range(20):
            batch = engine.append_batch("t", "query", number, [stage(f"{number}", "1", "2")])
            creation = engine.create_subscription("t", f"s{number}")
            await asyncio.gather(batch, creation)
            assert len(engine.get_subscription(f"s{number}").lanes) in {0, 2}
            await engine.append_batch("t", "after", number, [stage("after", "3")])
            waiting = len(engine.get_subscription(f"s{number}").lanes)
            assert waiting in {1, 3}

    run(scenario)


def test_a_damaged_file_is_refused_and_claims_nothing(run, stage):
    async def scenario(engine):
        await engine.create_topic("t")
        good, bad = stage("good", "1"), stage("bad", "2")
        with open(bad.path, "r+b") as file:  # noqa: ASYNC230, PTH123
            file.seek(-1, 2)
            file.write(b"!")
        with pytest.raises(DamagedStore):
            await engine.append_batch("t", "query", 0, [good, bad])
        assert stored(engine) == []
        assert await engine.append_batch("t", "query", 0, [good]) == ids(1)

    run(scenario)


def test_a_batch_for_a_topic_that_is_gone_is_refused_and_claims_nothing(run, stage):
    async def scenario(engine):
        await engine.create_topic("t")
        file = stage("a", "1")
        with pytest.raises(NotFound):
            await engine.append_batch("no such topic", "query", 0, [file])
        deletion = asyncio.ensure_future(engine.delete_topic("t"))
        with pytest.raises(NotFound):
            await engine.append_batch("t", "query", 0, [file])
        await deletion
        await engine.create_topic("t")
        assert await engine.append_batch("t", "query", 0, [file]) == ids(1)

    run(scenario)


def test_a_batch_whose_commit_fails_says_so_and_can_be_asked_for_again(stage):
    async def scenario() -> None:
        store = WatchedStore()
        engine = Engine(store)
        await prepare(engine)
        store.failures.append(DamagedStore("the disk says no"))
        with pytest.raises(DamagedStore, match="says no"):
            await engine.append_batch("t", "query", 0, [stage("a", "1")])
        assert await engine.append_batch("t", "query", 0, [stage("a", "1")]) is not None
        assert await work_off(engine, 1) == [b"1"]
        store.failures.append(OutcomeUnknown("who knows"))
        with pytest.raises(OutcomeUnknown):
            await engine.append_batch("t", "query", 1, [stage("a", "1")])
        await engine.close()

    asyncio.run(scenario())


def test_a_batch_is_appended_over_the_link_and_wakes_the_subscriber_of_the_owner(run_linked, stage):
    async def scenario(link, client):
        got = Collector()
        link.engine.attach("s", got.consumer)
        files = [stage("a", "1", "2")]
        assert await client.append_batch("t", "query", 0, files) == ids(2)
        assert await client.append_batch("t", "query", 0, files) is None
        await got.wait(1)
        assert got.data == [b"1"]

    run_linked(scenario)
