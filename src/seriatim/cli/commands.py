"""The table of commands: what ``seriatim --help`` lists, and where each command is found when it is used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import click

from seriatim.extras import EXTRAS, require_extra


@dataclass(frozen=True, slots=True)
class Row:
    """One command. Its module holds it under the name ``command``."""

    module: str
    summary: str
    extra: str | None = None
    probes: tuple[str, ...] = ()
    """Modules that the extra brings; the command is refused, and the extra named, while one of them is missing."""


COMMANDS = {
    "audit": Row("seriatim.cli.audit", "Judge in what order a captured trace arrived, per key."),
    "backup": Row("seriatim.cli.backup", "Copy a store to a file while it is in use."),
    "check": Row("seriatim.cli.check", "Look at everything in a store and say what is wrong."),
    "config": Row("seriatim.cli.config", "Show each setting and where its value came from."),
    "dead-letters": Row("seriatim.cli.dead_letters", "Look at dead letters, put them back, or give them up."),
    "demo": Row("seriatim.cli.demo", "See messages of a faulty network put back in order."),
    "doctor": Row("seriatim.cli.doctor", "Find out what is not well here, and what to do about it."),
    "explain": Row("seriatim.cli.explain", "Say what a pipeline can keep.", "spark", ("numpy", "pyarrow")),
    "keys": Row("seriatim.cli.keys", "See what the keys of a subscription wait for, and free them."),
    "publish": Row("seriatim.cli.publish", "Publish a message, or one for each line of the input."),
    "pull": Row("seriatim.cli.pull", "Print messages of a subscription, and ack them if told to."),
    "readers": Row("seriatim.cli.readers", "See which Spark queries clean-up waits for."),
    "repair": Row("seriatim.cli.repair", "Put a whole table in order, with a ledger.", "spark", EXTRAS["spark"]),
    "restore": Row("seriatim.cli.restore", "Make a store from a backup."),
    "run": Row("seriatim.cli.run", "Run a pipeline on Spark.", "spark", EXTRAS["spark"]),
    "serve": Row("seriatim.cli.serve", "Serve the Google Pub/Sub API.", "server", EXTRAS["server"]),
    "snapshots": Row("seriatim.cli.snapshots", "Remember where a subscription stands, to go back there later."),
    "sparkplug": Row("seriatim.cli.sparkplug", "Put MQTT edge nodes in order, into a topic.", "mqtt", EXTRAS["mqtt"]),
    "state": Row("seriatim.cli.state", "Look at what a stream on Spark remembers.", "spark", EXTRAS["spark"]),
    "stats": Row("seriatim.cli.stats", "Show how many messages each subscription has."),
    "subscriptions": Row("seriatim.cli.subscriptions", "Create, list, delete, pause and rewind subscriptions."),
    "topics": Row("seriatim.cli.topics", "Create, list and delete topics."),
}


def load_command(name: str) -> click.Command | None:
    """The command of this name, imported now; None when there is none."""
    row = COMMANDS.get(name)
    if row is None:
        return None
    if row.extra is not None:
        require_extra(row.extra, *row.probes, what=f"the command '{name}'")
    command: click.Command = import_module(row.module).command
    return command
