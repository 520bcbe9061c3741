"""The work of a day, and what is measured after each hour."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from unittest.mock import patch

from seriatim import Message, PubSub, RetryPolicy
from seriatim.core.guarantees import Level
from seriatim.core.traces import TraceChecker
from seriatim.engine import key_history, topic

KEYS = 40
"""Keys of every hour, and as many that are never seen again."""

BATCH = 100
FAILING, POISONOUS = 0.01, 0.001
HANDLERS = 64
SUBSCRIPTIONS = ("billing", "shipping")
CACHED_BYTES = 8 * 1024 * 1024
"""So much of recent messages a topic keeps in memory, instead of 64 MiB: all of it is there before the second quarter."""
REMEMBERED = 500
"""So many events of keys an engine remembers, instead of 20,000, for the same reason."""


@dataclass(frozen=True, slots=True)
class Hour:
    """What was measured after an hour. Latencies are those of durable publishing, in milliseconds."""

    hour: int
    messages: int
    memory_mb: float
    store_mb: float
    log_mb: float
    files: int
    median_ms: float
    p99_ms: float
    seconds: float


class Day:
    def __init__(self, folder: Path, messages_an_hour: int, seed: int) -> None:
        self._path = folder / "store.db"
        self._messages = messages_an_hour
        self._random = Random(seed)
        self._numbers: dict[str, int] = defaultdict(int)
        self._seen: dict[str, dict[str, TraceChecker]] = {name: {} for name in SUBSCRIPTIONS}
        self._buried: dict[str, dict[str, set[int]]] = {name: defaultdict(set) for name in SUBSCRIPTIONS}
        self._objections: list[str] = []
        self.handled = self.failed = 0

    async def work(self, hours: int, done: Callable[[Hour], None]) -> list[Hour]:
        """All hours, one after another."""
        with patch.object(topic, "CACHED_BYTES", CACHED_BYTES), patch.object(key_history, "REMEMBERED", REMEMBERED):
            return [hour async for hour in self._hours(hours, done)]

    async def _hours(self, hours: int, done: Callable[[Hour], None]) -> AsyncIterator[Hour]:
        async with PubSub(f"sqlite:///{self._path}") as pubsub:
            orders = await pubsub.topic("orders").ensure()
            retry = RetryPolicy.immediate(max_attempts=3)
            for name in SUBSCRIPTIONS:
                await orders.subscription(name).ensure(retry=retry)
            async with self._handlers(pubsub):
                for number in range(hours):
                    hour = await self._hour(pubsub, number)
                    done(hour)
                    yield hour

    @asynccontextmanager
    async def _handlers(self, pubsub: PubSub) -> AsyncIterator[None]:
        subscriptions = [pubsub.subscription(name) for name in SUBSCRIPTIONS]
        tasks = [
            asyncio.ensure_future(one.run(self._handler(one.name), concurrency=HANDLERS, ack="on-return"))
            for one in subscriptions
        ]
        try:
            yield
        finally:
            for one in subscriptions:
                one.stop()
            await asyncio.gather(*tasks)

    def _handler(self, name: str) -> Callable[[Message], None]:
        seen, buried = self._seen[name], self._buried[name]

        def handle(message: Message) -> None:
            key, number = str(message.ordering_key), int(message.data[:12])
            if key not in self._numbers:
                self._objections.append(
                    f"{name}, {key}: {number} was handled after everything of the key had been settled"
                )
            if Random(f"{name} {key} {number}").random() < POISONOUS:
                buried[key].add(number)
                raise ValueError("poisonous")
            if self._random.random() < FAILING:
                self.failed += 1
                if message.delivery_attempt < 3:
                    raise ValueError("failed once more")
            if key not in seen:
                seen[key] = TraceChecker(start=0)
            seen[key].observe(number)
            self.handled += 1

        return handle

    async def _hour(self, pubsub: PubSub, number: int) -> Hour:
        began, latencies = time.monotonic(), list[float]()
        orders = pubsub.topic("orders")
        keys = [f"always-{key}" for key in range(KEYS)] + [f"hour-{number}-{key}" for key in range(KEYS)]
        for _ in range(0, self._messages, BATCH):
            sent = time.monotonic()
            confirmations = []
            for key in self._random.choices(keys, k=BATCH):
                data = b"%012d" % self._numbers[key] + b"." * self._random.randrange(200)
                self._numbers[key] += 1
                confirmations.append(orders.publish(data, ordering_key=key))
            await asyncio.gather(*confirmations)
            latencies.append((time.monotonic() - sent) * 1000)
        await self._come_and_go(pubsub, number)
        for name in SUBSCRIPTIONS:
            await pubsub.subscription(name).wait_until_empty()
        self._judge(
            keys[KEYS:]
        )  # and forget them: what this day remembers must not grow, so that what grows is the broker's
        await asyncio.sleep(2.5)  # clean-up runs every second
        gc.collect()
        return self._measured(number, latencies, time.monotonic() - began)

    async def _come_and_go(self, pubsub: PubSub, number: int) -> None:
        """What an hour makes and removes again."""
        short_lived = await pubsub.topic(f"topic of hour {number}").create()
        visitor = await short_lived.subscription(f"visitor of hour {number}").create()
        for _ in range(5):
            await short_lived.publish(b"visit", ordering_key="v")
        await visitor.snapshot(f"snapshot of hour {number}")
        (message,) = await visitor.pull(timeout=10)
        await message.ack_durable()
        await visitor.seek(snapshot=f"snapshot of hour {number}")
        await pubsub.delete_snapshot(f"snapshot of hour {number}")
        await visitor.delete()
        await short_lived.delete()
        for name in SUBSCRIPTIONS:
            subscription = pubsub.subscription(name)
            while letters := await subscription.dead_letters():
                await subscription.purge(*[letter.id for letter in letters])

    def _measured(self, number: int, latencies: list[float], seconds: float) -> Hour:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        ranked = sorted(latencies)
        log = Path(f"{self._path}-wal")
        return Hour(
            number,
            self._messages,
            round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
            round(self._path.stat().st_size / 2**20, 2),
            round(log.stat().st_size / 2**20 if log.exists() else 0.0, 2),
            len(list(Path("/proc/self/fd").iterdir())),
            round(statistics.median(ranked), 2),
            round(ranked[int(len(ranked) * 0.99)], 2),
            round(seconds, 1),
        )

    # -- judgement ------------------------------------------------------------------------------------------------------

    def objections(self) -> list[str]:
        """What the audit has against this day."""
        self._judge(list(self._numbers))
        return self._objections

    def _judge(self, keys: list[str]) -> None:
        """Judge keys of which everything is settled, and forget them."""
        for key in keys:
            count = self._numbers.pop(key, 0)
            for name, seen in self._seen.items():
                buried = self._buried[name].pop(key, set())
                verdict = (seen.pop(key, None) or TraceChecker(start=0)).verdict()
                if verdict.duplicates or verdict.reordered or verdict.phantoms:
                    self._objections.append(f"{name}, {key}: {verdict.witnesses[0]}")
                if verdict.distinct + len(buried) != count:
                    lost = f"{count} sent, {verdict.distinct} handled, {len(buried)} dead letters"
                    self._objections.append(f"{name}, {key}: {lost}")
                if count and not buried and verdict.level is not Level.ABSOLUTE:
                    self._objections.append(f"{name}, {key}: only {verdict.level}")


def grown(hours: list[Hour]) -> list[str]:
    """What was clearly higher in the last quarter of the day than in the second: memory, files, latencies."""
    quarter = len(hours) // 4
    second, last = hours[quarter : 2 * quarter], hours[-quarter:]
    found = []
    for name, factor, slack in (
        ("memory_mb", 1.0, 2.0),
        ("store_mb", 1.25, 2.0),
        ("log_mb", 1.25, 2.0),
        ("files", 1.0, 5.0),
        ("median_ms", 2.0, 5.0),
        ("p99_ms", 2.0, 100.0),
    ):
        before, after = (statistics.median(asdict(hour)[name] for hour in part) for part in (second, last))
        if after > before * factor + slack:
            found.append(f"{name}: {before:.1f} in the second quarter, {after:.1f} in the last")
    return found
