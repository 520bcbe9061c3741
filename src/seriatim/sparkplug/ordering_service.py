"""The ordering service: takes the messages of edge nodes, and returns them in order. It is thread-safe.

Rules
    - ``core.sparkplug.edge_node`` decides the order, node by node; this module adds locks, a clock and threads.
    - Each node has its own lock and outbox, so no node waits for another, neither for decisions nor for callbacks. State that
      all nodes share (which exist, whose deadline is next, how many rebirths may be requested) has another lock. It is held
      briefly, and not taken at all for an in-order message of a known node.
    - The shared lock may be taken while the lock of a node is held, never the other way round.
    - Callbacks run outside the locks. Those of one node run one at a time, in order of events: messages released by a timeout
      in one thread can't be overtaken by those released by a message in another. A callback may call the service.
    - An exception in a callback does not prevent the others. After all of them the first error is raised to the caller of
      ``process`` or ``advance``; the others are logged.
    - One thread waits for the next deadline. Callbacks run in a pool, so that a slow one does not delay the timeouts of other
      nodes.
    - A call with invalid arguments raises and changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from seriatim.core.resequencing.options import LedgerEntry
from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import (
    DeathIgnored,
    EdgeMessage,
    NodeEffect,
    NodeOrdering,
    NodeSnapshot,
    Ordered,
    RebirthRequested,
    ReleasedBy,
    StatusChanged,
    check_message,
)
from seriatim.core.sparkplug.pool import EdgeNodes
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.log import logger
from seriatim.sparkplug.ordering_interface import PendingMessagesCallback, RebirthRequestCallback
from seriatim.sparkplug.topics import NodeId, check_id, check_node

M = TypeVar("M")

_Notice: TypeAlias = NodeEffect[M] | list[Ordered[M]]
"""The argument of a callback: an effect, or all messages released by a timeout."""
_Change: TypeAlias = Callable[[EdgeNode[M], float], list[NodeEffect[M]]]

TIMEOUT_THREADS = 32
"""How many nodes can have callbacks running at the same time after their timeouts. Threads start as they are needed."""


def _log_request(request: RebirthRequested) -> None:
    logger.warning(
        "edge node %s needs a rebirth (%s), but no on_rebirth callback was given", request.key, request.reason
    )


def _ignore(_: Any) -> None:
    """The default for optional callbacks."""


class _Guarded(Generic[M]):
    """A node, its lock, and the notices that callbacks have not received yet."""

    __slots__ = ("_delivering", "_outbox", "forgotten", "id", "lock", "node")

    def __init__(self, id_: NodeId, node: EdgeNode[M]) -> None:
        self.id = id_
        self.node = node
        self.lock = threading.Lock()
        self.forgotten = False
        """Whether the node was evicted: look it up again."""
        self._outbox: deque[_Notice[M]] | None = None  # an empty deque would be the largest part of an idle node
        self._delivering = False

    def put(self, notices: Sequence[_Notice[M]]) -> None:
        """With the lock held."""
        if self._outbox is not None:
            self._outbox.extend(notices)
        elif notices:
            self._outbox = deque(notices)

    def is_idle(self) -> bool:
        """With the lock held."""
        return self.node.is_blank and not self._outbox and not self._delivering

    def begin_delivery(self) -> bool:
        """Whether the caller is to deliver the outbox. If another thread is delivering it, that one continues."""
        with self.lock:
            if self._delivering or not self._outbox:
                return False
            self._delivering = True
            return True

    def next_notice(self) -> _Notice[M] | None:
        with self.lock:
            if self._outbox:
                return self._outbox.popleft()
            # Atomically with finding the outbox empty, or a notice could be left behind.
            self._outbox, self._delivering = None, False
            return None

    def break_off_delivery(self) -> None:
        with self.lock:
            self._delivering = False


class OrderingService(Generic[M]):
    """Puts the messages of many edge nodes in order. It is a ``MessageOrderingService``.

    ``on_message`` gets every message in order, whatever released it, and ``on_rebirth`` the requests to be sent. ``on_ledger``
    gets what was not released and why, ``on_status`` what goes online, offline or stale, ``on_ignored`` the deaths of no living
    session. ``on_pending_messages`` gets the messages that a timeout released, as one list, after ``on_message`` got each of
    them. ``clock`` counts in seconds. With ``timer=False`` no thread is started: call ``advance`` when time has passed.
    """

    def __init__(
        self,
        on_message: Callable[[Ordered[M]], object],
        options: NodeOrdering | None = None,
        *,
        on_pending_messages: PendingMessagesCallback[M] = _ignore,
        on_rebirth: RebirthRequestCallback = _log_request,
        on_ledger: Callable[[LedgerEntry[EdgeMessage[M]]], object] = _ignore,
        on_status: Callable[[StatusChanged], object] = _ignore,
        on_ignored: Callable[[DeathIgnored[M]], object] = _ignore,
        clock: Callable[[], float] = time.monotonic,
        timer: bool = True,
    ) -> None:
        self._callbacks: dict[type, Callable[[Any], object]] = {
            Ordered: on_message,
            list: on_pending_messages,
            RebirthRequested: on_rebirth,
            LedgerEntry: on_ledger,
            StatusChanged: on_status,
            DeathIgnored: on_ignored,
        }
        for callback in self._callbacks.values():
            if not callable(callback):
                raise InvalidArgument(f"a callback must be callable, not {type(callback).__name__}")
        self._clock = clock
        self._guarded: dict[Hashable, _Guarded[M]] = {}
        self._shared = threading.Condition()
        """Guards the schedule and who is known, and is notified when the next deadline changes."""
        self._schedule: EdgeNodes[M] = EdgeNodes(options, self._try_to_forget)
        self._closed = False
        self._workers: set[threading.Thread] = set()
        self._timer = threading.Thread(target=self._run_timer, name="seriatim-sparkplug", daemon=True)
        if timer:
            self._timer.start()

    # -- commands -------------------------------------------------------------------------------------------------------

    def process(self, node: NodeId, message: EdgeMessage[M]) -> list[Ordered[M]]:
        """Take in one message. Returns what it released, which ``on_message`` gets too."""
        check_node(node)
        check_message(message)

        def receive(known: EdgeNode[M], now: float) -> list[NodeEffect[M]]:
            if self._closed:
                raise FailedPrecondition("this ordering service is closed: create a new one")
            return known.receive(message, now)

        effects = None
        while effects is None:
            guarded = self._guarded.get(node) or self._add(node)
            effects = self._decide(guarded, receive)
        self._deliver([guarded])
        return [effect for effect in effects if isinstance(effect, Ordered)]

    def advance(self) -> list[Ordered[M]]:
        """Handle the deadlines that have passed. Returns what was released, which ``on_message`` gets too."""
        concerned, effects = self._advance()
        self._deliver(concerned)
        return [effect for effect in effects if isinstance(effect, Ordered)]

    def clear(self, node: NodeId, device: str | None = None) -> list[EdgeMessage[M]]:
        """Forget a node, or one of its devices. Returns the messages held for it, in order; the ledger gets them, too."""
        check_node(node)
        if device is not None:
            check_id("device id", device)
        guarded = self._guarded.get(node)
        if guarded is None:
            return []
        if device is None:
            effects = self._decide(guarded, EdgeNode.clear)
            with self._shared:
                if not guarded.forgotten:
                    self._schedule.note_cleared(guarded.node)
        else:
            effects = self._decide(guarded, lambda known, now: known.clear_device(device, now))
        self._deliver([guarded])
        return [e.message for e in effects or () if isinstance(e, LedgerEntry) and e.message is not None]

    def disconnected(self) -> None:
        """The connection to the nodes is lost: online nodes and devices become stale."""
        self._change_all(lambda known, _: known.disconnect())

    def connected(self) -> None:
        """The connection is back: stale nodes are asked for a rebirth."""
        self._change_all(EdgeNode.reconnect)

    def close(self) -> None:
        """Stop the threads and accept no more messages. Held messages stay held; ``clear`` returns them."""
        with self._shared:
            self._closed = True
            self._shared.notify_all()
        for guarded in self._all():
            with guarded.lock:
                """Wait for a call that found the service open."""
        if self._timer.is_alive() and threading.current_thread() not in self._workers:
            self._timer.join()

    process_message_order = process
    clear_message_order_cache = clear

    def __enter__(self) -> OrderingService[M]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what it knows --------------------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeId]:
        """The nodes that have sent messages, and were not cleared since."""
        return [guarded.id for guarded in self._all() if not guarded.node.is_blank]

    def snapshot(self, node: NodeId) -> NodeSnapshot[M] | None:
        """The state of a node: expected number, messages held, gaps, statuses. None for an unknown node.

        It includes decisions whose callbacks have not run yet.
        """
        guarded = self._guarded.get(check_node(node))
        if guarded is None:
            return None
        with guarded.lock:
            return None if guarded.node.is_blank else guarded.node.snapshot()

    def _all(self) -> list[_Guarded[M]]:
        with self._shared:
            return list(self._guarded.values())

    def _add(self, key: NodeId) -> _Guarded[M]:
        with self._shared:
            if key not in self._guarded:
                self._guarded[key] = _Guarded(key, self._schedule.node(key, self._clock()))
            return self._guarded[key]

    def _try_to_forget(self, key: Hashable) -> bool:
        """With the shared lock held: forget a cleared node, unless a thread is using it."""
        guarded = self._guarded[key]
        if not guarded.lock.acquire(blocking=False):
            return False
        try:
            guarded.forgotten = guarded.is_idle()
        finally:
            guarded.lock.release()
        if guarded.forgotten:
            del self._guarded[key]
        return guarded.forgotten

    # -- decisions, under the lock of a node ----------------------------------------------------------------------------

    def _decide(self, guarded: _Guarded[M], change: _Change[M]) -> list[NodeEffect[M]] | None:
        """Change a node. Returns the effects, which are still to be delivered; None if the node has been forgotten."""
        with guarded.lock:
            if guarded.forgotten:
                return None
            node, now = guarded.node, self._clock()
            before = node.deadline
            effects = change(node, now)
            if before is not None or node.deadline is not None or RebirthRequested in map(type, effects):
                effects = self._note(node, effects, now)
            guarded.put(_with_pending(effects))
            return effects

    def _note(self, node: EdgeNode[M], effects: list[NodeEffect[M]], now: float) -> list[NodeEffect[M]]:
        with self._shared:
            before = self._schedule.next_deadline
            effects = self._schedule.note(node, effects, now)
            if self._schedule.next_deadline != before:
                self._shared.notify_all()
            return effects

    def _change_all(self, change: _Change[M]) -> None:
        concerned = self._all()
        for guarded in concerned:
            self._decide(guarded, change)
        self._deliver(concerned)

    def _advance(self) -> tuple[list[_Guarded[M]], list[NodeEffect[M]]]:
        """Handle deadlines. Returns the nodes concerned, whose effects are still to be delivered, and all the effects."""
        with self._shared:
            nodes, effects = self._schedule.take_due(self._clock())
            due = [self._guarded[node.key] for node in nodes]
            asked = [(self._guarded[request.key], request) for request in effects]
        for guarded, request in asked:
            with guarded.lock:
                guarded.put([request])
        for guarded in due:
            effects += self._decide(guarded, EdgeNode.advance) or []
        return [guarded for guarded, _ in asked] + due, effects

    # -- callbacks, outside of locks ------------------------------------------------------------------------------------

    def _deliver(self, concerned: Iterable[_Guarded[M]]) -> None:
        """Run the pending callbacks of these nodes. Then raise the first error, if any."""
        errors = [error for guarded in concerned if guarded.begin_delivery() for error in self._call_back(guarded)]
        for error in errors[1:]:
            _log_failure(error)
        if errors:
            raise errors[0]

    def _call_back(self, guarded: _Guarded[M]) -> list[Exception]:
        errors: list[Exception] = []
        try:
            while (notice := guarded.next_notice()) is not None:
                try:
                    self._callbacks[type(notice)](notice)
                except Exception as error:  # noqa: BLE001 - it is raised, or logged, when the rest is delivered
                    errors.append(error)
        except BaseException:
            guarded.break_off_delivery()
            raise
        return errors

    # -- time -----------------------------------------------------------------------------------------------------------

    def _run_timer(self) -> None:
        def begin() -> None:
            self._workers.add(threading.current_thread())

        with ThreadPoolExecutor(TIMEOUT_THREADS, "seriatim-sparkplug", begin) as pool:
            while self._wait_for_deadline():
                for guarded in self._advance()[0]:
                    pool.submit(self._deliver_and_log, guarded)

    def _deliver_and_log(self, guarded: _Guarded[M]) -> None:
        try:
            self._deliver([guarded])
        except BaseException as error:  # noqa: BLE001 - an error in a callback must not stop the timer
            _log_failure(error)

    def _wait_for_deadline(self) -> bool:
        """True when something is due, False when the service is closed."""
        with self._shared:
            while not self._closed:
                deadline = self._schedule.next_deadline
                if deadline is not None and deadline <= self._clock():
                    return True
                self._shared.wait(None if deadline is None else max(0.0, deadline - self._clock()))
            return False


def _log_failure(error: BaseException) -> None:
    logger.error("a callback of the ordering service failed", exc_info=error)


def _with_pending(effects: list[NodeEffect[M]]) -> list[_Notice[M]]:
    """The effects, with a list of all messages released by a timeout after the last of them."""
    pending = [each for each in effects if isinstance(each, Ordered) and each.released_by is ReleasedBy.TIMEOUT]
    if not pending:
        return [*effects]
    end = next(index for index, each in enumerate(effects, 1) if each is pending[-1])
    return [*effects[:end], pending, *effects[end:]]
