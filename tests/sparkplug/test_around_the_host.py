"""What surrounds a host at work: its connection, the groups that it hears, MQTT 5, and rebirths that an operator asks for."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import urlopen

import aiomqtt
import pytest
from click.testing import CliRunner

from seriatim.cli.main import cli
from seriatim.engine.connect import open_broker
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.sparkplug import inbox as inbox_module
from seriatim.sparkplug.host import Host, HostOptions
from seriatim.sparkplug.inbox import Inbox
from seriatim.sparkplug.intake import Counts
from seriatim.sparkplug.mqtt_address import MqttAddress
from seriatim.sparkplug.payload import REBIRTH
from seriatim.sparkplug.rebirth_request import ask_for_rebirth
from seriatim.sparkplug.topics import NodeId, parse_node
from tests.cli.sparkplug.test_host import host_process
from tests.sparkplug.plant import TOPIC, ear_on, host_on, node_on, run_bounded, stored_in, until


def test_a_host_says_that_it_is_connected_and_connected_again(mosquitto, store):
    said: list[str] = []

    async def scenario():
        broker = await open_broker(store)
        options = HostOptions(reconnect_delay=0.02, reconnect_limit=0.05)
        host = Host(broker, TOPIC, MqttAddress.parse(mosquitto.url), options, notify=said.append)
        running = asyncio.create_task(host.run())
        await host.online.wait()
        mosquitto.stop()
        await until(lambda: not host.online.is_set())
        mosquitto.start()
        await host.online.wait()
        running.cancel()
        await asyncio.wait([running])
        await broker.close()

    run_bounded(scenario())
    address = str(MqttAddress.parse(mosquitto.url))
    assert said == [f"connected to the MQTT broker {address}", f"connected again to the MQTT broker {address}"]


def test_the_command_says_that_it_is_connected_also_without_a_terminal(mosquitto, store):
    with host_process(mosquitto, store) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"connected to the MQTT broker mqtt://127.0.0.1")
        process.terminate()
        process.communicate()


def test_a_host_of_some_groups_hears_no_others_and_keeps_its_state_online(mosquitto, store):
    async def scenario():
        options = HostOptions(groups=("g", "h"))
        async with (
            host_on(mosquitto, store, options) as host,
            node_on(mosquitto) as mine,
            node_on(mosquitto, group="h") as other,
            node_on(mosquitto, group="foreign") as foreign,
            ear_on(mosquitto, "spBv1.0/STATE/#") as ear,
            aiomqtt.Client("127.0.0.1", mosquitto.port) as client,
        ):
            await foreign.birth(0)
            await mine.birth(0)
            await other.birth(0)
            await until(lambda: host.counts.stored == 2)
            await client.publish("spBv1.0/STATE/seriatim", b'{"online": false}', qos=1, retain=True)
            await until(lambda: [state["online"] for state in ear.states()][-2:] == [False, True])
            assert len(host.nodes) == 2

    run_bounded(scenario())
    assert {each.key for each in stored_in(store)} == {"g/n", "h/n"}


def test_a_group_that_would_be_a_pattern_is_refused():
    with pytest.raises(InvalidArgument, match="group id '#' is not a Sparkplug id"):
        HostOptions(groups=("#",))


def test_a_host_speaks_mqtt_5(mosquitto, store):
    async def scenario():
        async with host_on(mosquitto, store, HostOptions(mqtt5=True)) as host, node_on(mosquitto) as node:
            await node.birth(0)
            await node.data(1, 2)
            await until(lambda: host.counts.stored == 3)

    run_bounded(scenario())
    assert len(stored_in(store)) == 3


@pytest.mark.parametrize(("mqtt5", "level"), [(False, 4), (True, 5)])
def test_a_host_begins_a_clean_session_in_either_version(store, mqtt5, level):
    first: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first.append(await reader.read(64))
        writer.close()

    async def scenario():
        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        broker = await open_broker(store)
        host = Host(broker, TOPIC, MqttAddress.parse(f"mqtt://127.0.0.1:{port}"), HostOptions(mqtt5=mqtt5))
        running = asyncio.create_task(host.run())
        await until(lambda: bool(first))
        running.cancel()
        await asyncio.wait([running])
        await broker.close()
        server.close()

    run_bounded(scenario())
    protocol, flags = first[0].partition(b"\x00\x04MQTT")[2][:2]
    assert protocol == level
    assert flags & 2, "clean"


def test_a_warning_about_a_payload_names_its_node(mosquitto, store, caplog):
    async def scenario():
        async with host_on(mosquitto, store) as host, node_on(mosquitto) as node:
            await node.send("NDATA", b"\xff\xff\xff")
            await until(lambda: host.counts.malformed["payload"] == 1)

    with caplog.at_level(logging.WARNING, "seriatim"):
        run_bounded(scenario())
    (warning,) = [record for record in caplog.records if "malformed" in record.getMessage()]
    assert warning.getMessage().startswith("g/n: malformed (payload, 1 so far)")


def get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def until_it_says(url: str, status: int) -> None:
    end = time.monotonic() + 20
    while get(url)[0] != status:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_host_answers_prometheus_and_says_whether_it_is_connected(mosquitto, store):
    async def scenario():
        with host_process(mosquitto, store, "--metrics-port", "0") as process:
            assert process.stderr is not None
            where = re.search(r"http://127.0.0.1:\d+", process.stderr.readline().decode())
            assert where
            assert b"connected" in process.stderr.readline()
            async with node_on(mosquitto) as node:
                await node.birth(0)
                await node.data(1, 2)
                await until(lambda: len(stored_in(store)) == 3)
            status, text = await asyncio.to_thread(get, f"{where[0]}/metrics")
            assert status == 200
            assert "seriatim_sparkplug_stored_total 3.0" in text
            assert 'seriatim_sparkplug_nodes{status="online"} 1.0' in text
            assert "seriatim_sparkplug_connected 1.0" in text
            assert (await asyncio.to_thread(get, f"{where[0]}/health"))[0] == 200
            mosquitto.stop()
            await asyncio.to_thread(until_it_says, f"{where[0]}/health", 503)
            process.terminate()
            await asyncio.to_thread(process.communicate)

    run_bounded(scenario())


# --- rebirths ---------------------------------------------------------------------------------------------------------


async def reborn_on_command(mosquitto, group: str = "g", node: str = "n") -> None:
    """A node that answers one command with a birth."""
    topic = f"spBv1.0/{group}/NCMD/{node}"
    async with ear_on(mosquitto, topic) as ear, node_on(mosquitto, node, group=group) as edge:
        await until(lambda: len(ear.heard) == 1)
        (metric,) = ear.payloads()[0].metrics
        assert (metric.name, metric.boolean_value) == (REBIRTH, True)
        await edge.birth(0)


def test_a_rebirth_that_an_operator_asks_for_is_waited_for(mosquitto):
    async def scenario():
        node = asyncio.create_task(reborn_on_command(mosquitto))
        await asyncio.sleep(0.2)
        born = await ask_for_rebirth(MqttAddress.parse(mosquitto.url), NodeId("g", "n"))
        await node
        return born

    assert run_bounded(scenario()) is True


def test_a_node_that_does_not_answer_is_told_of(mosquitto):
    result = CliRunner().invoke(
        cli, ["sparkplug", "rebirth", "g/n", "--mqtt", mosquitto.url, "--timeout", "0.2s"], prog_name="seriatim"
    )
    assert result.exit_code == 1
    assert "no birth of g/n came within 0.2 s" in result.output


def test_nobody_waits_for_a_birth_that_is_not_wanted(mosquitto):
    result = CliRunner().invoke(
        cli, ["sparkplug", "rebirth", "g/n", "--mqtt", mosquitto.url, "--timeout", "0s", "--json"], prog_name="seriatim"
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"node": "g/n", "born": False}


def test_a_broker_that_is_not_there_is_told_of_without_a_trace(mosquitto):
    mosquitto.stop()
    result = CliRunner().invoke(cli, ["sparkplug", "rebirth", "g/n", "--mqtt", mosquitto.url], prog_name="seriatim")
    assert result.exit_code == 1
    assert "no connection to the MQTT broker" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("text", ["g", "", "g/", "/n", "g/n/device", "g/+"])
def test_what_names_no_node_is_refused(text):
    with pytest.raises(InvalidArgument):
        parse_node(text)


def test_asking_needs_a_broker_that_lets_us_in(tmp_path):
    with pytest.raises(FailedPrecondition):
        asyncio.run(ask_for_rebirth(MqttAddress.parse("mqtt://127.0.0.1:9"), NodeId("g", "n")))


def reading(*packets: str, sock: object = None) -> tuple[Any, Inbox, Mock]:
    """A client whose socket has these packets, one for each read; nothing more arrives then."""
    inbox, left = Inbox(Counts()), list(packets)

    def read() -> None:
        if not left:
            return
        if (packet := left.pop(0)) == "error":
            raise OSError("broken pipe")
        if packet == "message":
            inbox.put_nowait(aiomqtt.Message("t", b"", 0, False, 0, None))

    mqtt = Mock(loop_read=Mock(side_effect=read), socket=lambda: sock)
    return SimpleNamespace(_client=mqtt, _disconnected=asyncio.Future()), inbox, mqtt.loop_read


def test_the_host_reads_at_once_what_has_arrived_and_not_more_than_others_can_wait_for(monkeypatch):
    async def scenario():
        client, inbox, reads = reading(*["message"] * 3)
        inbox_module.read_arrived(client, inbox)
        assert (inbox.qsize(), reads.call_count) == (3, 4)
        monkeypatch.setattr(inbox_module, "MAX_READ_AT_ONCE", 5)
        client, inbox, _ = reading(*["message"] * 9)
        inbox_module.read_arrived(client, inbox)
        assert inbox.qsize() == 5
        inbox_module.read_arrived(client, inbox)
        assert inbox.qsize() == 9

    run_bounded(scenario())


def test_the_host_reads_whatever_tls_has_decrypted(monkeypatch):
    monkeypatch.setattr(inbox_module, "MAX_READ_AT_ONCE", 1)

    async def scenario():
        sock = Mock(spec=ssl.SSLSocket, pending=Mock(side_effect=[40, 20, 0]))
        client, inbox, reads = reading("ping", "message", "message", "message", sock=sock)
        inbox_module.read_arrived(client, inbox)
        assert (inbox.qsize(), reads.call_count) == (2, 3)

    run_bounded(scenario())


def test_an_error_of_the_socket_ends_the_connection():
    async def scenario():
        client, inbox, _ = reading("message", "error", "error")
        inbox_module.read_arrived(client, inbox)
        with pytest.raises(OSError, match="broken pipe"):
            client._disconnected.result()
        inbox_module.read_arrived(client, inbox)
        assert inbox.qsize() == 1

    run_bounded(scenario())
