"""The console of a command: where it listens, who may use it, and where others find it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from seriatim.errors import InvalidArgument
from seriatim.extras import EXTRAS, require_extra

if TYPE_CHECKING:
    from seriatim.console import ConsoleServer
    from seriatim.engine.broker import Broker

F = TypeVar("F", bound=Callable[..., Any])


class ListenAddress(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of Click only
    """HOST:PORT."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, colon, port = value.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is not an address to listen on: write 127.0.0.1:8086.", param, ctx)
        return host.strip("[]"), int(port)


def listening_options(command: F) -> F:
    """Who may use what is served, and how it proves itself."""
    file = click.Path(path_type=Path, dir_okay=False)
    for option in (
        click.option(
            "--console-name",
            "console_names",
            multiple=True,
            metavar="NAME",
            help="Another host name that the console may be reached under.",
        ),
        click.option("--tokens", type=file, help="Require one of the tokens in this file."),
        click.option("--tls-key", type=file, help="The private key of the certificate."),
        click.option("--tls-cert", type=file, help="Serve TLS with this certificate."),
    ):
        command = option(command)
    return command


async def start_console(
    stack: AsyncExitStack,
    broker: Broker | None,
    listen: tuple[str, int],
    *,
    tokens: Path | None,
    tls: tuple[Path | None, Path | None],
    names: tuple[str, ...],
) -> ConsoleServer:
    """Serve a console until the stack is left."""
    require_extra("console", *EXTRAS["console"], what="the console")
    from seriatim.console import ConsoleServer
    from seriatim.engine.access_tokens import Access

    certificate, key = tls
    if (certificate is None) != (key is None):
        raise InvalidArgument("--tls-cert and --tls-key belong together")
    server = ConsoleServer(
        broker,
        *listen,
        access=None if tokens is None else Access.load(tokens),
        tls=None if certificate is None or key is None else (certificate, key),
        names=frozenset(names),
    )
    await server.start()
    stack.push_async_callback(server.stop)
    return server
