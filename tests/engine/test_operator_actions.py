"""An operator's hand: what can be seen of a subscription and done to it, while it is at work and across restarts."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from seriatim.core.lanes.explanation import WaitsFor
from seriatim.core.lanes.types import OnExhausted, ReleaseAfter, RetryMode, RetryPolicy
from seriatim.engine.broker import Outgoing
from seriatim.engine.consumer import Consumer
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, StaleLease, StoreLost
from seriatim.store import open_store
from seriatim.testing import run_in_virtual_time
from tests.engine.conftest import ORDERED, Collector, prepare, publish, reads_held_up, settle_down

BACKING_OFF = replace(ORDERED, retry=RetryPolicy(min_backoff=300, max_backoff=300))


async def keys_of(engine, **how):
    return {info.key: info for info in await engine.list_keys("s", **how)}


# -- looking ------------------------------------------------------------------------------------------------------------


def test_stats_count_messages_keys_and_consumers(run):
    async def scenario(engine):
        await prepare(engine, BACKING_OFF)
        got = Collector(max_messages=2)
        await publish(engine, "1", "2", key="a")
        await publish(engine, "3", key="b")
        await publish(engine, "4", key="later", delay=60)
        await publish(engine, "5", key="ready")
        await engine.pause_key("s", "p", "on purpose")
        attachment = engine.attach("s", got.consumer)
        first, _ = await got.wait(2)
        got.consumer.stop()
        attachment.nack(first.lease, error="broken")
        stats = await engine.stats("s")
        assert (stats.subscription, stats.topic, stats.total, stats.consumers) == ("s", "t", 5, 1)
        assert (stats.ready, stats.leased, stats.delayed, stats.blocked) == (1, 1, 2, 1)
        assert (stats.keys, stats.blocked_keys, stats.paused_keys, stats.dead_letters) == (5, 3, 1, 0)
        assert stats.oldest_age is not None
        assert 0 <= stats.oldest_age < 10
        assert not stats.paused

    run(scenario)


def test_stats_of_an_empty_subscription_have_no_oldest_message(run):
    async def scenario(engine):
        await prepare(engine)
        assert (await engine.stats("s")).oldest_age is None
        with pytest.raises(NotFound, match="subscription 'x' does not exist"):
            await engine.stats("x")

    run(scenario)


def test_a_key_says_why_it_waits(run, monkeypatch):
    async def scenario(engine):
        await prepare(engine, BACKING_OFF)
        got = Collector(max_messages=1)
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", key="retrying")
        attachment.nack((await got.wait(1))[0].lease, error="no such table")
        await publish(engine, "2", key="working")
        await got.wait(2)
        await publish(engine, "3", "4", key="ready")
        await publish(engine, "5", key="later", delay=60)
        await engine.pause_key("s", "held", "Ann looks into it")
        await engine.pause_key("s", "quiet")
        keys = await keys_of(engine)
        assert list(keys)[-2:] == ["working", "ready"], "those in trouble come first"
        assert keys["working"].why.startswith("message 1 is in flight (attempt 1), since 20")
        assert (keys["ready"].why, keys["ready"].depth, keys["ready"].head) == (None, 2, "2")
        assert keys["held"].why.startswith("paused: Ann looks into it, since 20")
        assert keys["quiet"].why.startswith("paused, since 20")
        retrying = keys["retrying"]
        assert retrying.why is not None
        assert retrying.why.startswith("waits for its retry until 20")
        assert retrying.why.partition(", since")[0].endswith("UTC: no such table")
        assert (retrying.state, retrying.attempts, retrying.error) == ("delayed", 1, "no such table")
        assert retrying.not_before is not None
        assert retrying.head_age is not None
        assert keys["later"].why is not None
        assert keys["later"].why.startswith("delayed until 20")
        assert set(await keys_of(engine, blocked_only=True)) == {"held", "quiet", "retrying", "later"}
        assert len(await engine.list_keys("s", limit=2)) == 2
        await engine.pause("s")
        why = (await keys_of(engine))["ready"].why
        assert re.fullmatch(r"the subscription is paused \(waiting since .* UTC\); it needs an operator", why)

    monkeypatch.setattr("seriatim.engine.operator_actions.PIECE", 2)
    run(scenario)


def test_pages_of_keys_continue_each_other_and_look_closely_only_at_what_they_show(run, monkeypatch):
    """That is what keeps them cheap: to look closely at a key takes several times longer than to rank it."""
    looked_at, ranked = list[str | None](), list[str | None]()

    async def scenario(engine):
        await prepare(engine)
        await engine.publish("t", [Outgoing(f"k{number % 90:02}", b"x") for number in range(180 + 17)])
        lanes = engine.get_subscription("s").lanes
        view, values = lanes.view, lanes.sort_values

        def look(key):
            looked_at.append(key)
            return view(key)

        def rank_it(key):
            ranked.append(key)
            return values(key)

        monkeypatch.setattr(lanes, "view", look)
        monkeypatch.setattr(lanes, "sort_values", rank_it)

        for order, rank in (
            ("oldest", lambda key: int(key.head)),
            ("deepest", lambda key: (-key.depth, int(key.head))),
            ("trouble", lambda key: (key.state != "paused", int(key.head))),
        ):
            everything = await engine.list_keys("s", order=order)
            assert [key.key for key in everything] == [key.key for key in sorted(everything, key=rank)]
            looked_at.clear()
            pages = [await engine.list_keys("s", order=order, limit=10, skip=skip) for skip in (0, 10)]
            assert [key.key for page in pages for key in page] == [key.key for key in everything][:20]
            assert len(looked_at) <= (10 + 20) * len(everything) / 30, "those that a page may show after each piece"
        for number in range(20, 32):
            await engine.pause_key("s", f"k{number}")
        ranked.clear()
        assert [key.key for key in await engine.list_keys("s", limit=12)] == [f"k{number}" for number in range(20, 32)]
        assert len(ranked) == 12, "blocked keys come first: while they are enough, no other is looked at"
        assert [key.key for key in await engine.list_keys("s", limit=13)][12:] == ["k00"]

    monkeypatch.setattr("seriatim.engine.operator_actions.PIECE", 30)
    run(scenario)


def test_a_key_whose_ack_is_not_durable_yet_says_so(run_watched):
    async def scenario(engine, store):
        await prepare(engine)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", "2")
        await publish(engine, "3", key=None)
        first, _ = await got.wait(2)
        store.gate.clear()
        attachment.ack(first.lease)
        keys = await keys_of(engine)
        assert keys["k"].why.startswith("its acknowledgement is being written, since 20")
        assert keys[None].why == "1 messages without a key are in flight; keyless messages wait for no other"
        store.gate.set()
        await got.wait(3)

    run_watched(scenario)


def test_peeking_shows_messages_in_order_and_delivers_nothing(run, monkeypatch):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        await publish(engine, "1", "2", "3")
        engine.attach("s", got.consumer)
        await got.wait(1)
        seen = await engine.peek("s", "k", limit=2)
        assert [(message.id, message.ordering_key, message.data) for message in seen] == [
            ("0", "k", b"1"),
            ("1", "k", b"2"),
        ]
        assert await engine.peek("s", "nobody") == []
        assert len(subscription.lanes) == 3
        assert len(got.got) == 1

    monkeypatch.setattr("seriatim.engine.topic.CACHED_BYTES", 0)
    run(scenario)


# -- the head of a key --------------------------------------------------------------------------------------------------


def test_a_key_that_backs_off_is_retried_now_and_a_restart_does_not_bring_its_delay_back(run_with_restarts):
    async def before(engine):
        await prepare(engine, BACKING_OFF)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", key="a")
        await publish(engine, "2", key="later", delay=600)
        attachment.nack((await got.wait(1))[0].lease, error="down")
        attachment.detach()
        for key in ("a", "later"):
            await engine.retry_key("s", key)
        with pytest.raises(FailedPrecondition, match="key 'a' has no message that waits for a retry"):
            await engine.retry_key("s", "a")

    async def after(engine):
        got = Collector()
        engine.attach("s", got.consumer)
        assert sorted((one.record.data, one.lease.attempt) for one in await got.wait(2)) == [(b"1", 2), (b"2", 1)]

    run_with_restarts(before, after)


def test_skipping_a_head_in_flight_fences_it_and_lets_the_next_one_go(run):
    async def scenario(engine):
        await prepare(engine)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", "2")
        (stuck,) = await got.wait(1)
        assert await engine.skip("s", "k") == "0"
        assert got.fenced == [0]
        with pytest.raises(StaleLease):
            attachment.ack(stuck.lease)
        assert (await got.wait(2))[1].record.data == b"2"
        with pytest.raises(NotFound, match="key 'x' has no message to skip"):
            await engine.skip("s", "x")

    run(scenario)


def test_a_key_is_skipped_or_dead_lettered_only_while_it_stands_at_the_message_that_is_meant(run):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1", "2", "3")
        assert await engine.skip("s", "k", head="0") == "0"
        for settle in (engine.skip, engine.dead_letter, partial(engine.dead_letter, rest=True)):
            with pytest.raises(FailedPrecondition, match="key 'k' stands at message 1 now, no longer at 0: look again"):
                await settle("s", "k", head="0")
        assert await engine.dead_letter("s", "k", head="1") == ["1"]
        assert await engine.dead_letter("s", "k", rest=True, head="2") == ["2"]
        with pytest.raises(NotFound, match="key 'k' has no message to skip"):
            await engine.skip("s", "k", head="2")

    run(scenario)


def test_what_was_skipped_or_removed_is_gone_after_a_restart(run_with_restarts):
    async def before(engine):
        await prepare(engine)
        await publish(engine, "1", "2", "3", "4")
        assert await engine.skip("s", "k") == "0"
        await engine.remove("s", "2")
        with pytest.raises(NotFound, match="topic 't' keeps no message 99"):
            await engine.remove("s", "99")
        with pytest.raises(NotFound, match="has no message 2 waiting"):
            await engine.remove("s", "2")

    async def after(engine):
        assert [message.data for message in await engine.peek("s", "k")] == [b"2", b"4"]

    run_with_restarts(before, after)


def test_a_message_in_flight_is_not_removed(run):
    async def scenario(engine):
        await prepare(engine)
        got = Collector()
        engine.attach("s", got.consumer)
        await publish(engine, "1")
        await got.wait(1)
        with pytest.raises(FailedPrecondition, match="message 0 is in flight"):
            await engine.remove("s", "0")

    run(scenario)


def test_an_operator_who_comes_while_an_ack_is_written_is_told_so(run_watched):
    async def scenario(engine, store):
        await prepare(engine)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", "2")
        (first,) = await got.wait(1)
        store.gate.clear()
        attachment.ack(first.lease)
        with pytest.raises(FailedPrecondition, match="message 0 is just being settled: try again"):
            await engine.remove("s", "0")
        skipped = asyncio.ensure_future(engine.skip("s", "k"))  # what is next, although it is not out yet
        await asyncio.sleep(0)
        assert not skipped.done(), "it is not durable yet"
        store.gate.set()
        assert await skipped == "1"

    run_watched(scenario)


def test_an_operator_hears_when_the_engine_is_closed_before_the_word_was_written(run_watched):
    async def scenario(engine, store):
        await prepare(engine)
        await publish(engine, "1")
        store.failures.append(StoreLost("another owner took over"))
        with pytest.raises(StoreLost, match="another owner took over"):
            await engine.skip("s", "k")

    run_watched(scenario)


# -- pausing ------------------------------------------------------------------------------------------------------------


def test_a_paused_key_waits_across_a_restart_and_others_go_on(run_with_restarts):
    async def before(engine):
        await prepare(engine)
        await engine.pause_key("s", "a", "first reason")
        await engine.pause_key("s", "a", "second reason")
        await publish(engine, "1", key="a")
        await publish(engine, "2", key="b")
        got = Collector()
        engine.attach("s", got.consumer)
        assert (await got.wait(1))[0].record.key == "b"

    async def between(engine):
        assert (await keys_of(engine))["a"].why == "paused: second reason; resume the key to continue"
        await engine.resume_key("s", "a")
        with pytest.raises(FailedPrecondition, match="key 'a' of subscription 's' is not paused"):
            await engine.resume_key("s", "a")

    async def after(engine):
        assert (await keys_of(engine))["a"].state == "ready"

    run_with_restarts(before, between, after)


def test_a_resumed_key_goes_on_at_once(run):
    async def scenario(engine):
        await prepare(engine)
        got = Collector()
        engine.attach("s", got.consumer)
        await engine.pause_key("s", "k")
        await publish(engine, "1")
        await settle_down(engine)
        assert got.got == []
        await engine.resume_key("s", "k")
        await got.wait(1)

    run(scenario)


def test_a_paused_subscription_gives_nothing_out_across_a_restart_and_leases_go_on(run_with_restarts):
    async def before(engine):
        await prepare(engine)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", "2")
        (first,) = await got.wait(1)
        await engine.pause("s")
        told: asyncio.Queue[BaseException | None] = asyncio.Queue()
        attachment.ack(first.lease, told.put_nowait)
        assert await told.get() is None
        await settle_down(engine)
        assert len(got.got) == 1
        await engine.update_subscription("s", replace(BACKING_OFF, paused=True))

    async def after(engine):
        got = Collector()
        engine.attach("s", got.consumer)
        await settle_down(engine)
        assert ((await engine.stats("s")).paused, got.got) == (True, [])
        await engine.resume("s")
        assert (await got.wait(1))[0].record.data == b"2"
        assert (await engine.describe_subscription("s")).options == BACKING_OFF

    run_with_restarts(before, after)


def test_operators_and_changes_of_options_at_once_lose_nothing(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        await publish(engine, *(str(number) for number in range(20)))
        work = [
            engine.update_subscription("s", replace(ORDERED, ack_deadline=20)),
            engine.skip("s", "k"),
            engine.pause("s"),
            engine.remove("s", "5"),
            engine.dead_letter("s", "k"),
            engine.update_subscription("s", replace(ORDERED, ack_deadline=30, paused=True)),
            engine.remove("s", "7"),
            engine.resume("s"),
        ]
        await asyncio.gather(*work)
        gone = {0, 1, 5, 7}
        assert [int(m.id) for m in await engine.peek("s", "k", 99)] == [n for n in range(20) if n not in gone]
        stored = (await engine.describe_subscription("s")).options
        assert (stored.ack_deadline, stored.paused) == (30, False)
        assert subscription.options == stored

    run(scenario)


def test_a_change_of_options_is_not_held_up_by_a_publisher_that_never_rests(run_watched):
    async def scenario(engine, store):
        await prepare(engine, SubscriptionOptions())

        async def publish_always():
            while True:
                publish(engine, "more")
                await asyncio.sleep(0)

        publisher = asyncio.ensure_future(publish_always())
        await store.until_writing()
        async with asyncio.timeout(10):
            await engine.update_subscription("s", ORDERED)
        publisher.cancel()

    run_watched(scenario)


@pytest.mark.parametrize("mode", RetryMode)
def test_a_key_that_used_up_its_attempts_is_paused_by_policy_and_says_why(run_with_restarts, mode):
    policy = RetryPolicy.immediate(max_attempts=2, on_exhausted=OnExhausted.PAUSE, mode=mode)

    async def before(engine):
        await prepare(engine, replace(ORDERED, retry=policy))
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", "2")
        for count in (1, 2):
            attachment.nack((await got.wait(count))[-1].lease, error="always")
        await settle_down(engine)
        assert len(got.got) == 2

    async def after(engine):
        info = (await keys_of(engine))["k"]
        assert (info.state, info.why) == ("paused", "paused: 2 delivery attempts failed; resume the key to continue")
        assert (info.attempts, info.error, info.depth) == (2, "always", 2)

    run_with_restarts(before, after)


@pytest.mark.parametrize("mode", RetryMode)
def test_a_key_that_was_resumed_after_its_attempts_were_used_up_stays_so_across_restarts(run_with_restarts, mode):
    policy = RetryPolicy.immediate(max_attempts=2, on_exhausted=OnExhausted.PAUSE, mode=mode)

    async def fail(engine, times):
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        for count in range(1, 1 + times):
            attachment.nack((await got.wait(count))[-1].lease, error="always")
        await settle_down(engine)
        assert (await keys_of(engine))["k"].state == "paused"

    async def before(engine):
        await prepare(engine, replace(ORDERED, retry=policy))
        await publish(engine, "1", "2")
        await fail(engine, 2)

    async def resume(engine):
        """As a command does that runs while the program is down."""
        await engine.resume_key("s", "k")

    async def fail_again(engine):
        await settle_down(engine)
        assert (await keys_of(engine))["k"].state == "ready"
        await fail(engine, 1)

    async def after(engine):
        assert (await keys_of(engine))["k"].state == "ready"
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        (first,) = await got.wait(1)
        attachment.ack(first.lease)
        assert [one.record.data for one in await got.wait(2)] == [b"1", b"2"]

    run_with_restarts(before, resume, fail_again, resume, after)


# -- whatever happens at once -------------------------------------------------------------------------------------------


class Crowd:
    """A consumer and operators who all work on one subscription at the same time, by chance."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = Random(seed)
        self.settled: list[int] = []
        self.removed: list[int] = []
        self.doomed: list[int] = []
        self.refused = 0

    def deliver(self, delivered) -> None:
        for lease, _ in delivered:
            asyncio.get_running_loop().call_later(self.random.random() * 0.005, self.finish, lease)

    def finish(self, lease) -> None:
        with suppress(StaleLease):
            if self.random.random() < 0.3:
                self.attachment.nack(lease)
            else:
                self.attachment.ack(lease, partial(self.told, lease))

    def told(self, lease, error: BaseException | None) -> None:
        if error is None:
            self.settled.append(lease.offset)

    async def work(self) -> None:
        self.attachment = self.engine.attach("s", Consumer(self.deliver))
        await asyncio.gather(self.publish(), *(self.operate() for _ in range(3)))
        self.attachment.detach()

    async def publish(self) -> None:
        for number in range(60):
            await publish(self.engine, str(number), key=self.random.choice(["a", "b", None]))

    async def operate(self) -> None:
        for _ in range(25):
            try:
                await self.command()
            except FailedPrecondition:
                self.refused += 1
            except NotFound:
                pass

    async def command(self) -> None:
        key, engine = self.random.choice(["a", "b", None]), self.engine
        choice = self.random.randrange(8)
        if choice == 0:
            self.removed.append(int(await engine.skip("s", key)))
        elif choice == 1:
            offset = self.random.randrange(60)
            await engine.remove("s", str(offset))
            self.removed.append(offset)
        elif choice == 2:
            self.doomed += map(int, await engine.dead_letter("s", key, rest=self.random.random() < 0.2))
        elif choice == 3 and self.doomed:
            offset = self.random.choice(self.doomed)
            await engine.redrive("s", str(offset))
            self.doomed.remove(offset)
        elif choice == 4:
            await engine.pause_key("s", key)
        elif choice == 5:
            await engine.resume_key("s", key)
        elif choice == 6:
            await engine.retry_key("s", key)
        else:
            await engine.update_subscription("s", replace(self.options, ack_deadline=self.random.randint(5, 9)))

    options = replace(BACKING_OFF, retry=RetryPolicy(min_backoff=0.001, max_backoff=0.002))


