"""The host application against a real broker."""

from __future__ import annotations

import asyncio
import base64
import json
import socket

import aiomqtt
import pytest

from seriatim.core.sparkplug.messages import Status
from seriatim.engine.broker import WriterMove
from seriatim.engine.reported_status import (
    HostStatus,
    MissingNumbers,
    left_statuses,
    request_rebirth,
    take_rebirth_requests,
)
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound
from seriatim.sparkplug.host import HostOptions
from seriatim.sparkplug.mqtt_address import MqttAddress
from seriatim.sparkplug.payload import Payload, field
from seriatim.sparkplug.topics import NodeId
from seriatim.sparkplug.writer_names import BOOKMARKS, writer_name
from seriatim.store import open_store
from tests.sparkplug.plant import (
    TOPIC,
    ear_on,
    host_on,
    milliseconds,
    node_on,
    run_bounded,
    stored_in,
    until,
)

NODE = NodeId("g", "n")


def test_withheld_late_duplicated_and_wrapped_messages_are_stored_in_order(mosquitto, any_store):
    async def scenario():
        async with host_on(mosquitto, any_store, reorder_timeout=5) as host, node_on(mosquitto) as node:
            await node.birth(250)
            await node.data(251, 253, 254, 254, 255, 252, 257, 258, 256, 251)
            await until(lambda: host.counts.stored == 9)
            await until(lambda: host.counts.ledger["duplicate"] == 2)
            assert host.counts.rebirths == 0

    run_bounded(scenario())
    stored = stored_in(any_store)
    assert repr(stored) == (
        "[NBIRTH 250, NDATA 251, NDATA 252, NDATA 253, NDATA 254, NDATA 255, NDATA 0, NDATA 1, NDATA 2]"
    )
    assert {each.key for each in stored} == {"g/n"}
    assert stored[1].data == {"metrics": [{"name": "value", "type": "Int32", "value": 251}]}
    assert stored[0].attributes["bdSeq"] == "0"
    assert {each.attributes["epoch"] for each in stored} == {"1"}


async def left(host, holds):
    """What the host has left in the store, once that holds of a node in it."""
    while True:
        for status in await left_statuses(host._broker, HostStatus):
            if any(map(holds, status.nodes)):
                return status
        await asyncio.sleep(0.05)


def test_it_leaves_its_nodes_in_the_store_for_operators(mosquitto, store, monkeypatch):
    monkeypatch.setattr("seriatim.sparkplug.host.STATUS_INTERVAL_S", 0.05)

    async def scenario():
        async with host_on(mosquitto, store, reorder_timeout=60) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await node.device_birth(1, "motor")
            await node.data(4)
            await until(lambda: NODE in host.nodes and host.nodes[NODE].held_count == 1)
            status = await left(host, lambda one: one.held > 0)
            await node.death()
            dead = await left(host, lambda one: one.status == "offline")
            assert dead.nodes[0].since_exactly
            assert dead.nodes[0].since >= status.nodes[0].since
            return status

    status = run_bounded(scenario())
    assert (status.topic, status.online, status.node_count) == (TOPIC, True, 1)
    (node,) = status.nodes
    assert (node.node, node.status, node.held, dict(node.devices)) == ("g/n", "online", 1, {"motor": "online"})
    assert node.gaps == [MissingNumbers(2, 3)]


def test_of_a_node_that_the_host_sees_first_in_some_state_it_is_not_known_since_when(mosquitto, store, monkeypatch):
    """It is the same after a restart of the host."""
    monkeypatch.setattr("seriatim.sparkplug.host.STATUS_INTERVAL_S", 3600)

    async def scenario():
        async with host_on(mosquitto, store) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await until(lambda: NODE in host.nodes and str(host.nodes[NODE].status) == "online")
            leaving = asyncio.create_task(host._leave_statuses())
            (seen,) = (await left(host, lambda _: True)).nodes
            leaving.cancel()
            await asyncio.wait([leaving])
            assert (seen.status, seen.since_exactly) == ("online", False)

    run_bounded(scenario())


