"""What a host says of itself, and what it does when something goes wrong: no message is passed over, no STATE is untrue."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import aiomqtt
import pytest

from seriatim.cli.sparkplug.host import summary
from seriatim.core.sparkplug.messages import EdgeMessage, Kind, Ordered
from seriatim.engine.connect import open_broker
from seriatim.errors import PermissionDenied
from seriatim.sparkplug import host as host_module
from seriatim.sparkplug.host import Host, HostOptions
from seriatim.sparkplug.intake import Body
from seriatim.sparkplug.mqtt_address import MqttAddress
from seriatim.sparkplug.payload import Payload
from seriatim.sparkplug.records import make_record
from seriatim.sparkplug.topics import NodeId
from tests.sparkplug.plant import (
    TOPIC,
    ear_on,
    host_on,
    ledger_in,
    node_on,
    run_bounded,
    stored_in,
    until,
)
from tests.sparkplug.scripted_broker import (
    CONNECT,
    DISCONNECT,
    PUBLISH,
    SUBSCRIBE,
    Connect,
    ScriptedBroker,
    scripted_broker,
)

NODE = NodeId("g", "n")


@asynccontextmanager
async def host_at(broker: ScriptedBroker, **options: Any) -> AsyncIterator[tuple[Host, asyncio.Task[None]]]:
    """A host that begins to work."""
    store = await open_broker("memory://")
    host = Host(store, TOPIC, broker.address, HostOptions(**options))
    running = asyncio.create_task(host.run())
    try:
        yield host, running
    finally:
        running.cancel()
        await asyncio.wait([running])
        await store.close()


# -- errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "stored"),
    [
        pytest.param(0, [], id="while a node is recalled"),
        pytest.param(1, ["0"], id="while reading"),
        pytest.param(3, ["0", "1"], id="by the timer"),
    ],
)
def test_an_error_ends_the_host_before_anything_behind_it_is_stored_and_the_host_says_that_it_is_offline(
    mosquitto, store, monkeypatch, wrong, stored
):
    def fail_at(ordered: Ordered[Body], *args: Any, **options: Any) -> Any:
        if ordered.message.seq == wrong:
            raise RuntimeError("nobody expected this")
        return make_record(ordered, *args, **options)

    async def scenario() -> None:
        async with host_on(mosquitto, store, reorder_timeout=0.05) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await until(lambda: host.counts.stored == 1 or not host.online.is_set())
            await node.data(1)
            await until(lambda: host.counts.stored == 2 or not host.online.is_set())
            await node.data(3, 4)
            await until(lambda: not host.online.is_set(), "the host should have stopped")

    async def afterwards() -> dict[str, Any]:
        async with ear_on(mosquitto, "spBv1.0/STATE/#") as ear:
            await until(lambda: ear.heard != [])
        async with host_on(mosquitto, store, reorder_timeout=0.05) as host, node_on(mosquitto) as node:
            await node.data(5)
            await until(lambda: host.counts.stored == 1)
        return ear.states()[-1]

    monkeypatch.setattr(host_module, "make_record", fail_at)
    with pytest.raises(RuntimeError, match="nobody expected this"):
        run_bounded(scenario())
    monkeypatch.setattr(host_module, "make_record", make_record)
    assert [each.attributes["seq"] for each in stored_in(store)] == stored
    assert ledger_in(store) == []
    state = run_bounded(afterwards())
    assert state["online"] is False
    lost = [(each.attributes["first"], each.attributes["last"]) for each in ledger_in(store)]
    assert lost == ([(str(len(stored)), "4")] if stored else []), "the place is where the last stored message left it"


def test_what_can_not_be_stored_when_the_host_is_stopped_is_no_secret(mosquitto, store, monkeypatch):
    async def fail(*_: Any) -> range:
        raise ConnectionError("the store is gone")

    async def scenario() -> None:
        broker = await open_broker(store)
        host = Host(broker, TOPIC, MqttAddress.parse(mosquitto.url), HostOptions())
        running = asyncio.create_task(host.run())
        await host.online.wait()
        async with node_on(mosquitto) as node:
            await node.birth(0)
            await node.data(2)
            await until(lambda: host.counts.stored == 1 and host.nodes[NODE].held_count == 1)
        monkeypatch.setattr(broker, "publish_once", fail)
        running.cancel()
        with pytest.raises(ConnectionError, match="the store is gone"):
            await running
        await broker.close()

    run_bounded(scenario())


def test_a_host_that_is_stopped_before_its_birth_is_acknowledged_says_offline():
    async def scenario() -> list[bool]:
        async with scripted_broker() as broker:
            broker.acknowledging = False
            async with host_at(broker) as (_, running):
                await until(lambda: len(broker.published()) == 1)
                broker.acknowledging = True
                running.cancel()
                await asyncio.wait([running])
            return [json.loads(data)["online"] for _, data in broker.published()]

    assert run_bounded(scenario()) == [True, False]


def test_a_connection_that_is_lost_while_the_host_announces_itself_again_is_known_at_once():
    async def scenario() -> float:
        async with scripted_broker() as broker, host_at(broker, reconnect_delay=0.01) as (host, _):
            await host.online.wait()
            broker.acknowledging = False
            broker.publish("spBv1.0/STATE/seriatim", b'{"online": false}')
            await until(lambda: len(broker.published()) == 2)
            broker.acknowledging = True
            lost = asyncio.get_running_loop().time()
            broker.hang_up()
            await until(lambda: len(broker.arrivals) == 2)  # it may have been offline for a few milliseconds only
            return broker.arrivals[1] - lost

    assert run_bounded(scenario()) < 5  # aiomqtt waits ten seconds for a confirmation


@pytest.mark.usefixtures("no_garbage_of_others")
def test_a_host_that_is_stopped_when_its_connection_was_lost_while_it_subscribed_leaves_no_error_in_the_loop(
    monkeypatch,
):
    clients: list[aiomqtt.Client] = []
    complaints: list[dict[str, Any]] = []

    class Watched(aiomqtt.Client):
        async def __aenter__(self):
            clients.append(self)
            return await super().__aenter__()

    monkeypatch.setattr("seriatim.sparkplug.host.aiomqtt.Client", Watched)

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with scripted_broker() as broker:
            broker.granted = None
            async with host_at(broker) as (_, running):
                await until(lambda: SUBSCRIBE in [packet.type for packet in broker.heard])
                broker.hang_up()
                await until(clients[0]._disconnected.done)
                running.cancel()
                await asyncio.wait([running])

    run_bounded(scenario())
    clients.clear()
    gc.collect()
    assert complaints == []


def test_a_host_ends_although_a_publish_that_is_confirmed_just_then_forgets_the_cancellation(
    mosquitto, store, monkeypatch
):
    """As asyncio.wait_for does in Python 3.11."""
    asked = asyncio.Event()

    class Forgetful(aiomqtt.Client):
        async def publish(self, topic: str, *args: Any, **options: Any) -> None:
            if "NCMD" in topic:
                asked.set()
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            else:
                await super().publish(topic, *args, **options)

    async def scenario() -> list[dict[str, Any]]:
        async with ear_on(mosquitto, "spBv1.0/STATE/#") as ear:
            monkeypatch.setattr("seriatim.sparkplug.host.aiomqtt.Client", Forgetful)
            async with host_on(mosquitto, store), node_on(mosquitto) as node:
                await node.data(7)
                await asked.wait()
            await until(lambda: len(ear.heard) == 2)
        return ear.states()

    assert [state["online"] for state in run_bounded(scenario())] == [True, False]


def test_what_is_released_while_a_rebirth_is_asked_for_is_stored_in_order(store):
    """Two gaps, a millisecond apart, and behind each a metric that nobody can name: each is a reason to ask."""
    clock = SimpleNamespace(now=0.0)

    def message(kind: Kind, seq: int, *, alias: int | None = None, bd_seq: int | None = None) -> EdgeMessage[Body]:
        payload = Payload(seq=seq)
        if alias is not None:
            payload.metrics.add(alias=alias, int_value=1)
        return EdgeMessage(kind, Body(payload, b""), seq, seq + 1, None, bd_seq)

    async def scenario() -> None:
        broker = await open_broker(store)
        await broker.create_topic(TOPIC)
        await broker.create_topic(f"{TOPIC}-ledger")
        host = Host(broker, TOPIC, MqttAddress("nowhere", 1), HostOptions())
        timer = SimpleNamespace(when=lambda: None, cancel=lambda: None)
        host._loop = SimpleNamespace(time=lambda: clock.now, call_at=lambda *_: timer)  # type: ignore[assignment]
        await host._journal.recall(NODE)
        host._order(NODE, message(Kind.NBIRTH, 0, bd_seq=0))
        for seq, clock.now in ((2, 0.0), (3, 0.0), (5, 0.001)):
            host._order(NODE, message(Kind.NDATA, seq, alias=9))
        effects = host.nodes.advance(2.0)
        clock.now = 2.001
        host._apply(effects)
        host._journal.end()
        await host._journal.run()
        await broker.close()

    run_bounded(scenario())
    assert repr(stored_in(store)) == "[NBIRTH 0, NDATA 2, NDATA 3, NDATA 5]"
    assert [each.attributes["first"] for each in ledger_in(store)] == ["1", "4"]


# -- commands -----------------------------------------------------------------------------------------------------------


def test_a_command_that_can_not_be_sent_does_not_stop_the_next(mosquitto, store, monkeypatch):
    failed: list[str] = []
    publish = aiomqtt.Client.publish

    async def fail_once(self: aiomqtt.Client, topic: str, *args: Any, **options: Any) -> None:
        if "NCMD" in topic and not failed:
            failed.append(topic)
            raise aiomqtt.MqttError("Operation timed out")
        await publish(self, topic, *args, **options)

    async def scenario() -> None:
        async with (
            host_on(mosquitto, store) as host,
            ear_on(mosquitto, "spBv1.0/+/NCMD/#") as ear,
            node_on(mosquitto) as node,
            node_on(mosquitto, "other") as other,
        ):
            monkeypatch.setattr(aiomqtt.Client, "publish", fail_once)
            await node.data(1)
            await until(lambda: failed != [])
            await other.data(1)
            await until(lambda: ear.heard != [])
            assert host.online.is_set()
        assert [str(message.topic) for message in ear.heard] == ["spBv1.0/g/NCMD/other"]

    run_bounded(scenario())


def test_without_a_broker_nobody_is_asked_and_with_one_again_each_node_once(mosquitto, store):
    """The outage is longer than all the attempts would take."""

    async def scenario() -> None:
        policy: dict[str, Any] = {"reorder_timeout": 0.05, "rebirth_backoff": 0.05, "rebirth_backoff_limit": 0.1}
        async with host_on(mosquitto, store, **policy) as host:
            async with node_on(mosquitto) as node:
                await node.birth(0)
                await node.data(2)
                await until(lambda: host.counts.received == 3)
                mosquitto.stop()
            await until(lambda: not host.online.is_set())
            asked = host.counts.rebirths
            await asyncio.sleep(1.0)
            assert host.counts.rebirths == asked
            mosquitto.start()
            await host.online.wait()
            assert host.counts.rebirths == asked + 1
            await until(lambda: host.counts.rebirths > asked + 2, "it is repeated: the attempts are not used up")

    run_bounded(scenario())


# -- topics -------------------------------------------------------------------------------------------------------------


def test_a_group_may_be_named_state(mosquitto, store):
    async def scenario() -> None:
        async with host_on(mosquitto, store) as host, node_on(mosquitto, group="STATE") as node:
            await node.birth(0)
            await until(lambda: host.counts.stored == 1)

    run_bounded(scenario())
    assert stored_in(store)[0].key == "STATE/n"


# -- more than can be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("messages", "bytes_"), [(5, 10**9), (10**9, 100)])
def test_what_is_more_than_may_wait_unread_is_dropped_counted_and_said(
    mosquitto, store, monkeypatch, caplog, messages, bytes_
):
    monkeypatch.setattr("seriatim.sparkplug.inbox.MAX_UNREAD", messages)
    monkeypatch.setattr("seriatim.sparkplug.inbox.MAX_UNREAD_BYTES", bytes_)
    slow = asyncio.Event()

    async def scenario() -> Host:
        policy: dict[str, Any] = {"reorder_timeout": 0, "send_rebirth_when_timeout": False}
        async with host_on(mosquitto, store, **policy) as host, node_on(mosquitto) as node:
            await until(lambda: host.counts.received == 1)
            monkeypatch.setattr(type(host._journal), "is_full", True)
            monkeypatch.setattr(host._journal, "room", slow.wait)
            await node.birth(0)
            await node.data(*range(1, 100))
            await until(lambda: host.counts.unread > 90)
            slow.set()
            await until(lambda: host.counts.stored + host.counts.unread == 100)
            return host

    host = run_bounded(scenario())
    counts = host.counts
    assert counts.received - counts.commands == counts.stored + counts.unread == 100
    assert caplog.text.count("dropped unread") == 1


def test_a_clean_stop_counts_what_it_leaves_unread(mosquitto, store, monkeypatch):
    async def scenario() -> Host:
        async with host_on(mosquitto, store) as host, node_on(mosquitto) as node:
            await until(lambda: host.counts.received == 1)
            monkeypatch.setattr(type(host._journal), "is_full", True)
            monkeypatch.setattr(host._journal, "room", asyncio.Event().wait)
            async with ear_on(mosquitto, "spBv1.0/#") as ear:
                await node.birth(0)
                await node.data(*range(1, 10))
                await until(lambda: len(ear.heard) == 11)
        return host

    host = run_bounded(scenario())
    counts = host.counts
    assert (counts.stored, counts.unread) == (1, 9)
    assert counts.received == counts.commands + counts.stored + counts.unread
    assert summary(host) == "1 message of 1 edge node stored; 9 unread"


# -- the connection -----------------------------------------------------------------------------------------------------


def test_a_subscription_that_is_refused_ends_the_host_with_a_clear_message():
    async def scenario() -> None:
        async with scripted_broker() as broker:
            broker.granted = 0x80
            async with host_at(broker) as (_, running):
                with pytest.raises(PermissionDenied, match=r"refused a subscription to 'spBv1.0/#'"):
                    await running
                assert broker.published() == []

    run_bounded(scenario())


def test_a_subscription_that_is_refused_later_on_is_tried_again(caplog):
    async def scenario() -> None:
        async with scripted_broker() as broker, host_at(broker, reconnect_delay=0.02) as (host, _):
            await host.online.wait()
            broker.granted = 0x80
            broker.hang_up()
            await until(lambda: "refused a subscription" in caplog.text)
            broker.granted = 0
            await host.online.wait()

    run_bounded(scenario())


def test_a_host_connects_with_a_clean_session_and_a_retained_will_and_subscribes_before_it_publishes():
    async def scenario() -> ScriptedBroker:
        async with scripted_broker() as broker, host_at(broker) as (host, running):
            await host.online.wait()
            running.cancel()
            await asyncio.wait([running])
            return broker

    broker = run_bounded(scenario())
    assert [packet.type for packet in broker.heard] == [CONNECT, SUBSCRIBE, PUBLISH, PUBLISH, DISCONNECT]
    connect = Connect.read(broker.heard[0])
    topic, birth = broker.published()[0]
    assert (connect.clean_session, connect.will_qos, connect.will_retain) == (True, 1, True)
    assert connect.will_topic == topic == "spBv1.0/STATE/seriatim"
    assert json.loads(connect.will) == {**json.loads(birth), "online": False}
    assert [packet.flags for packet in broker.heard[2:4]] == [0b0011, 0b0011], "QoS 1, retained"


def test_the_time_between_two_connections_grows_and_a_good_connection_begins_it_anew():
    failures = 6

    async def scenario() -> list[float]:
        async with scripted_broker() as broker:
            broker.refusal = 3
            async with host_at(broker, reconnect_delay=0.03, reconnect_limit=60) as (host, _):
                await until(lambda: len(broker.arrivals) == failures)
                broker.refusal = 0
                await host.online.wait()
                hung_up = asyncio.get_running_loop().time()
                broker.hang_up()
                await until(lambda: len(broker.arrivals) == failures + 2)
            *tries, last = broker.arrivals
            return [*(later - earlier for earlier, later in pairwise(tries)), last - hung_up]

    *growing, anew = run_bounded(scenario())
    assert len(growing) == failures
    assert all(waited >= 0.5 * 0.03 * 2**number for number, waited in enumerate(growing))
    assert anew < growing[-1], "not yet at the shortest again, it would be twice as long"
