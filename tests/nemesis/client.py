"""A program that uses the public API while everything around it breaks, and records what it saw.

    python -m tests.nemesis.client '{"url": …, "who": …, "folder": …, "seed": …, "life": …, "work": "disturb" | "drain"}'

``disturb`` publishes, consumes and operates at random, cancels its own calls, and passes wrong values, until SIGTERM.
``drain`` lifts every pause and consumes until nothing is left, then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from random import Random

from seriatim import PubSub, RetryPolicy
from seriatim.client.message import Message
from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic
from seriatim.errors import (
    AlreadyExists,
    FailedPrecondition,
    OutcomeUnknown,
    SeriatimError,
    StaleLease,
    StoreError,
    StoreLost,
)
from seriatim.log import configure
from tests.nemesis.history import Recorder

KEYS = 4
MAX_ATTEMPTS = 6
ACK_DEADLINE_S = 1.5
NUMBERS_OF_A_LIFE = 1_000_000
BEAT_S, STALLED_S = 0.2, 1.0
"""So often a client looks whether it runs, and from then on it was held up."""
STRICT, LIMITED, GRAVES = "strict", "limited", "graves"
NASTY_TEXTS = ("\ud800", "\x00", "x" * 100_000, "", "\udce9é")


Seen = dict[str, str | int]
"""A delivery, as its events name it."""


@dataclass(frozen=True, slots=True)
class Life:
    """What this process is for."""

    url: str
    folder: str
    seed: int
    who: str = ""
    life: int = 1
    work: str = "disturb"
    is_standby: bool = False


class Client:
    """One life of one client."""

    def __init__(self, life: Life, pubsub: PubSub) -> None:
        self._life = life
        self._pubsub = pubsub
        self._random = Random(f"{life.seed} {life.who} {life.life}")
        self._record = Recorder(Path(life.folder), life.who)
        self._leases = life.life * NUMBERS_OF_A_LIFE
        self._numbers = dict.fromkeys([f"{life.who}/{n}" for n in range(KEYS)], life.life * NUMBERS_OF_A_LIFE)
        self._is_draining = life.work == "drain"
        self.stopping = asyncio.Event()

    # -- set-up ---------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        for name in ("events", "dead"):
            await _unless_there(self._pubsub.topic(name).create())
        events, dead = self._topic, self._pubsub.topic("dead")
        limited = RetryPolicy(min_backoff=0.01, max_backoff=0.2, max_attempts=MAX_ATTEMPTS)
        for subscription, retry, letters in (
            (dead.subscription(GRAVES), RetryPolicy(min_backoff=0.01, max_backoff=0.2), None),
            (events.subscription(STRICT), RetryPolicy(min_backoff=0.01, max_backoff=0.2), None),
            (events.subscription(LIMITED), limited, "dead"),
        ):
            await _unless_there(
                subscription.create(
                    enable_message_ordering=True,
                    ack_deadline=self._deadline,
                    retry=retry,
                    dead_letter_topic=letters,
                )
            )

    @property
    def _deadline(self) -> float:
        return 2.0 if self._life.url.startswith("pubsub:") else ACK_DEADLINE_S  # the Pub/Sub API has whole seconds

    @property
    def _topic(self) -> Topic:
        return self._pubsub.topic("events")

    # -- consuming ------------------------------------------------------------------------------------------------------

    def consume(self) -> None:
        for name in (STRICT, LIMITED, GRAVES):
            subscription = self._pubsub.subscription(name)
            subscription.on("message", self._handler(name))
            subscription.on("error", lambda _: None)
            subscription.open(max_messages=self._random.choice([1, 5, 50]))

    def _handler(self, sub: str) -> Callable[[Message], Awaitable[None]]:
        async def handle(message: Message) -> None:
            self._leases += 1
            seen: Seen = {
                "sub": sub,
                "key": message.ordering_key or "",
                "number": int(message.data),
                "lease": self._leases,
            }
            self._record("delivered", attempt=message.delivery_attempt, id=message.id, **seen)
            try:
                await self._work_on(message, seen)
            finally:
                self._record("returned", **seen)

        return handle

    async def _work_on(self, message: Message, seen: Seen) -> None:
        await asyncio.sleep(self._random.choice([0, 0, 0.001, 0.02]))
        fate = self._random.random()
        if self._is_draining or fate < 0.72 or seen["sub"] == GRAVES:
            await self._ack(message, seen)
        elif fate < 0.86:
            self._record("nack", **seen)
            delay = self._random.choice([None, 0, 0.01, 0.3])
            self._try_to(lambda: message.nack(delay=delay, error=self._random.choice(NASTY_TEXTS)), seen)
        elif fate < 0.90:
            self._expect_refusal(lambda: message.nack(delay=self._random.choice([nan, inf, -1, "5", None, True])))  # type: ignore[arg-type]
            await self._ack(message, seen)
        elif fate < 0.96:
            self._record("nack", **seen)
            raise self._random.choice([ValueError, asyncio.CancelledError, RuntimeError])(
                self._random.choice(NASTY_TEXTS)
            )
        elif fate < 0.98:
            await asyncio.sleep(self._random.choice([0.5, 2.5]))
            await self._ack(message, seen)
        # otherwise it returns without a word, and the lease has to expire

    async def _ack(self, message: Message, seen: Seen) -> None:
        self._record("ack", **seen)
        try:
            if self._random.random() < 0.3:
                message.ack()
                return
            confirmed = asyncio.ensure_future(message.ack_durable())
            if not self._is_draining and self._random.random() < 0.05:
                asyncio.get_running_loop().call_later(self._random.random() / 50, confirmed.cancel)
            await confirmed
        except StaleLease:
            self._record("stale", **seen)
        except (asyncio.CancelledError, SeriatimError):
            pass  # nobody knows
        else:
            self._record("acked", **seen)

    def _try_to(self, act: Callable[[], object], seen: Seen) -> None:
        try:
            act()
        except StaleLease:
            self._record("stale", **seen)
        except SeriatimError:
            pass

    def _expect_refusal(self, act: Callable[[], object]) -> None:
        with contextlib.suppress(SeriatimError, TypeError, ValueError):
            act()

    # -- publishing -----------------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        while not self.stopping.is_set():
            await asyncio.gather(*(self._publish_one() for _ in range(self._random.randint(1, 8))))
            await asyncio.sleep(self._random.choice([0.001, 0.01, 0.05]))

    async def _publish_one(self) -> None:
        key = self._random.choice(list(self._numbers))
        number = self._numbers[key]
        self._numbers[key] += 1
        self._record("publish", key=key, number=number)
        try:
            future = self._topic.publish(str(number).encode(), ordering_key=key, attributes={"n": str(number)})
            if self._random.random() < 0.05:
                asyncio.get_running_loop().call_later(self._random.random() / 50, future.cancel)
            id_ = await future
        except asyncio.CancelledError:
            return
        except SeriatimError as error:
            if not isinstance(error, OutcomeUnknown | StoreError) and not self._life.url.startswith("pubsub:"):
                self._record("refused", key=key, number=number)
            if key in self._topic.paused_keys():
                self._topic.resume_publishing(key)
            if self._life.is_standby and isinstance(error, StoreLost):
                self.stopping.set()  # another process is the active one now: end, and wait for a turn in a new life
        else:
            self._record("published", key=key, number=number, id=id_)

    # -- operating ------------------------------------------------------------------------------------------------------

    async def operate(self) -> None:
        """Everything that an operator can do, at random, now and then cancelled."""
        while not self.stopping.is_set():
            act = asyncio.ensure_future(self._operate_once())
            if self._random.random() < 0.3:
                asyncio.get_running_loop().call_later(self._random.random() / 20, act.cancel)
            await asyncio.wait([act])
            error = None if act.cancelled() else act.exception()
            if error is not None and not isinstance(error, SeriatimError):
                raise error
            await asyncio.sleep(self._random.choice([0.01, 0.05, 0.2]))

    async def _operate_once(self) -> None:
        random = self._random
        subscription = self._pubsub.subscription(random.choice([STRICT, LIMITED]))
        key = f"{random.choice('abc')}/{random.randrange(KEYS)}"
        acts: list[Callable[[], Awaitable[object]]] = [
            self._pubsub.metrics,
            self._pubsub.topics,
            subscription.stats,
            subscription.keys,
            lambda: subscription.peek(key),
            lambda: subscription.retry(key),
            lambda: subscription.pause_key(key, random.choice(NASTY_TEXTS)),
            lambda: subscription.resume_key(key),
            lambda: subscription.resume_key(key),
            subscription.pause,
            subscription.resume,
            subscription.resume,
            lambda: subscription.set_options(window=1, ack_deadline=self._deadline + random.random()),
            lambda: self._set_wrong_option(subscription),
            lambda: asyncio.gather(subscription.resume(), subscription.set_options(ack_deadline=self._deadline)),
            lambda: self._take_out(subscription),
            lambda: self._take_out(subscription),
            self._churn,
            self._churn,
        ]
        await random.choice(acts)()

    async def _set_wrong_option(self, subscription: Subscription) -> None:
        wrong = self._random.choice(
            [
                {"retry": None},
                {"ack_deadline": "10"},
                {"ack_deadline": 0},
                {"window": 1.5},
                {"release": 3},
                {"ack_deadline": nan},
            ]
        )
        with contextlib.suppress(SeriatimError, TypeError, ValueError):
            await subscription.set_options(**wrong)  # type: ignore[arg-type]

    async def _take_out(self, subscription: Subscription) -> None:
        """Skip the head of a key that has one, or dead-letter it."""
        key = self._random.choice([view.key for view in await subscription.keys(limit=100)] or ["none"])
        assert key is not None
        self._record("take-out", sub=subscription.name, key=key)
        if subscription.name == LIMITED and self._random.random() < 0.5:
            ids = await subscription.dead_letter(key, self._random.choice(NASTY_TEXTS))
        else:
            ids = [await subscription.skip(key)]
        for id_ in ids:
            self._record("taken-out", sub=subscription.name, key=key, id=id_)

    async def _churn(self) -> None:
        """Create and delete topics and subscriptions that nobody else minds."""
        topic = self._pubsub.topic(f"churn-{self._random.randrange(3)}")
        subscription = topic.subscription(f"{topic.name}-{self._random.randrange(2)}")
        acts: list[Callable[[], Awaitable[object]]] = [
            topic.create,
            topic.delete,
            subscription.create,
            subscription.delete,
        ]
        await self._random.choice([acts[0], acts[2], *acts])()

    async def watch(self) -> None:
        """Write down when this process got no processor for a while: what it does then, it does late."""
        while True:
            begun = time.monotonic()
            await asyncio.sleep(BEAT_S)
            if (stalled := time.monotonic() - begun) > STALLED_S:
                self._record("stalled", body=f"{stalled:.3f}")

    # -- the end --------------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Lift every pause, and wait until nothing is left.

        What waits for its retry is let go: its time may have been written with a clock that was hours ahead.
        """
        for name in (STRICT, LIMITED):
            subscription = self._pubsub.subscription(name)
            await subscription.resume()
            for view in await subscription.keys(limit=10_000):
                for act in (subscription.resume_key, subscription.retry):
                    with contextlib.suppress(FailedPrecondition):  # it is not paused, or waits for nothing
                        await act(view.key)
        self.consume()
        for name in (STRICT, LIMITED, GRAVES):
            await self._pubsub.subscription(name).wait_until_empty()
        await self._judge_churn()

    async def _judge_churn(self) -> None:
        """Engine and store agree on what exists: whatever is listed can be used, whatever is not can be created."""
        listed = {info.name for info in await self._pubsub.topics()}
        for number in range(3):
            topic = self._pubsub.topic(f"churn-{number}")
            if topic.name not in listed:
                await topic.create()
            await topic.publish(b"0")
            await topic.delete()


async def _unless_there(creating: Awaitable[object]) -> None:
    with contextlib.suppress(AlreadyExists):
        await creating


def _show_tasks() -> None:
    """Say on standard error where everything stands: asked for when this client does not end."""
    for task in asyncio.all_tasks():
        task.print_stack(limit=8)
    faulthandler.dump_traceback()  # of the threads


async def live(life: Life) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _show_tasks)
    async with PubSub(life.url, standby=life.is_standby) as pubsub:
        client = Client(life, pubsub)
        await client.prepare()
        if life.work == "drain":
            await client.drain()
            return
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stopping.set)
        client.consume()
        can_operate = not life.url.startswith("pubsub:")
        watching = asyncio.ensure_future(client.watch())
        try:
            await asyncio.gather(client.publish(), client.operate() if can_operate else client.stopping.wait())
        finally:
            watching.cancel()


if __name__ == "__main__":
    configure("warning", "text")
    try:
        asyncio.run(live(Life(**json.loads(sys.argv[1]))))
    except StoreError as error:  # its store was taken away or could not be had: the next life tries again
        sys.exit(f"ended: {type(error).__name__}: {error}")