def test_a_node_that_is_silent_since_a_restart_of_the_host_stands_as_it_was_known(mosquitto, store, monkeypatch):
    """Otherwise nobody would miss a node that died before, or while the host was away."""
    monkeypatch.setattr("seriatim.sparkplug.host.STATUS_INTERVAL_S", 0.05)

    async def scenario():
        async with node_on(mosquitto) as node, node_on(mosquitto, "gone") as gone:
            async with host_on(mosquitto, store) as host:
                for each in (node, gone):
                    await each.birth(0)
                await node.device_birth(1, "motor")
                await left(host, lambda one: one.status == "online" and one.devices)
                await gone.death()
                before = await left(host, lambda one: one.status == "offline")
            async with host_on(mosquitto, store) as host, ear_on(mosquitto, "spBv1.0/g/NCMD/gone") as ear:
                while not (after := await left(host, lambda one: one.status == "stale")).online:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await request_rebirth(host._broker, "seriatim", "g/gone")
                await until(lambda: len(ear.heard) > 0)
                await gone.birth(0)
                back = await left(host, lambda one: (one.node, one.status) == ("g/gone", "online"))
            return before, after, back

    before, after, back = ({node.node: node for node in one.nodes} for one in run_bounded(scenario()))
    assert after["g/gone"] == before["g/gone"]
    assert after["g/gone"].since_exactly
    assert (after["g/n"].status, after["g/n"].since_exactly) == ("stale", False)
    assert (after["g/n"].devices, len(after), len(back)) == ({"motor": "stale"}, 2, 2)
    assert back["g/gone"].since_exactly
    assert back["g/gone"].since > before["g/gone"].since


