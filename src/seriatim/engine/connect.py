"""Opens a broker: one function, so that callers need not know which kind of broker an address leads to.

Rules
    - A store has one owner. The first process owns it, and serves others at the socket beside it.
    - Later processes connect to the owner. If there is a lock but no socket, an owner is just starting or exiting: both ways
      are retried for a while. A process that looks for the next owner also retries after disk failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from seriatim.engine.broker import Broker
from seriatim.engine.engine import Engine
from seriatim.engine.link.address import socket_path
from seriatim.engine.link.remote import Lost, RemoteBroker
from seriatim.engine.link.server import LinkServer
from seriatim.engine.link.takeover import SharedBroker
from seriatim.engine.uncancelled_wait import until_done
from seriatim.errors import SeriatimError, StoreBusy, StoreError, StoreFailed, StoreFull, StoreOwned
from seriatim.log import logger
from seriatim.store import absolute_url, store_file
from seriatim.store.base import Standby

E = TypeVar("E", bound=Engine)

CONNECT_TIMEOUT_S = 5.0
"""How long a store may have an owner that can't be reached when it is opened."""

TAKEOVER_TIMEOUT_S = 30.0
"""The same after an owner has ended: it may have much to write, and the next one much to read."""

MIN_PAUSE_S, MAX_PAUSE_S = 0.01, 0.25
"""Between two tries."""


async def open_broker(url: str, *, standby: bool = False) -> Broker:
    """The broker at ``url``: an engine in this process, or a link to the one that owns the store already.

    A store that is not in a file has no socket beside it: while somebody else owns it, this raises StoreBusy or, with
    ``standby``, waits until the store is free.
    """
    url = absolute_url(url)  # its owner may have to be found again later, when the program is in another folder
    file = store_file(url)
    if file is None or standby:  # the store refuses to have standbys if it can't
        return await _open(url, standby=standby)
    path = socket_path(file)
    shared = SharedBroker(partial(_find, url, path, TAKEOVER_TIMEOUT_S, (StoreBusy, StoreFull, StoreFailed)))
    found = await _find(url, path, CONNECT_TIMEOUT_S, (StoreBusy,), shared.lost)
    if isinstance(found, Engine):
        return found
    shared.use(found)
    return shared


async def open_engine(url: str, *, standby: bool = False) -> Engine:
    """An engine of this process on the store at ``url``, which answers others at its socket.

    Waits for an owner that is exiting; raises StoreBusy if the owner keeps running. ``standby`` is as above.
    """
    file = store_file(url)
    if file is None or standby:
        return await _open(url, standby=standby)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONNECT_TIMEOUT_S
    while True:
        try:
            return await _own(url, socket_path(file))
        except StoreBusy:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(MAX_PAUSE_S)


async def _find(url: str, path: Path, patience: float, passing: tuple[type[StoreError], ...], lost: Lost) -> Broker:
    """Own the store, or connect to its owner. After a failure in ``passing`` it tries again."""
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + patience, MIN_PAUSE_S
    while True:
        try:
            return await _own(url, path)
        except passing as error:
            failure = error
        try:
            return await RemoteBroker.connect(path, lost)
        except TimeoutError:
            silent = True
        except OSError:  # no socket, or nobody who listens there
            silent = False
        if loop.time() >= deadline:
            raise _without_answer(failure) if silent and isinstance(failure, StoreOwned) else failure
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_S)


def _without_answer(failure: StoreOwned) -> StoreOwned:
    """The same failure, for an owner that listens but does not answer."""
    return StoreOwned(
        f"{failure.message.partition(': use it')[0]}, which does not answer: it is suspended, or a handler blocks its event "
        "loop; let that handler finish, move blocking work to 'asyncio.to_thread', or stop the process"
    )


async def _own(url: str, path: Path) -> _Owner:
    engine = await _opened(asyncio.ensure_future(_Owner.open(url)))
    try:
        await engine.serve(path)
    except BaseException:
        await engine.close()  # or the store would stay owned by an engine that nobody has
        raise
    return engine


async def _open(url: str, *, standby: bool) -> Engine:
    if not standby:
        return await _opened(asyncio.ensure_future(Engine.open(url)))
    with Standby() as patience:
        return await _opened(asyncio.ensure_future(Engine.open(url, patience)), patience.cancel)


async def _opened(opening: asyncio.Future[E], cancel: Callable[[], None] = lambda: None) -> E:
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # A thread is opening it and can't be stopped: give back what it gets, or nobody could own the store.
        cancel()
        await until_done(asyncio.ensure_future(_give_back(opening)))
        raise


async def _give_back(opening: asyncio.Future[E]) -> None:
    with suppress(SeriatimError):
        await (await opening).close()


class _Owner(Engine):
    """An engine that also serves other processes."""

    _server: LinkServer | None = None

    async def serve(self, path: Path) -> None:
        server = LinkServer(self, path)
        try:
            await server.start()
        except StoreFailed as error:  # it can do its own work all the same
            logger.warning("other processes can't reach this store: %s", error)
        else:
            self._server = server

    async def close(self) -> None:
        try:
            if self._server is not None:
                await self._server.close()  # first: whoever owns the store next makes its own socket
        finally:
            await super().close()
