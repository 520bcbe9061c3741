"""The fixtures that are installed with the package, and the emulator that one of them starts."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from google.api_core.exceptions import NotFound
from google.cloud import pubsub_v1

from seriatim.errors import FailedPrecondition
from seriatim.testing import PubSubEmulator

PAGES = Path(__file__).parent.parent.parent / "docs/how-to"


def test_pytest_finds_the_fixtures():
    (plugin,) = (found for found in entry_points(group="pytest11") if found.name == "seriatim")
    assert plugin.value == "seriatim.testing.pytest_plugin"


def test_loading_the_fixtures_loads_no_engine():
    program = (
        "import sys, seriatim.testing.pytest_plugin; print([n for n in sys.modules if n.startswith('seriatim.eng')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_hour_of_virtual_time_takes_a_moment(seriatim_in_memory):
    async def scenario(pubsub) -> list[str]:
        topic = await pubsub.topic("t").ensure()
        subscription = await topic.subscription("s").ensure()
        await topic.publish(b"x", delay=3600)
        (message,) = await subscription.pull()
        assert asyncio.get_running_loop().time() >= 3600
        message.ack()
        return [info.name for info in await pubsub.topics()]

    assert seriatim_in_memory(scenario) == ["t"]
    assert seriatim_in_memory(lambda pubsub: pubsub.topics()) == [], "each call has a store of its own"


def test_a_test_that_waits_for_nothing_fails_after_a_year(seriatim_in_memory):
    async def scenario(pubsub) -> None:
        topic = await pubsub.topic("t").ensure()
        async for _ in await topic.subscription("s").ensure():
            pass

    with pytest.raises(pytest.fail.Exception, match="still waits after a year of virtual time"):
        seriatim_in_memory(scenario)


def test_a_test_may_time_out_by_itself(seriatim_in_memory):
    async def scenario(pubsub) -> None:
        async with asyncio.timeout(60):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        seriatim_in_memory(scenario)


def test_a_coroutine_is_no_test(seriatim_in_memory):
    async def scenario() -> None: ...

    given = scenario()
    with pytest.raises(TypeError, match="takes an async function"):
        seriatim_in_memory(given)
    given.close()


def test_misuse_is_explained(seriatim_in_memory):
    with pytest.raises(TypeError, match="write 'async def'"):
        seriatim_in_memory(lambda _: None)

    async def asynchronous() -> None:
        with pytest.raises(RuntimeError, match="in a test that is a plain function"):
            seriatim_in_memory(lambda pubsub: pubsub.topics())

    asyncio.run(asynchronous())


def test_googles_client_finds_the_emulator(pubsub_emulator):
    assert os.environ["PUBSUB_EMULATOR_HOST"] == pubsub_emulator.host
    assert re.fullmatch(r"127\.0\.0\.1:\d+", pubsub_emulator.host)
    with pubsub_v1.PublisherClient() as publisher:
        topic = publisher.create_topic(name="projects/any/topics/orders")
        assert publisher.publish(topic.name, b"x").result(20)


def test_every_emulator_is_empty_and_the_environment_is_as_it_was(monkeypatch):
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "elsewhere:1")
    for _ in range(2):
        with PubSubEmulator(project="shop"), pubsub_v1.PublisherClient() as publisher:
            with pytest.raises(NotFound):
                publisher.get_topic(topic="projects/shop/topics/orders", timeout=20)
            publisher.create_topic(name="projects/shop/topics/orders", timeout=20)
    assert os.environ["PUBSUB_EMULATOR_HOST"] == "elsewhere:1"
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    emulator = PubSubEmulator()
    with emulator:
        pass
    assert "PUBSUB_EMULATOR_HOST" not in os.environ
    with pytest.raises(FailedPrecondition, match="closed"):
        emulator.__enter__()


@pytest.mark.parametrize("page", ["replace-the-pubsub-emulator", "test-your-handlers"])
def test_the_test_on_a_page_passes(page, tmp_path):
    source = re.search(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert source is not None
    (tmp_path / "test_orders.py").write_text(source[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
