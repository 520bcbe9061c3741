"""Who waits for something to become durable hears of it once, or of the reason why it did not."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.engine.outcomes import Waiters, all_of
from seriatim.errors import OutcomeUnknown

LOST = OutcomeUnknown("who knows")


def run(scenario) -> None:
    async def main() -> None:
        await scenario(Waiters())

    asyncio.run(main())


def test_whoever_expects_something_of_a_message_hears_of_it_once():
    async def scenario(promises):
        heard: list[BaseException | None] = []
        assert not promises
        promises.expect(3, heard.append)
        assert promises
        promises.tell(4, None)
        promises.tell(3, None)
        promises.tell(3, LOST)
        assert heard == [None]
        assert not promises

    run(scenario)


def test_a_promise_about_a_message_is_kept_or_says_why_not():
    async def scenario(promises):
        kept, broken = promises.of(1), promises.of(2)
        promises.tell(1, None)
        promises.tell(2, LOST)
        assert await kept is None
        with pytest.raises(OutcomeUnknown, match="who knows"):
            await broken

    run(scenario)


def test_all_that_is_still_open_is_broken_together_and_what_was_kept_stays_kept():
    async def scenario(promises):
        heard: list[BaseException | None] = []
        kept, keep = promises.new()
        waiting, _ = promises.new()
        about_message = promises.of(5)
        promises.expect(6, heard.append)
        keep(None)
        promises.fail_all(LOST)
        promises.fail_all(OutcomeUnknown("another"))
        assert await kept is None
        for promise in (waiting, about_message):
            assert promise.exception() is LOST
        assert heard == [LOST]
        assert not promises

    run(scenario)


def test_nobody_has_to_hear_of_a_promise_whose_owner_was_cancelled():
    async def scenario(promises):
        promise, tell = promises.new()
        promise.cancel()
        tell(None)
        tell(LOST)
        await asyncio.sleep(0)
        assert not promises._open  # it is not kept for ever

    run(scenario)


def test_all_of_several_promises_have_to_be_kept():
    async def scenario(promises):
        first, second = promises.of(1), promises.of(2)
        both = asyncio.ensure_future(all_of(first, second))
        promises.tell(1, None)
        await asyncio.sleep(0)
        assert not both.done()
        promises.tell(2, LOST)
        with pytest.raises(OutcomeUnknown):
            await both

    run(scenario)
