"""``seriatim sparkplug host`` as a process of its own, killed in the middle and started again."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from click.testing import CliRunner

from seriatim.cli.main import cli
from tests.mosquitto import Mosquitto
from tests.sparkplug.plant import EdgeNode, Stored, ear_on, host_on, ledger_in, node_on, run_bounded, stored_in, until


@contextmanager
def host_process(
    mosquitto: Mosquitto, store: str, *options: str, terminal: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The command for a program, or at a terminal for people."""
    command = [sys.executable, "-m", "seriatim", "sparkplug", "host", "--mqtt", mosquitto.url, "--store", store]
    for_whom = ["--json"] if terminal is None else []
    process = subprocess.Popen(
        [*command, *for_whom, *options],
        env={**os.environ, "HOME": os.devnull, "TERM": "xterm", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if terminal is None else terminal,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_killed_and_restarted_host_neither_repeats_nor_loses_what_it_accepted(mosquitto, any_store):
    async def scenario() -> None:
        async with ear_on(mosquitto, "spBv1.0/STATE/#", "spBv1.0/g/NCMD/#") as ear, node_on(mosquitto) as node:
            with host_process(mosquitto, any_store) as process:
                await until(lambda: len(ear.heard) == 1)
                await node.birth(0)
                await node.data(*range(1, 101))
                await until(lambda: len(stored_in(any_store)) == 101)
                process.send_signal(signal.SIGKILL)
                process.wait()
            await until(lambda: len(ear.heard) == 2)  # the will
            with host_process(mosquitto, any_store) as process:
                await until(lambda: len(ear.heard) >= 3)
                await node.data(100, 101, 102)
                await until(lambda: any("NCMD" in str(message.topic) for message in ear.heard))
                await node.birth(0)
                await until(lambda: len(stored_in(any_store)) == 104)
                process.send_signal(signal.SIGTERM)
                output, errors = await asyncio.to_thread(process.communicate)
                assert process.returncode == 143, errors.decode()
                said = json.loads(output)
                assert (said["nodes"], said["stored"], said["ledger"]) == (1, 3, {"duplicate": 1})

    run_bounded(scenario())
    numbers = [each.attributes["seq"] for each in stored_in(any_store)]
    assert numbers == [str(number) for number in (*range(103), 0)]
    assert repr(ledger_in(any_store)) == "[duplicate NDATA 100]"

    listed = CliRunner().invoke(cli, ["sparkplug", "nodes", "--store", any_store, "--json"], prog_name="seriatim")
    (node,) = json.loads(listed.stdout)
    assert node == {
        "node": "g/n",
        "status": "online",
        "bd_seq": 0,
        "births": 2,
        "seq": 0,
        "messages": 104,
        "flagged": 2,
        "entries": 1,
        "devices": {},
    }


BLOCK = (0, 1, 3, 4, 2, 2, 5, 6, 8, 9, 4)
"""How a block of ten numbers is sent: 2 is displaced, 2 and 4 come twice, and 7 comes a block too late."""


class Traffic:
    """A node on a bad line. Whatever it sends can be told from everything else by its id."""

    def __init__(self, node: EdgeNode) -> None:
        self._node = node
        self._number = 0
        self.sent = 0

    async def birth(self) -> None:
        await self._node.birth(0, {"name": "id", "datatype": 3, "int_value": self._next()})
        self._number = 1

    async def blocks(self, count: int) -> None:
        for _ in range(count):
            for place in BLOCK:
                await self._data(self._number + place)
            await asyncio.sleep(0.03)  # the line is slower than the host's patience
            await self._data(self._number + 7)
            self._number += 10

    async def _data(self, number: int) -> None:
        await self._node.data(number, name="id", datatype=3, int_value=self._next())

    def _next(self) -> int:
        self.sent += 1
        return self.sent - 1


def ids_in(messages: list[Stored]) -> list[int]:
    metrics = [metric for each in messages for metric in each.data.get("metrics", ())]
    return [metric["value"] for metric in metrics if metric["name"] == "id"]


def test_killed_amid_gaps_and_copies_a_host_has_each_message_once_in_topic_or_ledger(mosquitto, any_store):
    """What it had only in memory when it was killed is missing, and nothing before or after that."""

    async def scenario() -> None:
        async with ear_on(mosquitto, "spBv1.0/STATE/seriatim") as ear, node_on(mosquitto) as node:
            traffic = Traffic(node)
            for _ in range(2):
                entries = len(ledger_in(any_store))
                with host_process(mosquitto, any_store, "--reorder-timeout", "10ms") as process:
                    await until(lambda: bool(ear.heard) and ear.states()[-1]["online"])
                    begun = traffic.sent
                    await traffic.birth()
                    sending = asyncio.create_task(traffic.blocks(30))
                    await until(lambda: len(ledger_in(any_store)) > entries + 20)  # noqa: B023
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    await sending
                durable = {*ids_in(stored_in(any_store)), *ids_in(ledger_in(any_store))}
                await until(lambda: not ear.states()[-1]["online"])
                missing = set(range(begun, traffic.sent)) - durable
                assert missing, "it was killed in the middle"
                held = [number for number in missing if number < max(durable)]
                assert len(held) <= 2 * len(BLOCK), "only what waited behind a gap can be missing before what is there"
            with host_process(mosquitto, any_store, "--reorder-timeout", "10ms") as process:
                await until(lambda: ear.states()[-1]["online"])
                begun = traffic.sent
                await traffic.birth()
                await traffic.blocks(5)
                await until(lambda: traffic.sent - 1 in ids_in(ledger_in(any_store)))
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(process.communicate)
            found = Counter(ids_in(stored_in(any_store)) + ids_in(ledger_in(any_store)))
            assert set(found.values()) == {1}
            assert set(range(begun, traffic.sent)) <= found.keys()

    run_bounded(scenario(), 90)
    places = [tuple(int(each.attributes[name]) for name in ("epoch", "timestamp")) for each in stored_in(any_store)]
    assert places == sorted(set(places)), "in order, and nothing twice"
    assert {each.attributes["reason"] for each in ledger_in(any_store)} == {"duplicate", "late", "lost"}


@asynccontextmanager
async def seen_on(terminal: int) -> AsyncIterator[Callable[[str], bool]]:
    """Whether something was shown at a terminal so far, in whatever colours."""
    shown = bytearray()
    loop = asyncio.get_running_loop()
    loop.add_reader(terminal, lambda: shown.extend(os.read(terminal, 65_536)))
    try:
        yield lambda text: text.encode() in re.sub(rb"\x1b\[[0-9;]*m", b"", shown)
    finally:
        loop.remove_reader(terminal)


def test_at_a_terminal_it_shows_how_things_stand_and_in_the_end_what_happened(mosquitto, store):
    terminal, end = pty.openpty()

    async def scenario() -> None:
        async with seen_on(terminal) as is_shown, node_on(mosquitto) as node:
            with host_process(mosquitto, store, "--reorder-timeout", "60s", terminal=end) as process:
                await until(lambda: is_shown("connected · 0/0 nodes online"))
                await node.birth(0)
                await node.data(1, 1, 3)
                line = "connected · 1/1 nodes online · 2 stored · 1 held · 0 rebirth requests · 1 duplicate"
                await until(lambda: is_shown(line))
                process.send_signal(signal.SIGTERM)
                output, _ = await asyncio.to_thread(process.communicate)
        said = "2 messages of 1 edge node stored; 1 discarded, 1 duplicate"
        assert (process.returncode, output.decode().strip()) == (143, said)

    try:
        run_bounded(scenario())
    finally:
        os.close(terminal)
        os.close(end)


def test_nodes_are_listed_as_a_table_for_people(mosquitto, store):
    async def scenario() -> None:
        async with host_on(mosquitto, store, reorder_timeout=0.01) as host, node_on(mosquitto, bd_seq=4) as node:
            await node.birth(0)
            await node.device_birth(1, "d")
            await node.data(2, 2)
            await EdgeNode(node._client, "g", "x\u2215y\u200c").data(7)
            await until(lambda: host.counts.stored == 4 and host.counts.entries == 1)
            await node.death()
            await until(lambda: host.counts.stored == 5)

    run_bounded(scenario())
    listed = CliRunner().invoke(cli, ["sparkplug", "nodes", "--store", store], prog_name="seriatim")
    assert [re.split(r"\s{2,}", line.strip()) for line in listed.stdout.splitlines()] == [
        ["node", "status", "session", "births", "last seq", "messages", "flagged", "in ledger", "devices online"],
        ["g/n", "offline", "4", "1", "2", "4", "0", "1", "0/1"],
        [repr("g/x\u2215y\u200c"), "unknown", "-", "0", "7", "1", "1", "0", "0/0"],
    ]


def test_without_nodes_the_list_says_so(store):
    CliRunner().invoke(cli, ["topics", "create", "telemetry", "--store", store], prog_name="seriatim")
    listed = CliRunner().invoke(cli, ["sparkplug", "nodes", "--store", store], prog_name="seriatim")
    assert listed.stdout == "no edge nodes yet\n"


def test_mistakes_of_the_caller_are_one_line(tmp_path):
    store = f"sqlite:///{tmp_path / 's.db'}"
    for args, said in (
        ([], "name the MQTT broker"),
        (["--mqtt", "localhost"], "mqtt://host:1883"),
        (["--mqtt", "mqtt://h", "--host-id", "a/b"], "not a Sparkplug id"),
        (["--mqtt", "mqtt://h", "--ledger", "telemetry"], "name another topic"),
        (["--mqtt", "mqtt://u:secret@h", "--mqtt-ca", __file__], "give the address of the broker as mqtts://"),
        (["--mqtt", "mqtt://h", "--retention", "a week"], "is not a duration"),
        (["--mqtt", "mqtt://h", "--retention", "36600d"], "retention must be"),
        (["nodes"], "there is no store"),
    ):
        result = CliRunner().invoke(cli, ["sparkplug", "host", "--store", store, *args], prog_name="seriatim")
        if args == ["nodes"]:
            result = CliRunner().invoke(cli, ["sparkplug", "nodes", "--store", store], prog_name="seriatim")
        assert result.exit_code in (1, 2)
        assert said in result.stderr
        assert "Traceback" not in result.stderr
        assert "secret" not in result.stderr


def test_a_topic_that_is_not_there_is_named(tmp_path):
    store = f"sqlite:///{tmp_path / 's.db'}"
    CliRunner().invoke(cli, ["topics", "create", "other", "--store", store], prog_name="seriatim")
    result = CliRunner().invoke(cli, ["sparkplug", "nodes", "--store", store], prog_name="seriatim")
    assert (result.exit_code, "there is no topic 'telemetry'" in result.stderr) == (1, True)
