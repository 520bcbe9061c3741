"""A client of the link that is closed waits for an owner as long as it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from seriatim.engine.link import frames, remote
from seriatim.engine.link.frames import encode
from seriatim.engine.link.remote import RemoteBroker
from seriatim.engine.link.verbs import VERBS
from seriatim.errors import OutcomeUnknown
from tests.engine.link.linked import outgoing, run_bounded

TIMEOUT_S = 0.4


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(remote, "ANSWER_TIMEOUT_S", TIMEOUT_S)


@asynccontextmanager
async def owner(tmp_path, answers: Sequence[float]) -> AsyncIterator[RemoteBroker]:
    """A client of an owner that answers its first calls at these times, and then nothing more."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(frames.Hello(frames.VERSION, 1)))
        began = asyncio.get_running_loop().time()
        for number, at in enumerate(answers, 1):
            await asyncio.sleep(began + at - asyncio.get_running_loop().time())
            writer.write(encode(frames.Answer(number, VERBS["publish"].pack_answer([str(number)]))))
        await reader.read()
        writer.close()

    path = tmp_path / "owner.sock"
    server = await asyncio.start_unix_server(meet, path)
    client = await RemoteBroker.connect(path)
    try:
        yield client
    finally:
        await client.close()
        server.close()


def test_an_owner_that_answers_nothing_is_given_up(tmp_path):
    async def scenario() -> None:
        async with owner(tmp_path, []) as client:
            asked = client.publish("t", outgoing("1"))
            client.begin_closing()
            with pytest.raises(OutcomeUnknown, match="did not answer"):
                await asked

    run_bounded(scenario)


def test_an_owner_that_answers_slowly_is_waited_for(tmp_path):
    async def scenario() -> None:
        times = [TIMEOUT_S * share for share in (0.5, 1.5, 2.5)]
        async with owner(tmp_path, times) as client:
            asked = [client.publish("t", outgoing("1")) for _ in range(4)]
            client.begin_closing()
            assert await asyncio.gather(*asked[:3]) == [["1"], ["2"], ["3"]]
            with pytest.raises(OutcomeUnknown, match="did not answer"):
                await asked[3]

    run_bounded(scenario)


def test_an_answer_that_comes_after_that_disturbs_nobody(tmp_path):
    async def scenario() -> None:
        async with owner(tmp_path, [TIMEOUT_S * 1.5, TIMEOUT_S * 1.6]) as client:
            given_up = client.publish("t", outgoing("1"))
            client.begin_closing()
            with pytest.raises(OutcomeUnknown):
                await given_up
            assert await client.publish("t", outgoing("2")) == ["2"]

    run_bounded(scenario)
