from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from seriatim.engine.broker import Outgoing
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.subscription import SubscriptionState
from seriatim.store import open_store
from seriatim.store.base import Record, StagedFile, Transaction
from seriatim.store.memory import MemoryStore
from seriatim.store.pack import encode
from seriatim.store.staged_messages import write_staged
from seriatim.testing import run_in_virtual_time
from tests import postgres
from tests.engine.link.linked import Linked, linked, run_bounded

Scenario = Callable[[Engine], Awaitable[object]]
ORDERED = SubscriptionOptions(message_ordering=True)


async def prepare(engine: Engine, options: SubscriptionOptions = ORDERED) -> SubscriptionState:
    """A topic ``t`` with a subscription ``s``."""
    await engine.create_topic("t")
    await engine.create_subscription("t", "s", options)
    return engine.get_subscription("s")


def publish(
    engine: Engine, *data: str, key: str | None = "k", delay: float = 0.0, topic: str = "t"
) -> asyncio.Future[Sequence[str]]:
    return engine.publish(topic, [Outgoing(key, one.encode(), None, delay) for one in data])


def ids(*numbers: int) -> list[str]:
    """The ids of messages with the offsets of a range."""
    return [str(offset) for offset in range(*numbers)]


async def settle_down(engine: Engine) -> None:
    """Let everything that is due in the loop and in the writer happen."""
    for _ in range(3):
        await engine._committer.drain()
        await asyncio.sleep(0)


@contextmanager
def reads_held_up(engine: Engine) -> Iterator[None]:
    """Whatever is asked of the store meanwhile is answered afterwards."""
    go_on = threading.Event()
    engine._readers.submit(go_on.wait)
    try:
        yield
    finally:
        go_on.set()


class WatchedStore(MemoryStore):
    """A store whose commits are counted, can be held up, and fail when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[BaseException] = []
        self.gate = threading.Event()
        self.gate.set()
        self.watch()

    def watch(self) -> None:
        """Count from now on."""
        self.commits = 0
        self.entered = threading.Semaphore(0)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self.entered.release()
        assert self.gate.wait(10)
        with super().transaction() as transaction:
            yield transaction
            if self.failures:
                raise self.failures.pop(0)
        self.commits += 1

    async def until_writing(self) -> None:
        """Wait until a commit is under way (and held up, if the gate is closed)."""
        await asyncio.get_running_loop().run_in_executor(None, self.entered.acquire)


class Collector:
    """A consumer that keeps what it gets, and lets a test wait for it."""

    patience = 10.0

    def __init__(self, **limits: Any) -> None:
        self.got: list[Delivered] = []
        self.fenced: list[int] = []
        self._news = asyncio.Event()
        self.failures: list[BaseException] = []
        self.consumer = Consumer(
            self._take, lambda lease: self.fenced.append(lease.offset), failed=self.failures.append, **limits
        )

    def _take(self, delivered) -> None:
        self.got += delivered
        self._news.set()

    async def wait(self, count: int) -> list[Delivered]:
        """Wait until ``count`` messages came in all, and see that it is not more."""
        async with asyncio.timeout(self.patience):
            while len(self.got) < count:
                self._news.clear()
                await self._news.wait()
        assert len(self.got) == count
        return self.got

    @property
    def data(self) -> list[bytes]:
        return [one.record.data for one in self.got]


async def work_off(engine: Engine, count: int, subscription: str = "s") -> list[bytes]:
    """Take and ack ``count`` messages one after another, and see that there are no more."""
    got = Collector(max_messages=1)
    attachment = engine.attach(subscription, got.consumer)
    for number in range(count):
        attachment.ack((await got.wait(number + 1))[-1].lease)
    await engine.drain()
    assert len(engine.get_subscription(subscription).lanes) == 0
    attachment.detach()
    return got.data


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def run(request, tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario on an engine with a new store of each kind."""
    url = _new_url(request.param, tmp_path)
    return lambda scenario: asyncio.run(_with_engine(url, scenario))


def _new_url(kind: str, folder: Path) -> str:
    if kind == "postgres":
        return postgres.server().new_url()
    return "memory://" if kind == "memory" else f"sqlite:///{folder}/store.db"


@pytest.fixture
def run_watched() -> Callable[[Callable[[Engine, WatchedStore], Awaitable[object]]], None]:
    """Run a scenario on an engine whose store can be held up and made to fail."""

    async def with_engine(scenario) -> None:
        store = WatchedStore()
        engine = Engine(store)
        await engine.start()
        async with asyncio.timeout(30):
            await scenario(engine, store)
            await engine.close()

    return lambda scenario: asyncio.run(with_engine(scenario))


@pytest.fixture
def run_with_restarts(tmp_path: Path) -> Callable[..., None]:
    """Run scenarios on one store; between them the engine is closed, and opened again."""

    def run(*scenarios: Scenario) -> None:
        for scenario in scenarios:
            asyncio.run(_with_engine(f"sqlite:///{tmp_path}/store.db", scenario))

    return run


async def _with_engine(url: str, scenario: Scenario) -> None:
    engine = Engine(open_store(url))
    await engine.start()
    try:
        await scenario(engine)
    finally:
        await engine.close()


@pytest.fixture
def run_linked(tmp_path: Path) -> Callable[[Callable[[Linked, Any], Awaitable[object]]], None]:
    """Run a scenario with a served engine that has topic t and subscription s, and a client."""

    def run(scenario, options=ORDERED, store=None) -> None:
        async def all_of_it() -> None:
            async with linked(tmp_path, store() if store else None) as link:
                await link.engine.create_topic("t")
                await link.engine.create_subscription("t", "s", options)
                client = await link.client()
                await scenario(link, client)
                await client.close()

        run_bounded(all_of_it)

    return run


@pytest.fixture
def stage(tmp_path):
    """Stage messages of one key, two in a pack."""

    def stage(name: str, *data: str, key: str | None = "k") -> StagedFile:
        texts = [data[start : start + 2] for start in range(0, len(data), 2)]
        packs = [[Record(number, key, one.encode()) for number, one in enumerate(pack)] for pack in texts]
        write_staged(tmp_path / name, map(encode, packs))
        return StagedFile(str(tmp_path / name), len(data), sum(map(len, data)))

    return stage


@pytest.fixture
def run_memory():
    """Run a scenario on an engine in memory, in virtual time."""

    async def with_engine(scenario) -> None:
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        engine = Engine(MemoryStore())
        await engine.start()
        async with asyncio.timeout(3600):
            await scenario(engine)
        await engine.close()
        assert unhandled == []

    return lambda scenario: run_in_virtual_time(with_engine(scenario))
