"""A store that holds options which can't be used opens: what they belong to is stopped, says why, and can be repaired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import (
    SubscriptionOptions,
    TopicOptions,
    flaws_in,
    read_subscription_options,
    read_topic_options,
)
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.store import open_store
from seriatim.store.base import Cursor, Record, Store, TroubleRow
from tests.engine.conftest import ORDERED, Collector, publish, settle_down, work_off

GOOD = ORDERED.to_json()


@pytest.fixture(params=["memory", "sqlite"])
def with_store(request, tmp_path) -> Callable[..., None]:
    """Prepare a store, and run scenarios on it, each with an engine of its own where the store survives that."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"

    def run(prepare: Callable[[Store], None], scenario: Any) -> None:
        store = open_store(url)
        prepare(store)
        asyncio.run(_with_engine(store, scenario))

    return run


async def _with_engine(store: Store, scenario: Any) -> None:
    engine = Engine(store)
    try:
        await engine.start()
        await scenario(engine)
    finally:
        await engine.close()


def holding(subscription: dict[str, Any], topic: dict[str, Any] | None = None) -> Callable[[Store], None]:
    """Topic t with messages 1 and 2 and the subscriptions s, with the given options, and good."""

    def prepare(store: Store) -> None:
        with store.transaction() as work:
            id_ = work.create_topic("t", topic or {}).id
            work.create_subscription(id_, "s", {**GOOD, **subscription}, Cursor(0))
            work.create_subscription(id_, "good", GOOD, Cursor(0))
            work.append(id_, [Record(0, "k", b"1", {"a": "1"}, 1e9), Record(1, "k", b"2", None, 1e9)])

    return prepare


def test_a_subscription_with_unusable_options_is_stopped_and_says_why(with_store, caplog):
    async def scenario(engine):
        problem = "options that can't be used (retry must be a RetryPolicy, not None): set retry anew"
        assert (await engine.describe_subscription("s")).problem == problem
        assert (await engine.stats("s")).stopped == problem
        assert (await engine.list_keys("s"))[0].why == f"the subscription is stopped: {problem}; it needs an operator"
        assert f"subscription 's' is stopped, because it has {problem}" in caplog.messages
        got = Collector()
        engine.attach("s", got.consumer)
        await publish(engine, "3")
        await settle_down(engine)
        assert got.got == []
        assert [str(failure) for failure in got.failures] == [f"subscription 's' is stopped, because it has {problem}"]
        assert (await engine.describe_subscription("good")).problem is None
        assert await work_off(engine, 3, "good") == [b"1", b"2", b"3"]

    with_store(holding({"retry": None}), scenario)


def test_a_stopped_subscription_goes_on_when_its_options_are_set_anew(with_store):
    async def scenario(engine):
        got = Collector(max_messages=1)
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "3")
        given = SubscriptionOptions(retry=RetryPolicy.immediate(max_attempts=7))
        await engine.update_subscription("s", given, ["retry"])
        for number in range(1, 4):
            attachment.ack((await got.wait(number))[-1].lease)
        assert got.data == [b"1", b"2", b"3"]
        info = await engine.describe_subscription("s")
        assert (info.problem, info.options.message_ordering, info.options.retry.max_attempts) == (None, True, 7)
        assert (await engine.stats("s")).stopped is None
        assert list(flaws_in(await engine.load(lambda store: store.catalog()))) == []

    with_store(holding({"retry": None}), scenario)


def test_a_change_must_give_everything_anew_that_can_not_be_used(with_store):
    async def scenario(engine):
        with pytest.raises(FailedPrecondition, match=r"^subscription 's' has .*set window anew, in the same change$"):
            await engine.update_subscription("s", ORDERED, ["retry"])
        for asked in (engine.pause, engine.resume):
            with pytest.raises(FailedPrecondition, match="set retry, window anew, in the same change"):
                await asked("s")
        with pytest.raises(InvalidArgument, match="the filter of subscription 's' can't be changed"):
            await engine.update_subscription("s", SubscriptionOptions(filter='attributes.a = "1"'))
        assert (await engine.describe_subscription("s")).problem is not None
        await engine.update_subscription("s", ORDERED)  # everything
        assert await work_off(engine, 2) == [b"1", b"2"]

    with_store(holding({"retry": [], "window": "2"}), scenario)


