"""``seriatim``: the group of all commands, its global options, and how a failure is shown."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click

from seriatim import __version__
from seriatim.cli.commands import COMMANDS, load_command
from seriatim.cli.session import Session
from seriatim.config import LOG_LEVELS
from seriatim.errors import InvalidArgument, SeriatimError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, what shells expect


class Failure(click.ClickException):
    """An error of Seriatim's own tree, shown as one line."""

    def __init__(self, error: SeriatimError) -> None:
        super().__init__(error.message)
        self.error = error

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return EXIT_USAGE if isinstance(self.error, InvalidArgument) else EXIT_FAILURE

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", file=file or sys.stderr)


class LazyGroup(click.Group):
    """A group that knows its commands from a table and imports one when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return load_command(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SeriatimError as error:
            if ctx.params["debug"]:
                traceback.print_exc()
            raise Failure(error) from error
        except (KeyboardInterrupt, click.Abort):  # the latter at a question
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:  # as in ``seriatim ... | head``: who read the output has enough
            _forget_standard_output()
            ctx.exit(0)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="seriatim")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Read this configuration file.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="The least severe log entry to show.")
@click.option("-v", "--verbose", count=True, help="Log more: -v for info, -vv for debug.")
@click.option("--debug", is_flag=True, help="Show the stack trace of an error.")
@click.pass_context
def cli(ctx: click.Context, config_file: Path | None, log_level: str | None, verbose: int, debug: bool) -> None:  # noqa: ARG001
    """Messages in order, per key."""
    if log_level is None and verbose:
        log_level = "info" if verbose == 1 else "debug"
    ctx.obj = Session(config_file, log_level)


def _forget_standard_output() -> None:
    """Keep the end of the program from writing what is left to a pipe that is closed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    """Leave as on Ctrl-C: whatever is open is closed."""
    sys.exit(128 + number)


def main(prog_name: str = "seriatim") -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminate)
    cli.main(prog_name=prog_name)
