"""What everybody has to do: the same messages, the same keys, the same bound on how far publishing runs ahead."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

PAYLOAD = 200
BATCH = 100
BACKLOG = 20_000
"""So many messages may be published and not yet acknowledged. It is the same for everybody."""


@dataclass(frozen=True)
class Workload:
    """Messages to be published, in this order: one key for each."""

    name: str
    keys: Sequence[str]

    @property
    def messages(self) -> int:
        return len(self.keys)

    @property
    def hottest_share(self) -> float:
        """The part of all messages that has the commonest key: at most one of them is in flight."""
        return Counter(self.keys).most_common(1)[0][1] / len(self.keys)

    def batches(self) -> list[list[tuple[str, bytes]]]:
        """Keys and payloads, a hundred at a time. Each payload names its message."""
        filler = b"." * (PAYLOAD - 10)
        messages = [(key, b"%010d" % number + filler) for number, key in enumerate(self.keys)]
        return [messages[start : start + BATCH] for start in range(0, len(messages), BATCH)]


def uniform(messages: int, keys: int = 1_000) -> Workload:
    random = Random(4)
    names = _names(keys)
    return Workload("uniform", [names[random.randrange(keys)] for _ in range(messages)])


def zipf(messages: int, keys: int = 1_000) -> Workload:
    """Zipf with exponent 1: the n-th key comes 1/n times as often as the first, which has 13.4 % of 1,000 keys' messages."""
    random, names = Random(4), _names(keys)
    bounds = list(accumulate(1 / rank for rank in range(1, keys + 1)))
    return Workload("zipf", [names[bisect_left(bounds, random.random() * bounds[-1])] for _ in range(messages)])


def in_turn(messages: int, keys: int) -> Workload:
    """Every key as often as every other, one after another."""
    names = _names(keys)
    return Workload(f"{keys:,} keys", [names[number % keys] for number in range(messages)])


def _names(keys: int) -> list[str]:
    return [f"key-{number}" for number in range(keys)]


class OrderBroken(Exception):
    """A message came before an earlier one of its key, twice, or not at all."""


def check_order(workload: Workload, numbers: Sequence[int]) -> None:
    """Raise unless ``numbers``, as they were delivered, are all messages once, each key's in order."""
    if len(numbers) != workload.messages or len(set(numbers)) != workload.messages:
        raise OrderBroken(f"{len(numbers)} deliveries of {workload.messages} messages, {len(set(numbers))} of them new")
    last: dict[str, int] = {}
    for number in numbers:
        key = workload.keys[number]
        if last.get(key, -1) > number:
            raise OrderBroken(f"message {number} of {key!r} came after {last[key]}")
        last[key] = number
