"""``seriatim sparkplug host``: a host application for Sparkplug edge nodes, and what its topic says about them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.common.command import run_with_broker, with_url
from seriatim.cli.common.display import StatusLine
from seriatim.cli.common.output import Output, counted
from seriatim.cli.common.parameters import Duration, choice_option, none_if_forever
from seriatim.cli.sparkplug import ledger_option, mqtt_broker, mqtt_options, topic_option
from seriatim.core.resequencing.options import OnEpoch
from seriatim.core.sparkplug.messages import BeforeBirth, NodeOrdering, OnTimeout, Status

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker
    from seriatim.sparkplug.host import Host, HostOptions
    from seriatim.sparkplug.mqtt_address import MqttAddress

SECONDS_BETWEEN_LOOKS = 0.5


@click.command("host")
@mqtt_options
@click.option("--mqtt5", is_flag=True, help="Speak MQTT 5 with the broker instead of 3.1.1.")
@click.option("--group", "groups", metavar="GROUP", multiple=True, help="Only edge nodes of this group; repeatable.")
@topic_option
@ledger_option
@click.option("--no-ledger", is_flag=True, help="Keep no ledger, only counts.")
@click.option(
    "--retention",
    type=Duration(endless=True),
    default="7d",
    show_default=True,
    help="Retention of the topics that this command creates; or 'forever'.",
)
@click.option("--host-id", default="seriatim", show_default=True, help="The name of this host application.")
@click.option(
    "--reorder-timeout",
    type=Duration(),
    default="2s",
    show_default=True,
    help="How long to wait for a missing message.",
)
@choice_option(
    "--on-timeout",
    OnTimeout.RELEASE,
    "Then release, drop, or hold the messages behind it until a birth.",
)
@choice_option("--before-birth", BeforeBirth.RELEASE, "What to do with data of a node before its birth.")
@choice_option("--on-session-end", OnEpoch.RELEASE, "What to do with waiting messages when their session ends.")
@click.option("--rebirth/--no-rebirth", default=True, show_default=True, help="Request a rebirth after a timeout.")
@click.option("--raw", is_flag=True, help="Store the original payloads, too.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics for Prometheus and /health on this port of loopback.",
)
@with_url
def command(url: str, output: Output, topic: str, **given: Any) -> None:
    """Store the messages of edge nodes in order.

    This is a Sparkplug host application. It puts the messages of each edge node in order, by sequence number and session, and
    stores them in a topic, which it creates if necessary: with the key GROUP/NODE, the metrics as JSON, and attributes for
    kind, device and number. What it does not release goes to the ledger, with the reason. Ctrl-C stops it cleanly.

    Pass the password in SERIATIM_MQTT_PASSWORD, so that it does not show up in the list of processes.
    """
    from seriatim.sparkplug.host import HostOptions

    address, trust = mqtt_broker(given)
    ordering = NodeOrdering(
        reorder_timeout=given["reorder_timeout"],
        send_rebirth_when_timeout=given["rebirth"],
        on_timeout=OnTimeout(given["on_timeout"]),
        before_birth=BeforeBirth(given["before_birth"]),
        on_session_end=OnEpoch(given["on_session_end"]),
    )
    options = HostOptions(
        host_id=given["host_id"],
        ordering=ordering,
        raw=given["raw"],
        ledger=given["ledger"],
        keep_ledger=not given["no_ledger"],
        retention=none_if_forever(given["retention"]),
        trust=trust,
        groups=given["groups"],
        mqtt5=given["mqtt5"],
    )
    options.check(topic, address)  # before a store is made
    port = given["metrics_port"]
    run_with_broker(url, lambda broker: _run(broker, output, topic, address, options, port))


async def _run(
    broker: Broker, output: Output, topic: str, address: MqttAddress, options: HostOptions, metrics_port: int | None
) -> None:
    from seriatim.sparkplug.host import Host

    line = StatusLine(enabled=output.progress)
    host = Host(broker, topic, address, options, notify=line.notice)
    showing = asyncio.create_task(_show(host, line))
    try:
        async with AsyncExitStack() as stack:
            if metrics_port is not None:
                line.notice(await _serve_metrics(host, metrics_port, stack))
            await host.run()
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        output.result({"nodes": len(host.nodes), **host.counts.as_fields()}, summary(host))


async def _serve_metrics(host: Host, port: int, stack: AsyncExitStack) -> str:
    """Only on the loopback: a host has no tokens to know others by."""
    from seriatim.sparkplug.prometheus import families
    from seriatim.telemetry.metrics_server import MetricsServer

    async def collect() -> Iterable[Any]:
        return families(host)

    server = MetricsServer(collect, is_healthy=host.online.is_set)
    stack.push_async_callback(server.stop)
    return f"metrics at http://127.0.0.1:{await server.start('127.0.0.1', port)}/metrics"


async def _show(host: Host, line: StatusLine) -> None:
    with line:
        while True:
            line.show(status(host))
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


def status(host: Host) -> str:
    """One line with its current state."""
    online = sum(node.status is Status.ONLINE for node in host.nodes)
    held = sum(node.held_count for node in host.nodes)
    connection = "connected" if host.online.is_set() else "not connected"
    return (
        f"{connection} · {online}/{len(host.nodes)} nodes online · {host.counts.stored} stored · {held} held · "
        f"{counted(host.counts.rebirths, 'rebirth request')} · {_not_stored(host)}"
    )


def summary(host: Host) -> str:
    """What it has done, at its end."""
    return f"{counted(host.counts.stored, 'message')} of {counted(len(host.nodes), 'edge node')} stored; {_not_stored(host)}"


def _not_stored(host: Host) -> str:
    counts = host.counts
    found = {**counts.ledger, **{f"malformed {what}": count for what, count in counts.malformed.items()}}
    found["unread"] = counts.unread
    return ", ".join(f"{count} {what}" for what, count in sorted(found.items()) if count) or "nothing dropped"
