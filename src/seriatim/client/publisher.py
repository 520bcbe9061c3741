"""The publisher of one topic: batches and flow control in front of the engine.

Rules
    - ``core.publishing.batching`` decides when to send a batch, and ``core.publishing.flow`` who may publish.
    - A message takes its place in line when ``publish`` is called. Its future is resolved with its id when it is durable.
    - Batches that become due together go to the engine in one call: a busy program with many keys sends thousands of small
      batches a second. If the store fails, they fail together. For any other error nothing was stored, and each batch is tried
      alone, so that a refused batch does not make others fail.
    - Without flow control, the messages of a ``publish_many`` go to the engine as they are, with one future for the whole
      call; calls made in the meantime form the next group, so at most one group is under way. Its keys have no batches of
      their own. When its messages are needed one by one (after a failure, or for a ``publish`` of one of its keys, ``flush``
      or other options), the group is split: its messages get batches and futures, as if each was published alone.
    - A flow control slot is held from admission until the message is durable, or has failed.
    - A batch that is refused because of one of its messages (its ``dedup_id`` belongs to another message, or the broker can't
      take it) is published message by message, so that only that message fails, and later ones of its key.
    - When a publish of a key fails, even for lack of room, the key is paused until ``resume``: messages behind it fail too, and
      later ones are refused, so that nothing overtakes.
    - A batch whose outcome is unknown may be repeated if all of its messages have a ``dedup_id``, unless the topic is being
      closed.
    - If a future is cancelled while its message waits for admission, the message is withdrawn and never sent. Once it is
      admitted, it is published anyway, and cancelling the future only drops the result.
    - ``flush`` covers every publish called before it, including those that wait for admission and those whose future was
      cancelled, and raises the first failure among these that nobody awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from seriatim.core.publishing.batching import Batch, Batcher, Batching, refusal
from seriatim.core.publishing.flow import Expired, FlowControl, FlowGate, TicketState
from seriatim.core.publishing.message_limits import check_message, copy_attributes
from seriatim.core.text_checks import describe
from seriatim.core.validation import require_duration, require_kind
from seriatim.engine.broker import Broker, Outgoing
from seriatim.errors import (
    AlreadyExists,
    FlowControlTimeout,
    InvalidArgument,
    NotSupported,
    OutcomeUnknown,
    PublishFailed,
    PublishingPaused,
    StoreError,
)

MAX_UNOBSERVED_FAILURES = 1_000
"""How many failures that nobody awaited are kept for ``flush``."""

MAX_CALL_MESSAGES, MAX_CALL_BYTES = 10_000, 16 * 1024 * 1024
"""A ``publish_many`` that is larger goes in batches: it must not hold up everything else in one huge transaction."""

_OF_ONE_MESSAGE = AlreadyExists, InvalidArgument, NotSupported
"""Errors that may be about one message of a batch, of which then nothing was stored."""

INTERRUPTED = (
    "the publish was cut off before it was answered: it may be stored or not, look before you publish it again"
)


_KEY, _DATA = itemgetter(0), itemgetter(1)
_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """How a topic publishes. ``message_ordering=False`` refuses ordering keys; None and True accept them."""

    batching: Batching = field(default_factory=Batching)
    message_ordering: bool | None = None
    flow_control: FlowControl = field(default_factory=FlowControl)

    def __post_init__(self) -> None:
        require_kind("batching", Batching, self.batching)
        require_kind("flow_control", FlowControl, self.flow_control)
        if self.message_ordering is not None:
            require_kind("message_ordering", bool, self.message_ordering)


def outgoing(
    data: bytes, key: str | None, attributes: Mapping[str, str] | None, delay: float, dedup_id: str | None = None
) -> Outgoing:
    """A message to publish. Invalid arguments raise at once."""
    if attributes is not None:
        attributes = copy_attributes(attributes)  # whatever becomes of the caller's own is not published
    check_message(data, key, attributes, dedup_id)
    if type(delay) is not float or delay != 0.0:
        require_duration("delay", delay)
    return _make(Outgoing, (key, data, attributes, delay, dedup_id))


class PublishFuture(asyncio.Future[str]):
    """The id of a published message, once the message is durable."""

    # It knows whether anybody looked at it. It is also the ticket of the message, until that is durable or has failed.

    __slots__ = ("message", "observed", "withdraw")
    message: Outgoing
    observed: bool
    withdraw: Callable[[PublishFuture], None]
    """There while the message waits for admission, and can be taken back."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Withdraw the message if flow control still holds it back; otherwise it is published anyway."""
        is_cancelled = super().cancel(msg)
        if is_cancelled and hasattr(self, "withdraw"):
            self.withdraw(self)
        return is_cancelled

    def __await__(self) -> Generator[Any, None, str]:
        self.observed = True
        return super().__await__()

    def result(self) -> str:
        """The id of the message; raises the error if it was not published."""
        self.observed = True
        return super().result()

    def exception(self) -> BaseException | None:
        """Why the message was not published, or None."""
        self.observed = True
        return super().exception()


