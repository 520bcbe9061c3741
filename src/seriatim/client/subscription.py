"""``Subscription``: consuming messages, and operating on keys and dead letters."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, cast

from seriatim.client.consumer import (
    AckMode,
    BatchHandler,
    ConsumeOptions,
    ErrorHandler,
    Handler,
    HandlerRunner,
    MessageStream,
    PulledMessages,
    check_handler,
    check_timeout,
    is_cancelled,
    runner_of,
)
from seriatim.client.handler_calls import HandlerCalls
from seriatim.client.message import Message
from seriatim.client.stop_signals import stop_on_signal
from seriatim.core.lanes.types import Keep, ReleaseAfter, RetryPolicy
from seriatim.core.text_checks import describe
from seriatim.core.validation import require_whole
from seriatim.engine.broker import (
    Broker,
    DeadLetter,
    Explanation,
    KeyInfo,
    KeyOrder,
    PeekedMessage,
    SnapshotInfo,
    SupersededMessage,
)
from seriatim.engine.metrics import SubscriptionStats
from seriatim.engine.options import DEFAULT_RETENTION_S, SubscriptionOptions, TopicOptions
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from seriatim.log import logger

if TYPE_CHECKING:
    from seriatim.client.pubsub import PubSub
    from seriatim.client.topic import Topic
    from seriatim.telemetry.tracing import Tracing


class SubscriptionSettings(TypedDict, total=False):
    """The options of ``Subscription.create``."""

    enable_message_ordering: bool
    ack_deadline: float
    retry: RetryPolicy | None
    window: int
    release: ReleaseAfter | Literal["durable", "receipt"]
    dead_letter_topic: str | None
    filter: str | None
    keep: Keep | Literal["all", "latest"]
    tenant_limit: int | None
    tenant_separator: str


SLOW_STOP_S = 3.0
"""How long after a signal it is reported that handlers still run."""

_ENGINE_NAMES = {"enable_message_ordering": "message_ordering"}


def _options(settings: SubscriptionSettings) -> SubscriptionOptions:
    """The engine's options with the defaults of the client API: ordered, and retries with backoff."""
    named: dict[str, Any] = {"message_ordering": True}
    named |= {_ENGINE_NAMES.get(name, name): value for name, value in settings.items()}
    named["retry"] = RetryPolicy() if named.get("retry") is None else named["retry"]
    return SubscriptionOptions(**named)


AnyOptions = TypeVar("AnyOptions", TopicOptions, SubscriptionOptions)
AnyHandler = TypeVar("AnyHandler", bound=Callable[[Any], object])


def require_known_options(method: str, given: Iterable[str], known: type) -> None:
    """Raise TypeError as Python does for an unknown keyword argument, with a suggestion."""
    names = list(known.__annotations__)
    for name in set(given) - set(names):
        nearest = get_close_matches(name, names, n=1)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"it takes {', '.join(names)}"
        raise TypeError(f"{method}() got an unexpected keyword argument {name!r}: {advice}")


def require_same_options(what: str, current: AnyOptions, wanted: AnyOptions, names: Iterable[str], advice: str) -> None:
    """Raise AlreadyExists, naming each field that differs, unless the named options have the wanted values."""
    values = []
    for name in sorted(names):
        now, then = getattr(current, name), getattr(wanted, name)
        if is_dataclass(now):
            values += [
                (f"{name}.{each.name}", getattr(now, each.name), getattr(then, each.name)) for each in fields(now)
            ]
        else:
            values.append((name, now, then))
    if differing := [f"{name} is {_plain(now)}, not {_plain(then)}" for name, now, then in values if now != then]:
        raise AlreadyExists(f"{what} exists with other options: {'; '.join(differing)}; {advice}")


def _plain(value: object) -> str:
    return repr(value.value if isinstance(value, Enum) else value)


class OptionChanges(TypedDict, total=False):
    """What ``set_options`` can change; what is not given stays as it is."""

    message_ordering: bool
    ack_deadline: float
    retry: RetryPolicy
    window: int
    release: ReleaseAfter | Literal["durable", "receipt"]
    dead_letter_topic: str | None
    keep: Keep | Literal["all", "latest"]
    tenant_limit: int | None
    tenant_separator: str


class Limits(TypedDict, total=False):
    """The fields of ``ConsumeOptions``."""

    max_messages: int
    max_bytes: float
    max_extension: float
    ack: AckMode
    batch: int | None
    across_keys: bool


