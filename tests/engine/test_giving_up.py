"""A consumer gives a message up: it is dead-lettered at once, alone or with the rest of its key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seriatim.core.lanes.types import OnExhausted, RetryPolicy
from seriatim.errors import StaleLease
from tests.engine.conftest import ORDERED, Collector, prepare, publish

PATIENT = replace(ORDERED, retry=RetryPolicy(max_attempts=9, on_exhausted=OnExhausted.PAUSE), dead_letter_topic="d")


async def with_dead_topic(engine, options=PATIENT):
    await engine.create_topic("d")
    return await prepare(engine, options)


def test_it_is_dead_lettered_at_once_whatever_the_policy_and_its_key_goes_on(run) -> None:
    async def scenario(engine) -> None:
        await with_dead_topic(engine)
        await engine.create_subscription("d", "graves", ORDERED)
        got, graves = Collector(), Collector()
        attachment = engine.attach("s", got.consumer)
        engine.attach("graves", graves.consumer)
        await publish(engine, *"abc")
        lease = (await got.wait(1))[0].lease
        attachment.dead_letter(lease, "no use")
        with pytest.raises(StaleLease):
            attachment.dead_letter(lease, "twice")
        attachment.ack((await got.wait(2))[1].lease)
        (letter,) = await engine.dead_letters("s")
        assert (letter.id, letter.ordering_key, letter.attempts, letter.error) == ("0", "k", 1, "no use")
        assert (await graves.wait(1))[0].record.data == b"a"
        attachment.ack((await got.wait(3))[2].lease)
        await engine.wait_until_empty("s")
        assert got.data == [b"a", b"b", b"c"]
        assert (await engine.metrics()).subscriptions["s"].dead_lettered == 1

    run(scenario)


def test_with_the_rest_of_its_key_it_leaves_together_and_other_keys_stay(run) -> None:
    async def scenario(engine) -> None:
        await with_dead_topic(engine)
        await publish(engine, *"abc")
        await publish(engine, "other", key="another")
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await got.wait(2)
        attachment.dead_letter(got.got[0].lease, "no use", rest=True)
        attachment.ack(got.got[1].lease)
        await engine.wait_until_empty("s")
        letters = await engine.dead_letters("s")
        assert [(letter.id, letter.copy_id) for letter in letters] == [("0", "0"), ("1", "1"), ("2", "2")]
        assert letters[1].error == "behind message 0 of its key, which was dead-lettered"
        assert all(letter.returnable for letter in letters)
        for letter in letters:
            await engine.redrive("s", letter.id)
        for number in (2, 3, 4):
            attachment.ack((await got.wait(number + 1))[number].lease)
        assert got.data == [b"a", b"other", b"a", b"b", b"c"]

    run(scenario)


def test_from_another_process(run_linked) -> None:
    async def scenario(link, client) -> None:
        got = Collector()
        attachment = client.attach("s", got.consumer)
        await publish(link.engine, *"ab")
        attachment.dead_letter((await got.wait(1))[0].lease, "no use")
        attachment.ack((await got.wait(2))[1].lease)
        await client.wait_until_empty("s")
        assert [letter.error for letter in await client.dead_letters("s")] == ["no use"]
        assert got.fenced == []

    run_linked(scenario)


def test_after_a_restart_it_is_still_there(run_with_restarts) -> None:
    async def first(engine) -> None:
        await prepare(engine)
        await publish(engine, *"ab")
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        attachment.dead_letter((await got.wait(1))[0].lease, "no use")

    async def then(engine) -> None:
        assert [letter.error for letter in await engine.dead_letters("s")] == ["no use"]
        got = Collector()
        engine.attach("s", got.consumer)
        assert (await got.wait(1))[0].record.data == b"b"

    run_with_restarts(first, then)
