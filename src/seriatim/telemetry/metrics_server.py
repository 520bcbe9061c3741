"""Metrics for Prometheus and a health check, on an HTTP port of their own.

Rules
    - Metrics are collected when they are requested: a program that nobody monitors pays nothing.
    - ``/metrics`` answers in the format that the client prefers; ``/health`` answers 200 or 503.
    - With ``check``, every request is authorized first: it gets the header ``Authorization`` and returns a refusal or None.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from ssl import SSLContext
from typing import Any

from seriatim.errors import FailedPrecondition
from seriatim.extras import require_extra

require_extra("server", "aiohttp", "prometheus_client", what="serving metrics")

from aiohttp import web  # noqa: E402
from prometheus_client.exposition import choose_encoder  # noqa: E402

from seriatim.telemetry.prometheus import Snapshot  # noqa: E402

Collect = Callable[[], Awaitable[Iterable[Any]]]
"""Collects all metric families."""

Check = Callable[[str], web.Response | None]


class MetricsServer:
    """Serves metrics to Prometheus."""

    def __init__(
        self, collect: Collect, *, check: Check | None = None, is_healthy: Callable[[], bool] = lambda: True
    ) -> None:
        self._collect = collect
        self._check = check
        self._is_healthy = is_healthy
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int, tls: SSLContext | None = None) -> int:
        """Start serving; returns the port, which was chosen if it was 0."""
        app = web.Application(client_max_size=0)
        app.router.add_get("/metrics", self._on_metrics)
        app.router.add_get("/health", self._on_health)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        except OSError as error:
            raise FailedPrecondition(f"can't serve metrics at {host}:{port}: {error}; choose another port") from error
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _on_metrics(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        families = Snapshot(await self._collect())
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # There may be thousands of subscriptions: the event loop must not wait for them.
        text = await asyncio.to_thread(encode, families)
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _on_health(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if self._is_healthy():
            return web.Response(text="healthy\n")
        return web.Response(status=503, text="not connected\n")

    def _refusal(self, request: web.Request) -> web.Response | None:
        return None if self._check is None else self._check(request.headers.get("Authorization", ""))
