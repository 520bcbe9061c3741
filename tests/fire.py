"""A consumer under fire: what the crash tests and the storage-fault tests let an engine do, told to a witness word by word.

It acks what it gets, now and then after a nack. Some messages are never acked: they end as dead letters, which it consumes too.

    P key number 0          a publish was confirmed
    D key number attempt    a message was delivered
    N key number attempt    it was nacked
    T key number attempt    its ack is said now
    A key number attempt    its ack was confirmed to be durable
    G key number attempts   its dead letter was delivered
    S key number 0          the ack of its dead letter is said now
    B key number 0          that was confirmed to be durable
    K "" 0 0                the engine opened its store again; for those who watch from outside that is a kill
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.subscription import SubscriptionState
from seriatim.errors import OutcomeUnknown, StoreBroken, StoreLost
from tests.witness import KEYLESS

NACKED = 0.1
POISONOUS = 0.03
MAX_DELIVERY_ATTEMPTS = 3

Say = Callable[[str, str, int, int], None]


class Worker:
    """Acks what it gets, now and then after a nack; what is poisonous it always nacks. Dead letters it acks."""

    def __init__(self, engine: Engine, say: Say, random: Random) -> None:
        self._say = say
        self._random = random
        self._messages = engine.get_subscription("s")
        self._graves = engine.get_subscription("graves")
        self._news = asyncio.Event()
        self._lost: BaseException | None = None
        self._begins_anew = False
        self._graves.deliveries.attach(Consumer(self._visit))
        self._messages.deliveries.attach(Consumer(self._take, failed=self._failed))

    async def at_most(self, backlog: int) -> None:
        """Wait until no more than so many messages are queued, or to be buried. Raises when the store is lost."""
        while self._queued() > backlog:
            self._news.clear()
            await self._news.wait()
            if self._lost is not None:
                raise self._lost

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, OutcomeUnknown | StoreBroken):
            self._begins_anew = True
        elif isinstance(error, StoreLost):
            self._lost = error
        self._news.set()

    def notice_new_beginning(self) -> None:
        """Say so before anything is said of the new life."""
        if self._begins_anew:
            self._begins_anew = False
            self._say("K", "", 0, 0)

    def _queued(self) -> int:
        quiet = self._messages.lanes.is_quiet() and self._graves.lanes.is_quiet()
        return len(self._messages.lanes) + len(self._graves.lanes) + (not quiet)

    def _take(self, delivered) -> None:
        self.notice_new_beginning()
        for one in delivered:
            said = (one.record.key or KEYLESS, int(one.record.data), one.lease.attempt)
            self._say("D", *said)
            if is_poisonous(said[1]) or self._random.random() < NACKED:
                self._say("N", *said)
                delay = self._random.choice([None, 0.0, 0.002])
                self._messages.outcomes.nack(one.lease, delay, error="on purpose")
            else:
                self._ack(self._messages, one, "T", "A", said)

    def _visit(self, delivered) -> None:
        self.notice_new_beginning()
        for one in delivered:
            attempts = int(one.record.attributes["seriatim-dead-letter-attempts"])
            name = (one.record.key or KEYLESS, int(one.record.data))
            self._say("G", *name, attempts)
            self._ack(self._graves, one, "S", "B", (*name, 0))

    def _ack(self, subscription: SubscriptionState, one: Delivered, now: str, later: str, said) -> None:
        self._say(now, *said)
        subscription.outcomes.ack(one.lease, partial(self._durable, later, said))

    def _durable(self, what: str, said, error: BaseException | None) -> None:
        if error is None:
            self._say(what, *said)
        self._news.set()


def is_poisonous(number: int) -> bool:
    """Whether a message is never acked; that must not change from life to life."""
    return Random(number).random() < POISONOUS


async def prepare(engine: Engine) -> None:
    """Create what an earlier life did not live to create."""
    topics = [topic.name for topic in await engine.list_topics()]
    for name in ("t", "dead"):
        if name not in topics:
            await engine.create_topic(name)
    known = [subscription.name for subscription in await engine.list_subscriptions()]
    retry = RetryPolicy.immediate(max_attempts=MAX_DELIVERY_ATTEMPTS)
    ordered = SubscriptionOptions(message_ordering=True, retry=retry, dead_letter_topic="dead")
    for topic, name, options in (("dead", "graves", SubscriptionOptions()), ("t", "s", ordered)):
        if name not in known:
            await engine.create_subscription(topic, name, options)
