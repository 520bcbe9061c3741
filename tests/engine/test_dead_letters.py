"""Dead letters: buried atomically, never dropped, and redriven in order, across restarts too."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from random import Random

import pytest

from seriatim.core.lanes.types import OnExhausted, ReleaseAfter, RetryMode, RetryPolicy
from seriatim.engine.broker import Attachment, Outgoing
from seriatim.engine.dead_letters import ATTEMPTS, ERROR, OFFSET, PUBLISHED, SOURCE, group_of
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import InvalidArgument, NotFound, RedriveRefused, StoreBroken, StoreFailed
from tests.engine.conftest import ORDERED, Collector, WatchedStore, ids, prepare, publish, settle_down

ONCE = replace(ORDERED, retry=RetryPolicy.immediate(max_attempts=1))


async def letters_of(engine, **how):
    return {int(letter.id): letter for letter in await engine.dead_letters("s", **how)}


async def until_buried(engine) -> None:
    """Let a burial happen for which a payload has to be read."""
    await asyncio.sleep(0)
    await engine.read(lambda _: None)
    await settle_down(engine)


async def fail_first(engine, *data: str, options=ONCE, keep=False):
    """Publish, and let the first message use up its attempts. Returns the collector and its attachment."""
    await prepare(engine, options)
    got = Collector(max_messages=1)
    attachment = engine.attach("s", got.consumer)
    await publish(engine, *data)
    (first,) = await got.wait(1)
    if not keep:
        got.consumer.stop()
    attachment.nack(first.lease, error="broken")
    await settle_down(engine)
    return got, attachment


# -- leaving ------------------------------------------------------------------------------------------------------------


def test_a_dead_letter_carries_key_attempts_time_and_error(run):
    async def scenario(engine):
        await fail_first(engine, "1", "2")
        before = engine.now()
        (letter,) = (await letters_of(engine)).values()
        assert (letter.id, letter.ordering_key, letter.attempts, letter.error) == ("0", "k", 1, "broken")
        assert (letter.copy_topic, letter.copy_id, letter.returnable) == (None, None, True)
        assert before - 10 < letter.time.timestamp() <= before
        assert (await engine.stats("s")).dead_letters == 1

    run(scenario)


@pytest.mark.parametrize(("error", "said"), [(None, ""), ("é" * 1000, "é" * 512), ("x" + "é" * 1000, "x" + "é" * 511)])
def test_a_copy_says_where_it_comes_from_and_as_much_of_the_error_as_fits(run_memory, error, said):
    async def scenario(engine):
        await engine.create_topic("d")
        subscription = await prepare(engine, replace(ONCE, dead_letter_topic="d"))
        await engine.create_subscription("d", "graves", ORDERED)
        got, graves = Collector(max_messages=1), Collector()
        attachment = engine.attach("s", got.consumer)
        engine.attach("graves", graves.consumer)
        await publish(engine, "1", "2")
        for number in range(2):
            lease, record = (await got.wait(number + 1))[number]
            attachment.nack(lease, error=error)
            assert not subscription.dead_letters.is_burying, "it is in memory, and nothing has to be read"
            copy = (await graves.wait(number + 1))[number].record
            engine.get_subscription("graves").outcomes.ack(graves.got[number].lease)
            assert copy.attributes == {
                SOURCE: "s",
                OFFSET: str(number),
                PUBLISHED: str(record.published),
                ATTEMPTS: "1",
                ERROR: said,
            }
        assert (await engine.metrics()).subscriptions["s"].dead_lettered == 2

    run_memory(scenario)


@pytest.mark.parametrize("cached", [True, False])
def test_a_copy_goes_to_the_dead_letter_topic_in_the_same_commit(run_watched, monkeypatch, cached):
    async def scenario(engine, store):
        await engine.create_topic("graves")
        options = replace(ONCE, dead_letter_topic="graves")
        await prepare(engine, options)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1")
        (first,) = await got.wait(1)
        await settle_down(engine)
        store.watch()
        attachment.nack(first.lease, error="é" * 2000)
        await until_buried(engine)
        assert store.commits == 1
        letter = (await letters_of(engine))[0]
        assert (letter.copy_topic, letter.copy_id) == ("graves", "0")
        (copy,) = store.read(engine.get_topic("graves").id, 0, 9)
        assert (copy.key, copy.data, datetime.fromtimestamp(copy.published, UTC)) == ("k", b"1", letter.time)
        assert copy.attributes is not None
        assert copy.attributes["seriatim-dead-letter-subscription"] == "s"
        assert copy.attributes["seriatim-dead-letter-error"] == "é" * 512, "an attribute has at most 1024 bytes"
        await engine.delete_topic("graves")
        assert (await letters_of(engine))[0].copy_topic is None

    if not cached:
        monkeypatch.setattr("seriatim.engine.topic.CACHED_BYTES", 0)
    run_watched(scenario)


def test_a_dead_letter_topic_must_exist_when_it_is_named(run):
    async def scenario(engine):
        await engine.create_topic("t")
        nowhere = SubscriptionOptions(dead_letter_topic="nowhere")
        with pytest.raises(NotFound, match="topic 'nowhere' does not exist"):
            await engine.create_subscription("t", "s", nowhere)
        await engine.create_subscription("t", "s")
        with pytest.raises(NotFound, match="topic 'nowhere' does not exist"):
            await engine.update_subscription("s", nowhere)

    run(scenario)


def test_dead_letters_that_have_nowhere_to_go_stay_where_they_are(run):
    async def scenario(engine):
        await engine.create_topic("graves")
        got, _ = await fail_first(engine, "1", "2", options=replace(ONCE, dead_letter_topic="graves"), keep=True)
        await got.wait(2)
        await engine.delete_topic("graves")
        engine.get_subscription("s").outcomes.nack(got.got[1].lease, error="broken too")
        await settle_down(engine)
        second = (await letters_of(engine))[1]
        assert (second.error, second.copy_topic, second.copy_id) == ("broken too", None, None)
        assert await engine.redrive("s", "1") == "1"
        assert (await got.wait(3))[2].record.data == b"2"

    run(scenario)


def test_when_its_payload_can_not_be_read_for_long_a_message_is_buried_without_a_copy(run, monkeypatch):
    async def scenario(engine):
        await engine.create_topic("graves")
        await prepare(engine, replace(ONCE, dead_letter_topic="graves"))
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1")
        (first,) = await got.wait(1)

        def unreadable(topic_id, offsets):
            raise StoreFailed("the disk is gone for a moment")

        with monkeypatch.context() as broken:
            broken.setattr(engine._store, "fetch", unreadable)
            attachment.nack(first.lease)
            await until_buried(engine)
        assert [str(error) for error in got.failures] == ["the disk is gone for a moment"]
        letter = (await letters_of(engine))[0]
        assert (letter.copy_topic, letter.error) == (None, None)

    monkeypatch.setattr("seriatim.engine.topic.CACHED_BYTES", 0)
    monkeypatch.setattr("seriatim.engine.dead_letters.READS", 1)
    monkeypatch.setattr("seriatim.engine.dead_letters.RETRY_PAUSE_S", 0)
    run(scenario)


def test_attempts_are_counted_exactly_for_nacks_expiries_and_crashes_across_restarts(run_with_restarts):
    policy = RetryPolicy.immediate(max_attempts=4)

    async def take(engine) -> tuple[Collector, Attachment]:
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await got.wait(1)
        await settle_down(engine)  # the record of the lease rides in the next commit
        return got, attachment

    async def nacked(engine):
        await prepare(engine, replace(ORDERED, retry=policy, ack_deadline=60.0))
        await publish(engine, "1", "2")
        got, attachment = await take(engine)
        got.consumer.stop()
        attachment.nack(got.got[0].lease)

    async def expired_and_crashed(engine):
        got, attachment = await take(engine)
        attachment.extend(got.got[0].lease, 0.05)
        assert [one.lease.attempt for one in await got.wait(2)] == [2, 3], "again, when the lease had expired"
        await settle_down(engine)
        engine.get_subscription("s").deliveries._consumers.clear()  # as in a crash: what is out is not given back

    async def nacked_again(engine):
        got, attachment = await take(engine)
        assert (got.got[0].record.data, got.got[0].lease.attempt) == (b"1", 4)
        attachment.nack(got.got[0].lease, error="the fourth time")
        assert (await got.wait(2))[1].record.data == b"2"
        (letter,) = (await letters_of(engine)).values()
        assert (letter.attempts, letter.error) == (4, "the fourth time")

    run_with_restarts(nacked, expired_and_crashed, nacked_again)


def test_a_topic_is_not_its_own_dead_letter_topic(run):
    async def scenario(engine):
        await engine.create_topic("t")
        with pytest.raises(InvalidArgument, match="topic 't' can't be the dead-letter topic of its own subscription"):
            await engine.create_subscription("t", "s", SubscriptionOptions(dead_letter_topic="t"))
        await engine.create_subscription("t", "s")
        with pytest.raises(InvalidArgument):
            await engine.update_subscription("s", SubscriptionOptions(dead_letter_topic="t"))

    run(scenario)


def test_the_rest_of_a_key_is_dead_lettered_by_policy(run):
    async def scenario(engine):
        policy = RetryPolicy.immediate(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER_REST)
        await fail_first(engine, "1", "2", "3", options=replace(ORDERED, retry=policy))
        letters = await letters_of(engine)
        assert [letter.attempts for letter in letters.values()] == [1, 0, 0]
        assert letters[2].error == "behind message 0 of its key, which was dead-lettered"
        assert await engine.list_keys("s") == []

    run(scenario)


def test_an_operator_dead_letters_a_head_in_flight_or_all_of_a_key(run):
    async def scenario(engine):
        await prepare(engine)
        got = Collector()
        engine.attach("s", got.consumer)
        await publish(engine, "1", "2", "3", "4")
        await got.wait(1)
        assert await engine.dead_letter("s", "k", "poison") == ["0"]
        assert got.fenced == [0]
        await got.wait(2)
        assert await engine.dead_letter("s", "k", rest=True) == ["1", "2", "3"]
        letters = await letters_of(engine)
        assert [(letter.attempts, letter.error) for letter in letters.values()] == [
            (1, "poison"),
            (1, None),
            (0, None),
            (0, None),
        ]
        assert list(await letters_of(engine, after="0", limit=2)) == [1, 2]
        with pytest.raises(NotFound, match="key 'k' has no message to dead-letter"):
            await engine.dead_letter("s", "k")

    run(scenario)


def test_where_keys_are_not_ordered_a_dead_letter_has_its_key_all_the_same(run, monkeypatch):
    async def scenario(engine):
        await fail_first(engine, "1", options=replace(ONCE, message_ordering=False))
        await until_buried(engine)
        assert (await letters_of(engine))[0].ordering_key == "k"

    monkeypatch.setattr("seriatim.engine.topic.CACHED_BYTES", 0)
    run(scenario)


# -- coming back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", RetryMode)
@pytest.mark.parametrize("release", ReleaseAfter)
def test_a_dead_letter_goes_back_to_its_place_also_after_a_restart(run_with_restarts, mode, release):
    options = replace(ONCE, retry=RetryPolicy.immediate(max_attempts=1, mode=mode), release=release)

    async def before(engine):
        await fail_first(engine, "1", "2", "3", options=options)

    async def between(engine):
        assert (await letters_of(engine))[0].returnable
        assert await engine.redrive("s", "0") == "0"
        assert await letters_of(engine) == {}

    async def after(engine):
        assert [message.data for message in await engine.peek("s", "k")] == [b"1", b"2", b"3"]
        got = Collector()
        engine.attach("s", got.consumer)
        (first,) = await got.wait(1)
        assert (first.record.data, first.lease.attempt) == (b"1", 1)

    run_with_restarts(before, between, after)


@pytest.mark.parametrize("mode", RetryMode)
@pytest.mark.parametrize("release", ReleaseAfter)
def test_a_dead_letter_loses_its_place_when_a_later_message_is_settled_also_after_a_restart(
    run_with_restarts, mode, release
):
    options = replace(ONCE, retry=RetryPolicy.immediate(max_attempts=1, mode=mode), release=release)

    async def refused(engine):
        assert not (await letters_of(engine))[0].returnable
        with pytest.raises(RedriveRefused, match="a later message of the key was settled"):
            await engine.redrive("s", "0")
        assert list(await letters_of(engine)) == [0], "it stays where it is"

    async def before(engine):
        got, attachment = await fail_first(engine, "1", "2", "3", options=options, keep=True)
        with pytest.raises(RedriveRefused, match="while the later message 1 is in flight"):
            await engine.redrive("s", "0")
        attachment.ack((await got.wait(2))[1].lease)
        await refused(engine)

    run_with_restarts(before, refused, refused)


def test_a_preview_of_a_redrive_and_the_positions_of_the_key_say_what_became_of_dead_letters(run_memory):
    async def scenario(engine):
        got, attachment = await fail_first(
            engine, "1", "2", "3", options=replace(ONCE, release=ReleaseAfter.RECEIPT), keep=True
        )
        attachment.ack((await got.wait(2))[1].lease)
        attachment.nack((await got.wait(3))[2].lease, error="worse")
        await until_dead(engine, 2)
        preview = await engine.preview_redrive("s")
        assert (preview.letters, preview.in_place) == (2, 1)
        (refusal,) = preview.refused
        assert (refusal.letters, refusal.example) == (1, "0")
        assert "a later message of the key was settled" in refusal.reason
        positions = (await engine.describe_key("s", "k")).positions
        dead = [(at.id, at.attempts, at.error) for at in positions if at.state == "dead-lettered"]
        assert dead == [("0", 1, "broken"), ("2", 1, "worse")]

    run_memory(scenario)


def test_what_is_settled_before_a_dead_letter_takes_no_place_from_it(run_with_restarts):
    async def before(engine):
        await prepare(engine, ONCE)
        got = Collector(max_messages=1)
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", "2", "3")
        attachment.ack((await got.wait(1))[0].lease)
        second = (await got.wait(2))[1]
        got.consumer.stop()
        attachment.nack(second.lease)

    async def after(engine):
        assert await engine.redrive("s", "1") == "1"
        assert [message.data for message in await engine.peek("s", "k")] == [b"2", b"3"]

    run_with_restarts(before, after)


def test_with_a_window_an_ack_that_is_faster_than_the_burial_takes_its_place_too(run_with_restarts, monkeypatch):
    """The payload for the copy is read while the later message is acked: the row is written after its overtaking."""
    monkeypatch.setattr("seriatim.engine.topic.CACHED_BYTES", 0)

    async def before(engine):
        await engine.create_topic("graves")
        await prepare(engine, replace(ONCE, window=2, dead_letter_topic="graves"))
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", "2")
        first, _ = await got.wait(2)
        held = asyncio.Event()
        fetch = engine.fetch

        async def slow(topic_id, offsets):
            if offsets == [0]:
                await held.wait()
            return await fetch(topic_id, offsets)

        monkeypatch.setattr(engine, "fetch", slow)
        attachment.nack(first.lease)
        attachment.ack((await got.wait(3))[2].lease)
        await settle_down(engine)
        held.set()
        await until_buried(engine)
        assert not (await letters_of(engine))[0].returnable

    async def after(engine):
        assert not (await letters_of(engine))[0].returnable

    run_with_restarts(before, after)


def test_a_dead_letter_is_appended_at_the_end_as_a_new_message(run_with_restarts):
    async def before(engine):
        await fail_first(engine, "1", "2")
        await engine.create_subscription("t", "other", ORDERED)
        assert await engine.redrive("s", "0", append=True) == "2"
        assert await letters_of(engine) == {}
        with pytest.raises(NotFound, match="message 0 is not a dead letter of subscription 's'"):
            await engine.redrive("s", "0")

    async def after(engine):
        assert await letters_of(engine) == {}
        second, again = await engine.peek("s", "k")
        assert (second.id, again.id, again.data) == ("1", "2", b"1")
        assert again.attributes == {"seriatim-redriven-offset": "0"}
        assert [message.id for message in await engine.peek("other", "k")] == ["2"]

    run_with_restarts(before, after)


def test_what_is_appended_takes_one_offset_and_is_published_now(run_memory):
    async def scenario(engine):
        await fail_first(engine, "1", "2")
        before = engine.now()
        assert await engine.redrive("s", "0", append=True) == "2"
        assert await publish(engine, "3") == ["3"]
        (again,) = engine._store.read(engine.get_topic("t").id, 2, 1)
        assert before <= again.published <= engine.now()

    run_memory(scenario)


def test_a_dead_letter_whose_payload_is_gone_is_not_redriven(run_memory, monkeypatch):
    async def scenario(engine):
        await fail_first(engine, "1", "2")

        async def nothing(_):
            return {}

        monkeypatch.setattr(engine.get_subscription("s"), "records", nothing)
        with pytest.raises(RedriveRefused) as refused:
            await engine.redrive("s", "0")
        assert str(refused.value) == "the payload of message 0 is no longer kept: purge the dead letter"
        assert set(await letters_of(engine)) == {0}

    run_memory(scenario)


@pytest.mark.parametrize(
    ("error", "group"),
    [
        (None, "no error given"),
        ("", "no error given"),
        ("order 17 of 'anna' can't be paid", "order # of # can't be paid"),
        ("KeyError: 'a'", "KeyError: #"),
    ],
)
def test_errors_that_differ_in_numbers_and_quoted_words_are_of_one_group(error, group):
    assert group_of(error) == group


def test_two_who_redrive_the_same_dead_letter_bring_it_back_once(run):
    async def scenario(engine):
        await fail_first(engine, "1", "2")
        results = await asyncio.gather(
            *(engine.redrive("s", "0", append=append) for append in (True, False, True)), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["NotFound", "NotFound", "str"]

    run(scenario)


def test_a_purged_dead_letter_is_gone_for_good(run_with_restarts):
    async def before(engine):
        await fail_first(engine, "1", "2")
        with pytest.raises(NotFound):
            await engine.purge("s", ["0", "1"])
        await engine.purge("s", ["0", "0"])
        assert await letters_of(engine) == {}
        assert not engine.get_subscription("s").lanes.is_returnable("k", 0)

    async def after(engine):
        assert await letters_of(engine) == {}
        assert [message.data for message in await engine.peek("s", "k")] == [b"2"]
        await engine.clean_up()
        with pytest.raises(NotFound):
            await engine.redrive("s", "0")

    run_with_restarts(before, after)


def test_a_keyless_dead_letter_can_always_go_back(run_with_restarts):
    async def before(engine):
        await prepare(engine, ONCE)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await engine.publish("t", [Outgoing(None, b"1"), Outgoing(None, b"2")])
        first, second = await got.wait(2)
        attachment.nack(first.lease)
        attachment.ack(second.lease)

    async def after(engine):
        assert await engine.redrive("s", "0") == "0"
        assert [message.data for message in await engine.peek("s", None)] == [b"1"]

    run_with_restarts(before, after)


def test_while_keys_are_not_ordered_dead_letters_lose_their_places(run_with_restarts):
    """Nobody watches then what else of a key is settled."""

    async def before(engine):
        await fail_first(engine, "1", "2")
        await engine.update_subscription("s", replace(ONCE, message_ordering=False))
        assert (await letters_of(engine))[0].returnable, "without order every place is right"

    async def after(engine):
        await engine.update_subscription("s", ONCE)
        assert not (await letters_of(engine))[0].returnable

    run_with_restarts(before, after)


# -- whatever happens ---------------------------------------------------------------------------------------------------


class Life:
    """A seeded consumer and operator of one subscription, through many lives of its engine."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        policy = RetryPolicy.immediate(max_attempts=1, mode=self.random.choice(list(RetryMode)))
        window, release = self.random.choice((1, 1, 3)), self.random.choice(list(ReleaseAfter))
        self.options = replace(ORDERED, retry=policy, window=window, release=release)
        self.settled: dict[str, list[int]] = {"a": [], "b": []}
        self.published = 0

    async def live(self, engine) -> None:
        if not await engine.list_topics():
            await prepare(engine, self.options)
        for _ in range(12):
            await self.publish(engine)
            await self.consume(engine)
            await self.operate(engine)

    async def publish(self, engine) -> None:
        for _ in range(self.random.randrange(4)):
            await publish(engine, str(self.published), key=self.random.choice("ab"))
            self.published += 1

    async def consume(self, engine) -> None:
        got = Collector(max_messages=self.random.randint(1, 3))
        attachment = engine.attach("s", got.consumer)
        await settle_down(engine)
        for one in list(got.got):
            if one.record.offset in got.fenced:
                continue
            if self.random.random() < 0.4:
                attachment.nack(one.lease, error="by chance")
            else:
                attachment.ack(one.lease, lambda error, one=one: self.done(one, error))
        got.consumer.stop()
        await settle_down(engine)
        attachment.detach()

    def done(self, one, error: BaseException | None) -> None:
        if error is None:
            self.settled[one.record.key].append(one.record.offset)

    async def operate(self, engine) -> None:
        for offset, letter in (await letters_of(engine)).items():
            later = [settled for settled in self.settled[letter.ordering_key] if settled > offset]
            assert not (letter.returnable and later), "nothing goes back behind what is settled"
            if self.random.random() < 0.5:
                await self.redrive(engine, letter)

    async def redrive(self, engine, letter) -> None:
        if letter.returnable:
            await engine.redrive("s", letter.id)
        else:
            with pytest.raises(RedriveRefused):
                await engine.redrive("s", letter.id)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_redriven_keys_are_settled_in_order_through_restarts(run_with_restarts, seed):
    life = Life(seed)
    run_with_restarts(life.live, life.live, life.live)
    if life.options.retry.mode is RetryMode.BLOCK:
        for offsets in life.settled.values():
            assert offsets == sorted(offsets)
            assert all(len(list(same)) == 1 for _, same in groupby(offsets)), "each once"


