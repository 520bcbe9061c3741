"""``seriatim restore``: make a store from a backup."""

from __future__ import annotations

from pathlib import Path

import click

from seriatim.cli.output import Output
from seriatim.cli.session import configured
from seriatim.cli.store import json_option, store_option
from seriatim.config import LoadedConfig
from seriatim.errors import InvalidArgument


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace a store that is there; it is kept beside the new one.")
@store_option
@json_option
@configured
def command(loaded: LoadedConfig, file: Path, replace: bool, store: str | None, as_json: bool) -> None:
    """Make the store from the backup FILE.

    The backup is checked first. The store must not be in use: end the program that owns it. With --replace, the store that is
    there is kept under the same name with '.replaced' at its end.
    """
    from seriatim.store import store_file
    from seriatim.store.restoring import restore

    target = store_file(store or loaded.values.store)
    if target is None:
        raise InvalidArgument(
            "only a store in a SQLite file is restored here: use the tools of its server, or correct --store"
        )
    replaced = restore(file, target, replace=replace)
    kept = f"; what was there is now '{replaced}'" if replaced else ""
    fields = {"store": str(target), "backup": str(file), "replaced": None if replaced is None else str(replaced)}
    Output(as_json).result(fields, f"restored '{target}' from '{file}'{kept}")
