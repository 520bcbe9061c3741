"""Groups of commands: they import a command when it is used, and suggest what a mistyped name may have meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from seriatim.cli.commands import OTHER_NAMES, OTHER_WORDS, Row
from seriatim.extras import require_extra


class CommandGroup(click.Group):
    """A group of commands whose names are suggested."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or name in self.list_commands(ctx)):
            raise click.UsageError(f"No such command '{name}'.{_suggestion(name, self, ctx)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with their whole first sentences, which Click would cut off."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command)) for name, command in commands if command])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities and error.option_name not in {"--json", "--store"}:
                raise
            raise click.UsageError(
                f"No such option '{error.option_name}'. The options of a command go after its name.", ctx
            ) from error


class LazyGroup(CommandGroup):
    """A group that knows its commands from a table, and imports one when it is used."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Row]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        self.rows = {name: row for rows in sections.values() for name, row in rows.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now. While a shell completes words, one whose extra is missing has no options."""
        row = self.rows.get(cmd_name)
        if row is None or (ctx.resilient_parsing and row.missing_extra):
            return None
        return load_command(f"{ctx.command_path} {cmd_name}", row)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, rows in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, row.summary + _needs(row)) for name, row in rows.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        rows = [(name, row) for name, row in self.rows.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=row.summary) for name, row in rows] + options


def load_command(path: str, row: Row) -> click.Command:
    """The command of a row of the table. Raises MissingExtra, which names what to install, where that is missing."""
    if row.commands:
        return LazyGroup(path.rpartition(" ")[2], help=row.summary, sections={"Commands": row.commands})
    if row.extra is not None:
        require_extra(row.extra, *row.required_modules, what=f"'{path}'")
    module, _, name = row.module.partition(":")
    command: click.Command = getattr(import_module(f"seriatim.cli.{module}"), name or "command")
    return command


def _first_sentence(command: click.Command) -> str:
    return " ".join((command.help or "").partition("\n\n")[0].split())


def _needs(row: Row) -> str:
    return f" (pip install 'seriatim[{row.extra}]')" if row.missing_extra else ""


def _suggestion(name: str, group: CommandGroup, ctx: click.Context) -> str:
    """What may have been meant: a command of this name elsewhere, or of a similar name, here or elsewhere."""
    root = ctx.find_root()
    last_words = {path: path.rpartition(" ")[2] for path in _paths(root)}
    typed = f"{ctx.command_path} {name}".removeprefix(f"{root.command_path} ")
    if typed in OTHER_NAMES:
        found = [f"{root.command_path} {OTHER_NAMES[typed]}"]
    elif (usual := OTHER_WORDS.get(name)) in group.list_commands(ctx):
        found = [f"{ctx.command_path} {usual}"]
    else:
        found = [path for path, word in last_words.items() if word == name]
    if not found:
        found = [f"{ctx.command_path} {match}" for match in get_close_matches(name, group.list_commands(ctx))]
    if not found:
        matches = get_close_matches(name, last_words.values(), cutoff=0.7)
        found = [path for path, word in last_words.items() if word in matches]
    if not found:
        return f" See '{ctx.command_path} --help'."
    return f" Did you mean {' or '.join(map(repr, found))}?"


def _paths(ctx: click.Context) -> Iterator[str]:
    """What is typed to call each command below a group. Nothing that needs an extra is imported."""
    group = ctx.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(ctx):
        yield f"{ctx.command_path} {name}"
        needs_extra = isinstance(group, LazyGroup) and group.rows[name].extra
        if not needs_extra and (child := group.get_command(ctx, name)) is not None:
            yield from _paths(click.Context(child, ctx, name))
