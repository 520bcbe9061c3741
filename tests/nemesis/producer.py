"""A program that publishes rows which a bad network has displaced, repeated, delayed and lost, and records each of them.

    python -m tests.nemesis.producer '{"url": …, "folder": …, "seed": …, "life": …, "is_last": false}'

Devices number their rows. A row has a time of its own: the number of the block in which it is published, and a fraction. The
next block begins when all of the one before is published, so the log has the rows of a device in the order of their times. A
life goes on where the one before ended; the rows that the network still had are lost with it.

It publishes until SIGTERM. The last life publishes two more rows of each device, each long after everything before, so that
nothing is left waiting.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from seriatim import PubSub
from seriatim.errors import SeriatimError, StoreError
from tests.nemesis.history import Recorder, read_history

WHO = "producer"
RAW = "raw"
DEVICES = tuple(f"device-{number}" for number in range(5))
FRACTION = 1 / 1024
"""Exact as a double, in JSON too."""
LONG_AFTER = 1000
"""In blocks: longer than any number is awaited."""
DELAYS = (0, 0, 0, 0, 0, 0, 1, 2, 5, 30)
"""By how many blocks the network delays a row: the last one is longer than a number is awaited."""


@dataclass(frozen=True, slots=True)
class ProducerLife:
    """What this process is for."""

    url: str
    folder: str
    seed: int
    life: int
    is_last: bool = False

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.nemesis.producer", json.dumps(asdict(self))]


class Producer:
    """One life of the producer."""

    def __init__(self, life: ProducerLife, pubsub: PubSub) -> None:
        self._topic = pubsub.topic(RAW)
        self._random = Random(f"{life.seed} {WHO} {life.life}")
        folder = Path(life.folder)
        self._numbers, self._block = _where_it_ended(folder)
        self._record = Recorder(folder, WHO)
        self._under_way: list[tuple[int, str, int]] = []
        """What the network still has: the block in which it arrives, the device, and its number."""
        self.stopping = asyncio.Event()

    async def publish(self) -> None:
        while not self.stopping.is_set():
            self._block += 1
            for _ in range(self._random.randint(2, 10)):
                self._transmit(self._random.choice(DEVICES))
            await self._publish_block([(device, number) for _, device, number in self._take_arrived()])
            await asyncio.sleep(self._random.choice([0.1, 0.3, 0.6]))

    async def publish_last(self) -> None:
        for _ in range(2):
            self._block += LONG_AFTER
            await self._publish_block([(device, self._next_number(device)) for device in DEVICES])

    def _next_number(self, device: str) -> int:
        self._numbers[device] += 1
        return self._numbers[device]

    def _transmit(self, device: str) -> None:
        number = self._next_number(device)
        copies = self._random.choices([0, 1, 2], weights=[3, 92, 5])[0]
        for _ in range(copies):
            self._under_way.append((self._block + self._random.choice(DELAYS), device, number))

    def _take_arrived(self) -> Iterator[tuple[int, str, int]]:
        arrived = [one for one in self._under_way if one[0] <= self._block]
        self._under_way = [one for one in self._under_way if one[0] > self._block]
        self._random.shuffle(arrived)
        yield from arrived

    async def _publish_block(self, rows: list[tuple[str, int]]) -> None:
        times = (self._block + place * FRACTION for place in range(len(rows)))
        await asyncio.gather(*(self._publish_one(*row, at) for row, at in zip(rows, times, strict=True)))
        for device in self._topic.paused_keys():
            self._topic.resume_publishing(device)

    async def _publish_one(self, device: str, number: int, at: float) -> None:
        self._record("publish", key=device, number=number, body=str(at))
        try:
            id_ = await self._topic.publish(json.dumps({"n": number, "at": at}).encode(), ordering_key=device)
        except SeriatimError:
            return  # it may have come, or not: the log tells
        self._record("published", key=device, number=number, id=id_, body=str(at))


def _where_it_ended(folder: Path) -> tuple[dict[str, int], int]:
    """The last number of each device, and the last block. Numbers that the network lost at the very end come again."""
    numbers, block = dict.fromkeys(DEVICES, 0), 0
    for event in read_history(folder / f"{WHO}.jsonl"):
        numbers[event.key] = max(event.number, numbers[event.key])
        block = max(int(float(event.body)), block)
    return numbers, block


async def live(life: ProducerLife) -> None:
    async with PubSub(life.url) as pubsub:
        producer = Producer(life, pubsub)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, producer.stopping.set)
        await (producer.publish_last() if life.is_last else producer.publish())


if __name__ == "__main__":
    try:
        asyncio.run(live(ProducerLife(**json.loads(sys.argv[1]))))
    except StoreError as error:  # its owner is gone, or somebody else opens the store: the next life tries again
        sys.exit(f"ended: {type(error).__name__}: {error}")