@pytest.mark.parametrize("seed", range(6))
def test_whatever_consumers_and_operators_do_at_once_every_message_is_accounted_for_once(run_with_restarts, seed):
    known: list[int] = []

    async def busy(engine):
        crowd = Crowd(engine, seed)
        crowd.options = replace(crowd.options, window=1 + seed % 3)
        await prepare(engine, crowd.options)
        await crowd.work()
        await settle_down(engine)
        known.extend([*crowd.settled, *crowd.removed])
        assert crowd.refused > 0

    async def after(engine):
        queued = [int(message.id) for key in ("a", "b", None) for message in await engine.peek("s", key, 99)]
        letters = [int(letter.id) for letter in await engine.dead_letters("s")]
        assert sorted([*known, *queued, *letters]) == list(range(60))

    run_with_restarts(busy, after)


def test_a_key_is_explained_as_data_and_in_the_sentence_of_the_list(run_linked) -> None:
    async def scenario(link, client) -> None:
        await publish(link.engine, *"ab")
        nobody = await client.explain("s", "k")
        (first,) = await client.peek("s", "k", 1)
        assert (nobody.waits_for, nobody.since, nobody.until) == (WaitsFor.CONSUMER, first.publish_time, None)
        assert nobody.sentence == (
            "message 0 is ready, but the subscription has no consumer "
            f"(waiting since {first.publish_time:%Y-%m-%d %H:%M:%S} UTC); it needs a consumer"
        )
        assert (await client.explain("s", "unknown")).waits_for is WaitsFor.MESSAGES
        got = Collector()
        client.attach("s", got.consumer)
        await got.wait(1)
        explained = await client.explain("s", "k")
        assert explained == await link.engine.explain("s", "k")
        assert explained.waits_for is WaitsFor.OUTCOME
        assert (explained.until - explained.since).total_seconds() == pytest.approx(10)
        assert [key.why for key in await client.list_keys("s")] == [explained.sentence]
        with pytest.raises(InvalidArgument):
            await client.explain("s", "k" * 2000)

    run_linked(scenario)


