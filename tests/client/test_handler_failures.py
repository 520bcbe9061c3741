"""Whatever a handler raises is a failure of its message: it is nacked and reported, and nobody else is held up."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any, cast

import pytest

from seriatim import Message, PubSub, RetryPolicy
from seriatim.core.lanes.types import Lease
from seriatim.errors import FailedPrecondition
from seriatim.kafka.records import OFFSET_BITS, KafkaDelivered
from seriatim.testing import run_in_virtual_time
from tests.client.conftest import Received, ordered, publish

WAIT = 10


class OwnKind(BaseException):
    """What some libraries use so that nobody catches it by accident."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


RAISED_BY_COROUTINES = [asyncio.CancelledError, SystemExit, KeyboardInterrupt, OwnKind, Unprintable]
RAISED = [*RAISED_BY_COROUTINES, GeneratorExit]
"""A coroutine that raises GeneratorExit can't be told from one that is thrown away."""


def failing_once(received: Received, kind: type[BaseException]):
    def handle(message) -> None:
        received.add(message)
        if message.delivery_attempt == 1 and message.data == b"bad":
            raise kind
        message.ack()

    return handle


@pytest.mark.parametrize("kind", RAISED)
def test_what_a_plain_handler_raises_is_nacked_and_reported_and_other_subscriptions_go_on(run, kind):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        other = await topic.subscription("other").create(enable_message_ordering=True)
        received, others = Received(), Received()
        errors: list[BaseException] = []
        subscription.on("message", failing_once(received, kind))
        subscription.on("error", errors.append)
        other.on("message", others.add_and_ack)
        subscription.open()
        other.open()
        await publish(topic, "bad", "2")
        assert await received.wait(3) == ["bad", "bad", "2"]
        assert await others.wait(2) == ["bad", "2"]
        assert [type(error) for error in errors] == [kind]

    run(scenario)


@pytest.mark.parametrize("kind", RAISED_BY_COROUTINES)
@pytest.mark.parametrize("pause", [0, 0.001])
def test_what_an_async_handler_raises_is_nacked_and_reported(run, kind, pause):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub, ack_deadline=600)
        received = Received()
        errors: list[BaseException] = []
        handle = failing_once(received, kind)

        async def handle_later(message) -> None:
            await asyncio.sleep(pause)
            handle(message)

        subscription.on("message", handle_later)
        subscription.on("error", errors.append)
        subscription.open()
        await publish(topic, "bad", "2")
        assert await received.wait(3) == ["bad", "bad", "2"]
        assert [type(error) for error in errors] == [kind]

    run(scenario)


def test_a_handler_whose_task_is_cancelled_has_not_failed_and_its_message_comes_again_after_its_deadline():
    attempts: list[tuple[int, float]] = []
    errors: list[BaseException] = []

    async def main() -> None:
        again = asyncio.Event()

        async def handle(message) -> None:
            attempts.append((message.delivery_attempt, asyncio.get_running_loop().time()))
            if message.delivery_attempt == 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)
            message.ack()
            again.set()

        async with PubSub() as pubsub:
            topic, subscription = await ordered(pubsub, ack_deadline=5, retry=RetryPolicy.immediate())
            subscription.on("message", handle)
            subscription.on("error", errors.append)
            subscription.open()
            await publish(topic, "1")
            await again.wait()

    run_in_virtual_time(main())
    (_, first), (attempt, second) = attempts
    assert attempt == 2
    assert second - first == pytest.approx(5, abs=1e-6)
    assert errors == []


@pytest.mark.parametrize(
    ("is_async", "kind"), [*((False, kind) for kind in RAISED), *((True, kind) for kind in RAISED_BY_COROUTINES)]
)
def test_what_an_error_handler_raises_stops_nothing(run, kind, is_async):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received = Received()

        def report(_) -> None:
            raise kind

        async def report_later(_) -> None:
            await asyncio.sleep(0)
            report(_)

        subscription.on("message", failing_once(received, ValueError))
        subscription.on("error", report_later if is_async else report)
        subscription.open()
        await publish(topic, "bad", "2")
        assert await received.wait(3) == ["bad", "bad", "2"]
        await subscription.close()

    run(scenario)


