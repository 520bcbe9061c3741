"""Ordered work on Kafka: ours, beside a plain loop and beside a pool of threads that keeps no order.

    python -m bench.kafka [--quick] [--json] [--record]

A real broker of one node has a topic of four partitions, filled with messages of 200 bytes and 1,000 keys, uniform or Zipf
with exponent 1. Everybody reads it from its beginning, in a group of its own, and waits for a while for each message, as for
a database or a service: not at all, 100 µs, or 1 ms.

- **Ours** is an async handler with the default options: one message of a key is out at a time, and the next one goes when the
  commit that covers the one before has succeeded. With *receipt* it goes as soon as the one before was acked. With *threads*
  the handler is a plain function, in as many threads as the pool has.
- **The plain loop** is one confluent-kafka consumer that handles one message after another and commits after each batch.
- **The pool** is the same consumer with a pool of threads, and no order: the upper limit. It commits when all is done.

Threads and the plain loop wait in ``time.sleep``, async handlers in ``asyncio.sleep``, which is longer: its timers go in
steps of a millisecond, and a busy loop wakes late. So each row says how long its handlers waited, on average.

Whatever keeps the order of keys handles the messages of the hottest key one after another. The bound of a row is what that
allows: all messages in the time that the handlers of this key waited, with the default options also for a commit after each
of them (as long as the fastest of a hundred took, by a consumer that did nothing else).

The clock runs from the first message until everything is committed and the group is left. Of every run it is checked that
nothing was lost, and of all but the pool that each key's messages came in order; a run that fails has no figure. There are
three rounds, in each of which everybody has a turn; figures are medians. The plain loop gets fewer messages where it would
take minutes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from math import inf
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from threading import Event, Semaphore
from time import perf_counter, sleep

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench.ordered_drain.workload import OrderBroken, Workload, uniform, zipf
from bench.record import Recorder
from bench.report import Found, Report, Row, options
from seriatim import Message as Delivered
from seriatim import PubSub
from seriatim.client import blocking
from tests.kafka_broker import KafkaBroker

PARTITIONS = 4
WORKS_S = {"no work": 0.0, "100 µs": 0.0001, "1 ms": 0.001}
DURABLE, RECEIPT, IN_THREADS = "durable", "receipt", "threads"
THREADS = 128
BATCH = 500
ROUNDS = 3
COMMITS = 100
OPEN_S = 300


@dataclass(frozen=True)
class Size:
    messages: int
    plain_s: float
    """How long the plain loop works, at most."""
    rounds: int


FULL, QUICK = Size(40_000, 4.0, ROUNDS), Size(2_000, 0.5, 1)


@dataclass(frozen=True)
class BoundedRow(Row):
    waited: str = ""
    bound: str = ""


class Handled:
    """What the handlers of one run saw, and how long they waited. Safe from threads."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.waits: list[float] = []
        self.waits_of = defaultdict[str | None, float](float)  # the sum, by key: one at a time is out
        self.begun = 0.0
        self._out: set[str | None] = set()

    def take(self, message: Message) -> None:
        self.numbers.append(int((message.value() or b"")[:10]))

    def begin(self, message: Delivered | blocking.Message) -> None:
        self.begun = self.begun or perf_counter()
        if message.ordering_key in self._out:
            raise OrderBroken(f"two messages of {message.ordering_key!r} are out")
        self._out.add(message.ordering_key)
        self.numbers.append(int(message.data[:10]))

    def end(self, message: Delivered | blocking.Message) -> None:
        self._out.discard(message.ordering_key)
        message.ack()

    def sleep(self, seconds: float, key: str | None = None) -> None:
        if seconds:
            begun = perf_counter()
            sleep(seconds)
            self._note(perf_counter() - begun, key)

    async def sleep_in_loop(self, seconds: float, key: str | None) -> None:
        if seconds:
            begun = perf_counter()
            await asyncio.sleep(seconds)
            self._note(perf_counter() - begun, key)

    def _note(self, waited: float, key: str | None) -> None:
        self.waits.append(waited)
        self.waits_of[key] += waited


