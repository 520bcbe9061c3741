"""A program that is told to end while its store can't be written does end: closing waits a while for the store, no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

import pytest

from seriatim import PubSub
from seriatim.engine.store_failure import OUTAGE_TIMEOUT_S
from seriatim.errors import OutcomeUnknown, StoreError, StoreFailed
from seriatim.store.base import Transaction
from seriatim.store.memory import MemoryStore
from seriatim.testing import run_in_virtual_time
from tests.client.conftest import Received, ordered, publish

SOON_S = 30.0
"""What programs are usually given to end before they are killed."""


class Server(MemoryStore):
    """A store that can be away: then nothing is written, and it can't be opened."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: type[StoreError] | None = None

    def open(self, *_: object, **__: object) -> MemoryStore:
        if self.failure is not None:
            raise StoreFailed("no server")
        return self

    def close(self) -> None:
        """The server goes on."""

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        if self.failure is not None:
            raise self.failure("no server")
        with super().transaction() as transaction:
            yield transaction


@pytest.fixture
def server(monkeypatch) -> Server:
    server = Server()
    monkeypatch.setattr("seriatim.engine.engine.open_store", server.open)
    return server


async def in_time(server: Server, closing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(SOON_S):
            await closing
    finally:
        server.failure = None  # so that a test that fails does end


OUTAGES = pytest.mark.parametrize("outage", [StoreFailed, OutcomeUnknown], ids=["is written again", "is opened again"])


class Handler:
    """Acks durably, and keeps what it hears."""

    def __init__(self, server: Server, outage: type[StoreError]) -> None:
        self._server, self._outage = server, outage
        self.begun = Received()
        self.heard: list[BaseException | None] = []

    async def __call__(self, message) -> None:
        self.begun.add(message)
        self._server.failure = self._outage
        try:
            await message.ack_durable()
        except Exception as error:
            self.heard.append(error)
            raise
        self.heard.append(None)


@OUTAGES
@pytest.mark.parametrize("end", ["pubsub", "subscription"])
def test_closing_does_not_wait_for_ever_for_a_handler_that_waits_for_its_ack(server, outage, end):
    async def scenario() -> list[BaseException | None]:
        handler = Handler(server, outage)
        async with PubSub("postgresql://server") as pubsub:
            topic, subscription = await ordered(pubsub)

            async def handle(message) -> None:
                await handler(message)

            subscription.on("message", handle)
            subscription.on("error", lambda _: None)
            subscription.open()
            await publish(topic, "1")
            await handler.begun.wait(1)
            await asyncio.sleep(1)
            await in_time(server, (pubsub if end == "pubsub" else subscription).close())
        return handler.heard

    (heard,) = run_in_virtual_time(scenario())
    assert isinstance(heard, StoreError)


@OUTAGES
def test_closing_does_not_wait_for_ever_for_what_was_published(server, outage):
    async def scenario() -> BaseException | None:
        async with PubSub("postgresql://server") as pubsub:
            topic, _ = await ordered(pubsub)
            server.failure = outage
            with pytest.raises(StoreError):
                await topic.publish(b"1", ordering_key="k")
            later = topic.publish(b"2", ordering_key="another")
            await in_time(server, pubsub.close())
            return later.exception()

    told = run_in_virtual_time(scenario())
    assert str(told) == (
        "no server" if outage is StoreFailed else "the engine was closed before its store could be opened again"
    )


def test_an_outage_that_begins_while_a_program_ends_does_not_keep_it_either(server, caplog):
    async def scenario() -> BaseException | None:
        async with PubSub("postgresql://server") as pubsub:
            topic, subscription = await ordered(pubsub)
            heard, loop = asyncio.get_running_loop().create_future(), asyncio.get_running_loop()

            async def handle(message) -> None:
                await asyncio.sleep(1.5)
                server.failure = StoreFailed
                assert "seriatim-outage-watch" in {task.get_name() for task in asyncio.all_tasks()}
                try:
                    await message.ack_durable()
                except StoreError as error:
                    heard.set_result(error)

            subscription.on("message", handle)
            subscription.on("error", lambda _: None)
            subscription.open()
            await publish(topic, "1")
            await asyncio.sleep(1)
            began = loop.time()
            await in_time(server, pubsub.close())
            assert loop.time() - began == pytest.approx(0.5 + OUTAGE_TIMEOUT_S, abs=0.1)
            return await heard

    assert isinstance(run_in_virtual_time(scenario()), StoreError)
    assert "the engine is down: the engine was closed while its store could not be written" in caplog.messages


def test_an_outage_that_ends_soon_costs_nothing_while_a_program_ends(server):
    async def scenario() -> list[BaseException | None]:
        handler = Handler(server, StoreFailed)
        async with PubSub("postgresql://server") as pubsub:
            topic, subscription = await ordered(pubsub)

            async def handle(message) -> None:
                await handler(message)

            subscription.on("message", handle)
            subscription.on("error", lambda _: None)
            subscription.open()
            await publish(topic, "1")
            await handler.begun.wait(1)

            def end_outage() -> None:
                server.failure = None

            asyncio.get_running_loop().call_later(5, end_outage)
            await in_time(server, pubsub.close())
        return handler.heard

    assert run_in_virtual_time(scenario()) == [None]


@pytest.mark.parametrize("end", ["pubsub", "subscription"])
def test_closing_does_not_wait_for_an_ack_that_waits_for_a_message_on_which_nobody_works(server, end):
    """With a window, an ack waits for those of earlier messages of its key, until their leases expire."""

    async def scenario() -> BaseException | None:
        async with PubSub("postgresql://server") as pubsub:
            topic, subscription = await ordered(pubsub, window=2, ack_deadline=600.0)
            seen, heard = Received(), asyncio.get_running_loop().create_future()

            async def handle(message) -> None:
                seen.add(message)
                if message.data == b"2":
                    try:
                        await message.ack_durable()
                    except StoreError as error:
                        heard.set_result(error)

            subscription.on("message", handle)
            subscription.open()
            await publish(topic, "1", "2")
            await seen.wait(2)
            await in_time(server, (pubsub if end == "pubsub" else subscription).close())
            return await heard

    assert isinstance(run_in_virtual_time(scenario()), OutcomeUnknown)
