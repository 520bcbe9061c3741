"""``seriatim trace``: audit captured messages, and put them in order. What both commands take is here."""

from __future__ import annotations

from collections.abc import Callable

import click


def columns_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--seq", required=True, metavar="COLUMN", help="The column with the sequence number.")(
        command
    )
    return click.option("--key", required=True, metavar="COLUMN", help="The column with the ordering key.")(command)