def test_a_key_waits_for_each_reason_since_that_began() -> None:
    async def scenario() -> None:
        engine, got = Engine(open_store("memory://")), Collector()
        await engine.start()
        await prepare(engine, replace(ORDERED, retry=RetryPolicy(min_backoff=60)))
        began = engine.now()

        async def waits(key: str = "k") -> tuple[str, int | None]:
            said = await engine.explain("s", key)
            return str(said.waits_for), None if said.since is None else round(said.since.timestamp() - began)

        await asyncio.sleep(10)
        await publish(engine, *"abc")
        await asyncio.sleep(100)
        assert await waits() == ("consumer", 10)
        attachment = engine.attach("s", got.consumer)
        (message,) = await got.wait(1)
        await asyncio.sleep(5)
        assert await waits() == ("outcome", 110)
        attachment.nack(message.lease)
        attachment.detach()
        await asyncio.sleep(5)
        assert await waits() == ("time", 115)
        await asyncio.sleep(300)
        assert await waits() == ("consumer", 175)
        await engine.update_subscription("s", replace(ORDERED, paused=True), ["paused"])
        await asyncio.sleep(5)
        assert await waits() == ("operator", 420)
        assert (await engine.explain("s", "k")).sentence == (await engine.list_keys("s"))[0].why
        await publish(engine, "x", key="later")
        assert await waits("later") == ("operator", 425)
        await asyncio.sleep(5)
        await engine.pause_key("s", "k", "why not")
        await asyncio.sleep(5)
        assert await waits() == ("operator", 430)
        assert "nothing is delivered while" in (await engine.explain("s", "k")).moved_by
        await engine.resume_key("s", "k")
        await engine.update_subscription("s", ORDERED, ["paused"])
        await asyncio.sleep(5)
        assert await waits() == ("consumer", 435)
        attachment = engine.attach("s", Collector().consumer)
        attachment.detach()
        await engine.skip("s", "k")
        await asyncio.sleep(5)
        assert await waits() == ("consumer", 440)
        await engine.close()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("release", ReleaseAfter)
