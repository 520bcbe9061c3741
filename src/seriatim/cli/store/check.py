"""``seriatim store check`` and ``store backup``: is everything as it was written, and a consistent copy while it is in use."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seriatim.cli.common.command import with_broker, with_reader
from seriatim.cli.common.output import Output, counted, print_rows, size

if TYPE_CHECKING:
    from seriatim.cli.common.brokers import ApiReader
    from seriatim.engine.broker import Broker
    from seriatim.store.base import StoreReader


@click.command("check")
@with_reader
def check(reader: StoreReader | ApiReader, output: Output) -> None:
    """Verify everything in a store.

    Checks the database, every message, every cursor and all options. Nothing is changed, and a program that owns the store is
    not disturbed. At an http:// or pubsub:// address, the owner of the store checks it. Exits with 1 if there are problems.
    """
    from seriatim.cli.common.brokers import check_any

    found = check_any(reader)
    problems = [asdict(problem) for problem in found.problems]
    if problems:
        if not output.as_json:
            print_rows(problems, {"where": "where", "problem": "what"})
        advice = ": restore a backup" if found.is_damaged else ""
        output.result({"sound": False, "problems": problems}, f"{counted(len(problems), 'problem')} found{advice}")
        raise click.exceptions.Exit(1)
    contents = {"topics": found.topics, "subscriptions": found.subscriptions, "messages": found.messages}
    counts = ", ".join(counted(count, what.removesuffix("s")) for what, count in contents.items())
    output.result({"sound": True, **contents, "problems": []}, f"no problems found: {counts}")


@click.command("backup")
# Resolved, because the copy is made by whoever owns the store, perhaps in another folder.
@click.argument("file", type=click.Path(path_type=Path, resolve_path=True))
@with_broker
async def backup(broker: Broker, output: Output, file: Path) -> None:
    """Back up a store while it is in use.

    FILE gets a consistent copy. An existing file is never overwritten.
    """
    await broker.backup(str(file))
    written = (await asyncio.to_thread(file.stat)).st_size
    output.result({"file": str(file), "bytes": written}, f"wrote '{file}', {size(written)}")
