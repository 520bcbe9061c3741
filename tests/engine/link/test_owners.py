"""Who owns a store, and who takes over."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any, cast

import pytest

from seriatim import PubSub
from seriatim.engine import connect
from seriatim.engine import engine as engine_module
from seriatim.engine.connect import open_broker
from seriatim.engine.engine import Engine
from seriatim.engine.link import remote
from seriatim.engine.link.remote import RemoteBroker
from seriatim.engine.link.takeover import SharedBroker
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import (
    NotFound,
    StaleLease,
    StoreBusy,
    StoreFailed,
    StoreFull,
    StoreLost,
)
from seriatim.store import open_store
from seriatim.store.base import Store
from tests.engine.conftest import ORDERED, Collector, ids
from tests.engine.link.linked import outgoing, run_bounded

# -- opening -----------------------------------------------------------------------------------------------------------


def test_whoever_comes_first_owns_the_store_and_the_second_is_linked_to_it(tmp_path):
    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner, other = await open_broker(url), await open_broker(url)
        assert isinstance(owner, Engine)
        assert isinstance(other, SharedBroker)
        await other.create_topic("t")
        assert [one.name for one in await owner.list_topics()] == ["t"]
        await other.close()
        await owner.close()

    run_bounded(scenario)


def test_the_next_owner_of_a_relative_path_opens_the_same_store_from_another_folder(tmp_path, monkeypatch):
    async def scenario() -> None:
        owner, other = await open_broker("sqlite:///store.db"), await open_broker("sqlite:///store.db")
        await owner.create_topic("t")
        monkeypatch.chdir(tmp_path / "there")
        await owner.close()
        assert [one.name for one in await other.list_topics()] == ["t"]
        await other.close()

    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run_bounded(scenario)
    assert list((tmp_path / "there").iterdir()) == []


def test_a_disk_that_fails_while_the_next_owner_opens_the_store_is_tried_again(tmp_path, monkeypatch):
    failures = [StoreFailed("a passing failure"), StoreFull("no room just now")]

    def open_when_it_passed(url: str, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return open_store(url, **options)

    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner, other = await open_broker(url), await open_broker(url)
        await owner.create_topic("t")
        monkeypatch.setattr(engine_module, "open_store", open_when_it_passed)
        await owner.close()
        assert [one.name for one in await other.list_topics()] == ["t"]
        assert failures == []
        await other.close()

    run_bounded(scenario)


@pytest.mark.usefixtures("no_garbage_of_others")
def test_a_question_that_waited_for_the_next_owner_and_was_given_up_leaves_no_trouble_behind(tmp_path):
    async def scenario() -> None:
        troubles: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context["message"]))
        engine = await Engine.open("memory://")
        shared = SharedBroker(cast(Any, None))
        asking = asyncio.ensure_future(shared.describe_topic("nobody knows it"))
        await asyncio.sleep(0)
        shared.use(cast(Any, engine))
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.sleep(0.05)
        await shared.close()
        gc.collect()
        assert troubles == []

    run_bounded(scenario)


def test_an_owner_who_cannot_be_reached_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner = await Engine.open(url)  # owns the store, and serves nobody
        with pytest.raises(StoreBusy, match=f"owned by process {os.getpid()}"):
            await open_broker(url)
        await owner.close()

    run_bounded(scenario)


def test_an_owner_whose_event_loop_is_blocked_is_named_with_the_likely_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(remote, "GREETING_TIMEOUT_S", 0.2)
    url, is_open, is_asked = f"sqlite:///{tmp_path}/store.db", threading.Event(), threading.Event()

    async def own() -> None:
        async with PubSub(url):
            is_open.set()
            is_asked.wait(30)  # blocks the loop, as a handler with time.sleep does

    async def ask() -> None:
        with pytest.raises(
            StoreBusy, match=rf"by process {os.getpid()} on .*, which does not answer: .* a handler blocks"
        ):
            await open_broker(url)

    owner = threading.Thread(target=lambda: run_bounded(own))
    owner.start()
    try:
        assert is_open.wait(30)
        run_bounded(ask)
    finally:
        is_asked.set()
        owner.join()


def test_whoever_stops_waiting_for_an_owner_that_says_nothing_leaves_no_trouble_behind(tmp_path):
    async def scenario() -> None:
        troubles: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        hung_up = asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            hung_up.set()
            writer.close()

        server = await asyncio.start_unix_server(say_nothing, tmp_path / "socket")
        connecting = asyncio.create_task(RemoteBroker.connect(tmp_path / "socket"))
        await asyncio.sleep(0.05)
        connecting.cancel()
        await asyncio.wait([connecting])
        await hung_up.wait()
        server.close()
        await asyncio.sleep(0)
        assert connecting.cancelled()
        assert troubles == []

    run_bounded(scenario)


def test_an_owner_who_is_just_ending_is_waited_for(tmp_path):
    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner = await Engine.open(url)
        opening = asyncio.create_task(open_broker(url))
        await asyncio.sleep(0)
        await owner.close()
        broker = await opening
        assert isinstance(broker, Engine)
        await broker.close()

    run_bounded(scenario)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_whoever_gives_up_opening_a_store_half_way_leaves_it_to_others(tmp_path, monkeypatch, times):
    entered, go_on, opened = threading.Event(), threading.Event(), threading.Event()
    stores: list[Store] = []

    def slow_open_store(url, **options):
        entered.set()
        assert go_on.wait(10)
        stores.append(open_store(url, **options))
        opened.set()
        return stores[-1]

    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        monkeypatch.setattr(engine_module, "open_store", slow_open_store)
        opening = asyncio.create_task(open_broker(url))
        assert await asyncio.to_thread(entered.wait, 10)
        for _ in range(times):
            opening.cancel()
            await asyncio.sleep(0.001)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert await asyncio.to_thread(opened.wait, 10)
        await (await Engine.open(url)).close()

    run_bounded(scenario)


def test_a_store_in_memory_has_no_socket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        broker = await open_broker("memory://")
        await broker.close()

    run_bounded(scenario)
    assert list(tmp_path.iterdir()) == []


def test_an_iteration_over_a_subscription_that_does_not_exist_raises_in_the_owner_and_in_a_linked_program(tmp_path):
    async def first_of(pubsub: PubSub) -> None:
        async for _ in pubsub.subscription("nowhere"):
            pass

    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        async with PubSub(url) as owner, PubSub(url) as other:
            for pubsub in (owner, other):
                with pytest.raises(NotFound, match="'nowhere' does not exist"):
                    async with asyncio.timeout(10):
                        await first_of(pubsub)

    run_bounded(scenario)


# -- the next owner ----------------------------------------------------------------------------------------------------


def test_when_the_owner_ends_a_linked_program_takes_over_and_its_consumers_go_on(tmp_path):
    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner, other = await open_broker(url), await open_broker(url)
        await owner.create_topic("t")
        await owner.create_subscription("t", "s", ORDERED)
        got = Collector()
        attachment = other.attach("s", got.consumer)
        await other.publish("t", outgoing("1", "2"))
        (first,) = await got.wait(1)
        await owner.close()
        assert got.fenced == [0]
        with pytest.raises(StaleLease):
            attachment.ack(first.lease)
        waiting = other.publish("t", outgoing("3"))
        assert await waiting == ids(2, 3)
        for count in (2, 3, 4):
            attachment.ack((await got.wait(count))[-1].lease)
        assert got.data == [b"1", b"1", b"2", b"3"]
        assert got.failures == []
        third = await open_broker(url)
        assert [one.name for one in await third.list_topics()] == ["t"], "the new owner is reached like the old one"
        await third.close()
        await other.close()

    run_bounded(scenario)


def test_of_two_linked_programs_one_takes_over_and_the_other_is_linked_to_it(tmp_path):
    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner, *others = [await open_broker(url) for _ in range(4)]
        await owner.create_topic("t")
        await owner.create_subscription("t", "s", SubscriptionOptions())
        got = Collector()
        for other in others:
            other.attach("s", got.consumer if other is others[-1] else Collector(max_messages=0).consumer)
        await owner.close()
        await asyncio.gather(*(other.publish("t", outgoing(str(n))) for n, other in enumerate(others)))
        await got.wait(3)
        assert sorted(got.data) == [b"0", b"1", b"2"]
        for other in others:
            await other.close()

    run_bounded(scenario)


def test_what_is_asked_while_there_is_no_owner_waits_in_order(tmp_path):
    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner, other = await open_broker(url), await open_broker(url)
        await owner.create_topic("t")
        cast(SharedBroker, other).lost(StoreLost("gone"))
        written = [other.publish("t", outgoing(str(number))) for number in range(10)]
        assert [id_ for (id_,) in await asyncio.gather(*written)] == ids(10)
        await other.close()
        await owner.close()

    run_bounded(scenario)


def test_without_a_next_owner_everything_fails_clearly(tmp_path, monkeypatch):
    monkeypatch.setattr(connect, "TAKEOVER_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner, other = await open_broker(url), await open_broker(url)
        await owner.create_topic("t")
        await owner.create_subscription("t", "s")
        got = Collector()
        other.attach("s", got.consumer)
        await cast(Any, owner)._server.close()  # it owns the store still, and answers nobody
        with pytest.raises(StoreLost, match=rf"process {os.getpid()}\) ended, and there is no next one: .* owned by"):
            await other.publish("t", outgoing("1"))
        assert [type(error) for error in got.failures] == [StoreLost]
        with pytest.raises(StoreLost):
            await other.list_topics()
        with pytest.raises(StoreLost):
            other.attach("s", got.consumer)
        await other.close()
        await owner.close()

    run_bounded(scenario)


def test_closing_while_the_next_owner_is_looked_for_leaves_the_store_to_others(tmp_path):
    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner, other = await open_broker(url), await open_broker(url)
        await owner.close()
        waiting = asyncio.ensure_future(other.list_topics())
        await asyncio.sleep(0)
        await other.close()
        with pytest.raises(StoreLost, match="closed"):
            await waiting
        await (await Engine.open(url)).close()

    run_bounded(scenario)
