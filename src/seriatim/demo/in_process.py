"""Ordering that needs no Spark: the core's resequencer behind a subscription of ``raw``.

It keeps what it holds in memory, so a crash would forget it. Surviving that, tables and more than one machine is what the
pipeline on Spark is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from seriatim.client.message import Message
from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic
from seriatim.core.resequencers import Resequencers
from seriatim.core.resequencing import Effect, LedgerEntry, Released, Resequencing, Start
from seriatim.core.traces import TraceChecker
from seriatim.demo.books import Audited, Entry
from seriatim.demo.plan import Demo, Topics
from seriatim.demo.steps import Step, Steps
from seriatim.demo.subscribers import POSITION, Subscribers

SUBSCRIPTION = "ordering"


async def ordering_in_process(demo: Demo, topics: Topics, steps: Steps) -> OrderingInProcess:
    """Ready to take what is published from now on."""
    # Ordered, so that the readings of a device come as they arrived.
    raw = await topics.raw.subscription(SUBSCRIPTION).create(enable_message_ordering=True, release="receipt")
    return OrderingInProcess(raw, topics.ordered, steps.add("put in order, in this process", demo.fleet.sent))


class OrderingInProcess:
    """The core's resequencer, fed by a subscription."""

    ARRIVALS_PER_SECOND = 1_000
    GAP_TIMEOUT = 2.0
    """Time is counted in arrivals, so that the outcome does not depend on how fast this machine is."""

    def __init__(self, raw: Subscription, ordered: Topic, step: Step) -> None:
        self._raw, self._ordered, self._step = raw, ordered, step
        self._order: Resequencers[Message] = Resequencers(Resequencing(start=Start.at(1), gap_timeout=self.GAP_TIMEOUT))
        self._arrivals: dict[str, TraceChecker] = {}
        self._positions: Counter[str] = Counter()
        self._ledger: list[Entry] = []
        self._now = 0.0

    async def work(self) -> None:
        self._raw.on("message", self._take)
        self._raw.open()

    async def input_ended(self) -> None:
        await self._raw.wait_until_empty()
        self._pass_on(self._order.flush(self._now))

    async def finish(self) -> None:
        await self._ordered.flush()

    async def ledger(self) -> list[Entry]:
        return self._ledger

    async def audit(self, subscribers: Subscribers) -> tuple[Audited, Audited]:
        before = [checker.verdict() for checker in self._arrivals.values()]
        return Audited.of(before), Audited.of(subscribers.by_sequence())

    async def close(self) -> None:
        await self._raw.close()

    def _take(self, message: Message) -> None:
        device, sequence = str(message.ordering_key), message.json()["sequence"]
        self._arrivals.setdefault(device, TraceChecker(start=1)).observe(sequence)
        self._now += 1 / self.ARRIVALS_PER_SECOND
        effects = self._order.advance(self._now)
        self._pass_on(effects + self._order.push(device, sequence, message, self._now))
        message.ack()

    def _pass_on(self, effects: Iterable[Effect[Message]]) -> None:
        for effect in effects:
            if isinstance(effect, Released):
                self._publish(str(effect.key), effect.message)
            elif isinstance(effect, LedgerEntry):
                entry = Entry(str(effect.key), effect.reason, effect.first, effect.last, effect.size, effect.detail)
                self._ledger.append(entry)
        self._step.note = f"{self._order.held_count:,} held, {len(self._ledger):,} in the ledger"

    def _publish(self, device: str, message: Message) -> None:
        attributes = {POSITION: str(self._positions[device])}
        self._ordered.publish(message.data, ordering_key=device, attributes=attributes)
        self._positions[device] += 1
        self._step.count += 1
