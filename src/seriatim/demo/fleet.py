"""A fleet of devices that send numbered readings through a network that loses, duplicates and shuffles them.

Rules
    - The seed decides everything: same fleet, same readings, same faults, same order and times of arrival. The clock is the
      fleet's own, and independent of how fast a demo runs.
    - The first and the last two readings of a device are confirmed, like the beginning and the end of a connection: they are
      neither lost, duplicated nor overtaken. The very last one follows a silence that is longer than the gap timeout. So every
      loss is noticed in the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import NamedTuple

from seriatim.core.ranges import RangeSet
from seriatim.testing import FaultyNetwork

MIN_MESSAGES = 3
MIDNIGHT = datetime(2025, 1, 1, tzinfo=UTC)
ARRIVALS_PER_SECOND = 1_000
GAP_TIMEOUT_S = 5.0
"""How long to wait for a missing reading, in seconds of the fleet's clock: several times the delay of the network."""
SILENCE = timedelta(seconds=2 * GAP_TIMEOUT_S)


class Reading(NamedTuple):
    """A reading of a device."""

    device: str
    sequence: int
    temperature: float


class Arrival(NamedTuple):
    """A reading, and when it left the network."""

    reading: Reading
    received_at: datetime

    def payload(self) -> bytes:
        received_at = self.received_at.isoformat(timespec="milliseconds")
        return json.dumps(self.reading._asdict() | {"received_at": received_at}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Fleet:
    """``devices`` that send ``messages`` each, and how bad the network is. ``shuffle`` is a number of places."""

    devices: int
    messages: int
    seed: int = 1
    drop: float = 0.005
    duplicate: float = 0.02
    shuffle: int = 2_000

    @property
    def names(self) -> list[str]:
        return [f"device-{number:04d}" for number in range(1, self.devices + 1)]

    @property
    def sent(self) -> int:
        return self.devices * self.messages

    def readings(self) -> Iterator[Reading]:
        """The readings in the order in which they are sent: the first of each device, the second of each, and so on."""
        weather = Random(self.seed)
        temperatures = {name: weather.uniform(15, 25) for name in self.names}
        for sequence in range(1, self.messages + 1):
            for name in self.names:
                temperatures[name] += weather.gauss(0, 0.1)
                yield Reading(name, sequence, round(temperatures[name], 2))


class Crossing:
    """The readings of a fleet on their way through the network, and what became of them. Iterate over it once."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.arrived = {name: RangeSet() for name in fleet.names}
        """The numbers of each device that arrived."""
        self.sent = self.arrivals = 0
        self._network = FaultyNetwork[Reading](
            fleet.seed, drop=fleet.drop, duplicate=fleet.duplicate, shuffle=fleet.shuffle
        )

    @property
    def dropped(self) -> int:
        return self._network.dropped

    @property
    def duplicated(self) -> int:
        return self._network.duplicated

    def __iter__(self) -> Iterator[Arrival]:
        """The readings in the order of their arrival."""
        for reading in self._order_of_arrival():
            self.arrivals += 1
            self.arrived[reading.device].add(reading.sequence)
            yield Arrival(reading, self._clock(reading))

    def _clock(self, reading: Reading) -> datetime:
        silence = SILENCE if reading.sequence == self.fleet.messages else timedelta()
        return MIDNIGHT + timedelta(seconds=self.arrivals / ARRIVALS_PER_SECOND) + silence

    def _order_of_arrival(self) -> Iterator[Reading]:
        goodbyes: list[Reading] = []
        for reading in self.fleet.readings():
            self.sent += 1
            if reading.sequence == 1:
                yield reading
            elif reading.sequence >= self.fleet.messages - 1:
                goodbyes.append(reading)
            else:
                self._network.send(reading)
                yield from self._network.receive(now=0.0)
        yield from self._network.drain()
        yield from goodbyes
