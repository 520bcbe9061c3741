"""The ledger: whatever was received and is not in the topic is there, once, with its reason."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from seriatim.core.resequencing.options import OnEpoch
from seriatim.core.sparkplug.messages import BeforeBirth, OnTimeout
from seriatim.engine.broker import WriterMove
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.sparkplug.host import HostOptions
from seriatim.sparkplug.payload import MAX_BYTES, Payload
from seriatim.sparkplug.records import MAX_TOPIC_BYTES, MAX_UNREADABLE_BYTES
from seriatim.sparkplug.topics import NodeId
from seriatim.sparkplug.writer_names import BOOKMARKS, writer_name
from tests.sparkplug.plant import (
    TOPIC,
    host_on,
    ledger_in,
    milliseconds,
    node_on,
    run_bounded,
    stored_in,
    until,
)


def test_duplicates_lost_numbers_late_messages_and_ignored_deaths_are_entered_with_what_is_known(mosquitto, any_store):
    async def scenario():
        async with host_on(mosquitto, any_store, reorder_timeout=0.05) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await node.device_birth(1, "d")
            await node.data(1)
            await node.data(4, device="d")
            await until(lambda: host.counts.stored == 3)
            await node.data(2, device="d")
            await node.death(bd_seq=7)
            await until(lambda: host.counts.entries == 4)

    run_bounded(scenario())
    duplicate, lost, late, death = ledger_in(any_store)
    assert {each.key for each in ledger_in(any_store)} == {"g/n"}
    assert duplicate.attributes.items() >= {"reason": "duplicate", "kind": "NDATA", "seq": "1", "epoch": "1"}.items()
    assert duplicate.data["metrics"] == [{"name": "value", "type": "Int32", "value": 1}]
    assert abs(duplicate.data["time"] - milliseconds()) < 60_000
    numbers = {"first": "2", "last": "3", "size": "2", "modulo": "256"}
    assert lost.attributes == {"reason": "lost", "epoch": "1", **numbers}
    assert lost.data["detail"] == "gap timeout; at least 2 missing: numbers repeat after 256"
    assert "metrics" not in lost.data
    assert late.attributes.items() >= {"reason": "late", "kind": "DDATA", "device": "d", "seq": "2"}.items()
    assert (death.attributes["reason"], death.attributes["bdSeq"]) == ("ignored-death", "7")
    assert death.data["detail"] == "it ends session 7, and session 0 lives"
    assert [each.attributes["kind"] for each in stored_in(any_store)] == ["NBIRTH", "DBIRTH", "DDATA"]


def test_what_is_dropped_by_policy_is_entered(mosquitto, store):
    async def scenario():
        policy: dict[str, Any] = {"on_timeout": OnTimeout.DROP, "reorder_timeout": 0.05}
        async with host_on(mosquitto, store, **policy) as host, node_on(mosquitto) as node:
            await node.birth(250)
            await node.data(253, 254)
            await until(lambda: host.counts.entries == 3)
            await node.data(255, 256)
            await until(lambda: host.counts.stored == 3)
        policy = {"on_session_end": OnEpoch.DISCARD, "reorder_timeout": 20}
        async with host_on(mosquitto, store, **policy) as host, node_on(mosquitto, bd_seq=1) as node:
            await node.birth(0)
            await node.data(5)
            await until(lambda: host.counts.received >= 3)
            await node.death()
            await until(lambda: host.counts.stored == 2)

    run_bounded(scenario())
    lost, *dropped = ledger_in(store)[:3]
    assert (lost.attributes["first"], lost.attributes["last"]) == ("251", "252")
    assert repr(dropped) == "[dead-letter NDATA 253, dead-letter NDATA 254]"
    assert "discarded NDATA 5" in repr(ledger_in(store)[3:])


def test_what_has_no_room_to_wait_is_entered(mosquitto, store):
    async def scenario():
        policy: dict[str, Any] = {
            "before_birth": BeforeBirth.HOLD,
            "on_timeout": OnTimeout.HOLD,
            "capacity": 2,
            "reorder_timeout": 0.01,
        }
        async with host_on(mosquitto, store, **policy) as host, node_on(mosquitto) as node:
            await node.data(1)
            await until(lambda: host.counts.rebirths == 1)
            await node.data(2, 3)
            await until(lambda: host.counts.entries == 1)

    run_bounded(scenario())
    assert repr(ledger_in(store)[:1]) == "[overflow NDATA 3]"


def test_what_waits_when_the_host_is_stopped_is_entered(mosquitto, store):
    async def scenario():
        async with host_on(mosquitto, store, reorder_timeout=60) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await node.data(2, 3)
            await until(lambda: host.counts.received == 4)  # one of them is its own STATE
        async with host_on(mosquitto, store) as host, node_on(mosquitto) as node:
            await node.data(0, 1)
            await until(lambda: host.counts.stored == 1)

    run_bounded(scenario())
    assert repr(ledger_in(store)) == "[discarded NDATA 2, discarded NDATA 3, duplicate NDATA 0]"
    assert ledger_in(store)[0].data["detail"] == "the host was stopped while it waited"
    assert repr(stored_in(store)) == "[NBIRTH 0, NDATA 1]"


def test_malformed_messages_are_entered_under_their_node_or_their_topic(mosquitto, any_store):
    async def scenario():
        async with host_on(mosquitto, any_store) as host, node_on(mosquitto) as node:
            await node._client.publish("spBv1.0/g/HELLO/n", b"hello")
            await node.send("NDATA", b"\xff\xff")
            payload = Payload(timestamp=1, seq=256)
            payload.metrics.add(name="x", datatype=3, int_value=1)
            await node.send("NDATA", payload)
            await until(lambda: host.counts.entries == 3)

    run_bounded(scenario())
    topic, payload, message = sorted(ledger_in(any_store), key=lambda each: each.attributes["reason"], reverse=True)
    assert (topic.key, topic.attributes) == ("spBv1.0/g/HELLO/n", {"reason": "malformed-topic"})
    assert (base64.b64decode(topic.data["raw"]), topic.data["bytes"]) == (b"hello", 5)
    assert (payload.key, payload.attributes) == ("g/n", {"reason": "malformed-payload"})
    assert payload.data["topic"] == "spBv1.0/g/NDATA/n"
    assert message.attributes.items() >= {"reason": "malformed-message", "kind": "NDATA", "seq": "256"}.items()
    assert message.data["metrics"] == [{"name": "x", "type": "Int32", "value": 1}]


def test_of_what_a_stranger_sends_only_so_much_is_kept(mosquitto, store):
    long = "spBv1.0/" + "ä" * 20_000

    async def scenario():
        async with host_on(mosquitto, store) as host, node_on(mosquitto) as node:
            await node._client.publish(long, b"\xff" * 100_000)
            await node.send("NDATA", b"\xff" * (MAX_BYTES + 1))
            await until(lambda: host.counts.entries == 2)

    run_bounded(scenario())
    topic, payload = ledger_in(store)
    assert long.startswith(topic.key)
    assert len(topic.key.encode()) == MAX_TOPIC_BYTES
    assert (len(base64.b64decode(topic.data["raw"])), topic.data["bytes"]) == (MAX_UNREADABLE_BYTES, 100_000)
    assert (len(base64.b64decode(payload.data["raw"])), payload.data["bytes"]) == (MAX_UNREADABLE_BYTES, MAX_BYTES + 1)
    assert len(topic.data["detail"]) <= 500


def test_nodes_beyond_the_limit_are_entered_and_those_that_are_known_go_on(mosquitto, store):
    async def scenario():
        async with (
            host_on(mosquitto, store, max_nodes=1) as host,
            node_on(mosquitto) as node,
            node_on(mosquitto, "other") as other,
        ):
            await node.birth(0)
            await until(lambda: host.counts.stored == 1)
            await other.birth(0)
            await until(lambda: host.counts.entries == 1)
            await node.data(1)
            await until(lambda: host.counts.stored == 2)
            assert host.counts.malformed == {"too-many-nodes": 1}

    run_bounded(scenario())
    (entry,) = ledger_in(store)
    assert (entry.key, entry.attributes["reason"]) == ("g/other", "malformed-too-many-nodes")


def test_a_message_that_is_too_long_for_the_topic_is_in_the_ledger_as_it_came(mosquitto, store):
    text = "\x01" * 2_000_000  # six times as long in JSON

    async def scenario():
        async with host_on(mosquitto, store) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await node.data(1, name="text", datatype=12, string_value=text)
            await node.data(2)
            await until(lambda: host.counts.stored == 3)
            assert host.counts.unstorable == 1

    run_bounded(scenario())
    assert stored_in(store)[1].data == {"metrics": [], "error": "too long to be stored"}
    (entry,) = ledger_in(store)
    assert entry.attributes.items() >= {"reason": "too-long", "seq": "1", "epoch": "1"}.items()
    assert Payload.FromString(base64.b64decode(entry.data["raw"])).metrics[0].string_value == text


def test_an_alias_is_named_where_the_session_is_certain_and_not_where_it_is_not(mosquitto, store):
    async def scenario():
        async with host_on(mosquitto, store) as host, node_on(mosquitto) as node:
            await node.birth(0)
            began = node._began
            await node.birth(0, {"name": "a", "alias": 1, "datatype": 3, "int_value": 0})
            await node.data(1, 1, alias=1, int_value=5)
            node._began = began
            await node.data(20, alias=1, int_value=5)
            await until(lambda: host.counts.entries == 2)

    run_bounded(scenario())
    duplicate, late = ledger_in(store)
    assert duplicate.data["metrics"] == [{"name": "a", "type": "Int32", "value": 5}]
    assert late.data["metrics"] == [{"alias": 1, "value": 5}], "what was 1 in the session before, nobody knows"


def test_a_node_that_counts_elsewhere_is_stored_without_the_names_of_a_session_that_may_be_over(mosquitto, store):
    async def scenario():
        async with host_on(mosquitto, store, reorder_timeout=0.1) as host, node_on(mosquitto) as node:
            await node.birth(0, {"name": "a", "alias": 1, "datatype": 3, "int_value": 0})
            await node.data(1, alias=1, int_value=5)
            await node.data(202, 203, alias=1, int_value=6)
            await until(lambda: host.counts.stored == 4 and host.counts.entries == 2)
            assert host.counts.rebirths == 1

    run_bounded(scenario())
    assert [each.data["metrics"][0].get("name") for each in stored_in(store)] == ["bdSeq", "a", None, None]
    assert [each.attributes.get("flag") for each in stored_in(store)] == [None, None, "stale", "stale"]
    sync_lost, lost = ledger_in(store)
    assert sync_lost.attributes == {"reason": "sync-lost", "epoch": "1", "first": "202", "last": "202", "size": "1"}
    assert (lost.attributes["first"], lost.attributes["last"], lost.attributes["size"]) == ("2", "201", "200")


def test_raw_payloads_are_entered_on_request(mosquitto, store):
    async def scenario():
        async with host_on(mosquitto, store, HostOptions(raw=True)) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await node.data(1, 1)
            await until(lambda: host.counts.entries == 1)

    run_bounded(scenario())
    (entry,) = ledger_in(store)
    assert Payload.FromString(base64.b64decode(entry.data["raw"])).seq == 1


def test_without_a_ledger_it_is_counted_and_nothing_else(mosquitto, store):
    async def scenario():
        async with host_on(mosquitto, store, HostOptions(keep_ledger=False)) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await node._client.publish("spBv1.0/g/HELLO/n", b"hello")
            await node.data(1, 1, 2)
            await until(lambda: host.counts.stored == 3)
            assert (host.counts.ledger, host.counts.malformed) == ({"duplicate": 1}, {"topic": 1})
            topics = await host._broker.list_topics()
            assert [topic.name for topic in topics] == [TOPIC]

    run_bounded(scenario())


def test_a_ledger_has_a_topic_of_its_own():
    assert HostOptions().topics("t").ledger == "t-ledger"
    assert HostOptions(ledger="l").topics("t").ledger == "l"
    with pytest.raises(InvalidArgument, match="name another topic"):
        HostOptions(ledger="t").topics("t")


def test_entries_are_written_in_one_transaction_with_the_place_of_the_node(mosquitto, any_store):
    """A second writer under the host's name has moved the place: then neither topic gets anything."""

    async def scenario():
        async with host_on(mosquitto, any_store) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await until(lambda: host.counts.stored == 1)
            writer, broker = writer_name(BOOKMARKS, "seriatim", TOPIC, NodeId("g", "n")), host._broker
            standing = await broker.position_of(writer)
            await broker.publish_once(TOPIC, [WriterMove(writer, standing, standing + 1)], [])
            await node.data(0)
            await until(lambda: not host.online.is_set(), "the host should have stopped")

    with pytest.raises(FailedPrecondition, match="another host named 'seriatim' writes to topic"):
        run_bounded(scenario())
    assert ledger_in(any_store) == []
