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
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from random import Random

from seriatim import PubSub, PubSubMessage, RetryPolicy
from seriatim.client.message import Message
from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic
from seriatim.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    OutcomeUnknown,
    PublishFailed,
    SeriatimError,
    StaleLease,
    StoreError,
    StoreLost,
)
from seriatim.log import configure
from tests.nemesis.checker import Name
from tests.nemesis.clock import FARTHEST_S
from tests.nemesis.history import Recorder, read_history

KEYS = 4
MAX_ATTEMPTS = 6
ACK_DEADLINE_S = 1.5
NUMBERS_OF_A_LIFE = 1_000_000
BEAT_S, STALLED_S = 0.2, 1.0
"""So often a client looks whether it runs, and from then on it was held up."""
STRICT, LIMITED, GRAVES = "strict", "limited", "graves"
DEDUP_WINDOW_S = 3 * FARTHEST_S
"""Longer than two clocks may be apart: an id that is forgotten may be stored again."""
STILL_KNOWN = 20
"""Of so many publishes that were confirmed last a client repeats some now and then, as if it had heard nothing."""
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
    knows_ids: bool = True
    """Whether the topic remembers ids for longer than clocks may jump, so that whoever gets no answer may publish again."""


class Client:
    """One life of one client."""

    def __init__(self, life: Life, pubsub: PubSub) -> None:
        self._life = life
        self._pubsub = pubsub
        self._random = Random(f"{life.seed} {life.who} {life.life}")
        self._history = Path(life.folder) / f"{life.who}.jsonl"
        self._record = Recorder(self._history.parent, life.who)
        self._leases = life.life * NUMBERS_OF_A_LIFE
        self._numbers = dict.fromkeys([f"{life.who}/{n}" for n in range(KEYS)], life.life * NUMBERS_OF_A_LIFE)
        self._is_draining = life.work == "drain"
        self.is_remote = life.url.startswith("pubsub:")
        self._publishes_once = life.knows_ids and self._random.random() < 0.5
        self._known = deque[Name](maxlen=STILL_KNOWN)
        self.stopping = asyncio.Event()

    # -- set-up ---------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        for name in ("events", "dead"):
            window = None if self.is_remote else DEDUP_WINDOW_S  # a server's topic has it from elsewhere
            await _unless_there(self._pubsub.topic(name).create(dedup_window=window))
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
        return 2.0 if self.is_remote else ACK_DEADLINE_S  # the Pub/Sub API has whole seconds

    @property
    def _topic(self) -> Topic:
        return self._pubsub.topic("events")

    # -- consuming ------------------------------------------------------------------------------------------------------

    def consume(self) -> None:
        """Take messages one by one, in batches of a key, or in lists across keys. The Pub/Sub API has no batches."""
        for name in (STRICT, LIMITED, GRAVES):
            subscription = self._pubsub.subscription(name)
            subscription.on("error", lambda _: None)
            most, size = self._random.choice([1, 5, 50]), self._random.choice([2, 5, 20])
            way = "one by one" if self._is_draining else self._random.choice(["one by one", "batches", "lists"])
            if way == "one by one":
                subscription.on("message", self._handler(name))
                subscription.open(max_messages=most)
            elif way == "batches" and not self.is_remote:
                subscription.on("message", self._batch_handler(name))
                subscription.open(max_messages=max(most, size), batch=size)
            else:
                subscription.on("message", self._list_handler(name))
                subscription.open(max_messages=max(most, size), batch=size, across_keys=True)

    def _handler(self, sub: str) -> Callable[[Message], Awaitable[None]]:
        take_list = self._list_handler(sub)

        async def handle(message: Message) -> None:
            await take_list([message])

        return handle

    def _list_handler(self, sub: str) -> Callable[[list[Message]], Awaitable[None]]:
        """Each message has a lease of its own. After a failure those that are left come again, one by one."""

        async def handle(messages: list[Message]) -> None:
            begun = [self._begin(sub, [message])[0] for message in messages]
            for message, seen in zip(messages, begun, strict=True):
                try:
                    await self._work_on(message, seen)
                finally:
                    self._record("returned", **seen)

        return handle

    def _batch_handler(self, sub: str) -> Callable[[list[Message]], Awaitable[None]]:
        async def handle(messages: list[Message]) -> None:
            batch = self._begin(sub, messages)
            try:
                await self._work_on_batch(messages, batch)
            finally:
                self._record_each("returned", batch)

        return handle

    def _begin(self, sub: str, messages: list[Message]) -> list[Seen]:
        """Note that a handler begins, with messages of one lease."""
        self._leases += 1
        batch: list[Seen] = []
        for message in messages:
            key, number = message.ordering_key or "", int(message.data)
            batch.append({"sub": sub, "key": key, "number": number, "lease": self._leases})
            self._record("delivered", attempt=message.delivery_attempt, id=message.id, **batch[-1])
        return batch

    async def _work_on_batch(self, messages: list[Message], batch: list[Seen]) -> None:
        """Ack it, now and then in two steps or too late; or fail, or say nothing, when some or none of it is acked."""
        await asyncio.sleep(self._random.choice([0, 0.001, 0.02, 0.2]))  # what comes meanwhile is the next batch
        done = self._random.choice([0, 0, self._random.randrange(len(batch))])
        if done:
            await self._ack(messages[done - 1], *batch[:done])
        fate, failing = self._random.random(), self._random.randrange(done, len(batch))
        if fate < 0.75 or batch[0]["sub"] == GRAVES:
            await asyncio.sleep(2.5 if fate < 0.03 else 0)
            await self._ack(messages[-1], *batch[done:])
        elif fate < 0.85:
            self._nack(messages[failing], batch[failing])
        elif fate < 0.95:
            self._record("nack", **batch[failing])
            raise self._some_error()

    async def _work_on(self, message: Message, seen: Seen) -> None:
        await asyncio.sleep(self._random.choice([0, 0, 0.001, 0.02]))
        fate = self._random.random()
        if self._is_draining or fate < 0.72 or seen["sub"] == GRAVES:
            await self._ack(message, seen)
        elif fate < 0.86:
            self._nack(message, seen)
        elif fate < 0.90:
            self._expect_refusal(lambda: message.nack(delay=self._random.choice([nan, inf, -1, "5", None, True])))  # type: ignore[arg-type]
            await self._ack(message, seen)
        elif fate < 0.96:
            self._record("nack", **seen)
            raise self._some_error()
        elif fate < 0.98:
            await asyncio.sleep(self._random.choice([0.5, 2.5]))
            await self._ack(message, seen)
        # otherwise it returns without a word, and the lease has to expire

    async def _ack(self, message: Message, *settled: Seen) -> None:
        """Ack a message, and with it what its lease has before it."""
        self._record_each("ack", settled)
        try:
            if self._random.random() < 0.3:
                message.ack()
                return
            confirmed = asyncio.ensure_future(message.ack_durable())
            if not self._is_draining and self._random.random() < 0.05:
                asyncio.get_running_loop().call_later(self._random.random() / 50, confirmed.cancel)
            await confirmed
        except StaleLease:
            self._record_each("stale", settled)
        except (asyncio.CancelledError, SeriatimError):
            pass  # nobody knows
        else:
            self._record_each("acked", settled)

    def _record_each(self, what: str, messages: Iterable[Seen]) -> None:
        for seen in messages:
            self._record(what, **seen)

    def _nack(self, message: Message, seen: Seen) -> None:
        self._record("nack", **seen)
        delay = self._random.choice([None, 0, 0.01, 0.3])
        try:
            message.nack(delay=delay, error=self._random.choice(NASTY_TEXTS))
        except StaleLease:
            self._record("stale", **seen)
        except SeriatimError:
            pass

    def _some_error(self) -> BaseException:
        kind = self._random.choice([ValueError, asyncio.CancelledError, RuntimeError])
        return kind(self._random.choice(NASTY_TEXTS))

    def _expect_refusal(self, act: Callable[[], object]) -> None:
        with contextlib.suppress(SeriatimError, TypeError, ValueError):
            act()

    # -- publishing -----------------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        await self._publish_again(self._former_publishes())
        while not self.stopping.is_set():
            several = self._random.randint(1, 8)
            if self._publishes_once:
                await self._publish_once(self._draw(several, has_ids=True))
                if self._known and self._random.random() < 0.2:
                    await self._publish_again(self._random.sample(self._known, min(several, len(self._known))))
            elif self._random.random() < 0.2:
                await self._publish_together(self._draw(several))
            else:
                await asyncio.gather(*(self._publish_one() for _ in range(several)))
            await asyncio.sleep(self._random.choice([0.001, 0.01, 0.05]))

    def _draw(self, several: int, *, has_ids: bool = False) -> list[Name]:
        """The next messages of keys of its own, or of one of them."""
        drawn, keys = list[Name](), list(self._numbers)
        keys = self._random.choice([keys, [self._random.choice(keys)]])
        for _ in range(several):
            key = self._random.choice(keys)
            drawn.append((key, self._numbers[key]))
            self._numbers[key] += 1
            self._record("publish", key=key, number=drawn[-1][1], dedup_id=dedup_id(*drawn[-1]) if has_ids else "")
        return drawn

    async def _publish_one(self) -> None:
        ((key, number),) = self._draw(1)
        try:
            future = self._topic.publish(str(number).encode(), ordering_key=key, attributes={"n": str(number)})
            if self._random.random() < 0.05:
                asyncio.get_running_loop().call_later(self._random.random() / 50, future.cancel)
            self._published(key, number, await future)
        except (asyncio.CancelledError, SeriatimError) as error:
            self._published(key, number, error)

    async def _publish_together(self, names: Sequence[Name]) -> None:
        for (key, number), outcome in zip(names, await self._send(names, has_ids=False), strict=True):
            self._published(key, number, outcome)

    async def _publish_once(self, names: Sequence[Name]) -> None:
        """Publish with ids, and once more while the outcome is unknown. Later messages wait meanwhile, so none is overtaken."""
        outcomes = await self._send(names, has_ids=True)
        for (key, number), outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, AlreadyExists | InvalidArgument):
                raise outcome  # the id is refused, or belongs to another message
            self._published(key, number, outcome, is_repeated=True)
        self._known += [name for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, str)]
        doubtful = [name for name, outcome in zip(names, outcomes, strict=True) if not isinstance(outcome, str)]
        if doubtful and not self.stopping.is_set():  # otherwise the next life goes on with them
            await asyncio.sleep(self._random.choice([0.01, 0.1]))
            await self._publish_again(doubtful)

    async def _publish_again(self, names: Sequence[Name]) -> None:
        for key, number in names:
            self._record("again", key=key, number=number)
        await self._publish_once(sorted(names))

    async def _send(self, names: Sequence[Name], *, has_ids: bool) -> list[str | BaseException]:
        """The id of each message, or what became of it."""
        messages = [
            PubSubMessage(
                str(number).encode(), key, {"n": str(number)}, dedup_id=dedup_id(key, number) if has_ids else None
            )
            for key, number in names
        ]
        sending = asyncio.ensure_future(self._topic.publish_many(messages))
        if self._random.random() < 0.05:
            asyncio.get_running_loop().call_later(self._random.random() / 50, sending.cancel)
        try:
            return list(await sending)
        except PublishFailed as failed:
            return list(failed.results)
        except (asyncio.CancelledError, SeriatimError) as error:
            return [error] * len(names)

    def _published(self, key: str, number: int, outcome: str | BaseException, *, is_repeated: bool = False) -> None:
        """Note what became of a publish, and let its key go on."""
        if isinstance(outcome, str):
            self._record("published", key=key, number=number, id=outcome)
            return
        is_in_doubt = isinstance(outcome, asyncio.CancelledError | OutcomeUnknown | StoreError) or self.is_remote
        if not is_in_doubt and not is_repeated:
            self._record("refused", key=key, number=number)
        if key in self._topic.paused_keys():
            self._topic.resume_publishing(key)
        if self._life.is_standby and isinstance(outcome, StoreLost):
            self.stopping.set()  # another process is the active one now: end, and wait for a turn in a new life

    def _former_publishes(self) -> list[Name]:
        """What former lives published with an id and without an answer. What they got an answer for is known."""
        doubtful = dict[Name, None]()
        for event in read_history(self._history):
            name = (event.key, event.number)
            if event.what == "publish" and event.dedup_id:
                doubtful[name] = None
            elif event.what == "published" and name in doubtful:
                del doubtful[name]
                self._known.append(name)
        return list(doubtful)

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


def dedup_id(key: str, number: int) -> str:
    return f"{key} {number}"


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
        can_operate = not client.is_remote
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