class _Call:
    """A ``publish_many``. ``ids`` resolves to the ids of its messages when they are durable, or to None if the call was split;
    then ``published`` has the futures of its messages."""

    __slots__ = ("ids", "keys", "messages", "published")

    def __init__(
        self, messages: Sequence[Outgoing], keys: set[str | None], ids: asyncio.Future[list[str] | None]
    ) -> None:
        self.messages, self.keys, self.ids = messages, keys, ids
        self.published: Sequence[PublishFuture] = ()

    def end(self, ids: list[str] | None) -> None:
        if self.ids.cancelled():
            _cancel_all(self.published)
        else:
            self.ids.set_result(ids)


class _CallGroup:
    """Calls whose messages are written together. If it is split before the end, its messages are in ``batches``."""

    __slots__ = ("batches", "calls")

    def __init__(self, calls: Sequence[_Call]) -> None:
        self.calls = calls
        self.batches: Sequence[Batch[PublishFuture]] | None = None


def _cancel_all(published: Sequence[PublishFuture]) -> None:
    """The caller no longer waits for these messages."""
    for future in published:
        future.cancel()


class Publisher:
    """Publishes to one topic."""

    def __init__(self, broker: Broker, topic_name: str, options: PublishOptions | None = None) -> None:
        self.broker = broker
        self._topic_name = topic_name
        self._require_topic = broker.require_topic
        self._options = options or PublishOptions()
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._batcher: Batcher[PublishFuture] = Batcher(self._options.batching)
        self._gate: FlowGate[PublishFuture] | None = None  # where nothing is limited there is none
        self._unfinished: dict[PublishFuture, None] = {}  # neither durable nor failed, in order of publishing
        self._queued: dict[str, dict[PublishFuture, None]] = {}  # those that wait for admission, by key
        self._next_finished: asyncio.Future[None] | None = (
            None  # resolved when the next of them is durable or has failed
        )
        self._unobserved: list[PublishFuture] = []  # failed, in order
        self._sent_group: _CallGroup | None = None
        self._next_calls: list[_Call] = []  # to be sent after it
        self._call_keys: set[str | None] = set()  # of both
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered: dict[int, OutcomeUnknown] = {}  # of batches that are repeated, by number
        self._closing = 0  # how many wait for it to be closed
        if self._options.flow_control.is_limited:
            self._gate = FlowGate(self._options.flow_control)

    def publish(
        self,
        data: bytes,
        *,
        ordering_key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        delay: float = 0.0,
        dedup_id: str | None = None,
    ) -> PublishFuture:
        """Publish a message. Invalid arguments raise at once; all other errors are in the future."""
        self._require_topic(self._topic_name)
        return self.accept(self.checked(data, ordering_key, attributes, delay, dedup_id))

    def checked(
        self, data: bytes, key: str | None, attributes: Mapping[str, str] | None, delay: float, dedup_id: str | None
    ) -> Outgoing:
        """A message that may be published. Raises for invalid arguments."""
        if key is not None and self._options.message_ordering is False:
            raise InvalidArgument("Message ordering must be enabled on topic to use ordering keys")
        return outgoing(data, key, attributes, delay, dedup_id)

    def accept(self, message: Outgoing) -> PublishFuture:
        """Queue a message."""
        if message[0] in self._call_keys:
            self._split_calls()
        future = self._future_of(message)
        if self._gate is not None:
            self._request(future, self._gate)
        else:
            try:
                batches = self._batcher.add(message[0], future, len(message[1]), self._time())
            except PublishingPaused as error:
                self._settle_failure(future, error)
            else:
                if batches:
                    self._send(batches)
                if (
                    self._timer is None
                ):  # otherwise it rings early enough: no batch is older than the one it was set for
                    self._set_timer()
        return future

    def _future_of(self, message: Outgoing) -> PublishFuture:
        future = PublishFuture(loop=self._loop)
        future.message = message
        future.observed = False
        self._unfinished[future] = None
        return future

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[str]:
        """Publish the messages of one call, and wait for their ids."""
        keys = {*map(_KEY, messages)} - {None}
        if not self._can_send_whole(messages) or not self._batcher.is_idle(keys):
            return await self.ids_of([self.accept(message) for message in messages])
        call = _Call(messages, keys, self._loop.create_future())
        self._next_calls.append(call)
        self._call_keys |= keys
        self._loop.call_soon(self._send_calls)  # together with what others publish in this turn
        try:
            ids = await call.ids
        except asyncio.CancelledError:
            _cancel_all(call.published)
            raise
        return await self.ids_of(call.published) if ids is None else ids

    async def ids_of(self, published: Sequence[PublishFuture]) -> list[str]:
        """Wait until each of these messages is durable or has failed; PublishFailed tells of both."""
        for future in published:
            future.observed = True  # here, whatever becomes of it
        try:
            await self.wait_for(published)
        except asyncio.CancelledError:
            _cancel_all(published)
            raise
        if errors := list(filter(None, map(_error_of, published))):
            results = [_error_of(future) or future.result() for future in published]
            raise PublishFailed(
                f"{len(errors)} of {len(results)} messages were not published; the first error: {describe(errors[0])}",
                results,
            ) from errors[0]
        return list(map(asyncio.Future.result, published))

    async def wait_for(self, published: Collection[PublishFuture]) -> None:
        """Send these messages now, and wait until each is durable or has failed."""
        waiting = [future for future in published if future in self._unfinished]
        while waiting:  # round by round: what waits for admission is sent by a later one
            next_finished = self._next_finished = self._next_finished or self._loop.create_future()
            self._send(self._batcher.flush())
            self._set_timer()
            await asyncio.shield(next_finished)  # others may wait for it, too
            waiting = [future for future in waiting if future in self._unfinished]

    async def flush(self) -> None:
        """Send everything now, and wait until everything published before is durable."""
        self._split_calls()
        covered = [*self._unobserved, *self._unfinished]
        await self.wait_for(list(self._unfinished))
        # Others who flushed meanwhile, and waited for the same messages, hear of a failure as well; later ones don't.
        told = set(covered)
        self._unobserved = [future for future in self._unobserved if future not in told]
        for future in covered:
            if not future.observed and not future.cancelled() and (error := _error_of(future)) is not None:
                raise error

    def resume(self, key: str) -> None:
        """Accept messages of a key again after a publish of it failed."""
        self._batcher.resume(key)

    def paused_keys(self) -> tuple[str, ...]:
        return self._batcher.paused_keys()

    def set_options(self, options: PublishOptions) -> None:
        """Apply new options, also to waiting messages."""
        require_kind("options", PublishOptions, options)
        self._split_calls()
        self._options, limits = options, options.flow_control
        self._send(self._batcher.set_options(options.batching, self._time()))
        if self._gate is None and limits.is_limited:
            self._gate = FlowGate(FlowControl())
            for future in self._unfinished:  # without limits all of them are admitted
                self._gate.request(future, len(future.message.data), self._time())
        if self._gate is not None:
            self._expire(self._gate.set_options(limits, self._time()))
            self._gate = self._gate if limits.is_limited else None
        self._set_timer()

    async def close(self) -> None:
        """Send open batches and wait for them, without repeating any. Failures stay with their futures."""
        self._closing += 1
        self._split_calls()
        try:
            while self._unfinished:
                await self.wait_for(list(self._unfinished))
        finally:
            self._closing -= 1
        if self._timer is not None:
            self._timer.cancel()

    # -- admission ------------------------------------------------------------------------------------------------------

    def _request(self, future: PublishFuture, gate: FlowGate[PublishFuture]) -> None:
        key, now = future.message.key, self._time()
        if key in self._batcher.paused:  # refused now, or it would pass what failed if the key is resumed
            self._settle_failure(future, refusal(key))
            return
        try:
            if gate.request(future, len(future.message.data), now):
                self._add((future,))
            else:
                future.withdraw = self._withdraw
                if key is not None:
                    self._queued.setdefault(key, {})[future] = None
        except FlowControlTimeout as error:
            self._expire(Expired(((future, error),), ()))
        self._set_timer()

    def _add(self, admitted: Iterable[PublishFuture]) -> None:
        """Add all admitted messages to their batches, before a failure of one makes room for others."""
        batches, refused = list[Batch[PublishFuture]](), list[PublishFuture]()
        for future in admitted:
            self._leave_queue(future)
            message = future.message
            try:
                batches += self._batcher.add(message.key, future, len(message.data), self._time())
            except PublishingPaused as error:
                self._settle_failure(future, error)
                refused.append(future)
        self._send(batches)
        if refused:
            self._release(refused)

    def _leave_queue(self, future: PublishFuture) -> None:
        if hasattr(future, "withdraw"):
            del future.withdraw
        key = future.message.key
        if key is not None and (queued := self._queued.get(key)) is not None:
            queued.pop(future, None)
            if not queued:
                del self._queued[key]

    def _withdraw(self, future: PublishFuture) -> None:
        """Remove a cancelled message that has not been admitted."""
        self._leave_queue(future)
        self._finish([future])
        self._cancel_ticket(future)
        self._set_timer()

    def _cancel_ticket(self, future: PublishFuture) -> None:
        if self._gate is not None:
            self._add(self._gate.cancel(future))

    def _expire(self, expired: Expired[PublishFuture]) -> None:
        for future, error in expired.timed_out:
            self._leave_queue(future)
            self._settle_failure(future, error)
            if (key := future.message.key) is not None:
                if key not in self._batcher.paused:
                    self._batcher.pause(key)
                self._fail_queued(key, error)
        self._add(expired.admitted)

    def _fail_queued(self, key: str | None, error: BaseException) -> None:
        """Fail messages that wait for admission behind a failed one, so that none overtakes it when the key is resumed."""
        for future in list(self._queued.get(key, ())) if key is not None else ():
            # One may have been admitted just now, in place of one before it.
            if self._gate is not None and self._gate.state(future) is TicketState.WAITING:
                self._leave_queue(future)
                self._settle_failure(future, _paused_error(key, error))
                self._cancel_ticket(future)

    # -- whole calls ----------------------------------------------------------------------------------------------------

    def _can_send_whole(self, messages: Sequence[Outgoing]) -> bool:
        """Whether the messages of a call need no batches of their own: nothing limits them, and nobody waits for the end."""
        return (
            self.broker.joins_batches
            and self._gate is None
            and not self._closing
            and 0 < len(messages) <= MAX_CALL_MESSAGES
            and sum(map(len, map(_DATA, messages))) <= MAX_CALL_BYTES
        )

    def _send_calls(self) -> None:
        """Send the calls that wait, unless a group is under way."""
        if self._sent_group is not None or not self._next_calls:
            return
        group, self._next_calls = _CallGroup(self._next_calls), []
        self._sent_group = group
        messages = list(chain.from_iterable([call.messages for call in group.calls]))
        try:
            written = self.broker.publish_checked(self._topic_name, messages)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to these calls
            self._split_calls()
            self._failed(group.batches or (), error)
        else:
            written.add_done_callback(partial(self._on_group_written, group))

    def _on_group_written(self, group: _CallGroup, written: asyncio.Future[Sequence[str]]) -> None:
        error = _failure_of(written)
        if error is not None and group.batches is None:
            self._split_calls()
        if error is not None:
            self._failed(group.batches or (), error)
        elif group.batches is None:
            self._sent_group = None
            self._call_keys = set().union(*(call.keys for call in self._next_calls))
            self._send_calls()
            ids = iter(written.result())
            for call in group.calls:
                call.end(list(islice(ids, len(call.messages))))
        else:
            futures = chain.from_iterable(call.published for call in group.calls)
            ids_of = dict(zip(futures, written.result(), strict=True))
            batched = chain.from_iterable(batch.messages for batch in group.batches)
            self._stored(group.batches, [ids_of[future] for future in batched])
        if self._timer is None:
            self._set_timer()

    def _split_calls(self) -> None:
        """Give the messages of unfinished calls batches and futures, as if each had been published alone."""
        group, next_calls = self._sent_group, self._next_calls
        self._sent_group, self._next_calls, self._call_keys = None, [], set()
        if group is not None:
            lines: dict[str | None, list[PublishFuture]] = {}
            for call in group.calls:
                call.published = [self._future_of(message) for message in call.messages]
                for future in call.published:
                    lines.setdefault(future.message.key, []).append(future)
            group.batches = [
                self._batcher.note_sent(key, futures, sum(len(future.message.data) for future in futures))
                for key, futures in lines.items()
            ]
        for call in next_calls:
            call.published = [self.accept(message) for message in call.messages]
        for call in (*(group.calls if group else ()), *next_calls):
            call.end(None)

    # -- sending --------------------------------------------------------------------------------------------------------

    def _send(self, batches: Sequence[Batch[PublishFuture]]) -> None:
        """Send batches, in one call if the broker supports that. Each is still stored completely or not at all."""
        if self.broker.joins_batches:
            if batches:
                self._write(batches)
        else:
            for batch in batches:
                self._write((batch,))

    def _write(self, batches: Sequence[Batch[PublishFuture]]) -> None:
        messages = [future.message for batch in batches for future in batch.messages]
        try:
            written = self.broker.publish_checked(self._topic_name, messages)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the futures of these batches
            self._failed(batches, error)
        else:
            written.add_done_callback(partial(self._written, batches))

    def _written(self, batches: Sequence[Batch[PublishFuture]], written: asyncio.Future[Sequence[str]]) -> None:
        error = _failure_of(written)
        if error is not None:
            self._failed(batches, error)
        else:
            self._stored(batches, written.result())
        if self._timer is None:
            self._set_timer()

    def _stored(self, batches: Sequence[Batch[PublishFuture]], ids: Sequence[str]) -> None:
        futures = [future for batch in batches for future in batch.messages]
        for future, message_id in zip(futures, ids, strict=True):
            if not future.done():
                future.set_result(message_id)
        self._finish(futures)
        next_: list[Batch[PublishFuture]] = []
        for batch in batches:
            next_ += self._batcher.confirm(batch.number)
            if self._unanswered:
                self._unanswered.pop(batch.number, None)
        self._send(next_)
        self._release(futures)

    def _failed(self, batches: Sequence[Batch[PublishFuture]], error: BaseException) -> None:
        if len(batches) > 1 and not isinstance(error, StoreError):
            for batch in batches:  # something is wrong with one of them, and none was stored: let that one fail alone
                self._write((batch,))
            return
        for batch in batches:
            if self._repeats(batch, batch.messages, error, partial(self._write, (batch,))):
                continue
            if isinstance(error, _OF_ONE_MESSAGE) and len(batch.messages) > 1:
                self._write_one(batch, 0)
            else:
                self._batch_failed(batch, batch.messages, error)

    def _repeats(
        self,
        batch: Batch[PublishFuture],
        unanswered: Sequence[PublishFuture],
        error: BaseException | None,
        again: Callable[[], None],
    ) -> bool:
        """Whether a batch, or one message of it, is sent again after a pause. Stored messages are not stored again."""
        if not isinstance(error, OutcomeUnknown) or self._closing:
            return False
        if any(future.message.dedup_id is None for future in unanswered):
            return False
        pause = self._batcher.repeat(batch.number, self._time())
        if pause is None:
            return False
        self._unanswered.setdefault(batch.number, error)
        self._loop.call_later(pause, again)
        return True

    def _write_one(self, batch: Batch[PublishFuture], index: int) -> None:
        """Publish one message of a batch that was refused as a whole, and then those behind it."""
        try:
            written = self.broker.publish_checked(self._topic_name, [batch.messages[index].message])
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the futures of this batch
            self._batch_failed(batch, batch.messages[index:], error)
        else:
            written.add_done_callback(partial(self._one_written, batch, index))

    def _one_written(self, batch: Batch[PublishFuture], index: int, written: asyncio.Future[Sequence[str]]) -> None:
        future, rest = batch.messages[index], batch.messages[index + 1 :]
        error = _failure_of(written)
        if self._repeats(batch, [future], error, partial(self._write_one, batch, index)):
            return
        if error is None:
            if not future.done():
                future.set_result(written.result()[0])
            self._finish([future])
            self._release([future])
        elif batch.key is None and rest:
            self._fail([future], error)
        else:
            self._batch_failed(batch, [future], error, rest)
            return
        if rest:
            self._write_one(batch, index + 1)
        else:
            self._unanswered.pop(batch.number, None)
            self._send(self._batcher.confirm(batch.number))
            self._set_timer()

    def _batch_failed(
        self,
        batch: Batch[PublishFuture],
        failed: Sequence[PublishFuture],
        error: BaseException,
        rest: Sequence[PublishFuture] = (),
    ) -> None:
        """Messages of a batch failed: fail the rest of it, and what waits behind it in its key, so that nothing overtakes."""
        first = self._unanswered.pop(batch.number, None)
        if first is not None and not isinstance(error, AlreadyExists):
            error = OutcomeUnknown(f"{first}; it was published again, and that failed: {error}")
        behind = self._batcher.fail(batch.number)
        self._fail(failed, error)
        self._fail([*rest, *behind], _paused_error(batch.key, error))
        self._fail_queued(batch.key, error)

    def _fail(self, failed: Sequence[PublishFuture], error: BaseException) -> None:
        for future in failed:
            self._settle_failure(future, error)
        self._release(failed)

    def _finish(self, futures: Iterable[PublishFuture]) -> None:
        """Messages are durable, have failed, or were withdrawn."""
        for future in futures:
            self._unfinished.pop(future, None)
        if self._next_finished is not None:
            next_finished, self._next_finished = self._next_finished, None
            next_finished.set_result(None)

    def _settle_failure(self, future: PublishFuture, error: BaseException) -> None:
        self._finish([future])
        if not future.done():
            future.set_exception(error)
            self._unobserved.append(future)
            if len(self._unobserved) > MAX_UNOBSERVED_FAILURES:
                self._unobserved = [known for known in self._unobserved if not known.observed][:MAX_UNOBSERVED_FAILURES]

    def _release(self, finished: Iterable[PublishFuture]) -> None:
        if self._gate is not None:
            self._add(self._gate.release(*finished))

    # -- time -----------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        when = self._batcher.next_deadline()
        expiry = None if self._gate is None else self._gate.next_deadline()
        if when is None or (expiry is not None and expiry < when):
            when = expiry
        if self._timer is not None:
            if when is not None and self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._send(self._batcher.due(self._time()))
        if self._gate is not None:
            self._expire(self._gate.expire(self._time()))
        self._set_timer()


def _failure_of(written: asyncio.Future[Sequence[str]]) -> BaseException | None:
    return OutcomeUnknown(INTERRUPTED) if written.cancelled() else written.exception()


def _error_of(future: PublishFuture) -> BaseException | None:
    """The error of a message, without marking it as retrieved."""
    return asyncio.Future.exception(future)


def _paused_error(key: str | None, error: BaseException) -> PublishingPaused:
    return PublishingPaused(
        f"Not published, because an earlier message of key {key!r} failed ({error}); "
        f"call resume_publishing({key!r}) and publish again"
    )
