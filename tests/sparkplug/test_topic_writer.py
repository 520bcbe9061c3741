"""The journal: writes of limited size, each of them at one with the place of its nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import Bookmark, EdgeMessage, Kind, NodeOrdering
from seriatim.engine.broker import Broker, Outgoing, WriterMove
from seriatim.engine.connect import open_broker
from seriatim.engine.engine import MAX_WRITER_POSITION, Engine
from seriatim.engine.link.frames import MAX_FRAME
from seriatim.sparkplug import topic_writer as journal_module
from seriatim.sparkplug.intake import Counts
from seriatim.sparkplug.records import MAX_DATA_BYTES
from seriatim.sparkplug.topic_writer import MAX_WRITTEN, MAX_WRITTEN_BYTES, Journal, Topics, place_behind
from seriatim.sparkplug.topics import NodeId
from seriatim.sparkplug.writer_names import BOOKMARKS, SESSIONS, NodeSession, writer_name
from tests.core.sparkplug.edge_traces import ORDERINGS, advance, edge_trace, of_order
from tests.sparkplug.plant import TOPIC, host_on, ledger_in, node_on, run_bounded, stored_in, until

NODE = NodeId("g", "n")


@given(ORDERINGS, st.randoms(use_true_random=False), st.integers(1, 3))
def test_the_place_behind_what_was_given_out_is_the_bookmark_of_the_node(
    options: NodeOrdering, random: Random, sessions: int
) -> None:
    """In between, within what a node gives out at once, nobody can ask it: there the journal has to know by itself."""
    node: EdgeNode[Any] = EdgeNode(options, "k")
    for message, now in edge_trace(random, sessions):
        place = node.bookmark()
        for effect in of_order(advance(node, now) + node.receive(message, now)):
            place = place_behind(place, effect)
        found = node.bookmark()
        assert (place.given, place.epoch, place.born) == (found.given, found.epoch, found.born)
        if found.born:
            assert (place.bd_seq, place.expected) == (found.bd_seq, found.expected)


def test_the_place_of_a_node_that_has_sent_messages_for_a_thousand_years_is_one_that_a_writer_may_have():
    place = Bookmark(1000 * 365 * 86_400 * 1_000_000, 2**32 - 1, 2**64 - 1, 255, True, 2**64 - 1)
    assert place.pack() < MAX_WRITER_POSITION
    assert Bookmark.unpack(place.pack()) == place


def test_the_limits_of_a_write_fit_into_a_frame_of_a_link():
    beside_the_data = 4 * 1024
    longest = max(MAX_WRITTEN_BYTES, MAX_DATA_BYTES)
    assert longest + MAX_WRITTEN * beside_the_data < MAX_FRAME


@pytest.fixture
def writes(monkeypatch) -> list[tuple[list[WriterMove], int, int]]:
    """The steps, messages and bytes of each write of any journal; a write has room for little."""
    found: list[tuple[list[WriterMove], int, int]] = []
    publish_once = Engine.publish_once

    async def noted(self: Engine, topic: str, moves: list[WriterMove], messages: list[Outgoing], beside: Any) -> Any:
        records = [*messages, *(entry for entries in (beside or {}).values() for entry in entries)]
        found.append((moves, len(records), sum(len(record.data) for record in records)))
        return await publish_once(self, topic, moves, messages, beside)

    monkeypatch.setattr(Engine, "publish_once", noted)
    monkeypatch.setattr(journal_module, "MAX_WRITTEN", 10)
    monkeypatch.setattr(journal_module, "MAX_WRITTEN_BYTES", 1000)
    return found


def test_what_a_gap_held_back_is_written_in_pieces_one_behind_the_other(mosquitto, any_store, writes):
    async def scenario() -> None:
        async with host_on(mosquitto, any_store, reorder_timeout=20) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await node.data(*range(2, 60))
            await until(lambda: NODE in host.nodes and host.nodes[NODE].held_count == 58)
            await node.data(1)
            await until(lambda: host.counts.stored == 60)

    run_bounded(scenario())
    assert [each.attributes["seq"] for each in stored_in(any_store)] == [str(number) for number in range(60)]
    assert all(count <= 10 and size <= 1000 for _, count, size in writes)
    sessions = writer_name(SESSIONS, "seriatim", TOPIC, NODE)
    steps = [step for written, _, _ in writes for step in written if step.writer != sessions]
    assert [step.start for step in steps[1:]] == [step.end for step in steps[:-1]]
    assert [Bookmark.unpack(step.end).expected for step in steps[-7:]] == [1, 11, 21, 31, 41, 51, 60]


def test_a_host_that_dies_between_two_pieces_repeats_nothing_and_notices_what_is_missing(
    mosquitto, any_store, writes, monkeypatch
):
    async def break_off(broker: Broker) -> None:
        write = broker.publish_once

        async def third_fails(*args: Any) -> Sequence[str]:
            if len(writes) >= 3:
                raise ConnectionError("the power fails")
            return await write(*args)

        monkeypatch.setattr(broker, "publish_once", third_fails)

    async def scenario() -> None:
        async with host_on(mosquitto, any_store, reorder_timeout=20) as host, node_on(mosquitto) as node:
            await break_off(host._broker)
            await node.birth(0)
            await until(lambda: host.counts.stored == 1)
            await node.data(*range(2, 60))
            await until(lambda: host.nodes[NODE].held_count == 58)
            await node.data(1)
            await until(lambda: not host.online.is_set(), "the host should have stopped")

    async def again() -> None:
        async with host_on(mosquitto, any_store, reorder_timeout=0.05) as host, node_on(mosquitto) as node:
            await node.data(5, 60)
            await until(lambda: host.counts.stored == 1)

    with pytest.raises(ConnectionError, match="the power fails"):
        run_bounded(scenario())
    assert [each.attributes["seq"] for each in stored_in(any_store)] == [str(number) for number in range(21)]
    run_bounded(again())
    assert repr(stored_in(any_store)[20:]) == "[NDATA 20, NDATA 60]"
    duplicate, lost = ledger_in(any_store)
    assert (repr(duplicate), lost.attributes["first"], lost.attributes["last"]) == ("duplicate NDATA 5", "21", "59")


def test_what_is_added_in_pieces_while_pieces_are_written_goes_on_from_the_last_of_them(store, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_WRITTEN", 2)
    node: EdgeNode[Any] = EdgeNode(NodeOrdering(), NODE)

    async def scenario() -> tuple[int, int]:
        broker = await open_broker(store)
        await broker.create_topic(TOPIC)
        counts = Counts()
        journal = Journal(broker, Topics(TOPIC, None), "h", counts, lambda _: node.bookmark())

        def add(bd_seq: int) -> None:
            for seq in range(6):
                kind = Kind.NDATA if seq else Kind.NBIRTH
                message = EdgeMessage(kind, None, seq=seq, bd_seq=None if seq else bd_seq, timestamp=10 * bd_seq + seq)
                for effect in of_order(node.receive(message, float(bd_seq))):
                    journal.add(NODE, Outgoing("g/n", b"{}", {}), effect)

        publish = broker.publish_once

        async def interrupted(*args: Any) -> Sequence[str]:
            offsets = await publish(*args)
            if not counts.stored:
                add(2)
                add(3)
                journal.end()
            return offsets

        monkeypatch.setattr(broker, "publish_once", interrupted)
        assert await journal.recall(NODE) is None
        add(1)
        await journal.run()
        found = [await broker.position_of(writer_name(what, "h", TOPIC, NODE)) for what in (BOOKMARKS, SESSIONS)]
        await broker.close()
        return found[0], found[1]

    bookmark, session = run_bounded(scenario())
    assert Bookmark.unpack(bookmark) == node.bookmark()
    assert NodeSession.unpack(session) == NodeSession(3, 3, 3, 3, online=True)


def test_the_session_of_a_node_that_is_born_each_millisecond_for_a_century_is_one_that_a_writer_may_have():
    session = NodeSession(2 * 100 * 365 * 86_400_000, 2**32 - 1, 2**64 - 1, 2**32 - 1, online=True)
    assert session.pack() < MAX_WRITER_POSITION
    assert NodeSession.unpack(session.pack()) == session


def test_strays_are_written_in_pieces(monkeypatch, store):
    monkeypatch.setattr(journal_module, "MAX_WRITTEN_BYTES", 100)
    written: list[list[int]] = []

    async def scenario() -> None:
        broker = await open_broker(store)
        await broker.create_topic("l")
        publish = broker.publish

        def noted(topic: str, entries: list[Outgoing]) -> Any:
            written.append([len(entry.data) for entry in entries])
            return publish(topic, entries)

        monkeypatch.setattr(broker, "publish", noted)
        journal = Journal(broker, Topics(TOPIC, "l"), "h", Counts(), lambda _: Bookmark(0, 0, 0, 0, False))
        for number in range(20):
            journal.enter_stray(Outgoing("k", json.dumps({"text": "x" * 12 * number}).encode(), {"reason": "any"}))
        journal.end()
        await journal.run()
        await broker.close()

    run_bounded(scenario())
    assert len(stored_in(store, "l")) == 20
    assert all(sum(sizes) <= 100 or len(sizes) == 1 for sizes in written), "what is longer than the limit goes alone"
    assert any(len(sizes) > 1 for sizes in written)


def test_so_many_bytes_wait_that_no_more_is_read(store, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_WAITING_BYTES", 100)

    async def scenario() -> None:
        broker = await open_broker(store)
        journal = Journal(broker, Topics(TOPIC, "l"), "h", Counts(), lambda _: Bookmark(0, 0, 0, 0, False))
        found = []
        for size in (99, 1):
            journal.enter_stray(Outgoing("k", bytes(size), {}))
            found.append(journal.is_full)
        assert found == [False, True]
        await broker.close()

    run_bounded(scenario())
