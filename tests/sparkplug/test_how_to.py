"""What is left when somebody follows ``docs/how-to/connect-sparkplug-nodes.md``: everything."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from seriatim.cli.main import cli
from seriatim.engine.connect import open_broker
from seriatim.engine.engine import Engine
from tests.cli.sparkplug.test_host import host_process
from tests.mosquitto import Mosquitto
from tests.sparkplug.plant import ear_on, host_on, ledger_in, node_on, run_bounded, stored_in, until

HOW_TO = Path(__file__).parents[2] / "docs/how-to/connect-sparkplug-nodes.md"
IN_ITS_ORDER = (
    "sparkplug host ",
    "sparkplug nodes ",
    "subscriptions create telemetry ",
    "subscriptions create telemetry-ledger ",
    "subscriptions seek losses ",
    "messages pull losses ",
    "sparkplug host --mqtt mqtts://",  # run by test_access.py
)


def commands_of_the_how_to(store: str) -> list[list[str]]:
    """The commands of its first section, with a store of ours in the place of its own."""
    section = HOW_TO.read_text().split("\n## ")[1]
    shown = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL)).replace("\\\n", " ")
    lines = [line for line in shown.splitlines() if line.startswith("seriatim ")]
    return [shlex.split(line.replace("sqlite:///plant.db", store))[1:] for line in lines]


def seriatim(*args: str) -> str:
    result = CliRunner().invoke(cli, args, prog_name="seriatim")
    assert result.exit_code == 0, result.output
    return result.stdout


def nodes_in(store: str) -> list[dict[str, Any]]:
    return json.loads(seriatim("sparkplug", "nodes", "--store", store, "--json"))


def acked_from(store: str, subscription: str) -> int:
    args = ("messages", "pull", subscription, "--ack", "--limit", "1000", "--wait", "0.3s", "--json", "--store", store)
    return len(seriatim(*args).splitlines())


async def host_is_online(mosquitto: Mosquitto) -> None:
    async with ear_on(mosquitto, "spBv1.0/STATE/seriatim") as ear:
        await until(lambda: bool(ear.heard) and ear.states()[-1]["online"])


async def speak(mosquitto: Mosquitto, store: str, *, bd_seq: int) -> None:
    """A node is born with a device, loses a message, and dies; another one is born and lives on."""
    stored, entries = len(stored_in(store)), len(ledger_in(store))
    async with (
        node_on(mosquitto, "mortal", bd_seq=bd_seq) as mortal,
        node_on(mosquitto, "lasting", bd_seq=9) as lasting,
    ):
        await mortal.birth(0)
        await mortal.device_birth(1, "rotor")
        await mortal.data(2, 4)
        await until(lambda: len(stored_in(store)) == stored + 4)
        await mortal.death()
        await lasting.birth(0)
        await lasting.data(1, 2, 3)
        await until(lambda: len(stored_in(store)) == stored + 9)
    assert len(ledger_in(store)) == entries + 1, "the number 3 is missing"


def clean_up(store: str) -> None:
    async def scenario() -> None:
        engine = await open_broker(store)
        assert isinstance(engine, Engine)
        await engine.clean_up()
        await engine.close()

    asyncio.run(scenario())


def follow_the_how_to(mosquitto: Mosquitto, store: str, *more: str) -> None:
    """Word by word, and then read and ack everything."""
    host, *others = commands_of_the_how_to(store)
    assert host[:2] == ["sparkplug", "host"]
    with host_process(mosquitto, store, *host[6:], "--reorder-timeout", "50ms", *more) as process:
        run_bounded(host_is_online(mosquitto))
        run_bounded(speak(mosquitto, store, bd_seq=3))
        *before, look = others[:5]
        for command in before:
            seriatim(*command)
        assert "at least 1 missing" in seriatim(*look), "what was lost before anybody subscribed is found"
        for topic in ("telemetry", "telemetry-ledger"):
            seriatim("subscriptions", "create", topic, f"all-of-{topic}", "--store", store)
        run_bounded(speak(mosquitto, store, bd_seq=4))
        read = [acked_from(store, name) for name in ("alarms", "losses", "all-of-telemetry", "all-of-telemetry-ledger")]
        assert read == [1, 1, 9, 1]
        process.send_signal(signal.SIGTERM)
        process.communicate()
    clean_up(store)


def test_the_how_to_has_the_commands_that_are_followed_here():
    shown = [" ".join(command) for command in commands_of_the_how_to("sqlite:///s.db")]
    for command, start in zip(shown, IN_ITS_ORDER, strict=True):
        assert command.startswith(start)


def test_who_follows_the_how_to_and_acks_everything_still_has_telemetry_ledger_and_nodes(mosquitto, store):
    follow_the_how_to(mosquitto, store)
    assert (len(stored_in(store)), len(ledger_in(store))) == (18, 2)
    lasting, mortal = nodes_in(store)
    assert (lasting["node"], lasting["status"], lasting["births"], lasting["messages"]) == ("g/lasting", "online", 2, 8)
    assert (mortal["node"], mortal["status"], mortal["births"], mortal["messages"]) == ("g/mortal", "offline", 2, 10)
    assert (mortal["entries"], mortal["devices"]) == (2, {"rotor": False})


def test_when_all_messages_are_deleted_the_nodes_are_still_known(mosquitto, store):
    follow_the_how_to(mosquitto, store, "--retention", "0")
    assert (stored_in(store), ledger_in(store)) == ([], [])
    known = [(each["node"], each["status"], each["bd_seq"], each["births"], each["seq"]) for each in nodes_in(store)]
    assert known == [("g/lasting", "online", 9, 2, 3), ("g/mortal", "offline", 4, 2, None)]
    assert {(each["messages"], each["entries"]) for each in nodes_in(store)} == {(0, 0)}


def test_the_edge_node_of_the_how_to_is_heard_loses_a_message_and_is_reborn(mosquitto, store, tmp_path):
    program = re.search(r"```python file=edge_node.py\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    assert program is not None
    (tmp_path / "edge_node.py").write_text(program[1])
    command = [sys.executable, tmp_path / "edge_node.py", "127.0.0.1", str(mosquitto.port)]

    async def scenario() -> None:
        async with host_on(mosquitto, store, reorder_timeout=0.1, rebirth_backoff=0.1) as host:
            node = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            assert node.stdout is not None
            try:
                assert await node.stdout.readline() == b"asked for a rebirth\n"
                await until(lambda: host.counts.ledger["lost"] == 1 and host.counts.stored >= 9)
            finally:
                node.kill()
                await node.wait()

    run_bounded(scenario())
    births = [stored for stored in stored_in(store) if stored.attributes["kind"] == "NBIRTH"]
    assert {stored.key for stored in births} == {"plant/press-4"}
    assert len(births) >= 2
    metrics = [metric for stored in stored_in(store) for metric in stored.data["metrics"]]
    assert {metric["name"] for metric in metrics} == {"bdSeq", "temperature"}, "its alias is explained by its birth"
