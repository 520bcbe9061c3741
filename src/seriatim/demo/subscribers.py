"""The clients that consume the ordered messages, and record the order in which they receive them.

Handling takes a moment, and sometimes fails: the message is nacked, and must be redelivered in its place. The seed decides
which ones fail, so that every run has equally many.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from zlib import crc32

from seriatim.client.message import Message
from seriatim.client.subscription import Subscription
from seriatim.core.ranges import RangeSet
from seriatim.core.traces import TraceChecker, Verdict
from seriatim.demo.fleet import Fleet
from seriatim.demo.progress import DemoStep

POSITION = "position"
"""The attribute of an ordered message with its position within its key."""
HANDLING_S = 0.002
FAILURE_RATIO = 50
"""One message in this many fails the first time."""
RETRY_DELAY_S = 0.05


class Subscribers:
    """Consumers of one subscription, with as many messages in flight as there are devices."""

    def __init__(self, fleet: Fleet, step: DemoStep) -> None:
        self._fleet = fleet
        self._step = step
        self._sequences = {name: TraceChecker(start=1) for name in fleet.names}
        self._positions = {name: TraceChecker(start=0) for name in fleet.names}
        self._in_flight: Counter[str] = Counter()
        self._to_come = set(fleet.names)
        self.numbers = {name: RangeSet() for name in fleet.names}
        """The numbers of each device that were seen."""
        self.seen_all = asyncio.Event()
        """The last reading of every device was seen."""
        self.redeliveries = 0
        self.most_in_flight_per_device = 0

    def open(self, subscription: Subscription) -> None:
        subscription.on("message", self._handle)
        subscription.open(max_messages=self._fleet.devices)

    @property
    def handled(self) -> int:
        return self._step.count

    def by_sequence(self) -> list[Verdict]:
        """The order of each device's readings, by the device's own numbers."""
        return [checker.verdict() for checker in self._sequences.values()]

    def by_position(self) -> list[Verdict]:
        """The same by position, in which nothing is missing."""
        return [checker.verdict() for checker in self._positions.values()]

    async def _handle(self, message: Message) -> None:
        device = str(message.ordering_key)
        self._in_flight[device] += 1
        self.most_in_flight_per_device = max(self.most_in_flight_per_device, self._in_flight[device])
        try:
            await asyncio.sleep(HANDLING_S)
            self._settle(message, device, int(message.attributes[POSITION]))
        finally:
            self._in_flight[device] -= 1

    def _settle(self, message: Message, device: str, position: int) -> None:
        if message.delivery_attempt == 1 and self._fails(device, position):
            message.nack(delay=RETRY_DELAY_S, error="failed on purpose")
            self.redeliveries += 1
            self._step.note = f"{self.redeliveries:,} retried"
            return
        message.ack()
        self._observe(device, message.json()["sequence"], position)

    def _fails(self, device: str, position: int) -> bool:
        return crc32(f"{self._fleet.seed} {device} {position}".encode()) % FAILURE_RATIO == 0

    def _observe(self, device: str, sequence: int, position: int) -> None:
        self._step.count += 1
        self._sequences[device].observe(sequence)
        self._positions[device].observe(position)
        self.numbers[device].add(sequence)
        if sequence == self._fleet.messages:
            self._to_come.discard(device)
            if not self._to_come:
                self.seen_all.set()
