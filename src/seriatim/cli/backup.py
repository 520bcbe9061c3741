"""``seriatim backup``: a consistent copy of a store, while it is in use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from seriatim.cli.output import Output, size
from seriatim.cli.store import with_broker

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker


@click.command("backup")
# Resolved, because the copy is made by whoever owns the store, perhaps in another folder.
@click.argument("file", type=click.Path(path_type=Path, resolve_path=True))
@with_broker
async def command(broker: Broker, output: Output, file: Path) -> None:
    """Copy the store to FILE, as it is at one moment, while it is in use. A file that exists is never overwritten."""
    await broker.backup(str(file))
    _show(output, file)


def _show(output: Output, file: Path) -> None:
    written = file.stat().st_size
    output.result({"file": str(file), "bytes": written}, f"wrote '{file}', {size(written)}")
