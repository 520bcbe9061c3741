"""An edge node that others wrote: pysparkplug, in an environment of its own, because it needs an older MQTT client than ours.

Its known flaws: a clean stop announces the end of a session that never was (bdSeq + 1), and it knows no rebirth.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from seriatim.core.sparkplug.messages import Status
from seriatim.sparkplug.topics import NodeId
from tests.needs import lacking
from tests.sparkplug.plant import ear_on, host_on, run_bounded, stored_in, until

PACKAGE = "pysparkplug==0.6.1"
NODE = NodeId("plant", "other")
BEGINNING = """
import sys, time
import pysparkplug as psp

def metric(name, value):
    return psp.Metric(timestamp=psp.get_current_timestamp(), name=name, datatype=psp.DataType.INT32, value=value)

node = psp.EdgeNode("plant", "other", [metric("a", -1)])
node.register(psp.Device("d", [metric("b", 0)]))

def connect():
    node.connect("127.0.0.1", port=int(sys.argv[1]))
    while not node._connected:
        time.sleep(0.01)
"""
SCRIPT = (
    BEGINNING
    + """
for session in range(2):
    connect()
    for number in range(150):
        node.update([metric("a", number)])
        node.update_device("d", [metric("b", -number)])
    print("sent", flush=True)
    sys.stdin.readline()
    node.disconnect()
"""
)
LOSING = (
    BEGINNING
    + """
connect()
node._seq  # a number is taken and never sent
node.update([metric("a", 1)])
print("sent", flush=True)
sys.stdin.readline()
node.update([metric("a", 2)])
print("sent", flush=True)
sys.stdin.readline()
"""
)


@cache
def other_python() -> str:
    """A Python with pysparkplug, made once below the user's cache folder."""
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seriatim-tests"
    cache_folder.mkdir(parents=True, exist_ok=True)
    python = cache_folder / PACKAGE / "bin" / "python"
    with (cache_folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache_folder / PACKAGE / "ready").exists():
            try:
                _make_environment(cache_folder / PACKAGE)
            except (OSError, subprocess.SubprocessError) as error:
                lacking(f"{PACKAGE} could not be installed in an environment of its own: {error}")
    return str(python)


def _make_environment(folder: Path) -> None:
    python = str(folder / "bin" / "python")
    commands = ([sys.executable, "-m", "venv", "--clear", str(folder)], [python, "-m", "pip", "install", PACKAGE])
    for command in commands:
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    (folder / "ready").touch()


@asynccontextmanager
async def edge_node(script: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A script with pysparkplug: it says what it has done, and waits to be told to go on."""
    process = await asyncio.create_subprocess_exec(
        *(other_python(), "-c", script, str(port)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_an_edge_node_of_pysparkplug_is_ordered_and_stored_over_two_sessions(mosquitto, store):
    other_python()  # made before there is a time limit

    async def scenario() -> None:
        async with host_on(mosquitto, store) as host, edge_node(SCRIPT, mosquitto.port) as process:

            def has(number: int, what: str) -> bool:
                return bool(getattr(host.counts, what) == number)

            assert process.stdin is not None
            assert process.stdout is not None
            for session in (1, 2):
                assert await process.stdout.readline() == b"sent\n"
                await until(partial(has, 302 * session, "stored"))
                assert host.nodes[NODE].status is Status.ONLINE
                assert host.nodes[NODE].devices == {"d": Status.ONLINE}
                process.stdin.write(b"go on\n")
                await process.stdin.drain()
                await until(partial(has, session, "deaths_ignored"))
            assert host.counts.ledger == {}
            assert host.counts.malformed == {}
            assert host.counts.rebirths == 0

    run_bounded(scenario())
    stored = stored_in(store)
    numbers = [int(each.attributes["seq"]) for each in stored]
    assert numbers == [number % 256 for number in range(302)] * 2
    assert [each.attributes["bdSeq"] for each in stored if each.attributes["kind"] == "NBIRTH"] == ["0", "2"]
    values = [each.data["metrics"][0]["value"] for each in stored if each.attributes["kind"] == "DDATA"]
    assert values == [-number for number in range(150)] * 2


def test_a_node_that_knows_no_rebirth_is_asked_for_it_and_given_up_after_some_attempts_and_heard_all_the_same(
    mosquitto, store
):
    other_python()
    options: dict[str, Any] = {
        "reorder_timeout": 0.05,
        "rebirth_backoff": 0.05,
        "rebirth_backoff_limit": 0.1,
        "rebirth_attempts": 3,
    }

    async def scenario() -> None:
        async with (
            host_on(mosquitto, store, **options) as host,
            ear_on(mosquitto, "spBv1.0/plant/NCMD/other") as ear,
            edge_node(LOSING, mosquitto.port) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            assert await process.stdout.readline() == b"sent\n"
            await until(lambda: len(ear.heard) == 3)
            assert [each.metrics[0].name for each in ear.payloads()] == ["Node Control/Rebirth"] * 3
            assert host.nodes.next_deadline is None, "nobody will ask again"
            assert host.nodes[NODE].rebirth_outstanding
            process.stdin.write(b"go on\n")
            assert await process.stdout.readline() == b"sent\n"
            await until(lambda: host.counts.stored == 4)
            assert host.nodes[NODE].status is Status.ONLINE
            assert (host.counts.rebirths, host.counts.ledger) == (3, {"lost": 1})
            process.stdin.write(b"go on\n")
            await until(lambda: host.nodes[NODE].status is Status.OFFLINE)  # it ends without a word: its will

    run_bounded(scenario())
    numbers = [each.attributes.get("seq") for each in stored_in(store)]
    # A thread of the library takes the number for the device's birth, before or after the one that is lost.
    assert numbers[1] in {"1", "2"}
    assert numbers == ["0", numbers[1], "3", "4", None]
