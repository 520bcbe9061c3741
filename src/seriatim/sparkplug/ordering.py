"""The ordering service: messages of edge nodes in, the same messages in order out. Any thread may call it.

Rules
    - Order is decided by ``core.edge_nodes``; here are a lock, a clock and one timer thread.
    - Callbacks run outside the lock, one at a time, in the order in which things happened: what a timeout released in one
      thread can't be overtaken by what a message released in another. A callback may call the service.
    - A callback that raises stops nobody: what comes after it is kept for the next delivery. In ``process`` the error goes to
      the caller, in the timer thread to the log.
    - An argument that can't work raises and changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from seriatim.core.edge_messages import (
    DeathIgnored,
    EdgeMessage,
    NodeEffect,
    NodeOrdering,
    Ordered,
    RebirthRequested,
    StatusChanged,
    check_message,
)
from seriatim.core.edge_nodes import EdgeNodes
from seriatim.core.resequencing import LedgerEntry
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.log import logger
from seriatim.sparkplug.topics import NodeId, check_id, check_node

M = TypeVar("M")


def _log_request(request: RebirthRequested) -> None:
    logger.warning("edge node %s should be asked for a rebirth (%s), and nobody listens", request.key, request.reason)


def _ignore(_: Any) -> None:
    """Nobody wants to know."""


class OrderingService(Generic[M]):
    """Puts the messages of many edge nodes in order.

    ``on_message`` gets every message in order, whatever released it, and ``on_rebirth`` the requests to be sent. ``on_ledger``
    gets what was not released and why, ``on_status`` what goes online, offline or stale, ``on_ignored`` the deaths of no living
    session. ``clock`` counts in seconds. With ``timer=False`` no thread is started: call ``advance`` when time has passed.
    """

    def __init__(
        self,
        on_message: Callable[[Ordered[M]], object],
        options: NodeOrdering | None = None,
        *,
        on_rebirth: Callable[[RebirthRequested], object] = _log_request,
        on_ledger: Callable[[LedgerEntry[EdgeMessage[M]]], object] = _ignore,
        on_status: Callable[[StatusChanged], object] = _ignore,
        on_ignored: Callable[[DeathIgnored[M]], object] = _ignore,
        clock: Callable[[], float] = time.monotonic,
        timer: bool = True,
    ) -> None:
        self._callbacks: dict[type, Callable[[Any], object]] = {
            Ordered: on_message,
            RebirthRequested: on_rebirth,
            LedgerEntry: on_ledger,
            StatusChanged: on_status,
            DeathIgnored: on_ignored,
        }
        for callback in self._callbacks.values():
            if not callable(callback):
                raise InvalidArgument(f"a callback must be callable, not {type(callback).__name__}")
        self._nodes: EdgeNodes[M] = EdgeNodes(options)
        self._clock = clock
        self._changed = threading.Condition()
        self._outbox: deque[NodeEffect[M]] = deque()
        self._delivering = False
        self._closed = False
        self._timer = (
            threading.Thread(target=self._run_timer, name="seriatim-sparkplug", daemon=True) if timer else None
        )
        if self._timer:
            self._timer.start()

    # -- commands -------------------------------------------------------------------------------------------------------

    def process(self, node: NodeId, message: EdgeMessage[M]) -> list[Ordered[M]]:
        """Take in one message. Returns what it released, which ``on_message`` gets too."""
        check_node(node)
        check_message(message)
        return self._do(lambda now: self._receive(node, message, now))

    def _receive(self, node: NodeId, message: EdgeMessage[M], now: float) -> list[NodeEffect[M]]:
        if self._closed:
            raise FailedPrecondition("this ordering service is closed: make a new one")
        return self._nodes.receive(node, message, now)

    def advance(self) -> list[Ordered[M]]:
        """Let fall due what is due. Returns what was released, which ``on_message`` gets too."""
        return self._do(self._nodes.advance)

    def clear(self, node: NodeId, device: str | None = None) -> list[EdgeMessage[M]]:
        """Forget a node, or one of its devices. Returns what was held of it, in order; the ledger says so too."""
        check_node(node)
        if device is not None:
            check_id("device id", device)
        held: list[EdgeMessage[M]] = []

        def clear(now: float) -> list[NodeEffect[M]]:
            effects = self._nodes.clear(node, now) if device is None else self._nodes.clear_device(node, device, now)
            held.extend(e.message for e in effects if isinstance(e, LedgerEntry) and e.message is not None)
            return effects

        self._do(clear)
        return held

    def disconnected(self) -> None:
        """The way to the nodes is lost: what was online is stale."""
        self._do(lambda _: self._nodes.disconnect())

    def connected(self) -> None:
        """The way to the nodes is there again: nodes that are stale are asked for their births."""
        self._do(self._nodes.reconnect)

    def close(self) -> None:
        """Stop the timer thread and take no more messages. What is held stays held; ``clear`` gives it back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._timer and self._timer is not threading.current_thread():
            self._timer.join()

    def __enter__(self) -> OrderingService[M]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- work under the lock, callbacks outside -------------------------------------------------------------------------

    def _do(self, change: Callable[[float], list[NodeEffect[M]]]) -> list[Ordered[M]]:
        with self._changed:
            before = self._nodes.next_deadline
            effects = change(self._clock())
            self._outbox.extend(effects)
            if self._nodes.next_deadline != before:
                self._changed.notify_all()
        self._deliver()
        return [effect for effect in effects if isinstance(effect, Ordered)]

    def _deliver(self) -> None:
        """Call back about everything in the outbox, unless somebody is at it: then that one goes on with it."""
        with self._changed:
            if self._delivering:
                return
            self._delivering = True
        try:
            while (effect := self._next_effect()) is not None:
                self._callbacks[type(effect)](effect)
        except BaseException:
            with self._changed:
                self._delivering = False
            raise

    def _next_effect(self) -> NodeEffect[M] | None:
        with self._changed:
            if self._outbox:
                return self._outbox.popleft()
            self._delivering = False  # in one step with finding nothing, or an effect could be left behind
            return None

    # -- time -----------------------------------------------------------------------------------------------------------

    def _run_timer(self) -> None:
        while self._wait_for_deadline():
            try:
                self._do(self._nodes.advance)
            except Exception:  # noqa: BLE001 - a callback's mistake must not stop time for everybody else
                logger.exception("a callback of the ordering service failed")

    def _wait_for_deadline(self) -> bool:
        """True when something is due, False when the service is closed."""
        with self._changed:
            while not self._closed:
                deadline = self._nodes.next_deadline
                if deadline is not None and deadline <= self._clock():
                    return True
                self._changed.wait(None if deadline is None else max(0.0, deadline - self._clock()))
            return False
