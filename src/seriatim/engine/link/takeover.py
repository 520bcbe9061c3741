"""A broker that continues when the owner of its store exits.

Rules
    - When the owner exits or disappears, this process becomes the next owner, or connects to it.
    - Until then, new calls wait, in order. Calls that were not answered have already failed: no call is repeated.
    - Consumers are attached again. Their leases are lost: the messages are delivered again, perhaps to other consumers.
    - If there is no next owner after a while, all calls fail with StoreLost, and consumers get the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from seriatim.core.lanes.types import Lease
from seriatim.engine.broker import Attachment, Broker, OnDurable
from seriatim.engine.consumer import Consumer
from seriatim.engine.link.remote import Lost
from seriatim.engine.link.verbs import CallingBroker
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import SeriatimError, StaleLease, StoreLost
from seriatim.log import logger

Find = Callable[[Lost], Awaitable[Broker]]
"""Returns a broker, and calls back when it is lost."""


class SharedBroker(CallingBroker):
    """Forwards calls to the current owner of the store."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._broker: Broker | None = None
        self._waiting: list[Callable[[], None]] = []
        self._attached: dict[SharedAttachment, None] = {}
        self._search: asyncio.Task[None] | None = None
        self._closed: SeriatimError | None = None

    def use(self, broker: Broker) -> None:
        """Call ``broker`` from now on, beginning with the calls that wait, in order."""
        self._broker = broker
        for attachment in list(self._attached):
            attachment.attach_to(broker)
        self._resume_waiting()

    def lost(self, error: SeriatimError) -> None:
        """The broker is gone: look for the next one."""
        if self._broker is None or self._closed is not None:
            return
        logger.info("%s; looking for the next owner of the store", error)
        self._broker = None
        for attachment in list(self._attached):
            attachment.attach_to(None)
        self._search = asyncio.create_task(self._find_next(error), name="seriatim-next-owner")

    async def _find_next(self, error: SeriatimError) -> None:
        try:
            self.use(await self._find(self.lost))
        except Exception as failure:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            self._fail(StoreLost(f"{error}, and there is no next one: {failure}"))

    def _fail(self, error: SeriatimError) -> None:
        self._closed = error
        logger.error("%s", error)
        for attachment in list(self._attached):
            attachment.consumer.failed(error)
        self._resume_waiting()

    def _resume_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    # -- what programs ask ----------------------------------------------------------------------------------------------

    def _call(self, verb: str, *given: Any, **named: Any) -> asyncio.Future[Any]:
        if self._closed is not None:
            raise StoreLost(str(self._closed))
        if self._broker is not None:
            answer: Awaitable[Any] = getattr(self._broker, verb)(*given, **named)
            return asyncio.ensure_future(answer)
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(lambda: self._call_now(asked, verb, *given, **named))
        return asked

    def _call_now(self, asked: asyncio.Future[Any], verb: str, *given: Any, **named: Any) -> None:
        if asked.done():  # whoever waited has gone
            return
        try:
            _chain(self._call(verb, *given, **named), asked)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            asked.set_exception(error)

    def require_topic(self, name: str) -> None:
        if self._broker is not None:
            self._broker.require_topic(name)

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        if self._closed is not None:
            raise StoreLost(str(self._closed))
        attachment = SharedAttachment(subscription, consumer, self._attached)
        attachment.attach_to(self._broker)
        return attachment

    def begin_closing(self) -> None:
        if self._broker is not None:
            self._broker.begin_closing()

    async def close(self) -> None:
        self._closed = self._closed or StoreLost("the store was closed")
        try:
            if self._search is not None:
                self._search.cancel()
                await asyncio.wait([self._search])
        finally:
            broker, self._broker = self._broker, None
            self._resume_waiting()
            if broker is not None:
                await broker.close()


class SharedAttachment:
    """An attached consumer, wherever its subscription is."""

    def __init__(self, subscription: str, consumer: Consumer, attached: dict[SharedAttachment, None]) -> None:
        self._subscription = subscription
        self._attached = attached
        self._now: Attachment | None = None
        self.consumer = consumer
        attached[self] = None

    def attach_to(self, broker: Broker | None) -> None:
        """Continue with ``broker``, or wait for the next one. Leases of the former one are lost."""
        self._now = None
        if broker is not None:
            try:
                self._now = broker.attach(self._subscription, self.consumer)
            except SeriatimError as error:  # the subscription was deleted meanwhile
                self.consumer.failed(error)

    @property
    def ack_deadline(self) -> float:
        return SubscriptionOptions().ack_deadline if self._now is None else self._now.ack_deadline

    def holds(self, lease: Lease) -> bool:
        return self._now is not None and self._now.holds(lease)

    def ack(self, lease: Lease, on_durable: OnDurable | None = None) -> None:
        self._holder(lease).ack(lease, on_durable)

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        self._holder(lease).nack(lease, delay, error)

    def dead_letter(self, lease: Lease, reason: str | None = None, *, rest: bool = False) -> None:
        self._holder(lease).dead_letter(lease, reason, rest=rest)

    def extend(self, lease: Lease, seconds: float) -> None:
        self._holder(lease).extend(lease, seconds)

    def stop(self) -> None:
        """Nothing remains outstanding: leases end with their owner."""
        self._attached.pop(self, None)
        if self._now is not None:
            self._now.stop()

    def detach(self) -> None:
        self._attached.pop(self, None)
        if self._now is not None:
            self._now.detach()

    def _holder(self, lease: Lease) -> Attachment:
        if self._now is None:
            raise StaleLease(f"message {lease.offset} is not leased any more: the owner of the store went away")
        return self._now


def _chain(answer: asyncio.Future[Any], asked: asyncio.Future[Any]) -> None:
    def done(answer: asyncio.Future[Any]) -> None:
        error = None if answer.cancelled() else answer.exception()  # looked at although nobody may want to hear of it
        if asked.done():
            return
        if answer.cancelled():
            asked.cancel()
        elif error is not None:
            asked.set_exception(error)
        else:
            asked.set_result(answer.result())

    answer.add_done_callback(done)
