"""Readers of a log are waited for, and belong to one program at a time."""

from __future__ import annotations

import pytest

from seriatim.engine.broker import ReaderInfo
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from tests.engine.conftest import prepare, publish, work_off


def kept(engine) -> list[int]:
    return [record.offset for record in engine._store.read(engine.get_topic("t").id, 0, 1000)]


def test_what_a_reader_has_not_passed_is_kept_until_it_has(run):
    async def scenario(engine):
        await prepare(engine)
        await engine.register_reader("query", "t", 0)
        for text in ("1", "2", "3"):
            await publish(engine, text)
        await work_off(engine, 3)
        await engine.clean_up()
        assert kept(engine) == [0, 1, 2]
        await engine.move_reader("query", 0, 2)
        await engine.clean_up()
        assert kept(engine) == [2]
        await engine.delete_reader("query")
        await engine.clean_up()
        assert kept(engine) == []

    run(scenario)


def test_readers_are_listed_replaced_and_survive_a_restart(run_with_restarts):
    async def first(engine):
        await prepare(engine)
        await publish(engine, "1", "2")
        await engine.register_reader("query", "t", 2)
        assert await engine.register_reader("query", "t", 1) == ReaderInfo("query", "t", 1)

    async def second(engine):
        assert await engine.list_readers() == [ReaderInfo("query", "t", 1)]

    run_with_restarts(first, second)


def test_a_move_from_elsewhere_is_refused_and_the_same_move_again_is_not(run):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1", "2", "3")
        await engine.register_reader("query", "t", 0)
        await engine.move_reader("query", 0, 2)
        await engine.move_reader("query", 0, 2)
        with pytest.raises(FailedPrecondition, match="stands at 2 and not at 0"):
            await engine.move_reader("query", 0, 3)
        with pytest.raises(InvalidArgument, match="can't go back"):
            await engine.move_reader("query", 2, 1)
        with pytest.raises(NotFound, match="register it again"):
            await engine.move_reader("nobody", 0, 1)
        assert await engine.list_readers() == [ReaderInfo("query", "t", 2)]

    run(scenario)


def test_a_reader_can_not_move_past_the_end_where_it_would_take_offsets_from_messages_to_come(run):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1", "2", "3")
        await engine.register_reader("query", "t", 0)
        with pytest.raises(InvalidArgument, match=r"can't move to 4, .* the next one is 3"):
            await engine.move_reader("query", 0, 4)
        await engine.move_reader("query", 0, 3)
        await publish(engine, "4")
        assert kept(engine) == [0, 1, 2, 3]

    run(scenario)


def test_a_reader_has_one_topic_and_stands_within_its_log(run):
    async def scenario(engine):
        await prepare(engine)
        await engine.create_topic("other")
        await engine.register_reader("query", "t", 0)
        with pytest.raises(AlreadyExists, match="reads another topic"):
            await engine.register_reader("query", "other", 0)
        with pytest.raises(InvalidArgument, match="the next one is 0"):
            await engine.register_reader("ahead", "t", 1)
        with pytest.raises(NotFound):
            await engine.register_reader("query", "no such topic", 0)
        with pytest.raises(NotFound):
            await engine.delete_reader("nobody")

    run(scenario)


def test_readers_are_registered_over_the_link(run_linked):
    async def scenario(link, client):
        await client.register_reader("query", "t", 0)
        await client.move_reader("query", 0, 0)
        assert await client.list_readers() == [ReaderInfo("query", "t", 0)]
        await client.delete_reader("query")
        assert await link.engine.list_readers() == []

    run_linked(scenario)
