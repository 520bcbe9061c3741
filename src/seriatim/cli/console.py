"""``seriatim console``: the web console and the admin API of a store, beside its owner or as its owner."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import click

from seriatim.cli.common.brokers import open_any
from seriatim.cli.common.command import configuration, require_store, with_url
from seriatim.cli.common.consoles import ListenAddress, listening_options, start_console
from seriatim.cli.common.output import Output
from seriatim.cli.common.signals import run_until_signal
from seriatim.engine.admin_address import advertise
from seriatim.engine.engine import Engine
from seriatim.store.postgres.url import without_secrets


@click.command("console")
@click.option(
    "--listen",
    type=ListenAddress(),
    default="127.0.0.1:8086",
    show_default=True,
    help="Where to listen. Any address but loopback needs TLS and --tokens.",
)
@listening_options
@with_url
def command(
    url: str,
    output: Output,
    *,
    listen: tuple[str, int],
    tokens: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    console_names: tuple[str, ...],
) -> None:
    """Open the web console of a store.

    It owns the store, or asks the process that does. Prints the address to open in a browser; without --tokens it contains a
    token that was made for this run. Ctrl-C ends it.
    """
    require_store(url)
    settings = configuration().values

    async def serve(stack: AsyncExitStack) -> None:
        broker = await open_any(url, settings.console_token or None, settings.console_ca or None)
        stack.push_async_callback(broker.close)
        server = await start_console(stack, broker, listen, tokens=tokens, tls=(tls_cert, tls_key), names=console_names)
        if isinstance(broker, Engine):
            await advertise(broker, server.address)
        fields = {"address": server.address, "token": server.token}
        output.result(fields, f"Console of {without_secrets(url)} at {server.url}")
        await asyncio.Event().wait()

    with suppress(click.exceptions.Exit):  # a signal is the normal way for a server to end
        run_until_signal(serve)
