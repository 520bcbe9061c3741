"""A Pub/Sub server for tests: a drop-in for Google's emulator, in this process and on a store in memory.

::

    with PubSubEmulator() as emulator:
        ...  # PUBSUB_EMULATOR_HOST is set: the official clients connect to it
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

from seriatim.client.blocking_facade import LoopThread
from seriatim.engine.connect import open_broker
from seriatim.extras import require_extra

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker

ENVIRONMENT = "PUBSUB_EMULATOR_HOST"


class PubSubEmulator:
    """A running server. ``host`` is its address, such as ``127.0.0.1:40123``. Inside the block
    ``PUBSUB_EMULATOR_HOST`` names it, for this process and those that it starts.
    """

    def __init__(self, url: str = "memory://", *, project: str = "test") -> None:
        """``project`` is the one whose resources have short names in the store (see the Pub/Sub API reference)."""
        require_extra("server", "grpc", "google.cloud.pubsub", what="the Pub/Sub emulator")
        self.host = ""
        self.project = project
        self._url = url
        self._thread = LoopThread(1)
        self._former: str | None = None

    def __enter__(self) -> PubSubEmulator:
        self._thread.start()
        try:
            self._broker, self._server = self._thread.run(self._start())
        except BaseException:
            self._thread.close()
            raise
        self._former = os.environ.get(ENVIRONMENT)
        os.environ[ENVIRONMENT] = self.host
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former is None:
            os.environ.pop(ENVIRONMENT, None)
        else:
            os.environ[ENVIRONMENT] = self._former
        try:
            self._thread.run(self._stop())
        finally:
            self._thread.close()

    async def _start(self) -> tuple[Broker, Any]:
        from seriatim.server.options import ServerOptions
        from seriatim.server.server import Server

        broker = await open_broker(self._url)
        try:
            server = Server(broker, ServerOptions(project=self.project))
            self.host = f"127.0.0.1:{await server.start(port=0)}"
        except BaseException:
            await broker.close()
            raise
        return broker, server

    async def _stop(self) -> None:
        try:
            await self._server.stop(grace=0.5)
        finally:
            await self._broker.close()
