"""Publish once: what is published again under its ``dedup_id`` is stored once, whatever became of the first attempt."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim import Batching, PublishOptions, PubSub, PubSubMessage
from seriatim.core.publishing.dedup import DEDUP_WINDOW_S, REPEAT_FOR_S
from seriatim.errors import AlreadyExists, InvalidArgument, OutcomeUnknown, PublishingPaused
from seriatim.store import open_store
from seriatim.testing import run_in_virtual_time
from tests import postgres

ROOT = Path(__file__).parents[2]
AT_ONCE = PublishOptions(Batching(max_messages=1))


async def stored(pubsub, topic="t") -> list[tuple[str | None, str]]:
    """Everything in a log, in order."""
    store = pubsub._broker._store
    (row,) = (row for row in store.catalog().topics if row.name == topic)
    return [(record.key, record.data.decode()) for record in store.read(row.id, 0, 10_000)]


def test_the_same_id_is_stored_once_and_answers_with_the_first_message(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        first = await topic.publish(b"paid", ordering_key="order-1", dedup_id="a")
        assert await topic.publish(b"paid", ordering_key="order-1", dedup_id="a", attributes={"again": "yes"}) == first
        assert await topic.publish_json("paid", ordering_key="order-1", dedup_id="b") != first
        assert await topic.publish_message(PubSubMessage(b"paid", "order-1"), dedup_id="a") == first
        assert await topic.publish(b"paid", ordering_key="order-1") != first, "without an id it is another message"
        other = await pubsub.topic("other").create()
        await other.publish(b"not paid", dedup_id="a")
        assert await stored(pubsub) == [("order-1", "paid"), ("order-1", '"paid"'), ("order-1", "paid")]

    run(scenario)


def test_two_in_one_open_commit_are_one_message(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        topic.set_publish_options(AT_ONCE)
        keyless = [topic.publish(b"x", dedup_id="a") for _ in range(3)]
        together = [topic.publish(data, dedup_id=data.decode()) for data in (b"b", b"c", b"b")]
        first, *same = await asyncio.gather(*keyless)
        assert same == [first, first]
        b, c, again = await asyncio.gather(*together)
        assert again == b != c
        assert await stored(pubsub) == [(None, "x"), (None, "b"), (None, "c")]

    run(scenario)


def test_one_batch_may_hold_new_messages_and_repeated_ones(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create()
        await topic.publish(b"1", ordering_key="k", dedup_id="1")
        batch = [topic.publish(b"%d" % number, ordering_key="k", dedup_id=str(number)) for number in (0, 1, 2, 2, 3)]
        zero, one, two, same, three = await asyncio.gather(*batch)
        assert one == "0"
        assert two == same
        assert len({zero, one, two, three}) == 4
        got = [message.data async for message in _taken(subscription, 4)]
        assert got == [b"1", b"0", b"2", b"3"]

    run(scenario)


async def _taken(subscription, count):
    async with asyncio.timeout(20):
        for _ in range(count):
            (message,) = await subscription.pull(max_messages=1, timeout=10)
            yield message
            await message.ack_durable()


def test_the_same_id_with_another_payload_raises_and_pauses_the_key(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        await topic.publish(b"10 EUR", ordering_key="k", dedup_id="a")
        with pytest.raises(AlreadyExists, match="dedup_id 'a' belongs to another message"):
            await topic.publish(b"20 EUR", ordering_key="k", dedup_id="a")
        with pytest.raises(PublishingPaused):
            await topic.publish(b"next", ordering_key="k")
        with pytest.raises(AlreadyExists):
            await topic.publish(b"10 EUR", ordering_key="another", dedup_id="a")
        topic.resume_publishing("k")
        await topic.publish(b"next", ordering_key="k")
        assert await stored(pubsub) == [("k", "10 EUR"), ("k", "next")]

    run(scenario)


def test_an_id_of_another_message_fails_no_innocent_message_of_the_same_batch(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        await topic.publish(b"first", dedup_id="a")
        futures = [
            topic.publish(b"1"),
            topic.publish(b"other", dedup_id="a"),
            topic.publish(b"2", dedup_id="b"),
            topic.publish(b"another", dedup_id="a"),
        ]
        one, other, two, another = await asyncio.gather(*futures, return_exceptions=True)
        assert (type(other), type(another)) == (AlreadyExists, AlreadyExists)
        assert isinstance(one, str)
        assert isinstance(two, str)
        assert await stored(pubsub) == [(None, "first"), (None, "1"), (None, "2")]
        await topic.publish(b"3")
        await topic.flush()

    run(scenario)


def test_of_a_key_what_comes_before_the_id_of_another_message_is_published_and_what_comes_behind_is_not(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        await topic.publish(b"first", dedup_id="a")
        futures = [topic.publish(b"%d" % number, ordering_key="k", dedup_id="bac"[number]) for number in range(3)]
        futures.append(topic.publish(b"elsewhere", ordering_key="other"))
        zero, one, two, elsewhere = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(zero, str)
        assert isinstance(one, AlreadyExists)
        assert isinstance(two, PublishingPaused)
        assert isinstance(elsewhere, str)
        assert topic.paused_keys() == ("k",)
        topic.resume_publishing("k")
        await topic.publish(b"2", ordering_key="k", dedup_id="c")
        kept = [each for each in await stored(pubsub) if each[0] == "k"]
        assert kept == [("k", "0"), ("k", "2")]

    run(scenario)


@pytest.mark.parametrize("wrong", ["", "x" * 1025, 5, "\ud800"])
def test_an_id_that_can_never_work_is_refused_at_once(run, wrong):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        with pytest.raises(InvalidArgument):
            await topic.publish(b"", dedup_id=wrong)

    run(scenario)


def test_ids_survive_a_restart_and_the_end_of_their_messages(run_with_restarts):
    async def first(pubsub):
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create()
        await topic.publish(b"paid", ordering_key="k", dedup_id="a")
        async for message in _taken(subscription, 1):
            assert message.data == b"paid"
        await pubsub._broker.clean_up()
        assert await stored(pubsub) == []

    async def second(pubsub):
        topic = pubsub.topic("t")
        assert await topic.publish(b"paid", ordering_key="k", dedup_id="a") == "0"
        with pytest.raises(AlreadyExists):
            await topic.publish(b"unpaid", ordering_key="k", dedup_id="a")
        assert await stored(pubsub) == []

    run_with_restarts(first, second)


def test_after_the_window_an_id_may_be_used_again():
    async def main() -> None:
        async with PubSub("memory://") as pubsub:
            short = await pubsub.topic("t").create(dedup_window=300)
            usual = await pubsub.topic("usual").create()
            for topic in (short, usual):
                assert await topic.publish(b"1", dedup_id="a") == "0"
            await asyncio.sleep(299)
            assert await short.publish(b"1", dedup_id="a") == "0"
            await asyncio.sleep(2)
            assert await short.publish(b"2", dedup_id="a") != "0"
            assert await usual.publish(b"1", dedup_id="a") == "0"
            await asyncio.sleep(DEDUP_WINDOW_S)
            assert await usual.publish(b"2", dedup_id="a") != "0"
            few = await pubsub.topic("few").create(dedup_max_ids=2)
            for name in "abc":
                await few.publish(b"", dedup_id=name)
            assert await few.publish(b"", dedup_id="c") == "2"
            assert await few.publish(b"", dedup_id="a") != "0"
            with pytest.raises(InvalidArgument, match="dedup_window must be 240 seconds or more"):
                await pubsub.topic("none").create(dedup_window=10)

    run_in_virtual_time(main())


# -- an outcome that is unknown ------------------------------------------------------------------------------------------

STORED_UNKNOWN, LOST_UNKNOWN = "stored, and nobody said so", "not stored, and nobody said so"


def unreliable(pubsub, faults: list[str]) -> None:
    """What is published from now on goes wrong as listed, and then no more."""
    publish, left, tasks = pubsub._broker.publish_checked, iter(faults), list[asyncio.Task]()

    def faulty(topic, messages):
        fault = next(left, None)
        written = publish(topic, messages) if fault != LOST_UNKNOWN else None
        if fault is None:
            return written
        failed = asyncio.get_running_loop().create_future()

        async def fail() -> None:
            if written is not None:
                await written
            failed.set_exception(OutcomeUnknown("the line is dead"))

        tasks.append(asyncio.ensure_future(fail()))
        return failed

    pubsub._broker.publish_checked = faulty


@given(
    st.lists(st.sampled_from([None, STORED_UNKNOWN, LOST_UNKNOWN]), max_size=25),
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.005, 0.05, 1.0])), min_size=1, max_size=15),
    st.integers(1, 3),
)
def test_a_client_repeats_what_it_does_not_know_and_every_key_stays_in_order(faults, messages, batch):
    async def main() -> None:
        async with PubSub("memory://") as pubsub:
            topic = await pubsub.topic("t").create()
            topic.set_publish_options(PublishOptions(Batching(max_messages=batch)))
            unreliable(pubsub, faults)
            futures = []
            for number, (key, pause) in enumerate(messages):
                futures.append(topic.publish(b"%d" % number, ordering_key=key, dedup_id=str(number)))
                await asyncio.sleep(pause)
            ids = await asyncio.gather(*futures)
            assert len(set(ids)) == len(messages)
            assert topic.paused_keys() == ()
            log = await stored(pubsub)
            for key in "ab":
                expected = [str(number) for number, (wanted, _) in enumerate(messages) if wanted == key]
                assert [data for found, data in log if found == key] == expected

    run_in_virtual_time(main())


def test_while_a_publish_is_repeated_its_key_waits_and_others_go_on():
    async def main() -> None:
        async with PubSub("memory://") as pubsub:
            topic = await pubsub.topic("t").create()
            topic.set_publish_options(AT_ONCE)
            unreliable(pubsub, [STORED_UNKNOWN])
            first = topic.publish(b"1", ordering_key="k", dedup_id="1")
            second = topic.publish(b"2", ordering_key="k", dedup_id="2")
            await topic.publish(b"x", ordering_key="other")
            await asyncio.sleep(0.05)
            assert not first.done()
            assert not second.done()
            assert (await first, await second) == ("0", "3"), "the offset of the repetition is not used"
            assert await stored(pubsub) == [("k", "1"), ("other", "x"), ("k", "2")]

    run_in_virtual_time(main())


def test_without_an_id_or_without_an_end_the_outcome_stays_unknown():
    async def main() -> None:
        async with PubSub("memory://") as pubsub:
            topic = await pubsub.topic("t").create()
            topic.set_publish_options(AT_ONCE)
            unreliable(pubsub, [STORED_UNKNOWN] * 1000)
            with pytest.raises(OutcomeUnknown):
                await topic.publish(b"1", ordering_key="k")
            assert topic.paused_keys() == ("k",)
            began = asyncio.get_running_loop().time()
            with pytest.raises(OutcomeUnknown, match="it was published again, and that failed: the line is dead"):
                await topic.publish(b"2", ordering_key="other", dedup_id="2")
            took = asyncio.get_running_loop().time() - began
            assert REPEAT_FOR_S <= took < 2 * REPEAT_FOR_S
            assert topic.paused_keys() == ("k", "other")
            closing = topic.publish(b"3", dedup_id="3")
            await topic.close()
            with pytest.raises(OutcomeUnknown):
                await closing

    run_in_virtual_time(main())


def test_a_topic_that_was_closed_and_is_used_again_repeats_what_it_does_not_know():
    async def main() -> None:
        async with PubSub("memory://") as pubsub:
            topic = await pubsub.topic("t").create()
            await topic.publish(b"1")
            await topic.close()
            unreliable(pubsub, [LOST_UNKNOWN, STORED_UNKNOWN])
            await topic.publish(b"2", dedup_id="2")
            assert await stored(pubsub) == [(None, "1"), (None, "2")]

    run_in_virtual_time(main())


# -- kills ---------------------------------------------------------------------------------------------------------------

KILLS = 8
PROGRAM = """
import asyncio, sys
from tests.client.test_publish_once import publish_for_ever
asyncio.run(publish_for_ever(sys.argv[1]))
"""


async def publish_for_ever(url: str) -> None:
    """Every life publishes everything again from the beginning."""
    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("t").ensure()
        number = 0
        while True:
            for _ in range(20):
                topic.publish(b"%d" % number, ordering_key=f"k{number % 3}", dedup_id=str(number))
                number += 1
            await topic.flush()
            print(number, flush=True)  # noqa: T201


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_kill_makes_a_message_twice_or_loses_one(kind, tmp_path):
    url = postgres.server().new_url(lease=1) if kind == "postgres" else f"sqlite:///{tmp_path}/store.db"
    seed = random.randrange(2**32)
    moments, reached = random.Random(seed), 0
    for _ in range(KILLS if kind == "sqlite" else 3):
        command = [sys.executable, "-c", PROGRAM, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            assert child.stdout is not None
            said = [child.stdout.readline() for _ in range(reached // 20 + moments.randint(1, 30))]
            child.kill()
            said += child.stdout.readlines()
        reached = max(reached, *(int(line) for line in said if line.endswith("\n")))
    store = open_store(url)
    (topic,) = store.catalog().topics
    numbers = [int(record.data) for record in store.read(topic.id, 0, 1_000_000)]
    store.close()
    for key in range(3):
        mine = [number for number in numbers if number % 3 == key]
        assert mine == list(range(key, len(mine) * 3, 3)), seed
    assert len(numbers) >= reached, seed
