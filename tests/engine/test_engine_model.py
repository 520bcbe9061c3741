"""An engine against the plainest model of one: random commands in virtual time, restarts and crashes, judged from outside.

The model knows what was published, what was settled and what was said, and nothing of lanes, commits or threads. A crash is a
copy of the database files between two commits: what was confirmed before must be in it. In the end everything drains.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.broker import Outgoing
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import StaleLease
from seriatim.testing import VirtualTimeLoop
from tests.conftest import fast_folder

KEYS = st.sampled_from(["a", "b", "c", None])
INDEX = st.integers(0, 100)
DELAYS = st.sampled_from([0.0, 0.0, 0.0, 0.3, 2.0])
ACK_DEADLINE = 1.0


class Ledger:
    """What somebody outside knows: every message by its number, and what became of it."""

    def __init__(self) -> None:
        self.keys: dict[int, str | None] = {}  # of every number ever published, in order
        self.confirmed: set[int] = set()
        self.settled: set[int] = set()
        self.perhaps: set[int] = set()  # acked, and not known to be durable when a crash came
        self.acking: set[int] = set()
        self.failures: dict[int, int] = defaultdict(int)
        self.out: dict[int, int] = {}  # number by offset
        self.exact = True  # until a crash leaves the number of attempts in doubt

    def deliver(self, number: int, attempt: int) -> None:
        key = self.keys[number]
        assert number not in self.settled, f"{number} was settled and is delivered again"
        if key is not None:
            waiting = [other for other in self.out.values() if self.keys[other] == key]
            assert waiting == [], f"{number} is delivered while {waiting} of its key are out"
            behind = [n for n in self.confirmed if self.keys[n] == key and n < number and n not in self._gone()]
            assert behind == [], f"{number} overtakes {behind}"
        if self.exact:
            assert attempt == self.failures[number] + 1, f"{number} is attempt {attempt} after {self.failures[number]}"
        self.failures[number] = attempt - 1
        self.perhaps.discard(number)

    def _gone(self) -> set[int]:
        return self.settled | self.perhaps

    def crash(self, was_quiet: bool) -> None:
        self.perhaps |= self.acking
        self.acking.clear()
        self.exact = self.exact and was_quiet


class Machine(RuleBasedStateMachine):
    """Commands to an engine. Each runs until nothing is left to do but to wait.

    What is drawn must not depend on threads, so a command that makes no sense now does nothing, instead of not being drawn.
    """

    survives = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="seriatim-model-", dir=fast_folder()))
        self.loop = VirtualTimeLoop()
        self.ledger = Ledger()
        self.store = 0
        self.stale: list = []
        self.problems: list[BaseException] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context["exception"]))

    def run(self, work):
        asyncio.set_event_loop(self.loop)
        result = self.loop.run_until_complete(work)
        if self.problems:
            raise self.problems[0]
        return result

    @initialize(backoff=st.sampled_from([0.0, 0.5]))
    def open_first(self, backoff) -> None:
        async def create() -> None:
            await self.engine.create_topic("t")
            options = SubscriptionOptions(True, ACK_DEADLINE, RetryPolicy(min_backoff=backoff, max_backoff=2))
            await self.engine.create_subscription("t", "s", options)

        self.open()
        self.run(create())

    def open(self) -> None:
        self.consumers: list[Consumer] = []
        self.held: dict[int, Delivered] = {}  # neither acked nor nacked, by number
        self.deadlines: dict[int, float] = {}  # of those that were extended
        self.engine = self.run(
            Engine.open(f"sqlite:///{self.folder}/{self.store}.db" if self.survives else "memory://")
        )

    @property
    def subscription(self):
        return self.engine.get_subscription("s")

    # -- what publishers do ---------------------------------------------------------------------------------------------

    @rule(key=KEYS, count=st.integers(1, 3), delay=DELAYS)
    def publish(self, key, count, delay) -> None:
        numbers = [len(self.ledger.keys) + place for place in range(count)]
        self.ledger.keys.update(dict.fromkeys(numbers, key))

        async def do() -> None:
            await self.engine.publish("t", [Outgoing(key, str(n).encode(), None, delay) for n in numbers])
            self.ledger.confirmed.update(numbers)

        self.run(do())
        self.settle_down()

    # -- what consumers do ----------------------------------------------------------------------------------------------

    def _take(self, delivered) -> None:
        try:
            self._hear(delivered)
        except AssertionError as problem:
            self.problems.append(problem)

    def _hear(self, delivered) -> None:
        self._expire()
        for one in delivered:
            number = int(one.record.data)
            assert number not in self.held, f"{number} is delivered although its lease is held"
            self.ledger.deliver(number, one.lease.attempt)
            self.ledger.out[one.lease.offset] = number
            self.held[number] = one

    def _lose(self, number: int) -> None:
        """A lease that the consumer held ran out, or was given back with its consumer."""
        one = self.held.pop(number)
        self.deadlines.pop(number, None)
        self.stale.append(one.lease)
        self.ledger.out.pop(one.lease.offset)

    def _expire(self) -> None:
        """What the clock has taken away."""
        now = self.engine.now() + 1e-5
        for number, one in list(self.held.items()):
            if self.deadlines.get(number, one.lease.deadline) <= now:
                self.ledger.failures[number] += 1
                self._lose(number)

    @rule(room=st.sampled_from([1, 2, 1000]))
    def attach(self, room) -> None:
        consumer = Consumer(self._take, max_messages=room)
        self.consumers.append(consumer)
        self.subscription.deliveries.attach(consumer)
        self.settle_down()

    @rule(index=INDEX)
    def detach(self, index) -> None:
        if not self.consumers:
            return
        consumer = self.consumers.pop(index % len(self.consumers))
        for lease in [
            one for one in self.subscription.lanes.leases() if self.subscription.lanes.holder(one.token) is consumer
        ]:
            self._lose(self.ledger.out[lease.offset])
        self.subscription.deliveries.detach(consumer)
        self.settle_down()

    @rule(index=INDEX, waits=st.booleans())
    def ack(self, index, waits) -> None:
        if not self.held:
            return
        number, one = self._pick(index)

        def durable(error) -> None:
            if self.ledger is ledger and error is None:
                ledger.acking.discard(number)
                ledger.settled.add(number)

        ledger = self.ledger
        ledger.acking.add(number)
        self.ledger.out.pop(one.lease.offset)
        self.subscription.outcomes.ack(one.lease, durable)
        if waits:
            self.settle_down()

    @rule(index=INDEX, delay=st.sampled_from([None, 0.0, 0.7]))
    def nack(self, index, delay) -> None:
        if not self.held:
            return
        number, one = self._pick(index)
        self.ledger.out.pop(one.lease.offset)
        self.ledger.failures[number] += 1
        self.subscription.outcomes.nack(one.lease, delay, "on purpose")
        self.settle_down()

    @rule(index=INDEX)
    def extend(self, index) -> None:
        if not self.held:
            return
        number = sorted(self.held)[index % len(self.held)]
        self.deadlines[number] = self.subscription.outcomes.extend(self.held[number].lease, 3.0)

    @rule(index=INDEX)
    def say_something_stale(self, index) -> None:
        if not self.stale:
            return
        lease = self.stale[index % len(self.stale)]
        for say in (self.subscription.outcomes.ack, self.subscription.outcomes.nack):
            try:
                say(lease)
            except StaleLease:
                continue
            raise AssertionError(f"a stale lease was accepted: {lease}")

    def _pick(self, index: int):
        number = sorted(self.held)[index % len(self.held)]
        one = self.held.pop(number)
        self.deadlines.pop(number, None)
        self.stale.append(one.lease)
        return number, one

    # -- what time and machines do --------------------------------------------------------------------------------------

    def settle_down(self) -> None:
        """Let everything happen that takes no time."""

        async def do() -> None:
            for _ in range(5):
                await self.engine._committer.drain()
                await asyncio.sleep(0)
                while any(consumer.batches for consumer in self.consumers):  # noqa: ASYNC110 - nobody tells when a read ends
                    await asyncio.sleep(0)

        self.run(do())

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.1, 5.0]))
    def wait(self, seconds) -> None:
        # A little longer: at the very moment of a deadline the lease may be held or lost.
        self.run(asyncio.sleep(seconds + 1e-4))
        self.settle_down()
        self._expire()

    @rule(backoff=st.sampled_from([0.0, 0.5]))
    def change_options(self, backoff) -> None:
        options = SubscriptionOptions(True, ACK_DEADLINE, RetryPolicy(min_backoff=backoff, max_backoff=2))

        async def do() -> None:
            async with asyncio.timeout(3600):
                await self.engine.update_subscription("s", options)

        self.settle_down()
        if not self.held:
            self.run(do())

    @rule()
    def clean_up(self) -> None:
        self.run(self.engine.clean_up())
        self.settle_down()

    @precondition(lambda self: self.survives)
    @rule()
    def restart(self) -> None:
        for number in list(self.held):
            self._lose(number)
        self.run(self.engine.close())
        assert self.ledger.acking == set(), "a clean end left acks behind"
        self.open()

    @precondition(lambda self: self.survives)
    @rule(waits=st.booleans())
    def crash(self, waits) -> None:
        """Leave the engine as it is, and go on with the files as they are between two commits."""
        if waits:
            self.settle_down()
        old, self.store = self.store, self.store + 1
        with self.engine._store._turn:
            for suffix in ("", "-wal"):
                shutil.copy(self.folder / f"{old}.db{suffix}", self.folder / f"{self.store}.db{suffix}")
        self.ledger.crash(was_quiet=waits)
        for number in list(self.held):
            self._lose(number)
        abandoned, known, self.ledger = self.engine, self.ledger, Ledger()  # nobody hears the old one any more
        self.run(abandoned.close())
        self.ledger = known
        self.open()

    def teardown(self) -> None:
        try:
            if hasattr(self, "engine"):
                self._drain()
        finally:
            self.run(self.engine.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            asyncio.set_event_loop(None)
            shutil.rmtree(self.folder)

    def _drain(self) -> None:
        """In the end everything is settled that was ever confirmed."""
        while self.consumers:
            self.detach(0)
        self.attach(1000)
        for _ in range(1000):
            while self.held:
                self.ack(0, waits=True)
            if not len(self.subscription.lanes):
                break
            self.wait(1.1)
        missing = self.ledger.confirmed - self.ledger.settled - self.ledger.perhaps
        assert missing == set(), f"lost: {missing}"


class MemoryMachine(Machine):
    """The same without restarts, which a store in memory does not survive."""

    survives = False


@pytest.mark.hypothesis
@pytest.mark.parametrize("machine", [Machine, MemoryMachine])
def test_an_engine_keeps_its_promises_through_random_lives(machine):
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=50))
