"""Extras: what is installed with ``pip install 'seriatim[extra]'``."""

from __future__ import annotations

from importlib.util import find_spec

from seriatim.errors import MissingExtra

EXTRAS = {
    "spark": ("pyspark", "pyarrow", "numpy", "pandas"),
    "server": ("grpc", "grpc_health", "google.cloud.pubsub", "fastavro", "prometheus_client", "aiohttp"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "postgres": ("psycopg",),
    "kafka": ("confluent_kafka",),
    "console": ("fastapi", "jinja2", "uvicorn"),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry",),
    "mqtt": ("aiomqtt", "paho.mqtt", "google.protobuf"),
}
"""The modules that each extra brings."""


def require_extra(extra: str, *modules: str, what: str) -> None:
    """Raise MissingExtra, naming the extra to install, unless every one of ``modules`` can be imported."""
    if not all(map(is_installed, modules)):
        raise MissingExtra(f"{what} needs the extra '{extra}': pip install 'seriatim[{extra}]'")


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # even the package that should hold the module is missing
        return False
