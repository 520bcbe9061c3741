"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from seriatim.cli.common.command import configuration, require_store, run_with_broker
from seriatim.errors import InvalidArgument

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker

F = TypeVar("F", bound=Callable[..., Any])

FOREVER = float("inf")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of Click only
    """Seconds, or a number with a unit; or 'forever', if it may be endless."""

    name = "duration"

    def __init__(self, *, endless: bool = False) -> None:
        self._endless = endless

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        if self._endless and value == "forever":
            return FOREVER
        from seriatim.core.validation import seconds_in

        seconds = seconds_in(value)
        if seconds is None:
            also = ", or 'forever'" if self._endless else ""
            self.fail(f"{value!r} is not a duration: write 90, 1.5s, 10m, 2h or 7d{also}.", param, ctx)
        return seconds


class Choice(click.Choice):  # type: ignore[type-arg]  # generic in later versions of Click only
    """One of a few words; a mistyped one gets a suggestion."""

    def __init__(self, choices: Iterable[str]) -> None:
        super().__init__([str(choice) for choice in choices])  # of an enumeration, Click would take the names

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx)
        nearest = get_close_matches(str(value), map(str, self.choices), n=1)
        return f"{message} Did you mean {nearest[0]!r}?" if nearest else message


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of Click only
    """A time in ISO 8601; UTC unless it names another zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            time = datetime.now(UTC) if value == "now" else datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time: write 2026-01-31T12:00:00Z, or 'now'.", param, ctx)
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


def none_if_forever(seconds: float) -> float | None:
    """A duration as options have it: None is forever."""
    return None if seconds == FOREVER else seconds


def choice_option(name: str, default: StrEnum, explanation: str) -> Callable[[F], F]:
    """An option whose values are those of an enumeration."""
    choice = Choice(type(default))
    return click.option(name, type=choice, default=str(default), show_default=True, help=explanation)


def limit_option(default: int) -> Callable[[F], F]:
    return click.option(
        "--limit", type=click.IntRange(min=1), default=default, show_default=True, help="The maximum number to show."
    )


def key_argument(command: F) -> F:
    """Let a command name a key: KEY, or ``--keyless`` for the messages without one."""

    def chosen(ctx: click.Context, parameter: click.Parameter, keyless: bool) -> None:  # noqa: ARG001
        key = ctx.params.get("key")
        if keyless == (key is not None):
            raise click.UsageError("Give either KEY or --keyless.", ctx)

    # Eager, so that the argument is known when the option is checked.
    command = click.option(
        "--keyless", is_flag=True, expose_value=False, callback=chosen, help="The messages without a key."
    )(command)
    return click.argument("key", required=False, is_eager=True)(command)


def asks_first(
    question: str | Callable[..., str], looks_up: Callable[..., Awaitable[object]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command ask before it does something that can't be undone, unless ``--yes`` is given.

    The question names parameters of the command (``{name}``), or is a function that they are passed to. ``looks_up`` gets them
    after a broker, and raises NotFound if there is nothing to ask about. The store is closed while the question is open.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option("--yes", is_flag=True, help="Don't ask.")
        @wraps(command)
        def run(*args: Any, yes: bool, **kwargs: Any) -> None:
            asked = question.format(**kwargs) if isinstance(question, str) else question(**kwargs)
            if not yes:
                url = kwargs["store"] or configuration().values.store
                require_store(url)
                run_with_broker(url, lambda broker: looks_up(broker, **kwargs))
                _ask(asked)
            command(*args, **kwargs)

        return run

    return decorate


async def require_topic(broker: Broker, *, name: str, **_: object) -> None:
    await broker.describe_topic(name)


async def require_subscription(broker: Broker, *, name: str = "", subscription: str = "", **_: object) -> None:
    await broker.describe_subscription(subscription or name)


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidArgument(f"{question} There is no terminal to ask at: add --yes")
    if not click.confirm(question, err=True):
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(1)
