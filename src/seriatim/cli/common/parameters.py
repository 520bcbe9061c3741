"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar

import click

from seriatim.core.options import seconds_in
from seriatim.errors import InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])

FOREVER = float("inf")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of Click only
    """Seconds, or a number with a unit; 'forever' where nothing need ever end."""

    name = "duration"

    def __init__(self, *, endless: bool = False) -> None:
        self._endless = endless

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        if self._endless and value == "forever":
            return FOREVER
        seconds = seconds_in(value)
        if seconds is None:
            also = ", or 'forever'" if self._endless else ""
            self.fail(f"{value!r} is not a duration: write 90, 1.5s, 10m, 2h or 7d{also}.", param, ctx)
        return seconds


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of Click only
    """A time in ISO 8601; UTC unless it names another zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time: write 2026-01-31T12:00:00Z.", param, ctx)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


class Attribute(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of Click only
    """A name and a value."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals:
            self.fail(f"{value!r} is not an attribute: write NAME=VALUE.", param, ctx)
        return name, text


def or_never_ending(seconds: float) -> float | None:
    """A duration as options have it: None is for ever."""
    return None if seconds == FOREVER else seconds


def key_argument(command: F) -> F:
    """Let a command name a key: KEY, or ``--keyless`` for the messages without one."""

    def chosen(ctx: click.Context, parameter: click.Parameter, keyless: bool) -> None:  # noqa: ARG001
        key = ctx.params.get("key")
        if keyless == (key is not None):
            raise click.UsageError("Give either KEY or --keyless.", ctx)

    # Eager, so that the argument is known when the option is checked.
    command = click.option(
        "--keyless", is_flag=True, expose_value=False, callback=chosen, help="The messages that have no key."
    )(command)
    return click.argument("key", required=False, is_eager=True)(command)


def asks_first(question: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command ask before it does something that can't be undone, unless ``--yes`` is given."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option("--yes", is_flag=True, help="Do it without asking.")
        @wraps(command)
        def run(*args: Any, yes: bool, **kwargs: Any) -> None:
            if not yes:
                _ask(question.format(**kwargs))
            command(*args, **kwargs)

        return run

    return decorate


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidArgument(f"{question} There is no terminal to ask at: add --yes")
    if not click.confirm(question, err=True):
        raise click.exceptions.Exit(1)
