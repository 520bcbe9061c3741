"""What handlers may count on, measured on a clock that is exact: how long keys take, and how long a lease lasts."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from seriatim.client.consumer import ConsumeOptions
from seriatim.client.pubsub import PubSub
from seriatim.core.lanes.types import RetryPolicy
from seriatim.errors import StaleLease
from seriatim.testing import run_in_virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


def close_to(seconds: float):
    """Engines count from 1970, where a float is exact to less than a microsecond."""
    return pytest.approx(seconds, abs=1e-6)


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"


async def ordered(pubsub, **options):
    topic = await pubsub.topic("t").create()
    return topic, await topic.subscription("s").create(enable_message_ordering=True, **options)


async def publish_all(topic, messages) -> None:
    for data, key in messages:
        topic.publish(data, ordering_key=key)
    await topic.flush()


@pytest.mark.parametrize("keys", [1, 10, 1000])
def test_br_007_n_keys_finish_in_the_time_of_one(url, keys):
    each, handling = 5, 0.010
    at_work: Counter[str] = Counter()
    most: Counter[str] = Counter()
    order: dict[str, list[int]] = {}

    async def main() -> float:
        done = asyncio.Event()

        async def handle(message) -> None:
            key = message.ordering_key
            at_work[key] += 1
            most[key] = max(most[key], at_work[key])
            order.setdefault(key, []).append(int(message.data))
            await asyncio.sleep(handling)
            at_work[key] -= 1
            message.ack()
            if sum(map(len, order.values())) == keys * each and not at_work.total():
                done.set()

        async with PubSub(url) as pubsub:
            topic, subscription = await ordered(pubsub)
            await publish_all(
                topic, [(str(number).encode(), f"k{key}") for number in range(each) for key in range(keys)]
            )
            subscription.on("message", handle)
            begun = now()
            subscription.open()
            await done.wait()
            return now() - begun

    assert run_in_virtual_time(main()) == pytest.approx(each * handling, abs=1e-9)
    assert set(most.values()) == {1}
    assert list(order.values()) == [list(range(each))] * keys


@pytest.mark.parametrize(
    ("ack_deadline", "max_extension", "expected"),
    [
        (10.0, None, 3600.0),  # the default is an hour
        (10.0, 60.0, 60.0),
        (10.0, 42.5, 42.5),  # also when it is no multiple of the deadline
        (0.25, 1.1, 1.1),
        (10.0, 3.0, 10.0),  # the deadline itself is never cut short
    ],
)
def test_the_lease_of_a_running_handler_lasts_as_long_as_it_may_be_extended(ack_deadline, max_extension, expected):
    deliveries: list[tuple[float, int]] = []
    refused: list[float] = []

    async def main() -> None:
        again = asyncio.Event()

        async def handle(message) -> None:
            deliveries.append((now(), message.delivery_attempt))
            if message.delivery_attempt == 2:
                message.ack()
                again.set()
                return
            await again.wait()
            with pytest.raises(StaleLease):
                message.ack()
            refused.append(now())

        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub, ack_deadline=ack_deadline, retry=RetryPolicy.immediate())
            subscription.on("message", handle)
            subscription.open(
                ConsumeOptions() if max_extension is None else ConsumeOptions(max_extension=max_extension)
            )
            await topic.publish(b"long", ordering_key="k")
            await again.wait()

    run_in_virtual_time(main())
    (first, _), (again_at, attempt) = deliveries
    assert (again_at - first, attempt) == (close_to(expected), 2)
    assert refused == [again_at]


def test_a_handler_that_ends_in_time_is_called_once_however_long_it_took():
    seen: list[int] = []

    async def main() -> None:
        done = asyncio.Event()

        async def handle(message) -> None:
            seen.append(message.delivery_attempt)
            await asyncio.sleep(3599)
            message.ack()
            done.set()

        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub, ack_deadline=0.5)
            subscription.on("message", handle)
            subscription.open()
            await topic.publish(b"long", ordering_key="k")
            await done.wait()
            await asyncio.sleep(10)

    run_in_virtual_time(main())
    assert seen == [1]


def test_after_a_change_of_the_deadline_leases_are_extended_by_the_new_one():
    seen: list[int] = []

    async def main() -> None:
        done = asyncio.Event()

        async def handle(message) -> None:
            seen.append(message.delivery_attempt)
            await asyncio.sleep(20)
            message.ack()
            done.set()

        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub, ack_deadline=600)
            subscription.on("message", handle)
            subscription.open()
            await topic.publish(b"first", ordering_key="k")
            await done.wait()
            done.clear()
            await subscription.set_options(ack_deadline=0.5)
            await topic.publish(b"second", ordering_key="k")
            await done.wait()

    run_in_virtual_time(main())
    assert seen == [1, 1]


@pytest.mark.parametrize("is_async", [False, True])
def test_ac_005_what_was_neither_acked_nor_nacked_comes_again_after_exactly_its_deadline_and_the_backoff(is_async):
    deliveries: list[tuple[str, float]] = []

    async def main() -> None:
        done = asyncio.Event()

        def handle(message) -> None:
            deliveries.append((message.data.decode(), now()))
            if message.data == b"first" and message.delivery_attempt == 1:
                return  # says nothing
            message.ack()
            if message.data == b"second":
                done.set()

        async def handle_async(message) -> None:
            handle(message)

        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub, ack_deadline=1)
            subscription.on("message", handle_async if is_async else handle)
            subscription.open()
            topic.publish(b"first", ordering_key="user-123")
            topic.publish(b"second", ordering_key="user-123")
            await topic.flush()
            await done.wait()

    run_in_virtual_time(main())
    assert [data for data, _ in deliveries] == ["first", "first", "second"]
    assert [at - deliveries[0][1] for _, at in deliveries] == [0, close_to(1.1), close_to(1.1)]


def test_an_extension_that_a_handler_asked_for_outlives_the_handler():
    deliveries: list[float] = []

    async def main() -> None:
        again = asyncio.Event()

        async def handle(message) -> None:
            deliveries.append(now())
            if message.delivery_attempt == 1:
                message.extend(100)
                await asyncio.sleep(30)  # meanwhile its lease is kept by extensions of 10 seconds
                return
            message.ack()
            again.set()

        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub, ack_deadline=10, retry=RetryPolicy.immediate())
            subscription.on("message", handle)
            subscription.open()
            await topic.publish(b"x", ordering_key="k")
            await again.wait()

    run_in_virtual_time(main())
    assert [at - deliveries[0] for at in deliveries] == [0, close_to(100)]