def test_an_operators_request_in_the_store_makes_the_host_ask_for_a_rebirth_once(mosquitto, any_store):
    async def scenario():
        async with (
            host_on(mosquitto, any_store) as host,
            ear_on(mosquitto, "spBv1.0/g/NCMD/n") as ear,
            node_on(mosquitto) as node,
        ):
            await node.birth(0)
            while not any(status.nodes for status in await left_statuses(host._broker, HostStatus)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            with pytest.raises(NotFound, match="no Sparkplug host 'seriatim' with an edge node 'g/other'"):
                await request_rebirth(host._broker, "seriatim", "g/other")
            await request_rebirth(host._broker, "seriatim", "g/n")
            await until(lambda: len(ear.heard) > 0)
            assert await take_rebirth_requests(host._broker, "seriatim") == []
            assert (len(ear.heard), host.counts.rebirths) == (1, 1)

    run_bounded(scenario())


def test_the_conformance_scenario_for_message_ordering(mosquitto, store):
    """Withheld for good: a rebirth within twice the timeout. Withheld for half the timeout: none, then or later."""
    timeout = 1.0

    async def scenario():
        async with (
            host_on(mosquitto, store, reorder_timeout=timeout, rebirth_backoff=0.1) as host,
            ear_on(mosquitto, "spBv1.0/g/NCMD/n") as ear,
            node_on(mosquitto) as node,
        ):
            await node.birth(0)
            await node.data(1, 2, 3)
            await until(lambda: host.counts.stored == 4)
            await node.data(5)
            sent = asyncio.get_running_loop().time()
            await until(lambda: len(ear.heard) == 1)
            assert asyncio.get_running_loop().time() - sent < 2 * timeout
            node.bd_seq = 1
            await node.birth(0)
            await node.data(1, 2, 3)
            await until(lambda: NODE in host.nodes and host.nodes[NODE].expected == 4)
            await node.data(5)
            await asyncio.sleep(timeout / 2)
            await node.data(4)
            await until(lambda: host.nodes[NODE].expected == 6)
            asked = len(ear.heard)
            await asyncio.sleep(2.5 * timeout)
            assert len(ear.heard) == asked

    run_bounded(scenario())
    assert repr(stored_in(store)[-6:]) == "[NBIRTH 0, NDATA 1, NDATA 2, NDATA 3, NDATA 4, NDATA 5]"


def test_a_rebirth_request_is_true_named_stamped_without_seq_qos_0_and_not_retained(mosquitto, store):
    async def scenario():
        async with (
            host_on(mosquitto, store) as host,
            ear_on(mosquitto, "spBv1.0/+/NCMD/#") as ear,
            node_on(mosquitto) as node,
        ):
            await node.data(7)
            await until(lambda: ear.heard != [])
            await until(lambda: host.counts.stored == 1)
        async with ear_on(mosquitto, "spBv1.0/+/NCMD/#", "spBv1.0/STATE/#") as later:
            await until(lambda: later.heard != [])
        return ear, later

    ear, later = run_bounded(scenario())
    (message,) = ear.heard
    (command,) = ear.payloads()
    (metric,) = command.metrics
    assert (str(message.topic), message.qos, message.retain) == ("spBv1.0/g/NCMD/n", 0, False)
    assert (metric.name, metric.datatype, metric.boolean_value) == ("Node Control/Rebirth", 11, True)
    assert (field(metric, "alias"), field(command, "seq")) == (None, None)
    assert abs(command.timestamp - milliseconds()) < 60_000
    assert [str(each.topic) for each in later.heard] == ["spBv1.0/STATE/seriatim"], "no command is retained"
    (stored,) = stored_in(store)
    assert stored.attributes["flag"] == "before-birth"


def test_state_is_published_retained_with_the_stamp_of_the_will_and_offline_at_a_clean_stop(mosquitto, store):
    async def scenario():
        async with ear_on(mosquitto, "spBv1.0/STATE/#") as ear:
            before = milliseconds()
            async with host_on(mosquitto, store):
                await until(lambda: len(ear.heard) == 1)
            await until(lambda: len(ear.heard) == 2)
        async with ear_on(mosquitto, "spBv1.0/STATE/#") as later:
            await until(lambda: later.heard != [])
        return before, ear, later

    before, ear, later = run_bounded(scenario())
    online, offline = ear.states()
    assert online["online"] is True
    assert offline["online"] is False
    assert before <= online["timestamp"] <= offline["timestamp"] <= milliseconds()
    assert {message.qos for message in ear.heard} == {1}
    assert [(state["online"], m.retain) for state, m in zip(later.states(), later.heard, strict=True)] == [
        (False, True)
    ]


def test_the_will_says_offline_with_the_stamp_of_the_birth(mosquitto, store, monkeypatch):
    clients: list[aiomqtt.Client] = []

    class Watched(aiomqtt.Client):
        async def __aenter__(self):
            clients.append(self)
            return await super().__aenter__()

    monkeypatch.setattr("seriatim.sparkplug.host.aiomqtt.Client", Watched)

    async def scenario():
        async with host_on(mosquitto, store):
            (client,) = clients
            async with ear_on(mosquitto, "spBv1.0/STATE/#") as ear:
                await until(lambda: len(ear.heard) == 1)
                connection = client._client.socket()
                assert isinstance(connection, socket.socket)
                connection.shutdown(2)  # it breaks without a word
                await until(lambda: len(ear.heard) >= 3)
        return ear.states()

    online, offline, again = run_bounded(scenario())[:3]
    assert offline == {"online": False, "timestamp": online["timestamp"]}
    assert again["online"] is True
    assert again["timestamp"] >= online["timestamp"]


def test_state_is_published_again_when_somebody_publishes_it_offline(mosquitto, store):
    async def scenario():
        async with ear_on(mosquitto, "spBv1.0/STATE/#") as ear, host_on(mosquitto, store):
            await until(lambda: len(ear.heard) == 1)
            async with aiomqtt.Client("127.0.0.1", mosquitto.port) as other:
                await other.publish("spBv1.0/STATE/seriatim", b'{"online": false, "timestamp": 1}', qos=1, retain=True)
                await until(lambda: len(ear.heard) == 3)
                await other.publish("spBv1.0/STATE/seriatim", b"not even JSON", qos=1, retain=True)
                await until(lambda: len(ear.heard) == 5)
        return ear.heard

    heard = run_bounded(scenario())
    assert json.loads(heard[0].payload) == json.loads(heard[2].payload) == json.loads(heard[4].payload)


def test_aliases_are_resolved_per_session_and_an_unknown_one_asks_for_a_rebirth(mosquitto, store):
    async def scenario():
        async with (
            host_on(mosquitto, store) as host,
            ear_on(mosquitto, "spBv1.0/g/NCMD/n") as ear,
            node_on(mosquitto) as node,
        ):
            await node.birth(0, {"name": "a", "alias": 1, "datatype": 3, "int_value": 0})
            await node.device_birth(1, "d", {"name": "b", "alias": 2, "datatype": 1, "int_value": 0})
            await node.data(2, alias=1, int_value=5)
            await node.data(3, device="d", alias=2, int_value=255)
            await until(lambda: host.counts.stored == 4)
            assert host.counts.unknown_aliases == 0
            assert host.nodes[NODE].devices == {"d": Status.ONLINE}
            await node.birth(0)
            await node.data(1, alias=1, int_value=5)
            await until(lambda: len(ear.heard) == 1)
            assert host.counts.unknown_aliases == 1

    run_bounded(scenario())
    stored = stored_in(store)
    assert stored[2].data["metrics"] == [{"name": "a", "type": "Int32", "value": 5}]
    assert stored[3].data["metrics"] == [{"name": "b", "type": "Int8", "value": -1}]
    assert stored[3].attributes["device"] == "d"
    assert stored[5].data["metrics"] == [{"alias": 1, "value": 5}]


def test_malformed_input_is_counted_and_the_host_keeps_running(mosquitto, store):
    async def scenario():
        async with (
            host_on(mosquitto, store) as host,
            node_on(mosquitto) as node,
            node_on(mosquitto, "a:b c", group="g:1") as odd,
        ):
            client = node._client
            whole = Payload(timestamp=1, seq=1)
            whole.metrics.add(name="x", datatype=12, string_value="text")
            data = whole.SerializeToString()
            for topic in ("spBv1.0/g/HELLO/n", "spBv1.0/g/NDATA/n/d", "spBv1.0/x", "spBv1.0/g/DDATA/n/"):
                await client.publish(topic, data)
            for wrong in (data[:-1], b"\xff\xff", data[: len(data) // 2]):
                await node.send("NDATA", wrong)
            for refused in (Payload(timestamp=1), Payload(timestamp=1, seq=256), Payload(timestamp=1, seq=2**63)):
                await node.send("NDATA", refused)
            await node.send("NBIRTH", Payload(timestamp=1, seq=0))
            await client.publish("spBv1.0/g/NCMD/n", data)
            await node.birth(0)
            await odd.birth(5)
            await node.death(bd_seq=9)
            await until(lambda: host.counts.stored == 2)
            await until(lambda: host.counts.deaths_ignored == 1)
            assert dict(host.counts.malformed) == {"topic": 4, "payload": 3, "message": 4}
            assert host.counts.commands >= 2

    run_bounded(scenario())
    assert {each.key for each in stored_in(store)} == {"g/n", "g:1/a:b c"}


def test_a_flood_of_gaps_makes_few_requests(mosquitto, store):
    async def scenario():
        async with (
            host_on(mosquitto, store, reorder_timeout=0) as host,
            ear_on(mosquitto, "spBv1.0/g/NCMD/n") as ear,
            node_on(mosquitto) as node,
        ):
            await node.birth(0)
            await node.data(*range(2, 400, 2))
            await until(lambda: host.counts.ledger["lost"] == 199)
            await until(lambda: host.counts.stored == 200)
            assert len(ear.heard) == 1

    run_bounded(scenario())


def test_after_a_lost_broker_nodes_are_stale_and_asked_for_their_births(mosquitto, store):
    async def scenario():
        async with host_on(mosquitto, store) as host:
            async with node_on(mosquitto) as node:
                await node.birth(0)
                await until(lambda: host.counts.stored == 1)
                assert host.nodes[NODE].status is Status.ONLINE
            mosquitto.stop()
            await until(lambda: host.nodes[NODE].status is Status.STALE)
            mosquitto.start()
            async with ear_on(mosquitto, "spBv1.0/g/NCMD/n") as ear, node_on(mosquitto) as node:
                await until(lambda: host.counts.connections == 2)
                await until(lambda: host.counts.rebirths == 1)
                node.bd_seq = 1
                await node.birth(0)
                await until(lambda: host.nodes[NODE].status is Status.ONLINE)
                assert len(ear.heard) <= 1

    run_bounded(scenario())


def test_a_host_that_starts_again_neither_repeats_nor_loses_and_asks_for_a_rebirth(mosquitto, any_store):
    async def scenario():
        async with node_on(mosquitto) as node:
            async with host_on(mosquitto, any_store) as host:
                await node.birth(0)
                await node.data(1, 2, 3)
                await until(lambda: host.counts.stored == 4)
            async with host_on(mosquitto, any_store, reorder_timeout=0.2) as host:
                await node.data(3, 4)
                await until(lambda: host.counts.stored == 1)
                assert host.counts.ledger["duplicate"] == 1
                assert host.counts.rebirths == 1
                await node.data(6)
                await until(lambda: host.counts.ledger["lost"] == 1)
                await node.birth(0)
                await until(lambda: host.counts.stored == 3)
                assert host.nodes[NODE].epoch == 2

    run_bounded(scenario())
    stored = stored_in(any_store)
    assert repr(stored) == "[NBIRTH 0, NDATA 1, NDATA 2, NDATA 3, NDATA 4, NDATA 6, NBIRTH 0]"
    assert [each.attributes.get("flag") for each in stored] == [None] * 4 + ["stale"] * 2 + [None]


def test_two_hosts_of_one_name_do_not_write_a_nodes_messages_twice(mosquitto, any_store):
    async def scenario():
        async with host_on(mosquitto, any_store) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await until(lambda: host.counts.stored == 1)
            writer = writer_name(BOOKMARKS, "seriatim", TOPIC, NODE)
            broker = host._journal._broker
            standing = await broker.position_of(writer)
            await broker.publish_once(TOPIC, [WriterMove(writer, standing, standing + 1)], [])
            await node.data(1)
            await until(lambda: not host.online.is_set(), "the host should have stopped")

    with pytest.raises(FailedPrecondition, match="another host named 'seriatim' writes to topic"):
        run_bounded(scenario())
    assert len(stored_in(any_store)) == 1


def test_the_raw_payload_is_stored_on_request(mosquitto, store):
    async def scenario():
        async with host_on(mosquitto, store, HostOptions(raw=True)) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await until(lambda: host.counts.stored == 1)

    run_bounded(scenario())
    raw = Payload.FromString(base64.b64decode(stored_in(store)[0].data["raw"]))
    assert (raw.seq, raw.metrics[0].name) == (0, "bdSeq")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://localhost", MqttAddress("localhost", 1883)),
        ("mqtt://u:p%40@[::1]:99/", MqttAddress("::1", 99, False, "u", "p@")),
        ("mqtts://h", MqttAddress("h", 8883, True)),
    ],
)
def test_addresses_of_brokers(url, address):
    assert MqttAddress.parse(url) == address
    assert "p@" not in repr(address)


@pytest.mark.parametrize("url", ["", "localhost:1883", "http://h", "mqtt://", "mqtt://h:x", "mqtt://h/path"])
def test_addresses_that_are_none_are_refused(url):
    with pytest.raises(InvalidArgument, match="mqtt://host:1883"):
        MqttAddress.parse(url)


def test_a_host_id_that_is_no_id_is_refused():
    with pytest.raises(InvalidArgument):
        HostOptions(host_id="a/b")


@pytest.mark.parametrize(("options", "kept"), [({}, 7 * 86_400), ({"retention": 5.0}, 5), ({"retention": None}, None)])
def test_topics_that_a_host_creates_keep_messages_as_long_as_it_says(mosquitto, store, options, kept):
    async def scenario() -> None:
        async with host_on(mosquitto, store, HostOptions(**options)):
            pass

    run_bounded(scenario())
    reader = open_store(store, read_only=True)
    topics = {row.name: (row.options["retention"], row.options["retain_settled"]) for row in reader.catalog().topics}
    reader.close()
    assert topics == {"telemetry": (kept, kept), "telemetry-ledger": (kept, kept)}


def test_a_node_with_the_longest_name_that_there_can_be_is_stored_like_any_other(mosquitto, any_store):
    async def scenario() -> None:
        async with node_on(mosquitto, "n" * 500, group="g" * 500) as node:
            async with host_on(mosquitto, any_store) as host:
                await node.birth(0)
                await node.data(1)
                await until(lambda: host.counts.stored == 2 or not host.online.is_set())
            async with host_on(mosquitto, any_store) as host:
                await node.data(1, 2)
                await until(lambda: host.counts.stored == 1 or not host.online.is_set())

    run_bounded(scenario())
    assert [each.attributes["seq"] for each in stored_in(any_store)] == ["0", "1", "2"]


@pytest.mark.parametrize("retention", [-1, float("inf"), True, "7d"])
def test_a_retention_that_no_topic_can_have_is_refused(retention):
    with pytest.raises(InvalidArgument, match="retention"):
        HostOptions(retention=retention)
