"""``Subscription``: consuming, and an operator's hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from seriatim.client.consumer import Consuming, ErrorHandler, Handler, HandlerRunner, MessageStream, is_cancelled
from seriatim.client.message import Message
from seriatim.client.running import Calls
from seriatim.client.views import DeadLetter, KeyView, PeekedMessage, offset_of
from seriatim.core.delivery import Release, RetryPolicy
from seriatim.core.limits import describe
from seriatim.core.options import one_of
from seriatim.engine.broker import Broker, SnapshotInfo
from seriatim.engine.metrics import SubscriptionStats
from seriatim.engine.options import WEEK, SubscriptionOptions
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.log import logger

if TYPE_CHECKING:
    from seriatim.client.pubsub import PubSub
    from seriatim.client.topic import Topic


class OptionChanges(TypedDict, total=False):
    """What ``set_options`` can change; what is not given stays as it is."""

    message_ordering: bool
    ack_deadline: float
    retry: RetryPolicy
    window: int
    release: Release | Literal["durable", "receipt"]
    dead_letter_topic: str | None


class Limits(TypedDict, total=False):
    """The fields of ``Consuming``."""

    max_messages: int
    max_bytes: float
    max_extension: float


class Subscription:
    """A subscription by its name."""

    def __init__(self, pubsub: PubSub, name: str, topic: Topic | None) -> None:
        self._pubsub = pubsub
        self.name = name
        self.topic = topic
        self._handlers: list[Handler] = []
        self._error_handlers: list[ErrorHandler] = []
        self._reports = Calls()
        self._runner: HandlerRunner | None = None
        self._streams: list[MessageStream] = []

    @property
    def _broker(self) -> Broker:
        return self._pubsub.broker

    async def create(
        self,
        *,
        enable_message_ordering: bool = False,
        ack_deadline: float = 10.0,
        retry: RetryPolicy | None = None,
        window: int = 1,
        release: Release | Literal["durable", "receipt"] = Release.DURABLE,
        dead_letter_topic: str | None = None,
        filter: str | None = None,  # noqa: A002 - the word that everybody knows it by
    ) -> Subscription:
        """Create it; it gets what is published from now on and its ``filter`` wants. A dead-letter topic must exist."""
        if self.topic is None:
            raise FailedPrecondition(f"subscription {self.name!r} has no topic: use topic.subscription({self.name!r})")
        options = SubscriptionOptions(
            ordering=enable_message_ordering,
            ack_deadline=ack_deadline,
            retry=retry or RetryPolicy(),
            window=window,
            release=one_of("release", Release, release),
            dead_letter_topic=dead_letter_topic,
            filter=filter,
        )
        await self._broker.create_subscription(self.topic.name, self.name, options)
        return self

    async def options(self) -> SubscriptionOptions:
        return (await self._broker.describe_subscription(self.name)).options

    async def set_options(self, **changes: Unpack[OptionChanges]) -> None:
        """Change what is given and keep the rest. Messages that are out finish first."""
        named: dict[str, Any] = {**changes}
        if "message_ordering" in named:
            named["ordering"] = named.pop("message_ordering")
        await self._broker.update_subscription(self.name, SubscriptionOptions(**named), list(named))

    async def delete(self) -> None:
        await self.close()
        await self._broker.delete_subscription(self.name)

    # -- consuming ------------------------------------------------------------------------------------------------------

    def on(self, event: Literal["message", "error"], handler: Callable[[Any], object]) -> None:
        """Call ``handler`` with every message, or with every error: of a handler, and of the store while this is open.

        It may be a plain or an async function. Of several handlers all are called, in the order in which they were registered;
        one that comes while this is open gets the messages from then on.
        """
        if event == "message":
            self._handlers.append(handler)
            if self._runner is not None:
                self._runner.handle = self._handler()
        elif event == "error":
            self._error_handlers.append(handler)
        else:
            raise InvalidArgument(f"there is no event {event!r}: use 'message' or 'error'")

    def open(self, consuming: Consuming | None = None, **limits: Unpack[Limits]) -> None:
        """Begin to call the handlers, with as many messages at once as ``Consuming`` or the limits allow."""
        if self._runner is not None and not self._runner.is_over:
            raise FailedPrecondition(f"subscription {self.name!r} is open already, or its handlers still run")
        if not self._handlers:
            raise FailedPrecondition(f"subscription {self.name!r} has no handler: call on('message', handler) first")
        broker, consuming = self._pubsub.broker_for_consumers, replace(consuming or Consuming(), **limits)
        self._runner = HandlerRunner(broker, self.name, consuming, self._handler(), self._report)

    def stop(self) -> None:
        """Start no more handlers and end every iteration; what is at work goes on. Wait for handlers with ``close``."""
        with ExitStack() as everything:
            if self._runner is not None:
                everything.callback(self._runner.stop)
            for stream in self._streams:
                everything.callback(stream.end)

    async def close(self) -> None:
        """Start nothing more, end every iteration, and wait for the handlers that run. Closing again does no harm.

        Whatever the handlers say is accepted. When a handler calls this, it waits for the other handlers only.
        """
        runner = self._runner
        try:
            self.stop()
            if runner is not None:
                await runner.close()
            await self._reports.wait()
        finally:
            if self._runner is runner and runner is not None and runner.is_over:
                self._runner = None
            self._close_streams()

    def _close_streams(self) -> None:
        with ExitStack() as everything:
            while self._streams:
                everything.callback(self._streams.pop().close)

    def messages(self, consuming: Consuming | None = None, **limits: Unpack[Limits]) -> MessageStream:
        """An async iterator of messages. Close it (``close()``) to give back what was not settled."""
        # A stream is worked off one by one: taking many messages would only keep them from others.
        consuming = replace(consuming or Consuming(max_messages=16), **limits)
        stream = MessageStream(self._pubsub.broker_for_consumers, self.name, consuming)
        self._streams = [known for known in self._streams if not known.is_closed] + [stream]
        return stream

    async def __aiter__(self) -> AsyncIterator[Message]:
        stream = self.messages()
        try:
            async for message in stream:
                yield message
        finally:
            stream.close()

    def _handler(self) -> Handler:
        return self._handlers[0] if len(self._handlers) == 1 else self._handle_all

    async def _handle_all(self, message: Message) -> None:
        for handler in tuple(self._handlers):
            result = handler(message)
            if asyncio.iscoroutine(result):
                await result

    def _report(self, error: BaseException) -> None:
        if not self._error_handlers:
            logger.error("a handler of subscription %r failed: %s", self.name, describe(error), exc_info=error)
            return
        for handler in self._error_handlers:
            try:
                result = handler(error)
            except BaseException as trouble:  # noqa: BLE001 - nobody is left to tell, and messages must go on
                self._log_trouble(trouble)
            else:
                if asyncio.iscoroutine(result):
                    self._reports.start(self._finish_report(result))

    async def _finish_report(self, result: Coroutine[Any, Any, object]) -> None:
        try:
            await result
        except BaseException as trouble:
            if isinstance(trouble, GeneratorExit) or is_cancelled(trouble):
                raise
            self._log_trouble(trouble)
        finally:
            result.close()

    def _log_trouble(self, trouble: BaseException) -> None:
        text = describe(trouble)
        logger.error("an error handler of subscription %r failed: %s", self.name, text, exc_info=trouble)

    async def wait_until_empty(self) -> None:
        """Return when nothing waits, nothing is out, and every ack is durable."""
        await self._broker.wait_until_empty(self.name)

    # -- looking --------------------------------------------------------------------------------------------------------

    async def stats(self) -> SubscriptionStats:
        """How many messages it has, what they wait for, and how old the oldest is."""
        return await self._broker.stats(self.name)

    async def keys(self, *, limit: int = 100, blocked_only: bool = False) -> list[KeyView]:
        """Keys that have messages or are paused, those in trouble first, and why they wait."""
        found = await self._broker.list_keys(self.name, limit=limit, blocked_only=blocked_only)
        return [KeyView.of(info) for info in found]

    async def peek(self, key: str | None, limit: int = 10) -> list[PeekedMessage]:
        """The first messages of a key, in order, without delivering them. None: those without a key."""
        return [PeekedMessage.of(stored) for stored in await self._broker.peek(self.name, key, limit)]

    # -- an operator's hand ---------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Give out nothing more; messages that are out go on. Survives a restart."""
        await self._broker.pause(self.name)

    async def resume(self) -> None:
        await self._broker.resume(self.name)

    async def pause_key(self, key: str | None, reason: str | None = None) -> None:
        """Give out nothing more of a key. Survives a restart."""
        await self._broker.pause_key(self.name, key, reason)

    async def resume_key(self, key: str | None) -> None:
        await self._broker.resume_key(self.name, key)

    async def retry(self, key: str | None) -> None:
        """Let what waits for its retry, or for its delay, go out now."""
        await self._broker.retry_key(self.name, key)

    async def skip(self, key: str | None) -> str:
        """Settle the head of a key unseen, and return its id. If it is out, its ack is refused."""
        return str(await self._broker.skip(self.name, key))

    async def remove(self, message_id: str) -> None:
        """Take a message out, wherever it stands in its key. One that is out can't be removed."""
        await self._broker.remove(self.name, offset_of(message_id))

    async def dead_letter(self, key: str | None, error: str | None = None, *, rest: bool = False) -> list[str]:
        """Dead-letter the head of a key, or all of it, and return the ids."""
        return [str(offset) for offset in await self._broker.dead_letter(self.name, key, error, rest=rest)]

    async def dead_letters(self, *, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        """Dead letters in the order of their ids; ``after`` is the last id of the page before."""
        last = -1 if after is None else offset_of(after)
        return [DeadLetter.of(found) for found in await self._broker.dead_letters(self.name, limit=limit, after=last)]

    async def redrive(self, message_id: str, *, append: bool = False) -> str:
        """Put a dead letter back at its place, and return its id.

        Raises RedriveRefused when a later message of its key was settled or is out. With ``append`` it becomes a new message
        at the end of the topic, which the topic's other subscriptions get too; the result is its new id.
        """
        return str(await self._broker.redrive(self.name, offset_of(message_id), append=append))

    async def purge(self, *message_ids: str) -> None:
        """Give dead letters up for good."""
        await self._broker.purge(self.name, [offset_of(message_id) for message_id in message_ids])

    # -- time travel ----------------------------------------------------------------------------------------------------

    async def seek(
        self, *, time: datetime | float | None = None, message_id: str | None = None, snapshot: str | None = None
    ) -> None:
        """Go on from another place: from a time, from a message, or from where a snapshot was taken. Messages that are out are
        taken back; their acks are refused."""
        if [time, message_id, snapshot].count(None) != 2:
            raise InvalidArgument("seek goes to one place: give a time, a message_id or a snapshot")
        if snapshot is not None:
            await self._broker.seek_to_snapshot(self.name, snapshot)
        elif message_id is not None:
            await self._broker.seek_to_offset(self.name, offset_of(message_id))
        else:
            await self._broker.seek_to_time(self.name, _seconds_of(time))

    async def snapshot(self, name: str, *, lasts: float = WEEK) -> SnapshotInfo:
        """Remember what is settled now under a name, for ``lasts`` seconds; ``seek(snapshot=name)`` goes back to it."""
        return await self._broker.create_snapshot(self.name, name, lasts=lasts)


def _seconds_of(time: Any) -> float:
    if not isinstance(time, datetime):
        return cast("float", time)  # checked where it is used
    if time.tzinfo is None:
        raise InvalidArgument(
            f"{time} could be meant anywhere: give a datetime with a time zone, such as datetime.now(UTC)"
        )
    return time.timestamp()