# -- what leaves together -----------------------------------------------------------------------------------------------

REST = replace(ORDERED, retry=RetryPolicy.immediate(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER_REST))


async def copies_in(engine, topic):
    """What a dead-letter topic has, in its order."""
    store, id_ = engine._store, engine.get_topic(topic).id
    return [record.data.decode() for record in store.read(id_, 0, 1000)]


async def until_dead(engine, count):
    for _ in range(5000):
        if len(engine.get_subscription("s").dead_letters) >= count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{count} messages should have been dead-lettered")


def forget_recent(engine, *offsets):
    """As if newer messages had needed the room in memory."""
    engine.get_topic("t")._forget(offsets)


@pytest.mark.parametrize("forgotten", [[0], [1], [0, 2], [0, 1, 2], []])
def test_the_rest_of_a_key_is_copied_in_order_whichever_messages_are_in_memory(run, forgotten):
    async def scenario(engine):
        await engine.create_topic("graves")
        await prepare(engine, replace(REST, dead_letter_topic="graves"))
        await publish(engine, "1", "2", "3")
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        (first,) = await got.wait(1)
        forget_recent(engine, *forgotten)
        attachment.nack(first.lease)
        await until_dead(engine, 3)
        assert await copies_in(engine, "graves") == ["1", "2", "3"]
        copies = [letter.copy_id for letter in (await letters_of(engine)).values()]
        assert copies == ids(3)

    run(scenario)


