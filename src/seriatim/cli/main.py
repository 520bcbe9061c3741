"""``seriatim``: the program, its global options, and how a failure is shown."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click

from seriatim import __version__
from seriatim.cli.command_groups import LazyGroup
from seriatim.cli.commands import OTHER_OPTIONS, SECTIONS
from seriatim.cli.common.command import CommandContext
from seriatim.cli.common.parameters import Choice
from seriatim.config import LOG_LEVELS
from seriatim.errors import InvalidArgument, SeriatimError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, what shells expect


class Failure(click.ClickException):
    """An error that is shown as one line."""

    def __init__(self, message: str, *, is_usage: bool = False) -> None:
        super().__init__(message)
        self._is_usage = is_usage

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return EXIT_USAGE if self._is_usage else EXIT_FAILURE

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", file=file or sys.stderr)


class Program(LazyGroup):
    """The group of all commands."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise _about_an_option(error, self) from error
        except click.UsageError as error:
            raise _about_an_argument(error) from error
        except (SeriatimError, OSError) as error:
            if isinstance(error, BrokenPipeError):  # as in ``seriatim ... | head``: the reader has seen enough
                _forget_standard_output()
                ctx.exit(0)
            if ctx.params["debug"]:
                traceback.print_exc()
            raise _failure(error) from error
        except (KeyboardInterrupt, click.Abort):  # the latter at a prompt
            ctx.exit(EXIT_INTERRUPTED)


def _about_an_option(error: click.NoSuchOption, program: click.Group) -> click.UsageError:
    """The same, with what may have been meant."""
    name, command = error.option_name, error.ctx.command if error.ctx else program
    if any(name in option.opts for option in program.params):
        return click.UsageError(f"No such option '{name}' here: it goes before the command.", error.ctx)
    instead = OTHER_OPTIONS.get(name, "")
    if instead and instead.split()[0] in {
        word for param in command.params for word in (*param.opts, param.human_readable_name)
    }:
        return click.UsageError(f"No such option '{name}'. Use {instead} instead.", error.ctx)
    return error


def _about_an_argument(error: click.UsageError) -> click.UsageError:
    """The same; where a store or a topic was given to a command that takes it as an option, how it is given."""
    extra = re.match(r"Got unexpected extra arguments? \(([^\s)]+)", error.message)
    if extra is None or error.ctx is None:
        return error
    word, options = extra[1], {param.name for param in error.ctx.command.params if isinstance(param, click.Option)}
    if "store" in options and ("://" in word or word.endswith(".db") or Path(word).is_file()):
        address = word if "://" in word else f"sqlite:///{word}"
        return click.UsageError(f"{error.message}: a store is named with --store {address}", error.ctx)
    if "topic" in options:
        return click.UsageError(f"{error.message}: a topic is named with --topic {word}", error.ctx)
    return error


def _failure(error: SeriatimError | OSError) -> Failure:
    if isinstance(error, SeriatimError):
        return Failure(error.message, is_usage=isinstance(error, InvalidArgument))
    if error.filename is None:
        raise error  # a bug: a user's mistake is about a file, or was translated where it happened
    return Failure(f"'{error.filename}': {error.strerror}")


@click.group(
    cls=Program,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="seriatim")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Read this configuration file.")
@click.option("--log-level", type=Choice(LOG_LEVELS), help="Log entries of this level and above.")
@click.option("-v", "--verbose", count=True, help="Log more: -v for info, -vv for debug.")
@click.option("--debug", is_flag=True, help="Show the stack trace of an error.")
@click.pass_context
def cli(ctx: click.Context, config_file: Path | None, log_level: str | None, verbose: int, debug: bool) -> None:  # noqa: ARG001
    """Messages in order, per key."""
    if log_level is None and verbose:
        log_level = "info" if verbose == 1 else "debug"
    ctx.obj = CommandContext(config_file, log_level)


def _forget_standard_output() -> None:
    """Keep the interpreter from flushing the rest of the output to a closed pipe when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    """Exit as on Ctrl-C: whatever is open is closed."""
    sys.exit(128 + number)


def main(prog_name: str = "seriatim") -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminate)
    cli.main(prog_name=prog_name)
