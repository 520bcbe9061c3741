"""What handlers do with their messages, by chance that depends on the message and the attempt alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf, nan
from random import Random
from typing import Any

from seriatim import Message, SeriatimError
from seriatim.engine.dead_letters import REDRIVEN
from seriatim.errors import InvalidArgument, StaleLease
from tests.simulation.program import FILTER, FILTERED, FREE, GRAVES, LIMITED, STRICT
from tests.simulation.world import Actor

NASTY_TEXTS = ("\ud800", "\x00", "x" * 10_000, "", "\udce9é", "plain")
WRONG_DELAYS: tuple[Any, ...] = (nan, inf, -1, "5", True, 1e300)


class Unshowable(Exception):
    """An error that can't even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


RAISED: tuple[Callable[[str], BaseException], ...] = (
    ValueError,
    asyncio.CancelledError,
    SystemExit,
    KeyboardInterrupt,
    Unshowable,
)


def handler_of(actor: Actor, sub: str, is_async: bool) -> Callable[[Message | list[Message]], Any]:
    """A handler for ``on("message", …)``, of single messages and of batches."""

    async def handle(given: Message | list[Message]) -> None:
        if actor.closing.get(sub) == actor.openings[sub]:
            actor.world.find("begun while closing", f"a handler of {sub}")
        actor.running[sub] += 1
        delivery = (
            batch_of(actor, sub, given) if isinstance(given, list) else Delivery(actor, sub, given, is_called=True)
        )
        try:
            with delivery.failing():
                await delivery.handle()
        finally:
            actor.running[sub] -= 1

    def handle_plainly(given: Message | list[Message]) -> None:
        delivery = batch_of(actor, sub, given) if isinstance(given, list) else Delivery(actor, sub, given)
        with delivery.failing():
            delivery.handle_plainly()

    return handle if is_async else handle_plainly


