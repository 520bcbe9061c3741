"""The engine's figures for Prometheus, at an HTTP port of their own.

Everything is counted by the engine anyhow and asked for when somebody looks: a server that nobody watches pays nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from itertools import accumulate
from operator import attrgetter
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from seriatim.engine.broker import Broker
from seriatim.engine.metrics import BOUNDS, CommitTimes, DeliveryCounts, Metrics, SubscriptionStats
from seriatim.errors import FailedPrecondition

PATIENCE = 5.0
"""So many seconds the engine has to answer."""

_STATES = ("ready", "leased", "delayed", "blocked", "dead_letters")
_GAUGES = {
    "keys": "Keys with messages.",
    "blocked_keys": "Keys that wait for a retry.",
    "paused_keys": "Keys that wait for an operator.",
    "consumers": "Streams and pulls at work.",
}


class EngineFigures(Collector):
    """Asks the engine, from the thread in which Prometheus is answered."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()

    def describe(self) -> list[Any]:
        """Nothing: without this method a registry collects at once, in the thread that should answer."""
        return []

    def collect(self) -> Iterator[Any]:
        asked = asyncio.run_coroutine_threadsafe(self._broker.metrics(), self._loop)
        return families(asked.result(PATIENCE))


def families(metrics: Metrics) -> Iterator[Any]:
    """A snapshot in the terms of Prometheus."""
    yield from _published(metrics)
    yield from _delivered(metrics)
    yield from _standing(metrics)
    yield _commits(metrics.commits)
    yield CounterMetricFamily("seriatim_commits_failed", "Commits that failed.", value=metrics.commits.failed)


def _published(metrics: Metrics) -> Iterator[Any]:
    messages = CounterMetricFamily("seriatim_published_messages", "Messages published.", labels=["topic"])
    size = CounterMetricFamily("seriatim_published_bytes", "Bytes of data published.", labels=["topic"])
    for topic, counts in metrics.topics.items():
        messages.add_metric([topic], counts.published)
        size.add_metric([topic], counts.bytes)
    yield messages
    yield size


def _delivered(metrics: Metrics) -> Iterator[Any]:
    for field in fields(DeliveryCounts):
        what = field.name.replace("_", "-")
        family = CounterMetricFamily(f"seriatim_{field.name}_messages", f"Messages {what}.", labels=["subscription"])
        for subscription, counts in metrics.subscriptions.items():
            family.add_metric([subscription], asdict(counts)[field.name])
        yield family


def _standing(metrics: Metrics) -> Iterator[Any]:
    backlog = GaugeMetricFamily("seriatim_messages", "Messages by state.", labels=["subscription", "state"])
    for name, stats in metrics.stats.items():
        for state in _STATES:
            backlog.add_metric([name, state], getattr(stats, state))
    yield backlog
    for field, text in _GAUGES.items():
        yield _gauge(metrics, f"seriatim_{field}", text, attrgetter(field))
    yield _gauge(
        metrics, "seriatim_oldest_message_seconds", "Age of the oldest.", lambda stats: stats.oldest_age or 0.0
    )


def _gauge(metrics: Metrics, name: str, text: str, value: Callable[[SubscriptionStats], float]) -> Any:
    family = GaugeMetricFamily(name, text, labels=["subscription"])
    for subscription, stats in metrics.stats.items():
        family.add_metric([subscription], value(stats))
    return family


def _commits(times: CommitTimes) -> Any:
    bounds = [*map(str, BOUNDS), "+Inf"]
    buckets = list(zip(bounds, accumulate(times.buckets), strict=True))
    family = HistogramMetricFamily("seriatim_commit_seconds", "How long commits took.")
    family.add_metric([], buckets, times.seconds)
    return family


def serve_metrics(broker: Broker, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Answer Prometheus from now on; returns the port, and how to stop."""
    registry = CollectorRegistry()
    registry.register(EngineFigures(broker))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise FailedPrecondition(f"can't answer Prometheus at {host}:{port}: {error}; choose another port") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_port), stop
