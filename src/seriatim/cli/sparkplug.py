"""``seriatim sparkplug``: a host application for Sparkplug edge nodes, and what its topic says about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.output import Columns, Fields, Output
from seriatim.cli.parameters import Duration, or_never_ending
from seriatim.cli.session import configured
from seriatim.cli.signals import run_until_signal
from seriatim.cli.sparkplug_display import HostDisplay
from seriatim.cli.store import json_option, require_store, run_with_broker, store_option
from seriatim.config import LoadedConfig
from seriatim.core.edge_messages import BeforeBirth, NodeOrdering, OnTimeout
from seriatim.core.resequencing import OnEpoch
from seriatim.errors import FailedPrecondition, NotFound

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker
    from seriatim.sparkplug.connection import MqttAddress, MqttTrust
    from seriatim.sparkplug.host import Host, HostOptions

SECONDS_BETWEEN_LOOKS = 0.5

file_path = click.Path(exists=True, dir_okay=False, path_type=Path)
ledger_option = click.option(
    "--ledger", metavar="TOPIC", help="The topic for what was not released.  [default: TOPIC-ledger]"
)
topic_option = click.option("--topic", default="telemetry", show_default=True, help="The topic with the messages.")


def mqtt_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where the MQTT broker is, and how each side knows the other."""
    for option in (
        click.option("--mqtt-key", type=file_path, help="The key of that certificate, if it is not in the same file."),
        click.option("--mqtt-cert", type=file_path, help="The certificate that we show to the broker (PEM)."),
        click.option("--mqtt-ca", type=file_path, help="Trust brokers whose certificates these CAs signed (PEM)."),
        click.option(
            "--mqtt", metavar="URL", help="The MQTT broker: mqtt://[user[:password]@]host[:port], mqtts:// for TLS."
        ),
    ):
        command = option(command)
    return command


def _broker_of(loaded: LoadedConfig, given: Mapping[str, Any]) -> tuple[MqttAddress, MqttTrust]:
    from seriatim.sparkplug.connection import MqttAddress, MqttTrust

    if not given["mqtt"]:
        raise click.UsageError("Say where the MQTT broker is: --mqtt mqtt://localhost:1883")
    address = MqttAddress.parse(given["mqtt"], loaded.values.mqtt_password or None)
    return address, MqttTrust(given["mqtt_ca"], given["mqtt_cert"], given["mqtt_key"])