class Subscription:
    """A subscription: it receives every message of its topic, independently of other subscriptions.

    It need not exist yet: ``create`` or ``ensure`` makes it.
    """

    def __init__(self, pubsub: PubSub, name: str, topic: Topic | None, tracing: Tracing | None = None) -> None:
        self._pubsub = pubsub
        self._tracing = tracing
        self.name = name
        self.topic = topic
        self._handlers: list[Callable[[Any], object]] = []
        self._error_handlers: list[ErrorHandler] = []
        self._reports = HandlerCalls()
        self._runner: HandlerRunner | None = None
        self._streams: list[MessageStream] = []
        self._has_reported_unsettled = False

    def __repr__(self) -> str:
        return f"Subscription({self.name!r})"

    @property
    def _broker(self) -> Broker:
        return self._pubsub.broker

    @property
    def _consumer_broker(self) -> Broker:
        return self._pubsub._consumer_broker  # noqa: SLF001 - one of us

    async def create(
        self,
        *,
        enable_message_ordering: bool = True,
        ack_deadline: float = 10.0,
        retry: RetryPolicy | None = None,
        window: int = 1,
        release: ReleaseAfter | Literal["durable", "receipt"] = ReleaseAfter.DURABLE,
        dead_letter_topic: str | None = None,
        filter: str | None = None,  # noqa: A002 - the word that everybody knows it by
        keep: Keep | Literal["all", "latest"] = Keep.ALL,
        tenant_limit: int | None = None,
        tenant_separator: str = "/",
    ) -> Subscription:
        """Create the subscription, which receives messages published from now on. Raises AlreadyExists if it exists.

        Messages with the same ordering key are delivered one after another, in order; ``enable_message_ordering=False`` turns
        that off. A failed message blocks its key and is retried with exponential backoff, or as ``retry`` says. Only messages
        that match ``filter`` are delivered. With ``keep="latest"`` a message supersedes earlier ones of its key that are still
        waiting: these are settled without being delivered. ``tenant_limit`` limits the messages in flight over all keys of a
        tenant, which is the part of a key before ``tenant_separator``; tenants take turns. A dead-letter topic must exist.
        """
        options = _options(
            {
                "enable_message_ordering": enable_message_ordering,
                "ack_deadline": ack_deadline,
                "retry": retry,
                "window": window,
                "release": release,
                "dead_letter_topic": dead_letter_topic,
                "filter": filter,
                "keep": keep,
                "tenant_limit": tenant_limit,
                "tenant_separator": tenant_separator,
            }
        )
        await self._broker.create_subscription(self._required_topic(), self.name, options)
        return self

    async def ensure(self, **options: Unpack[SubscriptionSettings]) -> Subscription:
        """Create the subscription unless it exists. Takes the options of ``create``.

        Raises AlreadyExists if it exists on another topic, or with another value of an option that was given.
        """
        require_known_options("ensure", options, SubscriptionSettings)
        topic, wanted = self._required_topic(), _options(options)
        try:
            await self._broker.create_subscription(topic, self.name, wanted)
        except AlreadyExists:
            info = await self._broker.describe_subscription(self.name)
            if info.topic != topic:
                raise AlreadyExists(
                    f"subscription {self.name!r} belongs to topic {info.topic!r}: choose another name"
                ) from None
            given = {_ENGINE_NAMES.get(name, name) for name in options}
            advice = f"change them with set_options, or with 'seriatim subscriptions update {self.name}'"
            if "filter" in given and wanted.filter != info.options.filter:
                advice = "a filter can't be changed: create another subscription"
            require_same_options(f"subscription {self.name!r}", info.options, wanted, given, advice)
        return self

    def _required_topic(self) -> str:
        if self.topic is None:
            raise FailedPrecondition(f"subscription {self.name!r} has no topic: use topic.subscription({self.name!r})")
        return self.topic.name

    async def options(self) -> SubscriptionOptions:
        """The options that the subscription has now."""
        return (await self._broker.describe_subscription(self.name)).options

    async def set_options(self, **changes: Unpack[OptionChanges]) -> None:
        """Change the given options and keep the others.

        The policy for retries (but for its ``mode``), ``ack_deadline`` and ``dead_letter_topic`` change at once. Any other
        change needs new lanes: nothing more is delivered, and this waits until every outstanding lease has ended, by an ack, a
        nack or its deadline. A handler of the subscription must not await it, because it holds one of these leases itself.
        """
        require_known_options("set_options", changes, OptionChanges)
        named: dict[str, Any] = {**changes}
        await self._broker.update_subscription(self.name, SubscriptionOptions(**named), list(named))

    async def delete(self) -> None:
        """Close and delete the subscription."""
        await self.close()
        await self._broker.delete_subscription(self.name)

    # -- consuming ------------------------------------------------------------------------------------------------------

    def on(self, event: Literal["message", "error"], handler: Callable[[Any], object]) -> None:
        """Register a handler that is called with every message, or with every error of a handler or of the store.

        It may be a plain or an async function. If several are registered, each is called, in the order of registration. A
        handler that is registered while the subscription is open receives the messages from then on.

        A message handler must call ``ack`` or ``nack`` on every message. If it returns without either, THE KEY OF THAT MESSAGE
        IS BLOCKED until the lease expires (``ack_deadline``). ``open(ack="on-return")`` acks when a handler returns.
        """
        check_handler(handler)
        if event == "message":
            self._handlers.append(handler)
            if self._runner is not None:
                self._runner.handle = self._handler()
        elif event == "error":
            self._error_handlers.append(handler)
        else:
            raise InvalidArgument(f"there is no event {event!r}: use 'message' or 'error'")

    def open(self, consuming: ConsumeOptions | None = None, **limits: Unpack[Limits]) -> None:
        """Start calling the handlers, with as many messages at once as ``ConsumeOptions`` or the limits allow."""
        if self._runner is not None and not self._runner.is_over:
            raise FailedPrecondition(f"subscription {self.name!r} is already open, or its handlers still run")
        if not self._handlers:
            raise FailedPrecondition(f"subscription {self.name!r} has no handler: call on('message', handler) first")
        broker, consuming = self._consumer_broker, replace(consuming or ConsumeOptions(), **limits)
        self._runner = runner_of(consuming)(
            broker, self.name, consuming, self._handler(), self._report, self._report_unsettled
        )

    def handler(self, function: AnyHandler) -> AnyHandler:
        """Register a message handler, as a decorator: like ``on("message", function)``."""
        self.on("message", function)
        return function

    async def run(
        self,
        handler: Handler | BatchHandler | None = None,
        *,
        concurrency: int = 100,
        ack: AckMode = "manual",
        max_bytes: float = inf,
        max_extension: float = 3600.0,
        batch: int | None = None,
        across_keys: bool = False,
    ) -> None:
        """Call ``handler``, or the registered handlers, with every message until cancelled. A handler must ack or nack: if it
        returns without either, ITS KEY IS BLOCKED until the lease expires. With ``ack="on-return"``, returning acks.

        At most ``concurrency`` messages, or one batch, are in progress at once, and only one of each key. In the main thread,
        SIGTERM and Ctrl-C also end it, and it returns. Either way it waits for the handlers that are running; a second signal
        ends the program without waiting. It raises whatever ends the subscription, such as NotFound when that is deleted. The
        other options are those of ``ConsumeOptions``.

        With ``batch`` the handler receives lists of up to that many messages of one key, in order. Acking one of them also acks
        those before it. If the handler raises, the key continues one message at a time until the failing one is found. With
        ``across_keys`` a list holds messages of any keys, each acked on its own, which suits bulk writes.
        """
        require_whole("concurrency", concurrency, 1)
        if batch is not None:
            require_whole("batch", batch, 1)
        consuming = ConsumeOptions(max(concurrency, batch or 0), max_bytes, max_extension, ack, batch, across_keys)
        if handler is not None:
            self.on("message", handler)
        with stop_on_signal(partial(asyncio.get_running_loop().call_soon_threadsafe, self._stop_by_signal)):
            try:
                self.open(consuming)
                runner = cast("HandlerRunner", self._runner)
                await asyncio.wait({runner.ended, runner.detached}, return_when=asyncio.FIRST_COMPLETED)
                if runner.ended.done():
                    runner.ended.result()
            finally:
                if handler is not None:
                    self._handlers.remove(handler)
                await asyncio.shield(self.close())

    def _stop_by_signal(self) -> None:
        if self._runner is not None:
            self._runner.stop()
            asyncio.get_running_loop().call_later(SLOW_STOP_S, self._report_slow_stop, self._runner)

    def _report_slow_stop(self, runner: HandlerRunner) -> None:
        if not runner.is_over:
            logger.warning(
                "waiting for running handlers of subscription %r; a second signal ends the program at once",
                self.name,
                extra=self._log_fields(None),
            )

    async def pull(self, max_messages: int = 1, timeout: float | None = None) -> list[Message]:  # noqa: ASYNC109
        """Receive up to ``max_messages``, waiting up to ``timeout`` seconds (None: without limit) for the first one.

        Returns an empty list if none arrived. Each must be acked or nacked within the subscription's ``ack_deadline``, which
        ``message.extend`` prolongs. ``close`` returns unsettled messages to the subscription.
        """
        check_timeout(timeout)
        stream = PulledMessages(self._consumer_broker, self.name, max_messages)
        self._streams = [known for known in self._streams if not known.is_closed] + [stream]
        return await stream.take(timeout)

    def stop(self) -> None:
        """Start no more handlers and end every iteration. Running handlers continue; ``close`` waits for them."""
        with ExitStack() as everything:
            if self._runner is not None:
                everything.callback(self._runner.stop)
            for stream in self._streams:
                everything.callback(stream.end)

    async def close(self) -> None:
        """Start no more handlers, end every iteration, and wait for the running handlers. May be called more than once.

        Acks and nacks of these handlers still count. A handler that calls this waits for the other handlers only.
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

    def messages(self, consuming: ConsumeOptions | None = None, **limits: Unpack[Limits]) -> MessageStream:
        """The messages, to be iterated over. Its ``close`` returns unsettled ones to the subscription."""
        # A stream is worked off one by one: taking many messages would only keep them from others.
        consuming = replace(consuming or ConsumeOptions(max_messages=16), **limits)
        stream = MessageStream(self._consumer_broker, self.name, consuming)
        self._streams = [known for known in self._streams if not known.is_closed] + [stream]
        return stream

    async def __aiter__(self) -> AsyncIterator[Message]:
        stream = self.messages()
        try:
            async for message in stream:
                yield message
        finally:
            stream.close()

    def _handler(self) -> Callable[[Any], object]:
        handler = self._handlers[0] if len(self._handlers) == 1 else self._handle_all
        return handler if self._tracing is None else self._tracing.handler(self.name, handler)

    async def _handle_all(self, message: Message | list[Message]) -> None:
        for handler in tuple(self._handlers):
            result = handler(message)
            if inspect.isawaitable(result):
                await result

    def _report_unsettled(self, message: Message | list[Message]) -> None:
        if not self._has_reported_unsettled:
            self._has_reported_unsettled = True
            logger.warning(
                "a handler of subscription %r returned without ack or nack: key %r is blocked until the lease expires; call "
                "message.ack() or message.nack(), or consume with ack='on-return' (this is logged once)",
                self.name,
                (message[0] if isinstance(message, list) else message).ordering_key,
                extra=self._log_fields(message),
            )

    def _report(self, error: BaseException, message: Message | list[Message] | None) -> None:
        """Report an error of a handler with this message or batch, or of the store."""
        if not self._error_handlers:
            text, fields = describe(error), self._log_fields(message)
            what = "subscription" if message is None else "a handler of subscription"
            logger.error("%s %r failed: %s", what, self.name, text, exc_info=error, extra=fields)
            return
        for handler in self._error_handlers:
            try:
                result = handler(error)
            except BaseException as failure:  # noqa: BLE001 - nobody is left to tell, and messages must go on
                self._log_failure(failure)
            else:
                if asyncio.iscoroutine(result):
                    self._reports.start(self._finish_report(result))

    async def _finish_report(self, result: Coroutine[Any, Any, object]) -> None:
        try:
            await result
        except BaseException as failure:
            if isinstance(failure, GeneratorExit) or is_cancelled(failure):
                raise
            self._log_failure(failure)
        finally:
            result.close()

    def _log_failure(self, failure: BaseException) -> None:
        text = describe(failure)
        fields = self._log_fields(None)
        logger.error("an error handler of subscription %r failed: %s", self.name, text, exc_info=failure, extra=fields)

    def _log_fields(self, message: Message | list[Message] | None) -> dict[str, object]:
        fields: dict[str, object] = {"subscription": self.name}
        if isinstance(message, list):
            return fields | {"ordering_key": message[0].ordering_key, "message_ids": [one.id for one in message]}
        return fields if message is None else fields | {"ordering_key": message.ordering_key, "message_id": message.id}

    async def wait_until_empty(self) -> None:
        """Wait until no message is waiting or in flight, and every ack is durable."""
        await self._broker.wait_until_empty(self.name)

    # -- looking --------------------------------------------------------------------------------------------------------

    async def stats(self) -> SubscriptionStats:
        """The number of messages by state, and the age of the oldest."""
        return await self._broker.stats(self.name)

    async def keys(self, *, limit: int = 100, blocked_only: bool = False, order: KeyOrder = "trouble") -> list[KeyInfo]:
        """Keys that have messages or are paused, and why they wait; by ``order``, those in trouble first by default."""
        return await self._broker.list_keys(self.name, limit=limit, blocked_only=blocked_only, order=order)

    async def explain(self, key: str | None) -> Explanation:
        """Why a key is waiting, since when, and what would unblock it: as data, and as one ``sentence``."""
        return await self._broker.explain(self.name, key)

    async def superseded(self, key: str | None = None, limit: int = 100) -> list[SupersededMessage]:
        """Messages that were superseded by newer ones (``keep="latest"``), the latest first, of one key or of all (None). The
        last 10,000 are remembered, until the process that owns the store exits."""
        return await self._broker.superseded(self.name, key, limit)

    async def peek(self, key: str | None, limit: int = 10) -> list[PeekedMessage]:
        """The first messages of a key, in order, without delivering them. ``None`` stands for messages without a key."""
        return await self._broker.peek(self.name, key, limit)

    # -- operating ------------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Deliver nothing until ``resume``, also after a restart. Messages in flight can still be settled."""
        await self._broker.pause(self.name)

    async def resume(self) -> None:
        """Deliver again after ``pause``."""
        await self._broker.resume(self.name)

    async def pause_key(self, key: str | None, reason: str | None = None) -> None:
        """Deliver nothing of a key until ``resume_key``, also after a restart."""
        await self._broker.pause_key(self.name, key, reason)

    async def resume_key(self, key: str | None) -> None:
        """Deliver a key again after it was paused."""
        await self._broker.resume_key(self.name, key)

    async def retry(self, key: str | None) -> None:
        """Deliver the first message of a key now if it is waiting for its retry or its delay."""
        await self._broker.retry_key(self.name, key)

    async def skip(self, key: str | None) -> str:
        """Drop the first message of a key, and return its id. If it is in flight, its ack raises StaleLease."""
        return await self._broker.skip(self.name, key)

    async def remove(self, message_id: str) -> None:
        """Drop a message, wherever it is in its key, unless it is in flight."""
        await self._broker.remove(self.name, message_id)

    async def dead_letter(self, key: str | None, error: str | None = None, *, rest: bool = False) -> list[str]:
        """Dead-letter the first message of a key, or with ``rest`` all of them, and return the ids."""
        return await self._broker.dead_letter(self.name, key, error, rest=rest)

    async def dead_letters(self, *, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        """Dead letters, ordered by id. For the next page, pass the last id as ``after``."""
        return await self._broker.dead_letters(self.name, limit=limit, after=after)

    async def redrive(self, message_id: str, *, append: bool = False) -> str:
        """Return a dead letter to its original place in its key, and return its id.

        Raises RedriveRefused if a later message of the key has been settled or is in flight. With ``append`` it is published
        again at the end of the topic, to the topic's other subscriptions as well, and the new id is returned.
        """
        return await self._broker.redrive(self.name, message_id, append=append)

    async def purge(self, *message_ids: str) -> None:
        """Delete dead letters."""
        await self._broker.purge(self.name, message_ids)

    # -- time travel ----------------------------------------------------------------------------------------------------

    async def seek(
        self, *, time: datetime | float | None = None, message_id: str | None = None, snapshot: str | None = None
    ) -> None:
        """Move the subscription, back or forward, to a time, a message or a snapshot. Acks of messages that are in flight then
        raise StaleLease.
        """
        if [time, message_id, snapshot].count(None) != 2:
            raise InvalidArgument("seek needs exactly one target: give a time, a message_id or a snapshot")
        if snapshot is not None:
            await self._broker.seek_to_snapshot(self.name, snapshot)
        elif message_id is not None:
            await self._broker.seek_to_message(self.name, message_id)
        else:
            await self._broker.seek_to_time(self.name, _seconds_of(time))

    async def snapshot(self, name: str, *, lasts: float = DEFAULT_RETENTION_S) -> SnapshotInfo:
        """Save under a name which messages are settled, for ``lasts`` seconds; ``seek(snapshot=name)`` restores that."""
        return await self._broker.create_snapshot(self.name, name, lasts=lasts)


def _seconds_of(time: Any) -> float:
    if not isinstance(time, datetime):
        return cast("float", time)  # checked where it is used
    if time.tzinfo is None:
        raise InvalidArgument(f"{time} has no time zone: give a datetime with one, such as datetime.now(UTC)")
    return time.timestamp()
