"""The table of commands: what ``seriatim --help`` lists, and where each command is found when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from seriatim.extras import EXTRAS, is_installed


@dataclass(frozen=True, slots=True)
class Row:
    """A command, which its module below ``seriatim.cli`` calls ``command`` or as is said behind a colon; or a group, with the
    rows of its commands."""

    summary: str
    module: str = ""
    extra: str | None = None
    modules: tuple[str, ...] = ()
    """The modules of the extra that the command needs, if not all of them."""
    commands: Mapping[str, Row] = field(default_factory=dict)

    @property
    def required_modules(self) -> tuple[str, ...]:
        return self.modules or (EXTRAS[self.extra] if self.extra else ())

    @property
    def missing_extra(self) -> bool:
        return not all(map(is_installed, self.required_modules))


def group(summary: str, **commands: Row) -> Row:
    return Row(summary, commands=commands)


SECTIONS = {
    "Topics and messages": {
        "topics": Row("Create, list, change and delete topics.", "topics"),
        "subscriptions": Row("Create, inspect, change, move and delete subscriptions.", "subscriptions"),
        "messages": group(
            "Publish, pull and read messages.",
            publish=Row("Publish a message, or one per line of the input.", "messages.publish"),
            pull=Row("Pull messages from a subscription.", "messages.pull"),
            read=Row("Read a topic without a subscription.", "messages.read"),
        ),
    },
    "Operations": {
        "keys": Row("See why keys are blocked, and unblock them.", "keys"),
        "dead-letters": Row("List, show, redrive and purge dead letters.", "dead_letters"),
        "snapshots": Row("Create, list and delete snapshots of subscriptions.", "snapshots"),
        "readers": Row("List and delete registered readers of topics.", "readers"),
        "store": group(
            "Check, back up, restore and diagnose a store.",
            stats=Row("Show the backlog of each subscription.", "store.stats"),
            check=Row("Verify everything in a store.", "store.check:check"),
            backup=Row("Back up a store while it is in use.", "store.check:backup"),
            restore=Row("Restore a store from a backup.", "store.restore"),
            doctor=Row("Diagnose the installation and the store.", "store.doctor"),
        ),
    },
    "Servers": {
        "serve": Row("Serve the Google Pub/Sub API.", "serve", "server"),
        "console": Row("Open the web console of a store.", "console", "console"),
        "sparkplug": group(
            "Run a Sparkplug host application, and inspect its edge nodes.",
            host=Row("Store the messages of edge nodes in order.", "sparkplug.host", "mqtt"),
            nodes=Row("List edge nodes.", "sparkplug.nodes:nodes", "mqtt"),
            rebirth=Row("Request a rebirth from an edge node.", "sparkplug.nodes:rebirth", "mqtt"),
        ),
    },
    "Streams and tables": {
        "pipeline": group(
            "Run and explain pipelines, and inspect their state.",
            run=Row("Run a pipeline on Spark.", "pipeline.run", "spark"),
            explain=Row(
                "Show which guarantees a pipeline provides.", "pipeline.explain", "spark", ("numpy", "pyarrow")
            ),
            state=Row("Inspect and repartition the state of a stream.", "pipeline.state", "spark"),
        ),
        "trace": group(
            "Audit captured messages, and put them back in order.",
            audit=Row("Check in which order captured messages arrived, per key.", "trace.audit"),
            resequence=Row("Put a table of messages in order, per key.", "trace.resequence", "spark"),
        ),
    },
    "This program": {
        "demo": Row("Watch a shuffled stream being put back in order.", "demo.command"),
        "config": Row("Show the configuration, and where each value comes from.", "config_and_completion:config"),
        "completion": Row("Print a script for shell completion.", "config_and_completion:completion"),
        "help": Row("Show the help of a command.", "config_and_completion:help_"),
    },
}

OTHER_NAMES = {
    "repair": "trace resequence",
    "version": "--version",
    "ack": "messages pull --ack",
    "consume": "messages pull",
    "subscribe": "subscriptions create",
    "keys show": "keys why",
    "keys explain": "keys why",
    "readers show": "readers list",
    "snapshots show": "snapshots list",
}
"""What people may type for a command that has another name. One that is only in another group is found by its name."""

OTHER_WORDS = {
    "describe": "show",
    "get": "show",
    "info": "show",
    "rm": "delete",
    "remove": "delete",
    "add": "create",
    "new": "create",
    "edit": "update",
    "set": "update",
}
"""The same in every group that has a command of the second name."""

OTHER_OPTIONS = {
    "--max": "--limit",
    "--max-messages": "--limit",
    "--count": "--limit",
    "--timeout": "--wait",
    "--to-end": "--time now",
    "--end": "--time now",
    "--topic": "TOPIC",
    "--subscription": "SUBSCRIPTION",
    "--file": "FILE",
    "--data": "DATA",
    "--ordering-key": "--key",
    "--force": "--yes",
    "--port": "--listen",
    "--host": "--listen",
}
"""The same for options: what to use instead, if the command has it."""