class Delivery:
    """One message in one handler, which is called, or which took it from a stream. Those of a batch have one ``lease``."""

    def __init__(
        self, actor: Actor, sub: str, message: Message, *, is_called: bool = False, lease: int | None = None
    ) -> None:
        number = int(message.json())
        self._is_called = is_called
        self._is_leaving = False
        self._actor = actor
        self.message = message
        self.seen: dict[str, Any] = {
            "sub": sub,
            "key": message.ordering_key or f"-{number}",
            "number": number,
            "lease": actor.world.next_lease() if lease is None else lease,
            "id": message.id,
        }
        self._chance: Random = actor.world.chance(sub, number, message.delivery_attempt)
        self.name = sub, message._delivered.lease.token, message._delivered.lease.offset
        self._look_at(message)
        self._begin()

    def _look_at(self, message: Message) -> None:
        """It is what was published, whatever its publisher did with the attributes afterwards, and passes the filter."""
        world, number = self._actor.world, self.seen["number"]
        published, attributes = world.published[number], dict(message.attributes)
        if self.seen["sub"] == GRAVES:
            world.copies[int(message.id)] = message
            attributes = {name: value for name, value in attributes.items() if name in published.attributes}
        attributes.pop(REDRIVEN, None)
        if (message.ordering_key, attributes) != (published.key, published.attributes):
            world.find("changed message", f"{number} of {published} has {message.ordering_key!r}, {attributes}")
        if self.seen["sub"] == FILTERED and number % 2:
            world.find("passed the filter", f"{number} does not match {FILTER}")

    def _begin(self) -> None:
        """Note that a handler begins. One whose lease is lost may do so while it can't know, and must settle nothing."""
        leases, message = self._actor.world.leases, self.message
        self._is_zombie = leases.lost_at(self.name) is not None
        if leases.could_know(self.name, self._actor.process):
            self._actor.world.find("begun in vain", f"{self.seen}, lost at {leases.lost_at(self.name)}")
        what = "zombie" if self._is_zombie else "delivered"
        self._actor.record(what, attempt=message.delivery_attempt, **self.seen)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Whatever a handler raises is the reason of a nack."""
        try:
            yield
        except BaseException as error:
            self._actor.world.leases.say_nack(self.name, None, error)
            raise

    @property
    def _is_easy(self) -> bool:
        is_easy = self._chance.random() >= self._actor.world.plan.trouble
        return is_easy or self._actor.is_draining or self.seen["sub"] == GRAVES

    async def handle(self) -> None:
        try:
            await self._handle()
        finally:
            self._actor.leaving[self.seen["sub"]] -= self._is_leaving

    async def _handle(self) -> None:
        await asyncio.sleep(self._chance.choice([0, 0, 0.001, 0.05]))
        if self._is_easy:
            await self._ack()
            return
        troubles = (
            self._nack,
            self._nack,
            self._give_up,
            self._nack_wrongly,
            self._raise,
            self._take_long,
            self._extend,
            self._stop_waiting,
            self._say_nothing,
            self._close_own,
        )
        await self._chance.choice(troubles)()

    def handle_plainly(self) -> None:
        if self._is_easy:
            self._say_ack()
        elif self._chance.random() < 0.5:
            error, delay = self._chance.choice(NASTY_TEXTS), self._chance.choice([None, 0, 0.1])
            self.say_nack(delay, error)
        elif self._chance.random() < 0.3:
            self.say_dead_letter("plain", rest=False)
        elif self._chance.random() < 0.5:
            self._actor.record("nack", **self.seen)
            raise self._chance.choice(RAISED)(self._chance.choice(NASTY_TEXTS))

    # -- what it says -----------------------------------------------------------------------------------------------------

    async def _ack(self) -> None:
        if self._chance.random() < 0.3:
            self._say_ack()
            return
        await self._ack_durably()

    async def _ack_durably(self) -> None:
        self._actor.record("ack", **self.seen)
        self._actor.world.leases.say_ack(self.name)
        try:
            await self.message.ack_durable()
        except StaleLease:
            self._hear_that_it_is_stale()
        except SeriatimError:
            pass  # nobody knows
        else:
            self._actor.record("acked", **self.seen)
            if self._is_zombie:
                self._actor.world.find("stale accepted", f"{self.seen} was acked, and its lease had been lost before")

    def expect_ack_on_return(self) -> None:
        """Its consumer acks it when its handler returns."""
        self._actor.record("ack", **self.seen)
        self._actor.world.leases.say_ack(self.name)

    def _say_ack(self) -> None:
        self._actor.world.leases.say_ack(self.name)
        self._try_to("ack", self.message.ack)

    def say_nack(self, delay: float | None, error: str) -> None:
        self._actor.world.leases.say_nack(self.name, delay, error)
        self._try_to("nack", lambda: self.message.nack(delay, error))

    def _try_to(self, what: str, act: Callable[[], object]) -> None:
        self._actor.record(what, **self.seen)
        try:
            act()
        except StaleLease:
            self._hear_that_it_is_stale()
        except SeriatimError:
            pass

    def _hear_that_it_is_stale(self) -> None:
        """While a handler runs nobody takes its message back, unless an operator does, or something is broken."""
        actor, given = self._actor, self._actor.world.leases.given[self.name]
        actor.record("stale", **self.seen)
        is_owner = actor.world.disk.owners[given.epoch] is actor.process
        is_its_own = self._is_called and is_owner and given.sub in (STRICT, LIMITED) and actor.world.is_healthy
        if is_its_own and given.ended_by == "taken back":
            done = actor.world.operations.of(
                given.sub, "skip", "dead_letter", "options", "ack_deadline", "pause", "resume"
            )
            if not any(operation.overlaps(given.stamp, given.ended_stamp) for operation in done):
                actor.world.find("taken from its handler", f"{given}")

    async def _nack(self) -> None:
        delay, error = self._chance.choice([None, 0, 0.01, 1.0]), self._chance.choice(NASTY_TEXTS)
        self.say_nack(delay, error)

    async def _give_up(self) -> None:
        self.say_dead_letter(self._chance.choice([None, *NASTY_TEXTS]), self._chance.random() < 0.3)

    def say_dead_letter(self, reason: str | None, rest: bool) -> None:
        self._actor.world.leases.say_dead_letter(self.name, reason, rest)
        self._try_to("give up", lambda: self.message.dead_letter(reason, rest=rest))

    async def _nack_wrongly(self) -> None:
        wrong = self._chance.choice(WRONG_DELAYS)
        say = self.message.nack if self._chance.random() < 0.5 else self.message.extend
        try:
            say(wrong)
        except (InvalidArgument, StaleLease):
            pass
        except SeriatimError:
            return
        else:
            self._actor.world.find("wrong value accepted", f"{say.__name__}({wrong!r})")
        await self._ack()

    async def _raise(self) -> None:
        self._actor.record("nack", **self.seen)
        raise self._chance.choice(RAISED)(self._chance.choice(NASTY_TEXTS))

    async def _take_long(self) -> None:
        await asyncio.sleep(self._chance.choice([1.0, 4.0]))
        await self._ack()

    async def _extend(self) -> None:
        try:
            self.message.extend(self._chance.choice([0.1, 5]))
        except SeriatimError:
            return
        await asyncio.sleep(0.5)
        await self._ack()

    async def _stop_waiting(self) -> None:
        acking = asyncio.ensure_future(self._ack_durably())
        await asyncio.sleep(self._chance.choice([0, 0.001]))
        acking.cancel()
        await asyncio.wait([acking])

    async def _say_nothing(self) -> None:
        """Its lease has to expire."""

    async def _close_own(self) -> None:
        """Closing waits for the other handlers, and where a key has several messages out they may wait for this ack."""
        actor, sub = self._actor, self.seen["sub"]
        if sub == FREE:
            self._say_ack()
        opening = actor.closing[sub] = actor.openings[sub]
        self._is_leaving = True
        actor.leaving[sub] += 1
        await actor.subscription(sub).close()
        if actor.openings[sub] == opening and actor.running[sub] > actor.leaving[sub]:
            actor.world.find("closed too early", f"{actor.running[sub]} handlers of {sub} still run")
        if sub != FREE:
            await self._ack()


def batch_of(actor: Actor, sub: str, messages: list[Message]) -> Batch | Bulk:
    """Messages of one key under one lease, or of any keys, each under its own."""
    tokens = {message._delivered.lease.token for message in messages}
    return Batch(actor, sub, messages) if len(tokens) == 1 else Bulk(actor, sub, messages)


class Batch:
    """Messages of one key, in one handler and under one lease. An ack settles those before it, too; a failure ends all."""

    def __init__(self, actor: Actor, sub: str, messages: list[Message]) -> None:
        ids = [int(message.id) for message in messages]
        if ids != sorted(set(ids)) or len({message.ordering_key for message in messages}) > 1:
            actor.world.find("wrong batch", f"{messages}")
        lease = actor.world.next_lease()
        self._actor = actor
        self._is_for_return = actor.acks_on_return.get(sub, False)
        self._chance: Random = actor.world.chance(sub, "batch", ids[0], len(ids), messages[0].delivery_attempt)
        self._is_easy = self._chance.random() >= actor.world.plan.trouble or actor.is_draining or sub == GRAVES
        self._all = [Delivery(actor, sub, message, lease=lease) for message in messages]
        self._left = self._all[:]

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Whatever a handler raises is the reason of a nack, and in a batch nobody knows where it failed."""
        try:
            yield
        except BaseException as error:
            is_somewhere = len(self._all) > 1
            self._actor.world.leases.say_nack(self._all[0].name, None, error, is_somewhere=is_somewhere)
            raise

    async def handle(self) -> None:
        await asyncio.sleep(self._chance.choice([0, 0, 0.001, 0.05]))
        if not self._is_easy:
            await self._fail()
        elif self._is_for_return:
            self._say_acks(len(self._left))
        else:
            step = self._chance.choice([1, 2, len(self._left)])
            while self._left:
                await self._ack(min(step, len(self._left)), self._chance.random() < 0.7)

    def handle_plainly(self) -> None:
        if self._is_easy and self._is_for_return:
            self._say_acks(len(self._left))
        elif self._is_easy:
            self._settle(len(self._left))
        elif self._chance.random() < 0.5:
            raise self._chance.choice(RAISED)(self._chance.choice(NASTY_TEXTS))
        else:
            if settled := self._chance.randint(0, len(self._left) - 1):
                self._settle(settled)
            self._end_with(self._left[0])

    async def _fail(self) -> None:
        """Settle some, perhaps, and then something goes wrong with another one."""
        if settled := self._chance.randint(0, len(self._left) - 1):
            await self._ack(settled, self._chance.random() < 0.5)
        await asyncio.sleep(self._chance.choice([0, 0.001, 1.0]))
        how = self._chance.choice(["raise", "raise", "end", "end", "nothing", "extend"])
        if how == "raise" or (how != "end" and self._is_for_return):
            raise self._chance.choice(RAISED)(self._chance.choice(NASTY_TEXTS))
        if how == "end":
            self._end_with(self._chance.choice(self._left))
        elif how == "extend":
            with suppress(SeriatimError):
                self._left[-1].message.extend(self._chance.choice([0.1, 5]))
            await asyncio.sleep(0.5)
            await self._ack(len(self._left), durably=True)

    def _end_with(self, failed: Delivery) -> None:
        """One of them fails, or is given up. From then on nothing that is said of the others is accepted."""
        if self._chance.random() < 0.5:
            failed.say_nack(self._chance.choice([None, 0, 0.1]), self._chance.choice(NASTY_TEXTS))
        else:
            failed.say_dead_letter(self._chance.choice([None, "plain"]), self._chance.random() < 0.3)
        with suppress(SeriatimError):
            self._left[-1].message.ack()
            self._actor.world.find("stale accepted", f"an ack of {self._left[-1].name} after {failed.name} failed")

    def _settle(self, count: int) -> None:
        """Ack so many of them, without waiting."""
        done = self._say_acks(count)
        try:
            done[-1].message.ack()
        except StaleLease:
            self._record("stale", done)
        except SeriatimError:
            pass

    async def _ack(self, count: int, durably: bool) -> None:
        if not durably:
            self._settle(count)
            return
        done = self._say_acks(count)
        try:
            await done[-1].message.ack_durable()
        except StaleLease:
            self._record("stale", done)
        except SeriatimError:
            pass  # nobody knows
        else:
            self._record("acked", done)

    def _say_acks(self, count: int) -> list[Delivery]:
        done, self._left = self._left[:count], self._left[count:]
        self._record("ack", done)
        self._actor.world.leases.say_ack(done[-1].name)
        return done

    def _record(self, what: str, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self._actor.record(what, **delivery.seen)


class Bulk:
    """Messages of any keys in one handler, each under its own lease. One that raises is called again with each of them."""

    def __init__(self, actor: Actor, sub: str, messages: list[Message]) -> None:
        self._actor = actor
        self._is_for_return = actor.acks_on_return.get(sub, False)
        self._all = [Delivery(actor, sub, message) for message in messages]

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Nothing is nacked: which one failed is found out."""
        yield

    async def handle(self) -> None:
        await asyncio.sleep(0)
        self.handle_plainly()

    def handle_plainly(self) -> None:
        if self._is_for_return:
            for delivery in self._all:
                delivery.expect_ack_on_return()
        else:
            for delivery in self._all:
                delivery.handle_plainly()
