"""``seriatim serve``: the Google Pub/Sub API on a port."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any

import click
from click.core import ParameterSource

from seriatim import log
from seriatim.cli.common.command import configuration, with_url
from seriatim.cli.common.consoles import ListenAddress, listening_options, start_console
from seriatim.cli.common.output import Output
from seriatim.cli.common.parameters import Choice
from seriatim.cli.common.signals import run_until_signal
from seriatim.config import LOG_FORMATS
from seriatim.engine.access_tokens import Access
from seriatim.engine.admin_address import advertise, advertised_address
from seriatim.engine.connect import open_engine
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.log import logger
from seriatim.server.metrics import serve_metrics
from seriatim.server.options import ServerOptions
from seriatim.server.server import Server, Tls, authority
from seriatim.store.postgres.url import without_secrets
from seriatim.wire.names import WINDOW_LABEL


@click.command("serve")
@click.option("--listen", type=ListenAddress(), help="Where to listen, instead of --host and --port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8085, show_default=True, help="The port; 0 for any free one."
)
@click.option("--project", default="seriatim", show_default=True, help="The project whose topics have short names.")
@click.option(
    "--window",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help=f"Messages in flight per key, unless the label {WINDOW_LABEL} sets it.",
)
@click.option(
    "--min-ack-deadline",
    type=click.IntRange(1, 600),
    default=10,
    show_default=True,
    help="Shortest ack deadline, in seconds.",
)
@click.option("--standby", is_flag=True, help="Wait until no other server owns the store (PostgreSQL).")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on this port.")
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="The address of --metrics-port. Any but loopback needs TLS and --tokens.",
)
@click.option("--insecure", is_flag=True, help="Allow serving without TLS on other addresses than loopback.")
@click.option("--console", "console_listen", type=ListenAddress(), help="Serve the console and the admin API there.")
@listening_options
@click.option("--log-format", type=Choice(LOG_FORMATS), help="Format of log entries.")
@with_url
def command(
    url: str,
    output: Output,
    *,
    log_format: str | None,
    insecure: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tokens: Path | None,
    metrics_host: str,
    metrics_port: int | None,
    listen: tuple[str, int] | None,
    host: str,
    port: int,
    standby: bool,
    console_listen: tuple[str, int] | None,
    console_names: tuple[str, ...],
    **given: Any,
) -> None:
    """Serve the Google Pub/Sub API.

    For the official clients of any language: point them here with PUBSUB_EMULATOR_HOST. Prints one line with the address when
    it is ready. Ctrl-C and SIGTERM shut it down gracefully: streams are told to reconnect, and messages that were not acked
    are given back.
    """
    if listen is not None:
        _refuse_two_addresses()
        host, port = listen
    settings = configuration().values
    chosen = log_format or settings.log_format
    log.configure(settings.log_level, chosen, log.capture_native_lines() if chosen == "json" else None)
    options = ServerOptions(given["project"], given["min_ack_deadline"], given["window"])
    tls, context = _tls(tls_cert, tls_key)
    access = None if tokens is None else Access.load(tokens)
    is_local = _is_loopback(metrics_host)  # loopback needs neither TLS nor tokens; other addresses need both
    if metrics_port is not None and not (is_local or insecure) and (tls is None or access is None):
        raise InvalidArgument(
            f"metrics at {metrics_host} can be read by others: give --tls-cert, --tls-key and --tokens, or --insecure to allow "
            "it"
        )
    if tls is None and not insecure and not _is_loopback(host):
        raise InvalidArgument(
            f"{host} can be reached by others: give --tls-cert and --tls-key, or --insecure to allow it"
        )

    async def serve(stack: AsyncExitStack) -> None:
        console = None
        if console_listen is not None:  # before the store is owned: a standby says who owns it
            console = await start_console(
                stack, None, console_listen, tokens=tokens, tls=(tls_cert, tls_key), names=console_names
            )
            console.console.find_owner = partial(advertised_address, url)
        if not standby:  # whose port may be that of the owner
            _require_free_port(host, port)  # before a store is created
        engine = await open_engine(url, standby=standby)
        stack.push_async_callback(engine.close)
        server = Server(engine, options, access)
        stack.push_async_callback(server.stop)
        fields: dict[str, Any] = {"host": host, "port": await server.start(host, port, tls)}
        said = f"Serving Google Pub/Sub at {authority(host, fields['port'])} from {without_secrets(url)}"
        if metrics_port is not None:
            metrics = serve_metrics(engine, None if is_local else access)
            stack.push_async_callback(metrics.stop)
            fields["metrics_port"] = await metrics.start(metrics_host, metrics_port, None if is_local else context)
            said += f"; metrics at port {fields['metrics_port']}"
        if console is not None:
            console.console.broker = engine
            server.admin_address = console.address
            await advertise(engine, console.address)
            fields |= {"console": console.address, "console_token": console.token}
            said += f"; console at {console.url}"
        output.result(fields, f"{said}.")
        stack.callback(logger.info, "the server is stopping")
        await asyncio.Event().wait()

    with suppress(click.exceptions.Exit):  # a signal is the normal way for a server to end
        run_until_signal(serve)


def _refuse_two_addresses() -> None:
    ctx = click.get_current_context()
    if any(ctx.get_parameter_source(name) is not ParameterSource.DEFAULT for name in ("host", "port")):
        raise click.UsageError("Give either --listen or --host and --port.", ctx)


def _require_free_port(host: str, port: int) -> None:
    """Raise FailedPrecondition if another program listens there; gRPC would also log lines of its own."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), port), family=family).close()
    except OSError as error:
        raise FailedPrecondition(
            f"can't listen at {authority(host, port)}: free the port, or choose another ({error.strerror})"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(certificate: Path | None, key: Path | None) -> tuple[Tls | None, SSLContext | None]:
    """A certificate and its key, for gRPC and for HTTP."""
    if certificate is None and key is None:
        return None, None
    if certificate is None or key is None:
        raise InvalidArgument("--tls-cert and --tls-key belong together")
    context = SSLContext(PROTOCOL_TLS_SERVER)
    try:
        tls = Tls(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"the certificate or its key can't be read: {error}") from error
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # or it would ask at the terminal
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the certificate or its key can't be used: {error}") from error
    return tls, context