@click.group("sparkplug", invoke_without_command=True)
@mqtt_options
@click.option("--mqtt5", is_flag=True, help="Speak MQTT 5 with the broker instead of 3.1.1.")
@click.option(
    "--group", "groups", metavar="GROUP", multiple=True, help="Only edge nodes of this group; may be repeated."
)
@topic_option
@ledger_option
@click.option("--no-ledger", is_flag=True, help="Keep no ledger: what was not released is only counted.")
@click.option(
    "--retention",
    type=Duration(endless=True),
    default="7d",
    show_default=True,
    help="How long to keep messages and ledger entries in topics that this command creates; or 'forever'.",
)
@click.option("--host-id", default="seriatim", show_default=True, help="The name of this host application.")
@click.option(
    "--reorder-timeout", type=Duration(), default="2s", show_default=True, help="How long a missing message is awaited."
)
@click.option(
    "--on-timeout",
    type=click.Choice([str(choice) for choice in OnTimeout]),
    default=str(OnTimeout.RELEASE),
    show_default=True,
    help="What then becomes of those behind it: release or drop them, or hold them until the next birth.",
)
@click.option(
    "--before-birth",
    type=click.Choice([str(choice) for choice in BeforeBirth]),
    default=str(BeforeBirth.RELEASE),
    show_default=True,
    help="What becomes of data of a node that was never born.",
)
@click.option(
    "--on-session-end",
    type=click.Choice([str(choice) for choice in OnEpoch]),
    default=str(OnEpoch.RELEASE),
    show_default=True,
    help="What becomes of messages that wait when their session ends.",
)
@click.option("--rebirth/--no-rebirth", default=True, show_default=True, help="Ask for a rebirth after a timeout.")
@click.option("--raw", is_flag=True, help="Store the payloads as they came, too.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Answer Prometheus at /metrics, and /health, at this port of the loopback.",
)
@store_option
@json_option
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Be a Sparkplug host application: put what edge nodes say in order, and store it in a topic.

    The topic is made if it is not there. Each message has the key GROUP/NODE, its metrics as JSON, and attributes that say what
    it is. What was not released goes to the ledger, with the reason. Ctrl-C stops cleanly.

    Give the password as SERIATIM_MQTT_PASSWORD, so that it is in no list of processes.
    """
    if context.invoked_subcommand is None:
        context.invoke(_work, **given)


@configured
def _work(loaded: LoadedConfig, /, topic: str, store: str | None, as_json: bool, **given: Any) -> None:
    from seriatim.sparkplug.host import HostOptions

    address, trust = _broker_of(loaded, given)
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
        retention=or_never_ending(given["retention"]),
        trust=trust,
        groups=given["groups"],
        mqtt5=given["mqtt5"],
    )
    options.check(topic, address)  # before a store is made
    output = Output(as_json, progress=loaded.values.progress)
    url = store or loaded.values.store
    port = given["metrics_port"]
    run_with_broker(url, lambda broker: _run(broker, output, topic, address, options, port))


async def _run(
    broker: Broker, output: Output, topic: str, address: MqttAddress, options: HostOptions, metrics_port: int | None
) -> None:
    from seriatim.sparkplug.host import Host

    display = HostDisplay.for_terminal(enabled=output.progress)
    host = Host(broker, topic, address, options, notify=display.notice)
    showing = asyncio.create_task(_show(host, display))
    try:
        async with AsyncExitStack() as stack:
            if metrics_port is not None:
                display.notice(await _serve_metrics(host, metrics_port, stack))
            await host.run()
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        output.result(_summary(host), display.summary(host))


async def _serve_metrics(host: Host, port: int, stack: AsyncExitStack) -> str:
    """Only on the loopback: a host has no tokens to know others by."""
    from seriatim.metrics_server import MetricsServer
    from seriatim.sparkplug.metrics import families

    async def collect() -> Iterable[Any]:
        return families(host)

    server = MetricsServer(collect, is_healthy=host.online.is_set)
    stack.push_async_callback(server.stop)
    return f"metrics at http://127.0.0.1:{await server.start('127.0.0.1', port)}/metrics"


async def _show(host: Host, display: HostDisplay) -> None:
    with display:
        while True:
            display.show(host)
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


def _summary(host: Host) -> Fields:
    return {"nodes": len(host.nodes), **host.counts.as_fields()}


@command.command("rebirth")
@click.argument("node", metavar="GROUP/NODE")
@mqtt_options
@click.option(
    "--timeout",
    type=Duration(),
    default="10s",
    show_default=True,
    help="How long to wait for the birth; 0 does not wait.",
)
@json_option
@configured
def rebirth(loaded: LoadedConfig, /, node: str, timeout: float, as_json: bool, **given: Any) -> None:
    """Ask an edge node to send its birth certificates again, and wait until it does.

    Exit status 1 means that no birth came in time.
    """
    from seriatim.sparkplug.rebirths import ask_for_rebirth
    from seriatim.sparkplug.topics import parse_node

    address, trust = _broker_of(loaded, given)
    asking = ask_for_rebirth(address, parse_node(node), trust=trust, wait=timeout)
    born = run_until_signal(lambda _: asking)
    said = f"{node} was born again" if born else f"{node} was asked for a rebirth"
    Output(as_json).result({"node": node, "born": born}, said)
    if timeout and not born:
        raise FailedPrecondition(f"no birth of {node} came within {timeout:g} s: is it connected, and to this broker?")


@command.command("nodes")
@topic_option
@ledger_option
@store_option
@json_option
@configured
def nodes(loaded: LoadedConfig, /, topic: str, ledger: str | None, store: str | None, as_json: bool) -> None:
    """List the edge nodes that a host application has stored messages of.

    Works beside a host that is at work, and after it, also when the messages themselves are deleted. A node is online when no
    death has been stored since its last birth: the store can't tell whether anybody still hears it. The numbers of messages,
    of flagged ones and of ledger entries, and the devices, are those of the messages that are still kept.
    """
    from seriatim.sparkplug.census import census_of
    from seriatim.sparkplug.topics import default_ledger
    from seriatim.store import open_store

    url = store or loaded.values.store
    require_store(url)
    reader = open_store(url, read_only=True)
    try:
        ids = {row.name: row.id for row in reader.catalog().topics}
        for name in filter(None, (topic, ledger)):
            if name not in ids:
                raise NotFound(f"there is no topic '{name}': see 'seriatim topics list'")
        rows = [asdict(node) for node in census_of(reader, ids, topic, ledger or default_ledger(topic))]
    finally:
        reader.close()
    columns: Columns = {
        "node": "node",
        "status": "status",
        "session": "bd_seq",
        "births": "births",
        "last seq": "seq",
        "messages": "messages",
        "flagged": "flagged",
        "in ledger": "entries",
        "devices online": lambda row: f"{sum(row['devices'].values())}/{len(row['devices'])}",
    }
    Output(as_json).listing(rows, columns, empty="no edge node has spoken yet")
