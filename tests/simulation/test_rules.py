"""The judge of leases and dead letters: each anomaly planted, and what excuses it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import pytest

from seriatim import RetryPolicy
from seriatim.engine.broker import DeadLetter
from seriatim.engine.engine import EPOCH_BITS, Engine
from seriatim.options import OnExhausted
from seriatim.store import open_store
from seriatim.store.base import Record
from seriatim.testing import run_in_virtual_time
from tests.engine.conftest import Collector, prepare, publish
from tests.simulation.judge import judge
from tests.simulation.letters import INTERRUPTED, judge_letters
from tests.simulation.operations import Operation
from tests.simulation.program import LIMITED, STRICT
from tests.simulation.rules import judge_leases
from tests.simulation.run import draw
from tests.simulation.shrink import kind_of
from tests.simulation.truth import Ending, Given, Leases, Said, Superseded
from tests.simulation.world import Published, World

RETRY = RetryPolicy(min_backoff=1.0, max_backoff=8.0)
LIMITED_RETRY = RetryPolicy.immediate(max_attempts=3)
DEADLINE_S = 10.0


class Story:
    """One message with the key "k", and what happened to it. Stamps are given by hand, and times are stamps."""

    def __init__(self, delay: float = 0.0, limited: RetryPolicy = LIMITED_RETRY) -> None:
        program = draw(0)
        options = {
            **program.plan.options,
            STRICT: {"ack_deadline": DEADLINE_S, "retry": RETRY},
            LIMITED: {"ack_deadline": DEADLINE_S, "retry": limited},
        }
        self.world = World(replace(program, plan=replace(program.plan, options=options)))
        self.world.loop.close()  # nothing runs in it
        self.world.published[1] = Published("events", "k", {}, delay, 0.0, 0)
        self.world.disk.log["events", 0] = Record(0, "k", b"1", {}, 0.0)

    def lease(
        self,
        at: int,
        ended_by: Ending = "",
        ended_at: float = 0,
        *,
        sub: str = STRICT,
        attempt: int = 1,
        epoch: int = 1,
        lasts: float = DEADLINE_S,
        said: Said | None = None,
        covered: int = 1,
        is_suspect: bool = False,
    ) -> Story:
        token = (epoch << EPOCH_BITS) + at
        given = Given(
            sub, token, "k", 0, attempt, float(at), at, lasts, at + lasts, covered, handed_stamp=at, said=said
        )
        given.is_suspect = is_suspect
        if ended_by:
            given.ended_by, given.ended_at, given.ended_stamp = ended_by, ended_at, ended_at
        self.world.leases.given[sub, token, 0] = given
        return self

    def operate(
        self, what: str, began: float, ended: float, *, value: object = None, result: object = None, sub: str = STRICT
    ) -> Story:
        key = None if what in ("pause", "resume", "ack_deadline") else "k"
        self.world.operations.add(Operation(what, sub, key, value, began, ended, result))
        return self

    def synced(self, stamp: int) -> Story:
        """What the first opening of the store accepted before this stamp is written."""
        self.world.disk.synced[1] = stamp
        return self

    def findings(self, sub: str = STRICT) -> list[str]:
        return [kind_of(finding) for finding in judge_leases(self.world, sub)]


NEVER = float("inf")


def test_a_message_waits_for_the_delay_of_its_publish() -> None:
    assert Story(delay=5.0).lease(4).findings() == ["given out too early"]
    assert Story(delay=5.0).lease(5).findings() == []
    assert Story(delay=5.0).operate("retry", 2, 3).lease(4).findings() == []


def test_a_message_waits_for_its_backoff() -> None:
    failed = Story().lease(1, "nacked", 2, said=Said(None, "plain"))
    assert failed.lease(2, "expired", 12, attempt=2).findings() == ["given out too early"]
    assert Story().lease(1, "expired", 11).lease(12, "expired", 22, attempt=2).lease(24, attempt=3).findings() == []
    doubled = Story().lease(1, "expired", 11).lease(12, "expired", 22, attempt=2).lease(23, attempt=3)
    assert doubled.findings() == ["given out too early"]


def test_a_message_waits_for_the_delay_of_a_nack_also_after_a_crash() -> None:
    def story(again: int, attempt: int, epoch: int) -> Story:
        return Story().lease(1, "nacked", 2, said=Said(5.0, None)).lease(again, attempt=attempt, epoch=epoch)

    assert story(6, 2, 1).findings() == ["given out too early"]
    assert story(7, 2, 1).findings() == []
    assert story(6, 2, 2).findings() == ["given out too early"]
    assert story(6, 1, 2).findings() == []  # the nack was not written
    assert story(6, 2, 1).operate("retry", 3, NEVER).findings() == []


def test_a_message_that_used_up_its_attempts_waits_for_an_operator_and_no_longer() -> None:
    def findings(max_attempts: int) -> list[str]:
        retry = replace(RETRY, max_attempts=max_attempts, on_exhausted=OnExhausted.PAUSE, min_backoff=5.0)
        failed = Story(limited=retry).lease(1, "nacked", 2, sub=LIMITED, said=Said(None, "plain"))
        resumed = failed.operate("resume_key", 3, 4, sub=LIMITED)
        return resumed.lease(5, sub=LIMITED, attempt=min(2, max_attempts)).findings(LIMITED)

    assert findings(max_attempts=1) == []
    assert findings(max_attempts=3) == ["given out too early"]


def test_a_lease_that_is_over_has_expired_whoever_notices() -> None:
    async def scenario() -> None:
        engine, got = Engine(open_store("memory://")), Collector()
        leases = Leases(asyncio.get_running_loop().time, count().__next__, engine.now, 0.0, print, lambda _: None)
        await engine.start()
        with leases.observed():
            subscription = await prepare(engine)
            engine.attach("s", got.consumer)
            await publish(engine, "1")
            await got.wait(1)
            assert subscription.deliveries._timer is not None
            subscription.deliveries._timer.cancel()  # its process was stopped, and goes on with something else
            await asyncio.sleep(100)
            await engine.explain("s", "k")
        (given,) = leases.given.values()
        assert given.ended_by == "expired"
        await engine.close()

    run_in_virtual_time(scenario())


def test_no_more_messages_of_a_tenant_are_out_than_it_may_have() -> None:
    def findings(second_at: int, key: str, epoch: int = 1) -> list[str]:
        story = Story().lease(1, "acked", 4)
        story.world.plan.options[STRICT]["tenant_limit"] = 1
        story.lease(second_at, epoch=epoch)
        second = story.world.leases.given[STRICT, (epoch << EPOCH_BITS) + second_at, 0]
        second.key, second.offset = key, 1
        story.world.disk.log["events", 1] = Record(1, key, b"1", {}, 0.0)
        return story.findings()

    assert findings(3, "k/2") == ["over the limit of a tenant"]
    assert findings(4, "k/2") == []
    assert findings(3, "other") == []
    assert findings(3, "k/2", epoch=2) == []


@pytest.mark.parametrize(("pause", "resume"), [("pause", "resume"), ("pause_key", "resume_key")])
def test_nothing_is_given_out_while_it_is_paused(pause: str, resume: str) -> None:
    assert Story().operate(pause, 1, 3).lease(4).findings() == ["given out while paused"]
    assert Story().operate(pause, 1, 3).lease(2).findings() == []
    assert Story().operate(pause, 1, NEVER).lease(4).findings() == []
    assert Story().operate(pause, 1, 3).operate(resume, 2, NEVER).lease(5).findings() == []
    assert Story().operate(resume, 0, 1).operate(pause, 2, 3).lease(5).findings() == ["given out while paused"]
    assert Story().operate(pause, 1, 3).operate(resume, 6, 7).lease(5).findings() == ["given out while paused"]


def test_a_lease_lasts_for_the_ack_deadline_that_is_in_force() -> None:
    assert Story().lease(1, lasts=9.0).findings() == ["wrong lease time"]
    assert Story().operate("ack_deadline", 1, 3, value=2.0).lease(4, lasts=2.0).findings() == []
    assert Story().operate("ack_deadline", 1, 3, value=2.0).lease(4).findings() == ["wrong lease time"]
    assert Story().operate("ack_deadline", 1, NEVER, value=2.0).lease(4).findings() == []
    assert Story().operate("ack_deadline", 1, 5, value=2.0).lease(4).findings() == []


def test_a_failure_counts_as_an_attempt_and_a_lease_that_is_taken_back_does_not() -> None:
    assert Story().lease(1, attempt=2).findings() == ["wrong attempt"]
    assert Story().lease(1, "expired", 11).lease(20).findings() == ["wrong attempt"]
    assert Story().lease(1, "taken back", 2).lease(3).findings() == []
    assert Story().lease(1, "taken back", 2).lease(3, attempt=2).findings() == ["wrong attempt"]


def test_where_attempts_are_limited_a_delivery_counts_once_it_is_written() -> None:
    def story(synced: int, attempt: int) -> list[str]:
        lost = Story().lease(2, sub=LIMITED).synced(synced)
        return lost.lease(9, sub=LIMITED, attempt=attempt, epoch=2).findings(LIMITED)

    assert story(5, 2) == []
    assert story(5, 1) == ["wrong attempt"]
    assert story(1, 1) == story(1, 2) == []
    assert story(1, 3) == ["wrong attempt"]


def test_a_message_whose_attempts_are_used_up_is_not_given_out_unless_its_key_is_resumed() -> None:
    def story(limited: RetryPolicy, attempt: int) -> Story:
        return Story(limited=limited).lease(1, "expired", 11, sub=LIMITED).lease(20, sub=LIMITED, attempt=attempt)

    pausing = RetryPolicy.immediate(max_attempts=1, on_exhausted=OnExhausted.PAUSE)
    assert story(RetryPolicy.immediate(max_attempts=1), 2).findings(LIMITED) == ["attempts exceeded"]
    assert story(pausing, 1).findings(LIMITED) == ["wrong attempt"]
    assert story(pausing, 1).operate("resume_key", 12, 13, sub=LIMITED).findings(LIMITED) == []


def test_a_message_is_not_given_out_twice_at_a_time_or_after_its_ack() -> None:
    assert Story().lease(1).lease(3).findings() == ["given out twice"]
    assert Story().lease(1, "acked", 2).lease(3).findings() == ["given out twice"]
    assert Story().lease(1, "acked", 2).lease(3, epoch=2).findings() == []  # it was not written


@pytest.mark.parametrize("what", ["skip", "dead_letter"])
def test_what_an_operator_took_out_is_not_given_out(what: str) -> None:
    assert Story().operate(what, 1, 3, result=["0"]).lease(4).findings() == ["given out after it was taken out"]
    assert Story().operate(what, 1, 3, result=["0"]).lease(2).findings() == []
    assert Story().operate(what, 1, 3, result=["9"]).lease(4).findings() == []


def test_what_its_handler_gave_up_is_not_given_out_again() -> None:
    assert Story().lease(1, "given up", 2).lease(3, attempt=2).findings() == ["given out twice"]
    assert Story().lease(1, "given up", 2).lease(3, epoch=2).findings() == []  # it was not written


def test_after_a_batch_failed_somewhere_its_messages_go_out_one_at_a_time() -> None:
    def failed() -> Story:
        return Story().lease(1, "taken back", 3, covered=2, is_suspect=True)

    assert failed().lease(4, covered=2).findings() == ["batched again"]
    assert failed().lease(4).findings() == []
    assert failed().lease(4, covered=2, epoch=2).findings() == []  # a restart suspects nobody
    assert failed().operate("options", 3, 4).lease(5, covered=2).findings() == []
    assert Story().lease(1, "taken back", 3, covered=2).lease(4, covered=2).findings() == []
    other = failed().lease(4, "expired", 14, sub=LIMITED).lease(20, covered=2)
    assert other.findings() == ["batched again"]
    found = other.world.leases.given[LIMITED, (1 << EPOCH_BITS) + 4, 0]
    found.sub, found.offset = STRICT, 9  # another message of the key was the one that failed
    assert list(judge_leases(other.world, STRICT)) == []


class Latest(Story):
    """Of the key only the latest message is kept, and there is a second one."""

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__()
        self.world.plan.options[STRICT]["keep"] = "latest"
        self.world.published[2] = Published("events", "k", {}, delay, 3.0, 3)
        self.world.disk.log["events", 1] = Record(1, "k", b"2", {}, 3.0)
        self.world.fates[2] = 4, True

    def superseded(self, at: int, by: int = 1) -> Latest:
        self.world.leases.superseded[STRICT, 0] = Superseded(by, float(at), at)
        return self


def test_where_only_the_latest_is_kept_a_message_leaves_when_a_newer_one_is_due_and_not_before() -> None:
    assert Latest().superseded(5).findings() == []
    assert Latest().superseded(5, by=7).findings() == ["superseded without reason"]
    assert Latest().superseded(5, by=0).findings() == ["superseded without reason"]
    assert Latest(delay=4.0).superseded(5).findings() == ["superseded without reason"]
    assert Latest(delay=4.0).superseded(7).findings() == []
    retried = Latest(delay=4.0).superseded(5)
    assert retried.operate("retry", 4, 5).findings() == []
    other = Latest().superseded(5)
    other.world.disk.log["events", 1] = Record(1, "another", b"2", {}, 3.0)
    assert other.findings() == ["superseded without reason"]


def test_an_operator_who_gave_up_waiting_may_have_taken_out_the_latest_message() -> None:
    def findings(*superseded: int) -> list[str]:
        story = Latest()
        story.world.fates[1] = 1, True
        for number in (1, 2):
            story.world.record("a", "publish", key="k", number=number)
            story.world.record("a", "published", key="k", number=number, id=str(number - 1))
        story.world.record("b", "take-out", sub=STRICT, key="k")
        for offset in superseded:
            story.world.leases.superseded[STRICT, offset] = Superseded(offset + 1, 5.0, 5)
        return [finding for finding in judge(story.world, {STRICT: []}) if finding.startswith("lost")]

    assert findings(0) == []
    assert findings() == ["lost: strict k 2: confirmed, and never settled"]


def test_where_only_the_latest_is_kept_a_message_is_not_given_out_once_a_newer_one_is_due() -> None:
    assert Latest().lease(5).findings() == ["given out although a newer one is there"]
    assert Latest().lease(2).findings() == []
    assert Latest(delay=4.0).lease(5).findings() == []
    assert Latest(delay=4.0).lease(9).findings() == ["given out although a newer one is there"]
    assert Latest().operate("skip", 1, 2, result=["9"]).lease(5).findings() == []  # it may be the newer one that left


def test_only_what_is_written_is_given_out() -> None:
    story = Story().lease(1)
    story.world.disk.log.clear()
    assert story.findings() == ["given out before it was written"]


def dead(attempts: int = 3, error: str | None = "lease expired", key: str | None = "k") -> DeadLetter:
    return DeadLetter("0", key, attempts, datetime.now(UTC), error, None, None, returnable=False)


def exhausted(ended_by: Ending = "expired", said: Said | None = None) -> Story:
    story = Story().lease(1, "expired", 11, sub=LIMITED).lease(12, "expired", 22, sub=LIMITED, attempt=2)
    return story.lease(23, ended_by, 33, sub=LIMITED, attempt=3, said=said)


@pytest.mark.parametrize(
    ("story", "letter", "found"),
    [
        (exhausted(), dead(), []),
        (exhausted(), dead(key=None), ["wrong dead letter"]),
        (exhausted(), dead(2), ["wrong attempts of a dead letter", "dead without reason"]),
        (exhausted(), dead(error=None), ["wrong error of a dead letter"]),
        (exhausted().synced(30), dead(error=INTERRUPTED), []),  # that it expired was not written
        (exhausted().synced(40), dead(error=INTERRUPTED), ["wrong error of a dead letter"]),
        (exhausted("nacked", Said(None, "no \ud800")), dead(error="no \\ud800"), []),
        (exhausted("nacked", Said(None, ValueError("no"))), dead(error="ValueError: no"), []),
        (exhausted("nacked", Said(None, "no")), dead(), ["wrong error of a dead letter"]),
        (Story().lease(1, "expired", 11, sub=LIMITED), dead(1), ["dead without reason"]),
        (Story().lease(1, "given up", 2, sub=LIMITED, said=Said(None, "no", 0, rest=False)), dead(1, "no"), []),
        (
            Story().lease(1, "given up", 2, sub=LIMITED, said=Said(None, "no", 0, rest=False)),
            dead(1, None),
            ["wrong error of a dead letter"],
        ),
        (Story().lease(1, "expired", 11, sub=LIMITED), dead(1, "behind message 7 of its key"), []),
        (Story().operate("dead_letter", 1, 2, value="why", result=["0"], sub=LIMITED), dead(0, "why"), []),
        (
            Story().operate("dead_letter", 1, 2, value="why", result=["0"], sub=LIMITED),
            dead(0, None),
            ["wrong error of a dead letter"],
        ),
    ],
)
def test_a_dead_letter_says_how_it_died(story: Story, letter: DeadLetter, found: list[str]) -> None:
    assert [kind_of(finding) for finding in judge_letters(story.world, LIMITED, [letter])] == found
