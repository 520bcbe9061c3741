"""``seriatim config``: each setting and where its value came from."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from seriatim.cli.display import new_table, print_table
from seriatim.cli.session import configured
from seriatim.config import LoadedConfig, describe, is_secret
from seriatim.store.postgres.url import without_secrets

_HIDDEN = "***"


@click.command("config")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@configured
def command(loaded: LoadedConfig, as_json: bool) -> None:
    """Show each setting and where its value came from.

    Passwords are hidden, also those in a store's address.
    """
    values = {key: _HIDDEN if value and is_secret(key) else value for key, value in asdict(loaded.values).items()}
    values["store"] = without_secrets(loaded.values.store)
    if as_json:
        click.echo(json.dumps({key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()}))
        return
    table = new_table("setting", "value", "from", "meaning")
    for key, value in values.items():
        table.add_row(key, _as_toml(value), loaded.origins[key], describe(key))
    print_table(table)


def _as_toml(value: object) -> str:
    return json.dumps(value)  # strings and booleans are written alike in both
