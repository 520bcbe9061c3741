"""``seriatim check``: is everything in a store as it was written?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seriatim.cli.output import Fields, as_json
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
    from seriatim.store import open_store

    url = url or store or loaded.values.store
    reader = open_store(url, read_only=True)
    try:
        found = {**_contents(reader), "problems": [problem._asdict() for problem in reader.check()]}
    finally:
        reader.close()
    _print(url, found, as_json=as_json)
    if found["problems"]:
        raise click.exceptions.Exit(1)


def _contents(reader: StoreReader) -> Fields:
    catalog = reader.catalog()
    messages = sum(len(positions) for topic in catalog.topics for positions in reader.positions(topic.id))
    return {"topics": len(catalog.topics), "subscriptions": len(catalog.subscriptions), "messages": messages}
