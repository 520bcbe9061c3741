"""The table of commands: what ``seriatim --help`` lists, and where each command is found when it is used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import click

from seriatim.extras import require_extra


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
    "config": Row("seriatim.cli.config", "Show each setting and where its value came from."),
    "demo": Row("seriatim.cli.demo", "See messages of a faulty network put back in order."),
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
