"""``seriatim sparkplug nodes`` and ``rebirth``: what a topic tells about edge nodes, and a request to one of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.common.command import with_output, with_reader
from seriatim.cli.common.output import Columns, Output
from seriatim.cli.common.parameters import Duration
from seriatim.cli.common.signals import run_until_signal
from seriatim.cli.sparkplug import ledger_option, mqtt_broker, mqtt_options, topic_option
from seriatim.errors import FailedPrecondition, NotFound

if TYPE_CHECKING:
    from seriatim.cli.common.brokers import ApiReader
    from seriatim.store.base import StoreReader


@click.command("nodes")
@topic_option
@ledger_option
@with_reader
def nodes(reader: StoreReader | ApiReader, output: Output, topic: str, ledger: str | None) -> None:
    """List edge nodes.

    Lists the nodes that a host application has stored messages of, while it runs and afterwards, even when the messages
    themselves have been deleted. A node is online if no death was stored since its last birth; one that died while no host
    was running still shows as online. Counts and devices are those of the messages that are still kept.
    """
    from seriatim.sparkplug.stored_nodes import census_of
    from seriatim.sparkplug.topics import default_ledger

    ids = {row.name: row.id for row in reader.catalog().topics}
    for name in filter(None, (topic, ledger)):
        if name not in ids:
            raise NotFound(f"there is no topic '{name}': see 'seriatim topics list'")
    rows = [asdict(node) for node in census_of(reader, ids, topic, ledger or default_ledger(topic))]
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
    output.listing(rows, columns, empty="no edge nodes yet")


@click.command("rebirth")
@click.argument("node", metavar="GROUP/NODE")
@mqtt_options
@click.option(
    "--timeout",
    type=Duration(),
    default="10s",
    show_default=True,
    help="How long to wait for the birth; 0 does not wait.",
)
@with_output
def rebirth(output: Output, node: str, timeout: float, **given: Any) -> None:
    """Request a rebirth from an edge node.

    Sends the node control command and waits until the node is born again. Exits with 1 if that does not happen in time.
    """
    from seriatim.sparkplug.rebirth_request import ask_for_rebirth
    from seriatim.sparkplug.topics import parse_node

    address, trust = mqtt_broker(given)
    asking = ask_for_rebirth(address, parse_node(node), trust=trust, wait=timeout)
    born = run_until_signal(lambda _: asking)
    said = f"{node} was reborn" if born else f"requested a rebirth of {node}"
    output.result({"node": node, "born": born}, said)
    if timeout and not born:
        raise FailedPrecondition(f"no birth of {node} came within {timeout:g} s: is it connected, and to this broker?")
