"""How a command is run: with its configuration, its output, and the store that it works on.

Rules
    - The configuration is read when a command runs, not before: ``--help`` works while it is broken.
    - A command on a broker is an async function. The first Ctrl-C or SIGTERM cancels it; the broker is then closed as always,
      so that leases are given back and no lock or socket is left behind (``signals.py``).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, closing
from difflib import get_close_matches
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seriatim import config, log
from seriatim.cli.common.output import Output
from seriatim.cli.common.signals import run_until_signal
from seriatim.errors import InvalidArgument, NotFound, SeriatimError

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker

Command = Callable[..., None]
AsyncCommand = Callable[..., Coroutine[Any, Any, None]]


class CommandContext:
    """One run of the program, with its global options."""

    def __init__(self, config_file: Path | None = None, log_level: str | None = None) -> None:
        self._config_file = config_file
        self._log_level = log_level

    @cached_property
    def configuration(self) -> config.LoadedConfig:
        """The configuration, read when it is first needed; logging starts with it."""
        loaded = config.load(self._config_file, {"log_level": self._log_level})
        log.configure(loaded.values.log_level, loaded.values.log_format)
        return loaded


def configuration() -> config.LoadedConfig:
    """The configuration of the command that is running."""
    return click.get_current_context().ensure_object(CommandContext).configuration


def with_output(command: Command) -> Command:
    """Add the option ``--json``, and pass the output as the first argument."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @wraps(command)
    def run(*args: Any, as_json: bool, **kwargs: Any) -> None:
        try:
            command(Output(as_json, progress=configuration().values.progress), *args, **kwargs)
        except SeriatimError as error:
            error.args = (with_option_names(error.message), *error.args[1:])
            raise

    return run


def with_option_names(text: str) -> str:
    """What is said about an option, with the name that it has on the command line: ``--ack-deadline``, not ``ack_deadline``."""
    for option in click.get_current_context().command.params:
        if isinstance(option, click.Option) and "_" in (option.name or ""):
            text = re.sub(rf"(?<![\w'])(?:retry\.)?{option.name}(?![\w'])", option.opts[0], text)
        elif isinstance(option, click.Option):  # a name that may also be a word
            text = re.sub(rf"^{option.name}(?= must )", option.opts[0], text)
            text = re.sub(rf"(?<![\w'.-]){option.name}=(?=…|[A-Z]|\d)", f"{option.opts[0]} ", text)
    return text


def _not_empty(_: click.Context, __: click.Parameter, store: str | None) -> str | None:
    """Nobody means the configured store by an empty address: it is a variable that was not set."""
    if store == "":
        raise click.BadParameter("it is empty: is a variable not set?")
    return store


def with_url(command: Command) -> Command:
    """Add the options ``--store`` and ``--json``, and pass the store's address and the output as the first arguments."""

    @click.option("--store", metavar="URL", callback=_not_empty, help="The store, if not the configured one.")
    @with_output
    @wraps(command)
    def run(output: Output, /, *args: Any, store: str | None, **kwargs: Any) -> None:
        from seriatim.client.addresses import API_SCHEMES, KINDS, refuse_unknown_scheme

        url = configuration().values.store if store is None else store
        api = dict.fromkeys(API_SCHEMES, "http://HOST:PORT (the admin API)")
        refuse_unknown_scheme(url, {**KINDS, **api, "memory://": ""})
        command(url, output, *args, **kwargs)

    return run


def with_reader(command: Command) -> Command:
    """The same with a store that is only read, beside its owner and without disturbing it. It must exist."""

    @with_url
    @wraps(command)
    def run(url: str, output: Output, /, *args: Any, **kwargs: Any) -> None:
        from seriatim.cli.common.brokers import open_reader

        require_store(url)
        settings = configuration().values
        with closing(open_reader(url, settings.console_token or None, settings.console_ca or None)) as reader:
            command(reader, output, *args, **kwargs)

    return run


def with_broker(command: AsyncCommand) -> Command:
    """The same for an async command, with a broker instead of the address of a store. The store must exist, unless the command
    has an option ``--create`` that is given."""
    return _with_broker(command, creates=False)


def with_new_broker(command: AsyncCommand) -> Command:
    """The same with a store that is created if it does not exist."""
    return _with_broker(command, creates=True)


def _with_broker(command: AsyncCommand, *, creates: bool) -> Command:
    @with_url
    @wraps(command)
    def run(url: str, output: Output, /, *args: Any, **kwargs: Any) -> None:
        require_store(url, may_be_new=creates or bool(kwargs.get("create")))
        run_with_broker(url, lambda broker: command(broker, output, *args, **kwargs))

    return run


def require_store(url: str, *, may_be_new: bool = False) -> None:
    """Raise NotFound if there is no store at ``url``: a mistyped address must not create one."""
    from seriatim.store import store_file

    if url.startswith("memory:"):
        raise InvalidArgument(
            "a store in memory is gone when the command ends: name a file with --store sqlite:///FILE, or let "
            "'seriatim serve --store memory://' keep one while it runs"
        )
    if may_be_new:
        return
    file = store_file(url)
    if file is not None and not file.exists():
        raise NotFound(f"there is no store at '{file}': create one with 'seriatim topics create', or correct --store")


async def _did_you_mean(broker: Broker, problem: str) -> str:
    """The name that may have been meant where there is no such topic or subscription."""
    missing = re.match(r"(topic|subscription) '(.+)' does not exist", problem)
    if missing is None:
        return ""
    known = await (broker.list_topics() if missing[1] == "topic" else broker.list_subscriptions())
    whole = [info.name for info in known if info.name.endswith(f"/{missing[2]}")]  # of another project of a server
    if nearest := whole or get_close_matches(missing[2], [info.name for info in known], n=1):
        return f"; did you mean '{nearest[0]}'?"
    if missing[1] == "topic":
        topics = [info.topic for info in await broker.list_subscriptions() if info.name == missing[2]]
        return f"; '{missing[2]}' is a subscription of topic '{topics[0]}'" if topics else ""
    theirs = [info.name for info in known if getattr(info, "topic", None) == missing[2]]
    return f"; topic '{missing[2]}' has the subscriptions {', '.join(theirs)}" if theirs else ""


def run_with_broker(url: str, work: Callable[[Broker], Awaitable[object]]) -> None:
    """Open the broker at ``url``, let ``work`` use it, and close it."""

    async def open_and_work(stack: AsyncExitStack) -> None:
        from seriatim.cli.common.brokers import open_any

        settings = configuration().values
        broker = await open_any(url, settings.console_token or None, settings.console_ca or None)
        stack.push_async_callback(broker.close)
        try:
            await work(broker)
        except NotFound as error:
            raise NotFound(f"{error}{await _did_you_mean(broker, str(error))}") from error

    run_until_signal(open_and_work)
