"""``seriatim serve``: the Google Pub/Sub API on a port."""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any

import click

from seriatim import log
from seriatim.cli.output import Output
from seriatim.cli.session import configured
from seriatim.cli.signals import run_until_signal
from seriatim.cli.store import json_option, store_option
from seriatim.config import LOG_FORMATS, LoadedConfig
from seriatim.engine.opening import open_engine
from seriatim.errors import InvalidArgument
from seriatim.log import logger
from seriatim.server.access import Access
from seriatim.server.metrics import serve_metrics
from seriatim.server.options import ServerOptions
from seriatim.server.server import Server, Tls, authority
from seriatim.store.postgres.url import without_secrets
from seriatim.wire.names import WINDOW_LABEL


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where to answer Prometheus, and how."""

    host: str
    port: int
    tls: SSLContext | None
    access: Access | None


@dataclass(frozen=True, slots=True)
class Serving:
    """Where to serve what."""

    url: str
    host: str
    port: int
    standby: bool
    metrics: Metrics | None
    tls: Tls | None
    access: Access | None
    options: ServerOptions


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8085, show_default=True, help="0: any free one.")
@store_option
@click.option("--project", default="seriatim", show_default=True, help="Whose topics have short names in the store.")
@click.option(
    "--window",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help=f"Messages of a key in flight at once, where no label {WINDOW_LABEL} says otherwise.",
)
@click.option(
    "--min-ack-deadline", type=click.IntRange(1, 600), default=10, show_default=True, help="Seconds; for tests."
)
@click.option("--standby", is_flag=True, help="Wait while another server owns the store (PostgreSQL).")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Answer Prometheus at this port.")
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="The address of --metrics-port. Addresses that others can reach need TLS and --tokens.",
)
@click.option("--tls-cert", type=click.Path(path_type=Path, dir_okay=False), help="Serve TLS with this certificate.")
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False), help="The private key of the certificate.")
@click.option("--tokens", type=click.Path(path_type=Path, dir_okay=False), help="Only for holders of these tokens.")
@click.option("--insecure", is_flag=True, help="Serve without TLS at an address that others can reach.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), help="How log entries are written.")
@json_option
@configured
def command(
    loaded: LoadedConfig,
    /,
    *,
    store: str | None,
    as_json: bool,
    log_format: str | None,
    insecure: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tokens: Path | None,
    metrics_host: str,
    metrics_port: int | None,
    **given: Any,
) -> None:
    """Serve the Google Pub/Sub API, for the official clients of any language.

    When it serves, it prints one line that says where. Point clients there with PUBSUB_EMULATOR_HOST. The first Ctrl-C or
    SIGTERM ends it in good order: streams are told to connect again, what was delivered and not acked is given back.
    """
    _configure_log(loaded.values.log_level, log_format or loaded.values.log_format)
    options = ServerOptions(given.pop("project"), given.pop("min_ack_deadline"), given.pop("window"))
    tls, access = _tls(tls_cert, tls_key), None if tokens is None else Access.load(tokens)
    metrics = None
    if metrics_port is not None:
        metrics = _metrics(metrics_host, metrics_port, _tls_context(tls_cert, tls_key), access, insecure)
    serving = Serving(
        url=store or loaded.values.store, tls=tls, access=access, metrics=metrics, options=options, **given
    )
    if tls is None and not insecure and not _is_loopback(serving.host):
        raise InvalidArgument(
            f"{serving.host} can be reached by others: give --tls-cert and --tls-key, or --insecure if that is meant"
        )
    with suppress(click.exceptions.Exit):  # to be told to stop is how a server ends well
        run_until_signal(lambda stack: _serve(serving, Output(as_json), stack))


def _configure_log(level: str, log_format: str) -> None:
    log.configure(level, log_format, log.capture_native_lines() if log_format == "json" else None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(certificate: Path | None, key: Path | None) -> Tls | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InvalidArgument("--tls-cert and --tls-key belong together")
    try:
        return Tls(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"the certificate or its key can't be read: {error}") from error


def _tls_context(certificate: Path | None, key: Path | None) -> SSLContext | None:
    if certificate is None or key is None:
        return None
    context = SSLContext(PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # or it would ask at the terminal
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the certificate or its key can't be used: {error}") from error
    return context


def _metrics(host: str, port: int, tls: SSLContext | None, access: Access | None, insecure: bool) -> Metrics:
    """On the loopback without further ado; elsewhere with TLS, and for holders of tokens only."""
    if _is_loopback(host):
        return Metrics(host, port, None, None)
    if not insecure and (tls is None or access is None):
        raise InvalidArgument(
            f"metrics at {host} can be read by others: give --tls-cert, --tls-key and --tokens, or --insecure if that is meant"
        )
    return Metrics(host, port, tls, access)


async def _serve(serving: Serving, output: Output, stack: AsyncExitStack) -> None:
    engine = await open_engine(serving.url, standby=serving.standby)
    stack.push_async_callback(engine.close)
    server = Server(engine, serving.options, serving.access)
    stack.push_async_callback(server.stop)
    fields = {"host": serving.host, "port": await server.start(serving.host, serving.port, serving.tls)}
    if (wanted := serving.metrics) is not None:
        metrics = serve_metrics(engine, wanted.access)
        stack.push_async_callback(metrics.stop)
        fields["metrics_port"] = await metrics.start(wanted.host, wanted.port, wanted.tls)
    output.result(fields, _ready_line(fields, serving.url))
    stack.callback(logger.info, "the server stops")
    await asyncio.Event().wait()


def _ready_line(fields: dict[str, Any], url: str) -> str:
    metrics = f"; metrics at port {fields['metrics_port']}" if "metrics_port" in fields else ""
    address = authority(fields["host"], fields["port"])
    return f"Serving Google Pub/Sub at {address} from {without_secrets(url)}{metrics}."