def test_a_delay_that_ended_behind_another_message_is_not_waited_for(release: ReleaseAfter) -> None:
    async def scenario() -> None:
        engine, got = Engine(open_store("memory://")), Collector()
        await engine.start()
        await prepare(engine, replace(ORDERED, release=release, ack_deadline=60))
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "a")
        await publish(engine, "b", delay=10)
        (message,) = await got.wait(1)
        attachment.stop()
        await asyncio.sleep(20)
        attachment.ack(message.lease)
        said = [await engine.explain("s", "k")]
        while said[-1].waits_for is WaitsFor.COMMIT:
            await asyncio.sleep(0)
            said.append(await engine.explain("s", "k"))
        assert len(said) > 1 or release is ReleaseAfter.RECEIPT
        assert said[-1].waits_for is WaitsFor.CONSUMER
        since = said[-1].since
        assert since is not None
        assert since.timestamp() == pytest.approx(engine.now())
        await engine.close()

    run_in_virtual_time(scenario())


def test_how_long_a_key_waits_is_judged_in_one_moment(monkeypatch) -> None:
    monkeypatch.setattr("seriatim.engine.topic.CACHED_BYTES", 0)  # whatever has to be known of a message is read

    async def scenario() -> None:
        engine, got = Engine(open_store("memory://")), Collector()
        await engine.start()
        await prepare(engine, replace(ORDERED, tenant_limit=1, ack_deadline=60))
        await publish(engine, "a", "b", key="t/2")
        await publish(engine, "c", key="t/1")
        await engine.seek_to_message("s", "0")  # from then on nobody has paused anything
        attachment = engine.attach("s", got.consumer)
        attachment.ack((await got.wait(1))[0].lease)
        await got.wait(2)
        await asyncio.sleep(5)
        attachment.detach()
        room = await engine.explain("s", "t/2")
        assert room.waits_for is WaitsFor.CONSUMER
        assert room.since is not None
        assert room.since.timestamp() == pytest.approx(engine.now())
        with reads_held_up(engine):
            explained = asyncio.create_task(engine.explain("s", "t/2"))
            listed = asyncio.create_task(engine.list_keys("s"))
            await asyncio.sleep(0)
            await engine.seek_to_message("s", "1")
            await engine.pause_key("s", "t/2")
        assert await explained == room
        assert [(key.key, key.why) for key in await listed] == [("t/2", None), ("t/1", None)]
        await engine.close()

    run_in_virtual_time(scenario())


def test_what_began_before_a_restart_or_a_seek_has_no_beginning(run_with_restarts) -> None:
    async def before(engine: Engine) -> None:
        await prepare(engine, replace(ORDERED, paused=True))
        await publish(engine, *"ab")
        await publish(engine, "c", key="delayed", delay=3600)
        await engine.pause_key("s", "paused")
        assert (await engine.explain("s", "k")).since is not None
        await engine.seek_to_message("s", "1")
        assert (await engine.explain("s", "k")).since is None

    async def after(engine: Engine) -> None:
        for key in ("k", "delayed", "paused"):
            assert (await engine.explain("s", key)).since is None
        await engine.update_subscription("s", ORDERED, ["paused"])
        assert (await engine.explain("s", "k")).since is not None

    run_with_restarts(before, after)
