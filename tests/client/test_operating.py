"""The API beside publishing and handling: durable acks, policies, flow control, errors, and an operator's hand."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest

from seriatim import ConsumeOptions, PubSub, RetryPolicy
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import InvalidArgument, NotFound, RedriveRefused, StaleLease, StoreFull
from seriatim.options import OnExhausted, ReleaseAfter, RetryMode
from tests.client.conftest import Received, ordered, publish
from tests.engine.conftest import WatchedStore


def failing(received: Received, error: str = "broken"):
    """A handler that always raises."""

    def handler(message):
        received.add(message)
        raise ValueError(error)

    return handler


# -- acks ---------------------------------------------------------------------------------------------------------------


def test_a_durable_ack_returns_when_the_message_can_not_come_again(run_with_restarts):
    async def before(pubsub):
        topic, subscription = await ordered(pubsub)
        await publish(topic, "1", "2")
        async for message in subscription:
            await message.ack_durable()
            assert (await subscription.stats()).total == 1
            with pytest.raises(StaleLease):
                await message.ack_durable()
            break

    async def after(pubsub):
        assert [message.data for message in await pubsub.subscription("ordered-sub").peek("k")] == [b"2"]

    run_with_restarts(before, after)


def test_a_durable_ack_whose_lease_was_lost_says_so(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub, window=2)
        await publish(topic, "1", "2")
        stream = subscription.messages()
        first, second = await anext(stream), await anext(stream)
        acking = asyncio.ensure_future(second.ack_durable())
        await asyncio.sleep(0)
        assert not acking.done(), "it is provisional as long as the first one is out"
        first.nack()
        with pytest.raises(StaleLease, match="an earlier message of its key failed"):
            await acking
        await subscription.skip("k")
        with pytest.raises(StaleLease):
            await first.ack_durable()

    run(scenario)


# -- policies -----------------------------------------------------------------------------------------------------------


def test_a_message_that_used_up_its_attempts_is_dead_lettered_and_its_key_goes_on(run):
    async def scenario(pubsub):
        graves = await pubsub.topic("graves").create()
        buried = await graves.subscription("buried").create(enable_message_ordering=True)
        topic, subscription = await ordered(
            pubsub, retry=RetryPolicy.immediate(max_attempts=2), dead_letter_topic="graves"
        )
        received, began = Received(), datetime.now(UTC)

        def handler(message):
            received.add(message)
            if message.data == b"poison":
                raise ValueError("can't be read")
            message.ack()

        subscription.on("message", handler)
        subscription.on("error", lambda error: None)
        subscription.open()
        await publish(topic, "poison", "fine")
        assert await received.wait(3) == ["poison", "poison", "fine"]
        (letter,) = await subscription.dead_letters()
        assert (letter.id, letter.ordering_key, letter.attempts) == ("0", "k", 2)
        assert letter.error == "ValueError: can't be read"
        assert timedelta(0) <= letter.time - began + timedelta(seconds=1) < timedelta(minutes=1)
        assert (letter.copy_topic, letter.copy_id) == ("graves", "0")
        (copy,) = await buried.peek("k")
        assert (copy.data, copy.attributes["seriatim-dead-letter-attempts"]) == (b"poison", "2")

    run(scenario)


def test_by_policy_the_rest_of_a_key_is_dead_lettered_too(run):
    async def scenario(pubsub):
        policy = RetryPolicy.immediate(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER_REST)
        topic, subscription = await ordered(pubsub, retry=policy)
        await publish(topic, "1", "2", "3")
        await publish(topic, "other", key="other")
        received = Received()
        subscription.on("message", failing(received))
        subscription.on("error", lambda error: None)
        subscription.open()
        assert sorted(await received.wait(2)) == ["1", "other"]
        await subscription.close()
        await publish(topic, "a later commit", key="later")
        letters = await subscription.dead_letters()
        assert [letter.id for letter in letters] == ["0", "1", "2", "3"]
        assert letters[2].error == "behind message 0 of its key, which was dead-lettered"
        assert [letter.id for letter in await subscription.dead_letters(after="1", limit=1)] == ["2"]

    run(scenario)


def test_by_policy_a_key_is_paused_and_says_why_and_others_go_on(run):
    async def scenario(pubsub):
        policy = RetryPolicy.immediate(max_attempts=1, on_exhausted=OnExhausted.PAUSE)
        topic, subscription = await ordered(pubsub, retry=policy)
        received, healthy = Received(), asyncio.Event()

        def handler(message):
            received.add(message)
            if message.ordering_key == "bad" and not healthy.is_set():
                raise ValueError("broken")
            message.ack()

        subscription.on("message", handler)
        subscription.on("error", lambda error: None)
        subscription.open()
        await publish(topic, "b1", "b2", key="bad")
        await publish(topic, "g1", "g2", key="good")
        await received.wait(3)
        (paused,) = await subscription.keys(blocked_only=True)
        assert (paused.key, paused.state) == ("bad", "paused")
        assert str(paused.why).startswith("paused: 1 delivery attempts failed, since 20")
        assert (paused.error, paused.depth, paused.head) == ("ValueError: broken", 2, "0")
        healthy.set()
        await subscription.resume_key("bad")
        assert (await received.wait(5))[-2:] == ["b1", "b2"]

    run(scenario)


def test_with_overtaking_later_messages_pass_one_that_waits_for_its_retry(run):
    async def scenario(pubsub):
        policy = RetryPolicy(min_backoff=300, max_backoff=600, mode=RetryMode.OVERTAKE)
        topic, subscription = await ordered(pubsub, retry=policy)
        received = Received()

        def handler(message):
            received.add(message)
            if len(received.messages) == 1:
                raise ValueError("not yet")
            message.ack()

        subscription.on("message", handler)
        subscription.on("error", lambda error: None)
        subscription.open()
        await publish(topic, "1", "2")
        assert await received.wait(2) == ["1", "2"]
        await subscription.retry("k")
        assert await received.wait(3) == ["1", "2", "1"]

    run(scenario)


def test_every_option_can_be_given_and_changed(run_with_restarts):
    async def before(pubsub):
        await pubsub.topic("graves").create()
        policy = RetryPolicy(1, 2, RetryMode.OVERTAKE, 3, OnExhausted.PAUSE)
        _, subscription = await ordered(
            pubsub, ack_deadline=7, retry=policy, window=4, release=ReleaseAfter.RECEIPT, dead_letter_topic="graves"
        )
        await subscription.set_options(window=2, dead_letter_topic=None, message_ordering=False)
        with pytest.raises(NotFound, match="topic 'nowhere' does not exist"):
            await subscription.set_options(dead_letter_topic="nowhere")

    async def after(pubsub):
        (info,) = await pubsub.subscriptions()
        options = info.options
        assert (info.name, info.topic) == ("ordered-sub", "ordered-events")
        assert (options.message_ordering, options.ack_deadline, options.window) == (False, 7, 2)
        assert (options.release, options.dead_letter_topic) == (ReleaseAfter.RECEIPT, None)
        assert options.retry == RetryPolicy(1, 2, RetryMode.OVERTAKE, 3, OnExhausted.PAUSE)
        assert sorted(topic.name for topic in await pubsub.topics()) == ["graves", "ordered-events"]

    run_with_restarts(before, after)


def test_choices_may_be_given_as_text_and_a_wrong_one_names_them_all(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub, release="receipt")
        assert (await subscription.options()).release is ReleaseAfter.RECEIPT
        await subscription.set_options(release="durable")
        assert (await subscription.options()).release is ReleaseAfter.DURABLE
        with pytest.raises(InvalidArgument, match="release must be one of 'durable', 'receipt', not 'never'"):
            await topic.subscription("other").create(release="never")  # type: ignore[arg-type]

    run(scenario)


# -- flow control -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"max_messages": 2}, {"max_bytes": 2}])
def test_no_more_is_taken_at_once_than_the_limits_say(run, limits):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        for key in "abcd":
            await publish(topic, key, key=key)
        received = Received()
        subscription.on("message", received.add)
        subscription.open(**limits)
        await received.wait(2)
        assert (await subscription.stats()).leased == 2
        received.messages[0].ack()
        await received.wait(3)
        assert (await subscription.stats()).total == 3

    run(scenario)


def test_a_lease_is_extended_up_to_the_limit_and_no_longer(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub, ack_deadline=0.1)
        received, stuck = Received(), asyncio.Event()

        async def handler(message):
            received.add(message)
            if message.delivery_attempt == 1:
                await stuck.wait()
            else:
                message.ack()

        subscription.on("message", handler)
        subscription.open(ConsumeOptions(max_extension=0.25))
        await publish(topic, "1")
        began = asyncio.get_running_loop().time()
        await received.wait(2)
        assert asyncio.get_running_loop().time() - began >= 0.1
        stuck.set()

    run(scenario)


@pytest.mark.parametrize("limits", [{"max_messages": 0}, {"max_bytes": 0}, {"max_extension": -1}])
def test_limits_that_can_never_work_are_refused(limits):
    with pytest.raises(InvalidArgument, match=next(iter(limits))):
        ConsumeOptions(**limits)


# -- errors -------------------------------------------------------------------------------------------------------------


def test_a_handler_error_is_emitted_to_every_error_handler_and_one_that_fails_stops_nothing(run, caplog):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received = Received()
        seen: list[BaseException] = []

        def handler(message):
            received.add(message)
            if len(received.messages) <= 2:
                raise ValueError(f"number {len(received.messages)}")
            message.ack()

        def bad_handler(error):
            raise RuntimeError("worse")

        async def bad_async_handler(error):
            await asyncio.sleep(0)
            raise RuntimeError("worse still")

        async def good_handler(error):
            await asyncio.sleep(0)
            seen.append(error)

        subscription.on("message", handler)
        for one in (bad_handler, bad_async_handler, good_handler):
            subscription.on("error", one)
        subscription.open()
        await publish(topic, "1", "2")
        assert await received.wait(4) == ["1", "1", "1", "2"]
        await subscription.close()
        assert [str(error) for error in seen] == ["number 1", "number 2"]
        assert "an error handler of subscription 'ordered-sub' failed: RuntimeError: worse" in caplog.text
        assert "worse still" in caplog.text

    with caplog.at_level(logging.ERROR, "seriatim"):
        run(scenario)


def test_an_error_of_the_store_is_emitted_to_open_subscriptions(monkeypatch):
    monkeypatch.setattr("seriatim.engine.committer.RETRY_PAUSE_S", 0.001)

    async def scenario():
        store = WatchedStore()
        engine = Engine(store)
        await engine.start()
        pubsub = PubSub()
        pubsub._broker = engine
        topic, subscription = await ordered(pubsub)
        received = Received()
        errors: asyncio.Queue[BaseException] = asyncio.Queue()
        subscription.on("message", received.add)
        subscription.on("error", errors.put_nowait)
        subscription.open()
        await publish(topic, "1", "2")
        await received.wait(1)
        store.failures.append(StoreFull("no room on the disk"))
        received.messages[0].ack()
        assert str(await errors.get()) == "no room on the disk"
        assert await received.wait(2) == ["1", "2"], "the ack was written later"
        await pubsub.close()

    asyncio.run(scenario())


# -- an operator's hand -------------------------------------------------------------------------------------------------


def test_a_subscription_is_paused_and_resumed(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received = Received()
        subscription.on("message", received.add_and_ack)
        subscription.open()
        await subscription.pause()
        await publish(topic, "1")
        assert ((await subscription.stats()).paused, received.data) == (True, [])
        await subscription.resume()
        assert await received.wait(1) == ["1"]

    run(scenario)


def test_a_key_is_paused_looked_at_skipped_and_resumed(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        await subscription.pause_key("k", "Ann looks into it")
        await publish(topic, "1", "2")
        (view,) = await subscription.keys()
        assert (view.key, view.head) == ("k", "0")
        assert str(view.why).startswith("paused: Ann looks into it")
        assert [(message.id, message.data) for message in await subscription.peek("k", limit=1)] == [("0", b"1")]
        assert await subscription.skip("k") == "0"
        await subscription.resume_key("k")
        received = Received()
        subscription.on("message", received.add_and_ack)
        subscription.open()
        assert await received.wait(1) == ["2"]

    run(scenario)


def test_a_dead_letter_goes_back_to_its_place_or_to_the_end_or_is_purged(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        await publish(topic, "1", "2", "3", "4")
        assert await subscription.dead_letter("k", "no use") == ["0"]
        assert await subscription.redrive("0") == "0"
        assert await subscription.dead_letter("k", rest=True) == ["0", "1", "2", "3"]
        await subscription.purge("3")
        assert await subscription.redrive("1") == "1"
        async for message in subscription:
            await message.ack_durable()
            break
        with pytest.raises(RedriveRefused, match="append it at the end"):
            await subscription.redrive("0")
        assert await subscription.redrive("0", append=True) == "4"
        assert await subscription.redrive("2") == "2"
        assert [message.id for message in await subscription.peek("k")] == ["2", "4"]
        assert await subscription.dead_letters() == []

    run(scenario)


@pytest.mark.parametrize("message_id", ["", "x", "-1", "1.0", "٣", 7, None])
def test_what_is_no_id_is_refused(run, message_id):
    async def scenario(pubsub):
        _, subscription = await ordered(pubsub)
        with pytest.raises(InvalidArgument, match="is not the id of a message"):
            await subscription.remove(message_id)

    run(scenario)


def test_metrics_and_the_rates_between_two_of_them(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        earlier = await pubsub.metrics()
        received = Received()
        subscription.on("message", received.add_and_ack)
        subscription.open()
        await publish(topic, "1", "2", "3")
        await received.wait(3)
        later = await pubsub.metrics()
        assert later.topics["ordered-events"].published == 3
        assert later.subscriptions["ordered-sub"].delivered == 3
        assert later.stats["ordered-sub"].consumers == 1
        rates = later.since(earlier)
        assert rates.totals["delivered"] * rates.seconds == pytest.approx(3)
        assert rates.commits > 0

    run(scenario)


# -- many hands at once -------------------------------------------------------------------------------------------------


def changing_at_once(subscription, number):
    """Eight changes of one subscription by different callers, none of which names what another changes."""
    return asyncio.gather(
        subscription.set_options(ack_deadline=20 + number),
        subscription.pause() if number % 2 else subscription.resume(),
        subscription.set_options(window=1 + number % 3),
        subscription.set_options(retry=RetryPolicy.immediate(max_attempts=1 + number)),
        subscription.set_options(dead_letter_topic="graves" if number % 2 else None),
        subscription.set_options(release="receipt" if number % 2 else "durable"),
    )


async def assert_all_took_effect(subscription, number):
    options = await subscription.options()
    assert (options.ack_deadline, options.paused) == (20 + number, bool(number % 2))
    assert (options.window, options.retry.max_attempts) == (1 + number % 3, 1 + number)
    assert options.dead_letter_topic == ("graves" if number % 2 else None)
    assert options.release is (ReleaseAfter.RECEIPT if number % 2 else ReleaseAfter.DURABLE)


def test_options_that_are_changed_at_the_same_time_all_take_effect(run):
    async def scenario(pubsub):
        _, subscription = await ordered(pubsub)
        await pubsub.topic("graves").create()
        for number in range(30):
            await changing_at_once(subscription, number)
            await assert_all_took_effect(subscription, number)

    run(scenario)


def test_options_that_two_processes_change_at_the_same_time_all_take_effect(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario():
        async with asyncio.timeout(20), PubSub(url) as owner, PubSub(url) as linked:
            await ordered(owner)
            await owner.topic("graves").create()
            here, there = (pubsub.subscription("ordered-sub") for pubsub in (owner, linked))
            for number in range(10):
                await asyncio.gather(
                    here.set_options(ack_deadline=20 + number),
                    there.set_options(window=1 + number % 3),
                    there.pause() if number % 2 else here.resume(),
                    here.set_options(retry=RetryPolicy.immediate(max_attempts=1 + number)),
                    there.set_options(dead_letter_topic="graves" if number % 2 else None),
                    there.set_options(release="receipt" if number % 2 else "durable"),
                )
                await assert_all_took_effect(here, number)

    asyncio.run(scenario())


def test_a_change_of_options_that_nobody_knows_is_refused(run):
    async def scenario(pubsub):
        await ordered(pubsub)
        for fields in (["colour"], ["retry.colour"], ["paused.colour"], ["colour.retry"]):
            with pytest.raises(InvalidArgument, match="there is no option 'colour'"):
                await pubsub.broker.update_subscription("ordered-sub", SubscriptionOptions(), fields)

    run(scenario)
