"""The engine's metrics for Prometheus, at an HTTP port of their own.

With ``access``, whoever asks needs a token with the right ``metrics`` or ``admin``: metrics name topics and keys.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from aiohttp import web

from seriatim.engine.access_tokens import Access
from seriatim.engine.broker import Broker, KeyInfo, KeyOrder
from seriatim.errors import Unauthenticated
from seriatim.telemetry.metrics_server import MetricsServer
from seriatim.telemetry.prometheus import TOP_KEYS, collect


def serve_metrics(broker: Broker, access: Access | None = None) -> MetricsServer:
    """A server of an engine's metrics, to be started."""

    async def list_keys(subscription: str, order: KeyOrder, limit: int) -> list[KeyInfo]:
        return await broker.list_keys(subscription, limit=limit, blocked_only=order == "oldest", order=order)

    async def collect_all() -> list[Any]:
        return await collect(await broker.metrics(), list_keys, TOP_KEYS)

    return MetricsServer(collect_all, check=None if access is None else partial(_refusal, access))


def _refusal(access: Access, authorization: str) -> web.Response | None:
    try:
        rights = access.authenticate([("authorization", authorization)])
    except Unauthenticated as error:
        return web.Response(status=401, text=f"{error}\n", headers={"WWW-Authenticate": "Bearer"})
    if not (rights.admin or rights.metrics):
        return web.Response(status=403, text="the token has neither the right metrics nor admin\n")
    return None
