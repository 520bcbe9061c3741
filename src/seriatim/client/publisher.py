"""The publisher of one topic: batches and flow control in front of the engine.

Rules
    - ``core.batching`` decides when a batch is sent, ``core.flow`` who may publish. Nothing here does.
    - A message takes its place in line when ``publish`` is called. Its future is resolved with its id when it is durable.
    - A flow control slot is held from admission until the message is durable, or has failed.
    - When a publish of a key fails, also one that found no room in time, the key is paused until ``resume``: what was behind
      fails too, and later messages are refused, so that nothing overtakes.
    - A message whose future is cancelled while it waits for admission is withdrawn: it is never sent, and others go on. Once
      admitted it is on its way, and cancelling its future only means that nobody wants to hear of it.
    - ``flush`` covers every publish called before it, also those that wait for admission and those whose future was cancelled,
      and raises the first failure that nobody awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from seriatim.core.batching import Batch, Batcher, Batching
from seriatim.core.flow import FlowControl, FlowGate, TicketState
from seriatim.core.limits import check_message, copy_attributes
from seriatim.core.options import require_duration, require_kind
from seriatim.engine.broker import Outgoing
from seriatim.errors import FlowControlTimeout, InvalidArgument, OutcomeUnknown, PublishingPaused

MOST_UNSEEN = 1_000
"""How many failures that nobody awaited are kept for ``flush`` at most."""

CUT_OFF = "the publish was cut off before it was answered: it may be stored or not, look before you publish it again"


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


def outgoing(data: bytes, key: str | None, attributes: Mapping[str, str] | None, delay: float) -> Outgoing:
    """A message to publish. What can never work raises at once."""
    if attributes is not None:
        attributes = copy_attributes(attributes)  # whatever becomes of the caller's own is not published
    check_message(data, key, attributes)
    require_duration("delay", delay)
    return Outgoing(key, data, attributes, delay)


class PublishFuture(asyncio.Future[str]):
    """The id of a message, once it is durable. It knows whether anybody looked at it."""

    observed = False
    withdraw: Callable[[], None] | None = None  # while the message can be taken back

    def cancel(self, msg: Any | None = None) -> bool:
        """Take the message back if it still waits for admission; otherwise it is on its way."""
        is_cancelled = super().cancel(msg)
        if is_cancelled and self.withdraw is not None:
            self.withdraw()
        return is_cancelled

    def __await__(self) -> Generator[Any, None, str]:
        self.observed = True
        return super().__await__()

    def result(self) -> str:
        self.observed = True
        return super().result()

    def exception(self) -> BaseException | None:
        self.observed = True
        return super().exception()


class _Waiting:
    """A message between ``publish`` and its confirmation; the ticket of its flow control slot, too."""

    __slots__ = ("future", "message")

    def __init__(self, message: Outgoing, future: PublishFuture) -> None:
        self.message = message
        self.future = future


class Sink(Protocol):
    """Where batches go: an engine, or a connection to one."""

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[range]: ...


class Publisher:
    """Publishes to one topic."""

    def __init__(self, sink: Sink, topic_name: str, options: PublishOptions | None = None) -> None:
        self.sink = sink
        self._topic_name = topic_name
        self._options = options or PublishOptions()
        self._loop = asyncio.get_running_loop()
        self._batcher: Batcher[_Waiting] = Batcher(self._options.batching)
        self._gate: FlowGate[_Waiting] = FlowGate(self._options.flow_control)
        self._open: dict[_Waiting, None] = {}  # neither durable nor failed, in order of publishing
        self._queued: dict[str, dict[_Waiting, None]] = {}  # those that wait for admission, by key
        self._landing: asyncio.Future[None] | None = None  # resolved when the next of them is durable or has failed
        self._unseen: list[PublishFuture] = []  # failed, in order
        self._timer: asyncio.TimerHandle | None = None

    def publish(
        self,
        data: bytes,
        *,
        ordering_key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        delay: float = 0.0,
    ) -> PublishFuture:
        """Publish a message. What can never work raises at once; everything else is in the future."""
        message = outgoing(data, ordering_key, attributes, delay)
        if ordering_key is not None and self._options.message_ordering is False:
            raise InvalidArgument("Message ordering must be enabled on topic to use ordering keys")
        future = PublishFuture(loop=self._loop)
        waiting = _Waiting(message, future)
        self._open[waiting] = None
        try:
            self._batcher.require_accepted(ordering_key)  # now, or it would pass what failed if the key is resumed
        except PublishingPaused as error:
            self._settle_failure(waiting, error)
        else:
            self._request(waiting)
        return future

    def _request(self, waiting: _Waiting) -> None:
        now = self._now()
        try:
            if self._gate.request(waiting, len(waiting.message.data), now):
                self._add_one(waiting, now)
                if self._timer is not None:
                    return  # it rings early enough: no batch is older than the one that it was set for
            else:
                self._queue(waiting)
        except FlowControlTimeout as error:
            self._expire([(waiting, error)])
        self._set_timer()

    async def flush(self) -> None:
        """Send everything now, and wait until everything published before is durable."""
        await self._land(list(self._open))
        self._raise_first_unseen()

    async def _land(self, waiting: list[_Waiting]) -> None:
        """Send what is open and wait for it, round by round: what waits for admission is sent by a later one."""
        while waiting := [one for one in waiting if one in self._open]:
            landing = self._landing = self._landing or self._loop.create_future()
            self._send(self._batcher.flush())
            self._set_timer()
            await asyncio.shield(landing)  # others may wait for it, too

    def resume(self, key: str) -> None:
        """Accept messages of a key again whose publish failed."""
        self._batcher.resume(key)

    def paused_keys(self) -> tuple[str, ...]:
        return self._batcher.paused_keys()

    def set_options(self, options: PublishOptions) -> None:
        """Apply new options, to what is waiting too."""
        require_kind("options", PublishOptions, options)
        self._options = options
        self._send(self._batcher.set_options(options.batching, self._now()))
        expired = self._gate.set_options(options.flow_control, self._now())
        self._expire(expired.timed_out)
        self._add(expired.admitted)
        self._set_timer()

    async def close(self) -> None:
        """Send what is open and wait for it. Failures stay with their futures."""
        while self._open:
            await self._land(list(self._open))
        if self._timer is not None:
            self._timer.cancel()

    # -- how ------------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._loop.time()

    def _add(self, admitted: Iterable[_Waiting]) -> None:
        """Put messages that waited for admission into their batches."""
        for waiting in admitted:
            self._leave_queue(waiting)
            self._add_one(waiting, self._now())

    def _queue(self, waiting: _Waiting) -> None:
        waiting.future.withdraw = partial(self._withdraw, waiting)
        if waiting.message.key is not None:
            self._queued.setdefault(waiting.message.key, {})[waiting] = None

    def _leave_queue(self, waiting: _Waiting) -> None:
        waiting.future.withdraw = None
        key = waiting.message.key
        if key is not None and (queued := self._queued.get(key)) is not None:
            queued.pop(waiting, None)
            if not queued:
                del self._queued[key]

    def _withdraw(self, waiting: _Waiting) -> None:
        """Nobody wants a message any more that has not been admitted."""
        self._leave_queue(waiting)
        self._landed(waiting)
        self._add(self._gate.cancel(waiting))
        self._set_timer()

    def _add_one(self, waiting: _Waiting, now: float) -> None:
        message = waiting.message
        try:
            batches = self._batcher.add(message.key, waiting, len(message.data), now)
        except PublishingPaused as error:
            self._fail([waiting], error)
        else:
            if batches:
                self._send(batches)

    def _send(self, batches: Iterable[Batch[_Waiting]]) -> None:
        for batch in batches:
            try:
                written = self.sink.publish(self._topic_name, [waiting.message for waiting in batch.messages])
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the futures of this batch
                self._batch_failed(batch, error)
            else:
                written.add_done_callback(self._when_written(batch))

    def _when_written(self, batch: Batch[_Waiting]) -> Callable[[asyncio.Future[range]], None]:
        def done(written: asyncio.Future[range]) -> None:
            error = OutcomeUnknown(CUT_OFF) if written.cancelled() else written.exception()
            if error is None:
                self._batch_written(batch, written.result())
            else:
                self._batch_failed(batch, error)
            if self._timer is None:
                self._set_timer()

        return done

    def _batch_written(self, batch: Batch[_Waiting], offsets: range) -> None:
        for waiting, offset in zip(batch.messages, offsets, strict=True):
            future = waiting.future
            self._landed(waiting)
            if not future.done():
                future.set_result(str(offset))
        self._send(self._batcher.confirm(batch.number))
        self._release(batch.messages)

    def _batch_failed(self, batch: Batch[_Waiting], error: BaseException) -> None:
        behind = self._batcher.fail(batch.number)
        self._fail(batch.messages, error)
        refusal = _behind(batch.key, error)
        self._fail(behind, refusal)
        self._fail_queued(batch.key, refusal)

    def _fail_queued(self, key: str | None, refusal: PublishingPaused) -> None:
        """What waits for admission behind a message that failed must not pass it when the key is resumed."""
        for waiting in list(self._queued.get(key, ())) if key is not None else ():
            if self._gate.state(waiting) is TicketState.WAITING:  # not admitted just now, in place of one before it
                self._leave_queue(waiting)
                self._settle_failure(waiting, refusal)
                self._add(self._gate.cancel(waiting))

    def _fail(self, failed: Sequence[_Waiting], error: BaseException) -> None:
        for waiting in failed:
            self._settle_failure(waiting, error)
        self._release(failed)

    def _landed(self, waiting: _Waiting) -> None:
        """A message is durable, has failed, or was withdrawn."""
        self._open.pop(waiting, None)
        if self._landing is not None:
            landing, self._landing = self._landing, None
            landing.set_result(None)

    def _settle_failure(self, waiting: _Waiting, error: BaseException) -> None:
        future = waiting.future
        self._landed(waiting)
        if not future.done():
            future.set_exception(error)
            self._unseen.append(future)
            if len(self._unseen) > MOST_UNSEEN:
                self._unseen = [known for known in self._unseen if not known.observed][:MOST_UNSEEN]

    def _release(self, finished: Iterable[_Waiting]) -> None:
        for waiting in finished:
            if admitted := self._gate.release(waiting):
                self._add(admitted)

    def _expire(self, timed_out: Iterable[tuple[_Waiting, BaseException]]) -> None:
        for waiting, error in timed_out:
            self._leave_queue(waiting)
            self._settle_failure(waiting, error)
            if (key := waiting.message.key) is not None:
                if not self._batcher.is_paused(key):
                    self._batcher.pause(key)
                self._fail_queued(key, _behind(key, error))

    def _raise_first_unseen(self) -> None:
        unseen, self._unseen = self._unseen, []
        for future in unseen:
            if not future.observed:
                future.result()

    def _set_timer(self) -> None:
        deadlines = [when for when in (self._batcher.next_deadline(), self._gate.next_deadline()) if when is not None]
        when = min(deadlines, default=None)
        if self._timer is not None:
            if when is not None and self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._send(self._batcher.due(self._now()))
        expired = self._gate.expire(self._now())
        self._expire(expired.timed_out)
        self._add(expired.admitted)
        self._set_timer()


def _behind(key: str | None, error: BaseException) -> PublishingPaused:
    return PublishingPaused(
        f"Not published, because an earlier message of key {key!r} failed ({error}); "
        f"call resume_publishing({key!r}) and publish again"
    )
