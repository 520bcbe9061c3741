"""An engine's metrics for Prometheus, for embedded engines and servers.

Rules
    - Metrics are collected on request: a program that nobody monitors pays nothing.
    - There are many keys, so only some become labels: the keys with the oldest heads of the ``TOP_SUBSCRIPTIONS`` subscriptions
      with the most blocked keys, and the deepest keys of those with the most messages. ``top_keys=0`` hides keys.

::

    prometheus_client.REGISTRY.register(PrometheusCollector(pubsub))     # a program with its own exporter
    return Response(await prometheus_text(pubsub))                       # an async web application
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from itertools import accumulate
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

from seriatim.core.validation import require_whole
from seriatim.engine.broker import KeyInfo, KeyOrder
from seriatim.engine.metrics import BOUNDS, CommitTimes, DeliveryCounts, Metrics, SubscriptionStats
from seriatim.errors import FailedPrecondition, NotFound
from seriatim.extras import require_extra
from seriatim.log import logger

require_extra("metrics", "prometheus_client", what="a collector of Prometheus metrics")

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily  # noqa: E402
from prometheus_client.exposition import generate_latest  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

__all__ = ["PrometheusCollector", "prometheus_text"]

TOP_KEYS = 5
"""The default number of keys of a subscription that become labels."""

TOP_SUBSCRIPTIONS = 10
"""How many subscriptions have keys as labels."""

COLLECT_TIMEOUT_S = 10.0

_STATES = ("ready", "leased", "delayed", "blocked", "dead_letters")
_GAUGES = {
    "keys": "Keys with messages.",
    "blocked_keys": "Keys that wait for a retry.",
    "paused_keys": "Keys that wait for an operator.",
    "consumers": "Streams and pulls at work.",
}


class Watched(Protocol):
    """The part of a PubSub that metrics need."""

    async def metrics(self) -> Metrics: ...
    def subscription(self, name: str) -> Any: ...


@runtime_checkable
class Blocking(Protocol):
    """The same part of a blocking PubSub."""

    def _in_event_loop(self) -> tuple[Any, asyncio.AbstractEventLoop]: ...


ListKeys = Callable[[str, KeyOrder, int], Awaitable[list[KeyInfo]]]
"""Lists the first keys of a subscription in this order; with ``"oldest"`` only blocked ones."""


class PrometheusCollector(Collector):
    """A Prometheus collector for the metrics of a PubSub. Create it in the event loop of the PubSub; for a
    ``PubSub.blocking``, create it in any thread.

    The registry may be read in any thread except that of the event loop: there, use :func:`prometheus_text`.
    """

    def __init__(self, pubsub: Watched | Blocking, *, top_keys: int = TOP_KEYS) -> None:
        require_whole("top_keys", top_keys, 0)
        self._top_keys = top_keys
        self._pubsub: Watched
        self._pubsub, self._loop = (
            pubsub._in_event_loop() if isinstance(pubsub, Blocking) else (pubsub, asyncio.get_running_loop())  # noqa: SLF001
        )

    def describe(self) -> list[Any]:
        """Nothing: names are known only when they are collected."""
        return []

    def collect(self) -> Iterator[Any]:
        """The current metrics. Called by the registry."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            raise FailedPrecondition(
                "this call would deadlock inside the event loop: use 'await prometheus_text(pubsub)'"
            )
        if self._loop.is_closed():
            return
        answer = asyncio.run_coroutine_threadsafe(_families_of(self._pubsub, self._top_keys), self._loop)
        try:
            yield from answer.result(COLLECT_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - other collectors of the registry are read, too
            answer.cancel()
            logger.warning("metrics could not be collected: %r", error)


async def prometheus_text(pubsub: Watched, *, top_keys: int = TOP_KEYS) -> str:
    """The metrics of a PubSub, in the text format of Prometheus."""
    require_whole("top_keys", top_keys, 0)
    found = await _families_of(pubsub, top_keys)
    return (await asyncio.to_thread(generate_latest, Snapshot(found))).decode()


class Snapshot(Collector):
    """Metrics at one moment; to an encoder it looks like a registry."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return iter(self._families)


async def _families_of(pubsub: Watched, top_keys: int) -> list[Any]:
    async def list_keys(subscription: str, order: KeyOrder, limit: int) -> list[KeyInfo]:
        of = pubsub.subscription(subscription)
        keys: list[KeyInfo] = await of.keys(limit=limit, blocked_only=order == "oldest", order=order)
        return keys

    return await collect(await pubsub.metrics(), list_keys, top_keys)


async def collect(metrics: Metrics, list_keys: ListKeys, top_keys: int) -> list[Any]:
    """A snapshot as metric families of Prometheus."""
    found = list(families(metrics))
    if top_keys:
        blocked = await _top(metrics.stats, "blocked_keys", list_keys, "oldest", top_keys)
        deep = await _top(metrics.stats, "total", list_keys, "deepest", top_keys)
        found += [_key_ages(blocked), _key_depths(deep)]
    return found


async def _top(
    stats: Mapping[str, SubscriptionStats], most: str, list_keys: ListKeys, order: KeyOrder, limit: int
) -> dict[str, list[KeyInfo]]:
    """The first keys, in this order, of the subscriptions with the highest values of a statistic."""
    named = sorted((name for name in stats if getattr(stats[name], most)), key=lambda name: -getattr(stats[name], most))
    found = {}
    for name in named[:TOP_SUBSCRIPTIONS]:
        with suppress(NotFound):  # it may have been deleted meanwhile
            found[name] = await list_keys(name, order, limit)
    return found


def _key_ages(keys: Mapping[str, list[KeyInfo]]) -> Any:
    text = "Age of the head of blocked keys, of the oldest ones."
    family = GaugeMetricFamily("seriatim_blocked_key_seconds", text, labels=["subscription", "key"])
    for subscription, infos in keys.items():
        for info in infos:
            family.add_metric([subscription, info.key or ""], info.head_age or 0.0)
    return family


def _key_depths(keys: Mapping[str, list[KeyInfo]]) -> Any:
    text = "Messages of the keys that have the most."
    family = GaugeMetricFamily("seriatim_key_messages", text, labels=["subscription", "key"])
    for subscription, infos in keys.items():
        for info in infos:
            family.add_metric([subscription, info.key or ""], info.depth)
    return family


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
