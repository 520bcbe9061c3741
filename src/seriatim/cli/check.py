"""``seriatim check``: is everything in a store as it was written?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seriatim.cli.output import Fields, Output, print_rows
from seriatim.cli.session import configured
from seriatim.cli.store import json_option, store_option
from seriatim.config import LoadedConfig

if TYPE_CHECKING:
    from seriatim.store.base import StoreReader


@click.command("check")
@click.argument("url", metavar="[STORE]", required=False)
@store_option
@json_option
@configured
def command(loaded: LoadedConfig, url: str | None, store: str | None, as_json: bool) -> None:
    """Look at everything in STORE and say what is wrong with it; nothing is changed.

    It reads beside an owner that is at work. Exit status 1 means that something is wrong.
    """
    from seriatim.engine.options import flaws_in
    from seriatim.store import open_store

    reader = open_store(url or store or loaded.values.store, read_only=True)
    try:
        damage = list(reader.check())
        problems = [problem._asdict() for problem in damage or flaws_in(reader.catalog())]
        # What a damaged store holds can't be counted.
        contents = {} if problems else _contents(reader)
    finally:
        reader.close()
    _show(Output(as_json), problems, contents, ": restore a backup" if damage else "")
    if problems:
        raise click.exceptions.Exit(1)


def _contents(reader: StoreReader) -> dict[str, int]:
    catalog = reader.catalog()
    messages = sum(len(positions) for topic in catalog.topics for positions in reader.positions(topic.id))
    return {"topics": len(catalog.topics), "subscriptions": len(catalog.subscriptions), "messages": messages}


def _show(output: Output, problems: list[Fields], contents: dict[str, int], advice: str) -> None:
    if problems and not output.as_json:
        print_rows(problems, {"where": "where", "what is wrong": "what"})
    sound = "nothing is wrong: " + ", ".join(f"{count} {what}" for what, count in contents.items())
    found = f"{len(problems)} problem{'s'[: len(problems) != 1]} found{advice}"
    output.result({"sound": not problems, **contents, "problems": problems}, found if problems else sound)
