"""``seriatim config``, ``seriatim completion`` and ``seriatim help``: about the program itself."""

from __future__ import annotations

from dataclasses import asdict

import click
from click.shell_completion import get_completion_class

from seriatim.cli.common.command import configuration, with_output
from seriatim.cli.common.display import new_table, print_table
from seriatim.cli.common.output import Output, as_json
from seriatim.cli.common.parameters import Choice


@click.command("config")
@with_output
def config(output: Output) -> None:
    """Show the configuration, and where each value comes from.

    Passwords are hidden.
    """
    from seriatim.config import describe, is_secret
    from seriatim.store.postgres.url import without_secrets

    loaded = configuration()
    values = {key: "***" if value and is_secret(key) else value for key, value in asdict(loaded.values).items()}
    values["store"] = without_secrets(loaded.values.store)
    if output.as_json:
        output.result({key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()}, "")
        return
    table = new_table("setting", "value", "from", "meaning")
    for key, value in values.items():
        table.add_row(key, as_json(value), loaded.origins[key], describe(key))  # TOML writes these values alike
    print_table(table)


@click.command("completion")
@click.argument("shell", type=Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print a script for shell completion.

    \b
    bash:  echo 'eval "$(seriatim completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(seriatim completion zsh)"' >> ~/.zshrc
    fish:  seriatim completion fish > ~/.config/fish/completions/seriatim.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # they are Click's own
    click.echo(kind(click.get_current_context().find_root().command, {}, "seriatim", "_SERIATIM_COMPLETE").source())


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def help_(words: tuple[str, ...]) -> None:
    """Show the help of a command.

    \b
    seriatim help keys retry
    """
    ctx = click.get_current_context().find_root()
    for word in words:
        if not isinstance(ctx.command, click.Group):
            raise click.UsageError(f"'{ctx.command_path}' has no commands.", ctx)
        name, found, _ = ctx.command.resolve_command(ctx, [word])
        assert found is not None  # or it would have raised
        ctx = click.Context(found, ctx, name)
    click.echo(ctx.get_help())