@pytest.mark.parametrize("kind", RAISED)
def test_every_error_handler_is_called_whatever_the_others_raise(run, kind):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received = Received()
        errors: list[BaseException] = []

        def report(_) -> None:
            raise kind

        subscription.on("message", failing_once(received, ValueError))
        subscription.on("error", report)
        subscription.on("error", errors.append)
        subscription.open()
        await publish(topic, "bad", "2")
        await received.wait(3)
        assert [type(error) for error in errors] == [ValueError]

    run(scenario)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_message_that_is_lost_before_its_handler_begins_is_not_begun_with(run, is_async):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create(enable_message_ordering=True, window=3)
        await publish(topic, "bad", "2", "3")  # they come together, and what follows a failure is lost with it
        received = Received()
        handle = failing_once(received, ValueError)

        async def handle_later(message) -> None:
            handle(message)

        subscription.on("message", handle_later if is_async else handle)
        subscription.on("error", lambda _: None)
        subscription.open()
        await received.wait(4)
        await subscription.wait_until_empty()
        assert received.data == ["bad", "bad", "2", "3"]

    run(scenario)


# -- the blocking API ---------------------------------------------------------------------------------------------------


@pytest.fixture
def blocking():
    with PubSub.blocking() as pubsub:
        topic = pubsub.topic("t")
        topic.create()
        subscription = topic.subscription("s")
        subscription.create(enable_message_ordering=True)
        yield topic, subscription


@pytest.mark.parametrize("leave", [sys.exit, lambda: (_ for _ in ()).throw(KeyboardInterrupt)])
def test_a_blocking_handler_that_would_end_the_program_fails_and_callers_go_on(blocking, leave):
    topic, subscription = blocking
    errors, reported, done = [], threading.Event(), threading.Event()

    def handler(message) -> None:
        if message.delivery_attempt == 1:
            leave()
        message.ack()
        done.set()

    def report(error) -> None:
        errors.append(error)
        reported.set()

    subscription.on("message", handler)
    subscription.on("error", report)
    subscription.open()
    topic.publish(b"1", ordering_key="k").result(WAIT)
    assert done.wait(WAIT)
    assert reported.wait(WAIT)
    assert isinstance(errors[0], SystemExit | KeyboardInterrupt)
    assert topic.publish(b"2", ordering_key="k").result(WAIT) == "1"


def test_a_blocking_error_handler_that_fails_is_logged(blocking, caplog):
    topic, subscription = blocking
    done = threading.Event()

    def handler(message) -> None:
        if message.delivery_attempt == 1:
            raise ValueError("first time")
        message.ack()
        done.set()

    def report(_) -> None:
        sys.exit("the error handler gives up")

    subscription.on("message", handler)
    subscription.on("error", report)
    subscription.open()
    topic.publish(b"1", ordering_key="k").result(WAIT)
    assert done.wait(WAIT)
    subscription.close()
    assert "the error handler gives up" in caplog.text


def test_a_system_exit_inside_the_loop_reaches_its_caller_and_the_loop_goes_on(blocking):
    topic, _ = blocking

    async def leave() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        topic._thread.run(leave())
    assert topic.publish(b"1").result(WAIT) == "0"


def test_a_call_that_waits_when_the_loop_is_closed_is_told_so():
    pubsub = PubSub.blocking()
    raised = []
    began = threading.Event()

    async def wait_for_ever() -> None:
        began.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            pubsub._thread.run(wait_for_ever())
        except FailedPrecondition as error:
            raised.append(str(error))

    with pubsub:
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert began.wait(WAIT)
    waiter.join(WAIT)
    assert raised == ["this was closed before it was done"]


def test_a_failure_is_logged_with_the_ids_that_messages_have(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: object) -> None:
        raise ValueError("not this")

    async def scenario() -> None:
        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub)
            await publish(topic, "1", "2")
            subscription.on("message", refuse)
            subscription.open(batch=2)
            while len(caplog.records) < 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(1)
            elsewhere = KafkaDelivered.of(Lease(1, "k", 17, 1, 10.0), b"", None, 0.0)
            elsewhere = KafkaDelivered(elsewhere.lease, elsewhere.record._replace(offset=(3 << OFFSET_BITS) + 17))
            subscription._report(ValueError("not this"), Message(elsewhere, cast("Any", None)))

    run_in_virtual_time(scenario())
    batch, alone, *_, elsewhere = (vars(record) for record in caplog.records)
    assert (batch["subscription"], batch["ordering_key"], batch["message_ids"]) == ("ordered-sub", "k", ["0", "1"])
    assert alone["message_ids"] == ["0"]
    assert (elsewhere["ordering_key"], elsewhere["message_id"]) == ("k", "3-17")
