"""``seriatim sparkplug`` as a process of its own, killed in the middle and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from seriatim.cli.main import cli
from tests.mosquitto import Mosquitto
from tests.sparkplug.plant import ear_on, node_on, run_bounded, stored_in, until


@contextmanager
def host_process(mosquitto: Mosquitto, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    store = f"sqlite:///{folder / 's.db'}"
    process = subprocess.Popen(
        [sys.executable, "-m", "seriatim", "sparkplug", "--mqtt", mosquitto.url, "--store", store, "--json", *options],
        env={**os.environ, "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stored(folder: Path) -> list[Any]:
    return stored_in(folder / "s.db") if (folder / "s.db").exists() else []


def test_a_killed_and_restarted_host_neither_repeats_nor_loses_what_it_accepted(mosquitto, tmp_path):
    async def scenario() -> None:
        async with ear_on(mosquitto, "spBv1.0/STATE/#", "spBv1.0/g/NCMD/#") as ear, node_on(mosquitto) as node:
            with host_process(mosquitto, tmp_path) as process:
                await until(lambda: len(ear.heard) == 1)
                await node.birth(0)
                await node.data(*range(1, 101))
                await until(lambda: len(stored(tmp_path)) == 101)
                process.send_signal(signal.SIGKILL)
                process.wait()
            await until(lambda: len(ear.heard) == 2)  # the will
            with host_process(mosquitto, tmp_path) as process:
                await until(lambda: len(ear.heard) >= 3)
                await node.data(100, 101, 102)
                await until(lambda: any("NCMD" in str(message.topic) for message in ear.heard))
                await node.birth(0)
                await until(lambda: len(stored(tmp_path)) == 104)
                process.send_signal(signal.SIGTERM)
                output, errors = await asyncio.to_thread(process.communicate)
                assert process.returncode == 143, errors.decode()
                said = json.loads(output)
                assert (said["nodes"], said["stored"], said["ledger"]) == (1, 3, {"duplicate": 1})

    run_bounded(scenario())
    numbers = [each.attributes["seq"] for each in stored(tmp_path)]
    assert numbers == [str(number) for number in (*range(103), 0)]

    listed = CliRunner().invoke(
        cli, ["sparkplug", "nodes", "--store", f"sqlite:///{tmp_path / 's.db'}", "--json"], prog_name="seriatim"
    )
    (node,) = json.loads(listed.stdout)
    assert node == {
        "node": "g/n",
        "status": "online",
        "bd_seq": 0,
        "births": 2,
        "seq": 0,
        "messages": 104,
        "flagged": 2,
        "devices": {},
    }


def test_mistakes_of_the_caller_are_one_line(tmp_path):
    store = f"sqlite:///{tmp_path / 's.db'}"
    for args, said in (
        ([], "Say where the MQTT broker is"),
        (["--mqtt", "localhost"], "mqtt://host:1883"),
        (["--mqtt", "mqtt://h", "--host-id", "a/b"], "no Sparkplug id"),
        (["nodes"], "there is no store"),
    ):
        result = CliRunner().invoke(cli, ["sparkplug", "--store", store, *args], prog_name="seriatim")
        if args == ["nodes"]:
            result = CliRunner().invoke(cli, ["sparkplug", "nodes", "--store", store], prog_name="seriatim")
        assert result.exit_code in (1, 2)
        assert said in result.stderr
        assert "Traceback" not in result.stderr


def test_a_topic_that_is_not_there_is_named(tmp_path):
    store = f"sqlite:///{tmp_path / 's.db'}"
    CliRunner().invoke(cli, ["topics", "create", "other", "--store", store], prog_name="seriatim")
    result = CliRunner().invoke(cli, ["sparkplug", "nodes", "--store", store], prog_name="seriatim")
    assert (result.exit_code, "there is no topic 'telemetry'" in result.stderr) == (1, True)