def test_burials_that_follow_each_other_do_not_overtake(run):
    async def scenario(engine):
        await engine.create_topic("graves")
        await prepare(engine, replace(ORDERED, dead_letter_topic="graves"))
        await publish(engine, "1", "2", "3", "4")
        forget_recent(engine, 0, 2)
        await asyncio.gather(*(engine.dead_letter("s", "k") for _ in range(4)))
        assert await copies_in(engine, "graves") == ["1", "2", "3", "4"]

    run(scenario)


def test_a_burial_that_waits_for_a_read_is_written_before_lanes_are_replaced(run):
    """Or the loaded lanes would bury the message once more, with the error of a crash."""

    async def scenario(engine):
        await prepare(engine, replace(ONCE, release=ReleaseAfter.RECEIPT))
        await engine.publish("t", [Outgoing(None, b"free")])
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        (first,) = await got.wait(1)
        forget_recent(engine, 0)
        attachment.nack(first.lease, error="no such address")
        await engine.update_subscription("s", SubscriptionOptions(window=2), ["window"])
        (letter,) = (await letters_of(engine)).values()
        assert letter.error == "no such address"

    run(scenario)


class Witness(WatchedStore):
    """Notes after every commit how many dead letters there are, and how many copies."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    @contextmanager
    def transaction(self):
        with super().transaction() as transaction:
            yield transaction
        self.seen |= {
            (len(self.dead_letters(subscription.id)), len(self.read(topic.id, 0, 1000)))
            for subscription in self.catalog().subscriptions
            for topic in self.catalog().topics
            if topic.name == "graves"
        }


@pytest.mark.parametrize("by_hand", [True, False])
def test_no_crash_can_divide_the_rest_of_a_key(by_hand):
    """Whatever is committed is what a crash leaves: all of the dead letters with all of their copies, or none."""

    async def scenario():
        store = Witness()
        engine = Engine(store)
        await engine.start()
        await engine.create_topic("graves")
        await prepare(engine, replace(REST, dead_letter_topic="graves"))
        await publish(engine, *(str(number) for number in range(32)))
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        (first,) = await got.wait(1)
        forget_recent(engine, *range(0, 32, 2))
        if by_hand:
            assert await engine.dead_letter("s", "k", rest=True) == ids(32)
        else:
            attachment.nack(first.lease)
            await until_dead(engine, 32)
        assert store.seen == {(0, 0), (32, 32)}
        await engine.close()

    asyncio.run(scenario())


def test_a_burial_that_waits_for_its_read_when_the_store_fails_is_decided_again(tmp_path, monkeypatch):
    async def scenario():
        engine = await Engine.open(f"sqlite:///{tmp_path}/store.db")
        await engine.create_topic("graves")
        subscription = await prepare(engine, replace(REST, dead_letter_topic="graves"))
        await publish(engine, "1", "2")
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        (first,) = await got.wait(1)
        await settle_down(engine)  # the record of the delivery is written
        forget_recent(engine, 0, 1)
        attachment.nack(first.lease)
        engine.recovery.failed(StoreBroken("the disk is gone for a moment"))
        await until_dead(engine, 2)
        assert await copies_in(engine, "graves") == ["1", "2"]
        await publish(engine, "3")
        assert [one.record.data for one in await got.wait(2)] == [b"1", b"3"]
        assert engine.get_subscription("s") is subscription
        await engine.close()

    async def bounded():
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())
