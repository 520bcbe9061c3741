"""A host's figures for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from seriatim.core.sparkplug.messages import Status
from seriatim.extras import require_extra

require_extra("server", "prometheus_client", what="figures for Prometheus")

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: E402

if TYPE_CHECKING:
    from seriatim.sparkplug.host import Host

_COUNTERS = {
    "received": "Messages received from the MQTT broker.",
    "unread": "Messages dropped before they were read.",
    "commands": "Commands and STATE messages, which are not ordered.",
    "stored": "Messages stored in order.",
    "entries": "Entries stored in the ledger.",
    "deaths_ignored": "NDEATHs of earlier sessions.",
    "unstorable": "Messages too long to be stored.",
    "unknown_aliases": "Metrics with an alias that no birth explained.",
    "rebirths": "Requests for a rebirth.",
    "connections": "Connections to the MQTT broker.",
}


def families(host: Host) -> Iterator[Any]:
    """The figures as they are now."""
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(f"seriatim_sparkplug_{name}", text, value=getattr(host.counts, name))
    yield _by_reason("not_released", "Messages that were not released, by reason.", host.counts.ledger)
    yield _by_reason("malformed", "Messages that could not be read, by what is wrong.", host.counts.malformed)
    nodes = GaugeMetricFamily("seriatim_sparkplug_nodes", "Edge nodes by status.", labels=["status"])
    found = Counter(str(node.status) for node in host.nodes)
    for status in Status:
        nodes.add_metric([str(status)], found[str(status)])
    yield nodes
    held = sum(node.held_count for node in host.nodes)
    yield GaugeMetricFamily("seriatim_sparkplug_held", "Messages held behind a gap.", value=held)
    connected = float(host.online.is_set())
    yield GaugeMetricFamily(
        "seriatim_sparkplug_connected", "1 while there is a connection to the broker.", value=connected
    )


def _by_reason(name: str, text: str, counts: Counter[str]) -> Any:
    family = CounterMetricFamily(f"seriatim_sparkplug_{name}", text, labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([str(reason)], count)
    return family