class Bench(Report):
    """One topic after another."""

    def __init__(self, size: Size, broker: KafkaBroker) -> None:
        super().__init__(size.rounds)
        self._size = size
        self._broker = broker
        self._url = f"kafka://{broker.bootstrap}?partitions={PARTITIONS}"
        self._waits = defaultdict[str, list[float]](list)  # by row: the mean of each round, in seconds
        self._bounds = defaultdict[str, list[float]](list)
        self._commit_s = 0.0

    def drain(self) -> None:
        for workload in (uniform(self._size.messages), zipf(self._size.messages)):
            self.say(f"{workload.messages:,} messages of {workload.name} keys are written")
            asyncio.run(self._prepare(workload))
            for name, seconds in WORKS_S.items():
                self._compare(workload, name, seconds)

    def _compare(self, workload: Workload, name: str, seconds: float) -> None:
        where = f"{workload.name}, {name}"
        limit = min(workload.messages, int(self._size.plain_s / seconds) if seconds else workload.messages)
        self._commit_s = self._fastest_commit(workload)

        def measured(row: str, work: Callable[[], tuple[Handled, float]]) -> Callable[[], float]:
            def run() -> float:
                handled, took = work()
                self._waits[row].append(fmean(handled.waits or [0.0]))
                return len(handled.numbers) / took

            return run

        def ours(row: str, kind: str) -> Callable[[], float]:
            groups = iter(self._groups(workload, name, kind))
            handle = self._ours_in_threads if kind == IN_THREADS else self._ours

            def work() -> tuple[Handled, float]:
                handled, took = handle(workload, seconds, next(groups))
                self._bounds[row].append(self._bound(workload, handled, kind))
                return handled, took

            return measured(row, work)

        plain, pool = f"plain loop, {where}", f"pool without order, {where}"
        both = {f"ours, {where}": DURABLE, f"ours, receipt, {where}": RECEIPT, f"ours, threads, {where}": IN_THREADS}
        found = self.rounds(
            {
                plain: measured(plain, lambda: self._plain(workload, seconds, limit)),
                **{row: ours(row, kind) for row, kind in both.items()},
                pool: measured(pool, lambda: self._pool(workload, seconds)),
            }
        )
        goal = "≥ 20x plain, ≥ 0.8x pool" if seconds >= max(WORKS_S.values()) else "≥ 0.8x pool"
        self._add(plain, found)
        for row in both:
            beside = f"{found.ratio(row, plain):.1f}x plain, {found.ratio(row, pool):.2f}x pool"
            self._add(row, found, beside, goal, median(self._bounds[row]))
        self._add(pool, found)

    def _add(self, row: str, found: Found, beside: str = "", goal: str = "", bound: float = 0.0) -> None:
        waited, figure = f"{median(self._waits[row]) * 1000:.2f} ms", f"{found.of(row):,.0f}/s"
        self.rows.append(BoundedRow(row, figure, beside, goal, waited, f"≤ {bound:,.0f}/s" if bound else ""))
        print(" · ".join(filter(None, asdict(self.rows[-1]).values())), file=sys.stderr, flush=True)

    def _bound(self, workload: Workload, handled: Handled, kind: str) -> float:
        """How many messages a second can be handled if those of the hottest key are, one after another."""
        ((hottest, count),) = Counter(workload.keys).most_common(1)
        return workload.messages / (
            handled.waits_of[hottest] + (0.0 if kind == RECEIPT else count * self._commit_s) or inf
        )

    def _groups(self, workload: Workload, name: str, kind: str) -> list[str]:
        """One for each round."""
        work = name.replace(" ", "-").replace("µ", "u")
        return [f"{workload.name}-{work}-{kind}-{number}" for number in range(self.round_count)]

    async def _prepare(self, workload: Workload) -> None:
        """A subscription begins at the end of its topic: it has to be there before the messages."""
        async with PubSub(self._url) as pubsub:
            topic = await pubsub.topic(workload.name).ensure()
            for name, kind in product(WORKS_S, (DURABLE, RECEIPT, IN_THREADS)):
                for group in self._groups(workload, name, kind):
                    release = RECEIPT if kind == RECEIPT else DURABLE
                    await topic.subscription(group).ensure(ack_deadline=600, release=release)
        producer = Producer({"bootstrap.servers": self._broker.bootstrap, "partitioner": "murmur2_random"})
        for batch in workload.batches():
            for key, data in batch:
                producer.produce(workload.name, data, key.encode())
            producer.poll(0)
        producer.flush()

    def _ours(self, workload: Workload, seconds: float, group: str) -> tuple[Handled, float]:
        return asyncio.run(self._ours_in_a_loop(workload, seconds, group))

    async def _ours_in_a_loop(self, workload: Workload, seconds: float, group: str) -> tuple[Handled, float]:
        handled, done = Handled(), asyncio.Event()

        async def handle(message: Delivered) -> None:
            handled.begin(message)
            await handled.sleep_in_loop(seconds, message.ordering_key)
            handled.end(message)
            if len(handled.numbers) >= workload.messages:
                done.set()

        async with PubSub(self._url) as pubsub:
            subscription = pubsub.subscription(group)
            subscription.on("message", handle)
            subscription.on("error", print)
            subscription.open()
            async with asyncio.timeout(OPEN_S):
                await done.wait()
            await subscription.close()
            took = perf_counter() - handled.begun
        check_prefixes(workload, handled.numbers, workload.messages)
        return handled, took

    def _ours_in_threads(self, workload: Workload, seconds: float, group: str) -> tuple[Handled, float]:
        handled, done = Handled(), Event()

        def handle(message: blocking.Message) -> None:
            handled.begin(message)
            handled.sleep(seconds, message.ordering_key)
            handled.end(message)
            if len(handled.numbers) >= workload.messages:
                done.set()

        with PubSub.blocking(self._url, workers=THREADS) as pubsub:
            subscription = pubsub.subscription(group)
            subscription.on("message", handle)
            subscription.on("error", print)
            subscription.open()
            if not done.wait(OPEN_S):
                raise TimeoutError(f"{len(handled.numbers)} messages were handled in {OPEN_S} s")
            subscription.close()
            took = perf_counter() - handled.begun
        check_prefixes(workload, handled.numbers, workload.messages)
        return handled, took

    def _plain(self, workload: Workload, seconds: float, limit: int) -> tuple[Handled, float]:
        handled = Handled()

        def handle(messages: list[Message]) -> None:
            for message in messages:
                handled.take(message)
                handled.sleep(seconds)

        took = self._consume(workload, handle, lambda: len(handled.numbers) >= limit, commits=True)
        check_prefixes(workload, handled.numbers, len(handled.numbers))
        return handled, took

    def _pool(self, workload: Workload, seconds: float) -> tuple[Handled, float]:
        handled, room = Handled(), Semaphore(10 * THREADS)

        def work(message: Message) -> None:
            handled.sleep(seconds)
            handled.take(message)
            room.release()

        with ThreadPoolExecutor(THREADS) as pool:

            def handle(messages: list[Message]) -> None:
                for message in messages:
                    room.acquire()
                    pool.submit(work, message)

            took = self._consume(workload, handle, lambda: len(handled.numbers) >= workload.messages, commits=False)
        if sorted(handled.numbers) != list(range(workload.messages)):
            raise OrderBroken(f"{len(set(handled.numbers))} of {workload.messages} messages came")
        return handled, took

    def _consume(
        self,
        workload: Workload,
        handle: Callable[[list[Message]], None],
        is_over: Callable[[], bool],
        *,
        commits: bool,
    ) -> float:
        group = f"group-{perf_counter()}"
        consumer = Consumer(
            {
                "bootstrap.servers": self._broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([workload.name])
        begun = 0.0
        while not is_over():
            messages = consumer.consume(BATCH, timeout=0.05)
            if messages:
                begun = begun or perf_counter()
                handle(messages)
                if commits:
                    consumer.commit(asynchronous=False)
        if not commits:
            consumer.commit(asynchronous=False)
        consumer.close()
        return perf_counter() - begun

    def _fastest_commit(self, workload: Workload) -> float:
        """In seconds, of many by a consumer that does nothing else."""
        consumer = Consumer({"bootstrap.servers": self._broker.bootstrap, "group.id": f"commits-{perf_counter()}"})
        took = []
        for offset in range(COMMITS):
            begun = perf_counter()
            consumer.commit(offsets=[TopicPartition(workload.name, 0, offset)], asynchronous=False)
            took.append(perf_counter() - begun)
        consumer.close()
        return min(took)


def check_prefixes(workload: Workload, numbers: Sequence[int], count: int) -> None:
    """Raise unless ``count`` messages came, of each key the first ones, in order."""
    if len(numbers) != count:
        raise OrderBroken(f"{len(numbers)} messages came, and not {count}")
    sent, came = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for number, key in enumerate(workload.keys):
        sent[key].append(number)
    for number in numbers:
        came[workload.keys[number]].append(number)
    for key, some in came.items():
        if some != sent[key][: len(some)]:
            raise OrderBroken(f"messages of {key!r} came out of order, twice or not at all")


def main() -> None:
    arguments = options("bench.kafka", __doc__, ("drain",)).parse_args()
    recorder = Recorder("kafka")
    with TemporaryDirectory(prefix="bench-kafka-") as folder, KafkaBroker(Path(folder)) as broker:
        bench = Bench(QUICK if arguments.quick else FULL, broker)
        bench.drain()
    bench.show(as_json=arguments.json)
    if arguments.record:
        recorder.write([asdict(row) for row in bench.rows], bench.readings)


if __name__ == "__main__":
    main()
