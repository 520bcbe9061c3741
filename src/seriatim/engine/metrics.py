"""The counters and gauges of an engine.

Rules
    - Counters only rise, from the start of the engine. For rates, take two snapshots: ``later.since(earlier)``.
    - Gauges (depth, oldest age, blocked keys) are computed on request, and cost nothing otherwise.
    - On the path of a message, counters are updated once per batch where possible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from seriatim.errors import InvalidArgument

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds, in seconds, of the buckets into which commits are sorted; the last bucket has none."""


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """How many messages a subscription has, what they wait for, and how old the oldest is (seconds).

    ``stopped`` says why nothing is given out: the store holds options that can't be used.
    """

    subscription: str
    topic: str
    total: int
    ready: int
    leased: int
    delayed: int
    blocked: int
    dead_letters: int
    keys: int
    blocked_keys: int
    paused_keys: int
    oldest_age: float | None
    consumers: int
    paused: bool
    stopped: str | None = None


@dataclass(slots=True)
class TopicCounts:
    """What was published to a topic."""

    published: int = 0
    bytes: int = 0


@dataclass(slots=True)
class DeliveryCounts:
    """What became of deliveries. ``redelivered`` are those that were not the first attempt; ``superseded`` are messages
    that a newer one of their key left behind."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    dead_lettered: int = 0
    superseded: int = 0


@dataclass(slots=True)
class CommitTimes:
    """How long commits took: how many fell into each bucket of ``BOUNDS``, their sum and the longest, in seconds."""

    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def observe(self, seconds: float) -> None:
        """Count a commit that took this many seconds."""
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.buckets[bisect_left(BOUNDS, seconds)] += 1


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two snapshots, a second. ``commit_seconds`` is how long a commit took on average."""

    seconds: float
    totals: Mapping[str, float]
    topics: Mapping[str, Mapping[str, float]]
    subscriptions: Mapping[str, Mapping[str, float]]
    commits: float
    commit_seconds: float | None
    messages_per_commit: float | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """A snapshot: counters of topics, subscriptions and commits, and how each subscription stands (``stats``)."""

    time: float
    topics: Mapping[str, TopicCounts]
    subscriptions: Mapping[str, DeliveryCounts]
    commits: CommitTimes
    stats: Mapping[str, SubscriptionStats]

    def since(self, earlier: Metrics) -> Rates:
        """Rates over the time between an earlier snapshot and this one."""
        seconds = self.time - earlier.time
        if seconds <= 0:
            raise InvalidArgument("rates need two snapshots of which the other one is earlier")
        topics = _rates(self.topics, earlier.topics, seconds)
        subscriptions = _rates(self.subscriptions, earlier.subscriptions, seconds)
        commits = self.commits.count - earlier.commits.count
        totals = _totals(topics) | _totals(subscriptions)
        messages = (totals.get("published", 0.0) + totals.get("acked", 0.0)) * seconds
        return Rates(
            seconds=seconds,
            totals=totals,
            topics=topics,
            subscriptions=subscriptions,
            commits=commits / seconds,
            commit_seconds=(self.commits.seconds - earlier.commits.seconds) / commits if commits else None,
            messages_per_commit=messages / commits if commits else None,
        )


def _rates(later: Mapping[str, Any], earlier: Mapping[str, Any], seconds: float) -> dict[str, dict[str, float]]:
    """For each name and each counter. A counter that did not exist before began at 0."""
    return {
        name: {counter: (value - getattr(earlier.get(name), counter, 0)) / seconds for counter, value in now.items()}
        for name, now in ((name, asdict(counts)) for name, counts in later.items())
    }


def _totals(rates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for counters in rates.values():
        for counter, rate in counters.items():
            totals[counter] = totals.get(counter, 0.0) + rate
    return totals
