"""What handlers do with their messages, by chance that depends on the message and the attempt alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf, nan
from random import Random
from typing import Any

from seriatim import Message, SeriatimError
from seriatim.engine.dead_letters import OFFSET, SOURCE
from seriatim.errors import InvalidArgument, StaleLease
from tests.simulation.program import FREE, GRAVES
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


def handler_of(actor: Actor, sub: str, is_async: bool) -> Callable[[Message], Any]:
    """A handler for ``on("message", …)``."""

    async def handle(message: Message) -> None:
        actor.running[sub] += 1
        try:
            await Delivery(actor, sub, message).handle()
        finally:
            actor.running[sub] -= 1

    def handle_plainly(message: Message) -> None:
        Delivery(actor, sub, message).handle_plainly()

    return handle if is_async else handle_plainly


class Delivery:
    """One message in one handler."""

    def __init__(self, actor: Actor, sub: str, message: Message) -> None:
        number = int(message.data)
        self._actor = actor
        self._message = message
        self._seen: dict[str, Any] = {
            "sub": sub,
            "key": message.ordering_key or f"-{number}",
            "number": number,
            "lease": actor.world.next_lease(),
        }
        self._chance: Random = actor.world.chance(sub, number, message.delivery_attempt)
        self._look_at(message)
        self._begin((sub, message._delivered.lease.token))

    def _look_at(self, message: Message) -> None:
        """It is what was published, whatever the publisher did with its attributes afterwards."""
        number, parity = self._seen["number"], message.attributes.get("parity")
        if parity is not None and parity != ("odd" if number % 2 else "even"):
            self._actor.world.find("changed message", f"{number} has parity {parity}")
        if self._seen["sub"] == GRAVES and message.ordering_key is not None:
            name = message.attributes[SOURCE], message.ordering_key
            self._actor.world.copies.setdefault(name, {})[int(message.id)] = int(message.attributes[OFFSET])

    def _begin(self, lease: tuple[str, int]) -> None:
        """Note that a handler begins. One whose lease is lost may do so while it can't know, and must settle nothing."""
        leases, message = self._actor.world.leases, self._message
        self._is_zombie = leases.lost_at(lease) is not None
        if leases.could_know(lease, self._actor.process):
            self._actor.world.find("begun in vain", f"{self._seen}, lost at {leases.lost_at(lease)}")
        what = "zombie" if self._is_zombie else "delivered"
        self._actor.record(what, attempt=message.delivery_attempt, id=message.id, **self._seen)

    @property
    def _is_easy(self) -> bool:
        is_easy = self._chance.random() >= self._actor.world.plan.trouble
        return is_easy or self._actor.is_draining or self._seen["sub"] == GRAVES

    async def handle(self) -> None:
        await asyncio.sleep(self._chance.choice([0, 0, 0.001, 0.05]))
        if self._is_easy:
            await self._ack()
            return
        troubles = (
            self._nack,
            self._nack,
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
            self._try_to("ack", self._message.ack)
        elif self._chance.random() < 0.5:
            error, delay = self._chance.choice(NASTY_TEXTS), self._chance.choice([None, 0, 0.1])
            self._try_to("nack", lambda: self._message.nack(delay, error))
        elif self._chance.random() < 0.5:
            self._actor.record("nack", **self._seen)
            raise self._chance.choice(RAISED)(self._chance.choice(NASTY_TEXTS))

    # -- what it says -----------------------------------------------------------------------------------------------------

    async def _ack(self) -> None:
        if self._chance.random() < 0.3:
            self._try_to("ack", self._message.ack)
            return
        await self._ack_durably()

    async def _ack_durably(self) -> None:
        self._actor.record("ack", **self._seen)
        try:
            await self._message.ack_durable()
        except StaleLease:
            self._actor.record("stale", **self._seen)
        except SeriatimError:
            pass  # nobody knows
        else:
            self._actor.record("acked", **self._seen)
            if self._is_zombie:
                self._actor.world.find("stale accepted", f"{self._seen} was acked, and its lease had been lost before")

    def _try_to(self, what: str, act: Callable[[], object]) -> None:
        self._actor.record(what, **self._seen)
        try:
            act()
        except StaleLease:
            self._actor.record("stale", **self._seen)
        except SeriatimError:
            pass

    async def _nack(self) -> None:
        delay, error = self._chance.choice([None, 0, 0.01, 1.0]), self._chance.choice(NASTY_TEXTS)
        self._try_to("nack", lambda: self._message.nack(delay, error))

    async def _nack_wrongly(self) -> None:
        wrong = self._chance.choice(WRONG_DELAYS)
        say = self._message.nack if self._chance.random() < 0.5 else self._message.extend
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
        self._actor.record("nack", **self._seen)
        raise self._chance.choice(RAISED)(self._chance.choice(NASTY_TEXTS))

    async def _take_long(self) -> None:
        await asyncio.sleep(self._chance.choice([1.0, 4.0]))
        await self._ack()

    async def _extend(self) -> None:
        try:
            self._message.extend(self._chance.choice([0.1, 5]))
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
        if self._seen["sub"] == FREE:
            self._try_to("ack", self._message.ack)
        await self._actor.subscription(self._seen["sub"]).close()
        if self._seen["sub"] != FREE:
            await self._ack()
