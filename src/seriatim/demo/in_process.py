"""Resequencing without Spark: the core's resequencer behind a subscription of ``raw``.

It holds messages in memory, so a crash would lose them. The pipeline on Spark survives that, writes tables and scales beyond
one machine.
"""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from seriatim.client.message import Message
from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic
from seriatim.core.resequencing.options import Effect, LedgerEntry, Reason, Released, ResequenceOptions, Start
from seriatim.core.resequencing.resequencer import Resequencer
from seriatim.core.traces import TraceChecker
from seriatim.demo.books import Audited, Entry
from seriatim.demo.fleet import GAP_TIMEOUT_S
from seriatim.demo.plan import Demo, Topics
from seriatim.demo.progress import Steps
from seriatim.demo.subscribers import POSITION, Subscribers

M = TypeVar("M")

SUBSCRIPTION = "ordering"


async def ordering_in_process(demo: Demo, topics: Topics, steps: Steps) -> OrderingInProcess:
    """Ready to receive what is published from now on."""
    # Ordered, so that the readings of a device keep their order of arrival.
    raw = await topics.raw.subscription(SUBSCRIPTION).create(release="receipt")
    return OrderingInProcess(raw, topics.ordered, steps, demo.fleet.sent)


def entry_of(entry: LedgerEntry[M]) -> Entry:
    return Entry(str(entry.key), entry.reason, entry.first, entry.last, entry.size, entry.detail)


class OrderingInProcess:
    """A resequencer for each device, fed by a subscription."""

    def __init__(self, raw: Subscription, ordered: Topic, steps: Steps, sent: int) -> None:
        self._raw, self._ordered, self._steps = raw, ordered, steps
        self._step = steps.add("put in order", sent)
        self._lines: dict[str, Line[Message]] = {}
        self._ledger: list[Entry] = []

    async def work(self) -> None:
        self._steps.begin(self._step)
        self._raw.on("message", self._take)
        self._raw.open()

    async def finish(self) -> None:
        await self._ordered.flush()
        self._steps.end(self._step)

    async def ledger(self) -> list[Entry]:
        return self._ledger

    async def audit(self, subscribers: Subscribers) -> tuple[Audited, Audited]:
        before = [line.arrivals.verdict() for line in self._lines.values()]
        return Audited.of(before), Audited.of(subscribers.by_sequence())

    async def close(self) -> None:
        await self._raw.close()

    def _take(self, message: Message) -> None:
        device = str(message.ordering_key)
        line = self._lines.setdefault(device, Line(device))
        reading = message.json()
        for effect in line.take(reading["sequence"], message, datetime.fromisoformat(reading["received_at"])):
            if isinstance(effect, Released):
                self._publish(effect.message, line)
            elif isinstance(effect, LedgerEntry):
                self._write_down(entry_of(effect))
        message.ack()

    def _publish(self, message: Message, line: Line[Message]) -> None:
        attributes = {POSITION: str(line.position)}
        self._ordered.publish(message.data, ordering_key=message.ordering_key, attributes=attributes)
        line.position += 1
        self._step.count += 1

    def _write_down(self, entry: Entry) -> None:
        self._ledger.append(entry)
        self._step.note = f"{len(self._ledger):,} in the ledger"
        if entry.reason == Reason.LOST:
            self._step.count += entry.size


class Line(Generic[M]):
    """The resequencing of one device: how its readings arrived, and how many were released."""

    def __init__(self, device: str) -> None:
        self.arrivals = TraceChecker(start=1)
        self.position = 0
        self._order: Resequencer[M] = Resequencer(
            ResequenceOptions(start=Start.at(1), gap_timeout=GAP_TIMEOUT_S), device
        )

    def take(self, sequence: int, message: M, received_at: datetime) -> list[Effect[M]]:
        now = received_at.timestamp()
        self.arrivals.observe(sequence)
        return self._order.advance(now) + self._order.push(sequence, message, now)
