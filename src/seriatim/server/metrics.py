"""The engine's figures for Prometheus, at an HTTP port of their own.

Rules
    - Everything is counted by the engine anyhow and asked for when somebody looks: a server that nobody watches pays nothing.
    - With ``access``, whoever asks needs a token with the right ``metrics`` or ``admin``: figures name topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from seriatim.engine.broker import Broker
from seriatim.engine.metrics import BOUNDS, CommitTimes, DeliveryCounts, Metrics, SubscriptionStats
from seriatim.errors import Unauthenticated
from seriatim.metrics_server import MetricsServer
from seriatim.server.access import Access

_STATES = ("ready", "leased", "delayed", "blocked", "dead_letters")
_GAUGES = {
    "keys": "Keys with messages.",
    "blocked_keys": "Keys that wait for a retry.",
    "paused_keys": "Keys that wait for an operator.",
    "consumers": "Streams and pulls at work.",
}


def serve_metrics(broker: Broker, access: Access | None = None) -> MetricsServer:
    """A server of an engine's figures, to be started."""

    async def collect() -> Iterator[Any]:
        return families(await broker.metrics())

    return MetricsServer(collect, check=None if access is None else partial(_refusal, access))


def _refusal(access: Access, authorization: str) -> web.Response | None:
    try:
        rights = access.who([("authorization", authorization)])
    except Unauthenticated as error:
        return web.Response(status=401, text=f"{error}\n", headers={"WWW-Authenticate": "Bearer"})
    if not (rights.admin or rights.metrics):
        return web.Response(status=403, text="the token has neither the right metrics nor admin\n")
    return None


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