def test_a_filter_that_can_not_be_used_can_be_replaced(with_store):
    async def scenario(engine):
        await engine.update_subscription("s", SubscriptionOptions(filter='attributes.a = "1"'), ["filter"])
        assert engine.get_subscription("s").filter.id == engine.get_subscription("s").id  # for which it settles
        assert await work_off(engine, 1) == [b"1"]

    with_store(holding({"filter": "this is no filter"}), scenario)


def test_a_stopped_subscription_can_be_detached_or_deleted(with_store):
    async def scenario(engine):
        await engine.detach_subscription("s")
        assert (await engine.describe_subscription("s")).problem is None
        await engine.delete_subscription("s")

    with_store(holding({"message_ordering": "yes"}), scenario)


def test_a_topic_with_unusable_options_keeps_everything_until_they_are_set_anew(with_store):
    async def scenario(engine):
        topic = await engine.describe_topic("t")
        assert topic.problem is not None
        assert topic.problem.endswith("set retain_settled anew")
        assert [known.problem for known in await engine.list_topics()] == [topic.problem]
        for name in ("s", "good"):
            await work_off(engine, 2, name)
        await engine.clean_up()
        assert (await engine.describe_topic("t")).earliest == 0
        with pytest.raises(FailedPrecondition, match=r"^topic 't' has .*set retain_settled anew, in the same change$"):
            await engine.update_topic("t", TopicOptions(), ["retention"])
        await engine.update_topic("t", TopicOptions(retain_settled=0.0), ["retain_settled"])
        await engine.clean_up()
        topic = await engine.describe_topic("t")
        assert (topic.problem, topic.earliest) == (None, 2)

    with_store(holding({}, {"retention": 5, "retain_settled": "7d"}), scenario)


@pytest.mark.parametrize(
    ("values", "flawed"),
    [
        ({"ack_deadline": 0}, ["ack_deadline"]),
        ({"ack_deadline": nan, "window": 0}, ["ack_deadline", "window"]),
        ({"retry": {"max_attempts": "5"}}, ["retry"]),
        ({"release": "sometimes"}, ["release"]),
        ({"message_ordering": 1, "paused": None, "detached": "no"}, ["message_ordering", "paused", "detached"]),
        ({"dead_letter_topic": 5, "resource": {}}, ["dead_letter_topic", "resource"]),
        ({"retry": {"max_attempts": 5, "of a newer version": 1}, "of a newer version": 1}, []),
    ],
)
def test_what_can_be_used_of_stored_options_is_used(values, flawed):
    options, flaws = read_subscription_options({**GOOD, **values})
    assert list(flaws) == flawed
    assert options.message_ordering is ("message_ordering" not in flawed)


@pytest.mark.parametrize("values", [None, [], 5])
def test_options_that_are_no_object_are_unusable_as_a_whole(values):
    assert read_subscription_options(values)[0] == SubscriptionOptions()
    options, flaws = read_topic_options(values)
    assert (options.retention, options.retain_settled) == (None, None)
    assert sorted(flaws) == ["dedup_max_ids", "dedup_window", "resource", "retain_settled", "retention"]


def test_times_that_an_earlier_version_stored_can_be_waited_for(with_store, monkeypatch):
    for module in ("memory", "sql.write_operations"):
        monkeypatch.setattr(f"seriatim.store.{module}.require_times", lambda _: None)
        monkeypatch.setattr(f"seriatim.store.{module}.checked_troubles", list)

    def prepare(store: Store) -> None:
        with store.transaction() as work:
            id_ = work.create_topic("t", {}).id
            subscription = work.create_subscription(id_, "s", GOOD, Cursor(0))
            work.append(
                id_, [Record(at, f"k{at}", b"", None, 1e9, late) for at, late in enumerate((nan, inf, 1e300, 0.0))]
            )
            work.note_troubles(subscription.id, [TroubleRow(3, 1, 1e300, "why", False)])

    async def scenario(engine):
        got = Collector()
        engine.attach("s", got.consumer)
        await engine.publish("t", [Outgoing("new", b"")])
        assert [one.lease.key for one in await got.wait(2)] == ["k0", "new"]
        keys = await engine.list_keys("s", blocked_only=True)
        assert [key.key for key in sorted(keys, key=lambda key: key.head)] == ["k1", "k2", "k3"]
        assert all("until 9999-12-31" in key.why for key in keys)
        await engine.retry_key("s", "k1")
        await got.wait(3)

    with_store(prepare, scenario)
