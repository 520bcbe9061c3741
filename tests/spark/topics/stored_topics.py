"""Stores for the tests of source and sink: topics with messages, and an engine at work beside Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from seriatim.engine.broker import Broker, Outgoing
from seriatim.engine.connect import open_broker
from seriatim.store import open_store
from seriatim.store.base import Record

T = TypeVar("T")
Question = Callable[[Broker], Awaitable[T]]


def ask(url: str, question: Question[T]) -> T:
    """Open the store, or reach its owner, for one question."""

    async def asking() -> T:
        broker = await open_broker(url)
        try:
            return await question(broker)
        finally:
            await broker.close()

    return asyncio.run(asking())


def make_topics(url: str, *names: str) -> None:
    async def making(broker: Broker) -> None:
        for name in names:
            await broker.create_topic(name)

    ask(url, making)


def outgoing(numbers: Sequence[int]) -> list[Outgoing]:
    """Messages of three keys and of none, one in four with attributes."""
    return [
        Outgoing(None if n % 4 == 3 else f"k{n % 4}", b"%d" % n, {"n": str(n)} if n % 4 == 0 else None) for n in numbers
    ]


def publish(url: str, topic: str, *packs: Sequence[int]) -> None:
    """Each pack in one commit of its own."""

    async def publishing(broker: Broker) -> None:
        for numbers in packs:
            await broker.publish(topic, outgoing(numbers))

    ask(url, publishing)


def stored(url: str, topic: str) -> list[Record]:
    store = open_store(url, read_only=True)
    try:
        (found,) = [row.id for row in store.catalog().topics if row.name == topic]
        return store.read(found, 0, 1_000_000)
    finally:
        store.close()


def numbers(records: Sequence[Record]) -> list[int]:
    return [int(record.data) for record in records]


@contextmanager
def live_engine(url: str) -> Iterator[Callable[[Question[Any]], Any]]:
    """An owner of the store at work in this process; gives a way to ask it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Awaitable[T]) -> T:
        async def awaiting() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(awaiting(), loop).result(60)

    broker = run(open_broker(url))

    async def asking(question: Question[Any]) -> Any:
        return await question(broker)

    try:
        yield lambda question: run(asking(question))
    finally:
        run(broker.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
