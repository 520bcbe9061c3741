"""The work that everybody does, the journal of it, and the judge.

A journal has what handlers saw, in the order in which they saw it: a message began, failed, or was done. Whoever wrote it, the
judge reads nothing else, and a run that it objects to has no figure.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.ordered_drain.workload import PAYLOAD, uniform, zipf

KEYS = 1_000
FAILURES = 1
"""How often each message of the failing key fails before it succeeds."""
SLOW_S = 0.01
"""How long each message of the slow key takes."""
SPECIAL, SPECIAL_MESSAGES = "special", 20
"""The key that fails, or is slow, and how many messages it has."""

BEGIN, FAILED, DONE = "begin", "failed", "done"


@dataclass(frozen=True)
class Scenario:
    """What is asked of everybody."""

    name: str
    keys: str = "uniform"
    seconds: float = 0.0
    failing: bool = False
    slow: bool = False


SCENARIOS = (
    Scenario("uniform, no work"),
    Scenario("uniform, 100 µs", seconds=0.0001),
    Scenario("uniform, 1 ms", seconds=0.001),
    Scenario("Zipf, no work", "zipf"),
    Scenario("Zipf, 100 µs", "zipf", 0.0001),
    Scenario("Zipf, 1 ms", "zipf", 0.001),
    Scenario("one failing key", failing=True),
    Scenario("one slow key", slow=True),
)
QUICK_SCENARIOS = tuple(SCENARIOS[place] for place in (0, 4, 6, 7))


@dataclass(frozen=True)
class Work:
    """A scenario with so many messages. A message is known by its number, which its payload begins with."""

    scenario: Scenario
    messages: int
    run: str = "run"
    """What topics, streams and queues are called: servers outlive a run."""
    keys: Sequence[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        make = uniform if self.scenario.keys == "uniform" else zipf
        keys = list(make(self.messages, KEYS).keys)
        if self.scenario.failing or self.scenario.slow:
            step = max(1, self.messages // SPECIAL_MESSAGES)
            keys[::step] = [SPECIAL] * len(keys[::step])
        object.__setattr__(self, "keys", keys)

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Work:
        return cls(Scenario(**said["scenario"]), said["messages"], said["run"])

    def to_json(self) -> dict[str, Any]:
        return {"scenario": asdict(self.scenario), "messages": self.messages, "run": self.run}

    def payload(self, number: int) -> bytes:
        return b"%010d" % number + b"." * (PAYLOAD - 10)

    def seconds(self, number: int) -> float:
        return SLOW_S if self.scenario.slow and self.keys[number] == SPECIAL else self.scenario.seconds

    def failures(self, number: int) -> int:
        return FAILURES if self.scenario.failing and self.keys[number] == SPECIAL else 0


class Journal:
    """Handles messages, and writes down what happens to them."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.events: list[tuple[str, int]] = []
        self.done = 0
        self.all_done = asyncio.Event()
        self._failures: Counter[int] = Counter()

    async def handle(self, number: int) -> bool:
        """Work a message off, as a program would that waits for a service. Returns whether it succeeded."""
        self.events.append((BEGIN, number))
        if seconds := self.work.seconds(number):
            await asyncio.sleep(seconds)
        return self._end(number)

    def handle_blocking(self, number: int) -> bool:
        """The same in a thread."""
        self.events.append((BEGIN, number))
        if seconds := self.work.seconds(number):
            time.sleep(seconds)
        return self._end(number)

    def _end(self, number: int) -> bool:
        if self._failures[number] < self.work.failures(number):
            self._failures[number] += 1
            self.events.append((FAILED, number))
            return False
        self.events.append((DONE, number))
        self.done += 1
        if self.done >= self.work.messages:
            self.all_done.set()
        return True


class Objection(Exception):
    """A run did not do what was asked of it: it has no figure."""


def judge(work: Work, events: Sequence[tuple[str, int]]) -> None:
    """Raise unless every message was done once, each key's in the order of publishing, one of a key at a time."""
    waiting: dict[str, list[int]] = defaultdict(list)  # of each key, what is not done yet, the next one last
    for number in reversed(range(work.messages)):
        waiting[work.keys[number]].append(number)
    in_flight: dict[str, int] = {}
    failures: Counter[int] = Counter()
    for what, number in events:
        if not 0 <= number < work.messages:
            raise Objection(f"message {number} was never published")
        key = work.keys[number]
        if what == BEGIN:
            _judge_begin(key, number, waiting[key], in_flight)
        elif in_flight.pop(key, None) != number:
            raise Objection(f"message {number} of {key!r} ended and was not in flight")
        elif what == DONE:
            waiting[key].pop()
        else:
            failures[number] += 1
    if missing := sum(map(len, waiting.values())):
        raise Objection(f"loss: {missing} of {work.messages} messages were not done")
    if wrong := [number for number in range(work.messages) if failures[number] != work.failures(number)]:
        raise Objection(f"message {wrong[0]} failed {failures[wrong[0]]} times, and not {work.failures(wrong[0])}")


def _judge_begin(key: str, number: int, waiting: Sequence[int], in_flight: dict[str, int]) -> None:
    if not waiting or number < waiting[-1]:
        raise Objection(f"duplicate: message {number} of {key!r} came again after it was done")
    if key in in_flight:
        raise Objection(f"overlap: {number} of {key!r} began while {in_flight[key]} was in flight")
    if number > waiting[-1]:
        raise Objection(f"inversion: message {number} of {key!r} came before {waiting[-1]}")
    in_flight[key] = number
