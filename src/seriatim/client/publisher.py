"""The publisher of one topic: batches and flow control in front of the engine.

Rules
    - ``core.batching`` decides when a batch is sent, ``core.flow`` who may publish. Nothing here does.
    - A message takes its place in line when ``publish`` is called. Its future is resolved with its id when it is durable.
    - A flow control slot is held from admission until the message is durable, or has failed.
    - When a publish of a key fails, the key is paused until ``resume``: what was behind fails too, and later messages are
      refused, so that nothing overtakes.
    - ``flush`` covers every publish called before it, also those that wait for admission, and raises the first failure that
      nobody awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from seriatim.core.batching import Batch, Batcher, Batching
from seriatim.core.flow import FlowControl, FlowGate
from seriatim.core.limits import check_message, copy_attributes
from seriatim.core.options import require_duration, require_kind
from seriatim.engine.broker import Outgoing
from seriatim.errors import FlowControlTimeout, InvalidArgument, PublishingPaused

MOST_UNSEEN = 1_000
"""How many failures that nobody awaited are kept for ``flush`` at most."""


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
        self._open: dict[PublishFuture, None] = {}  # not resolved yet, in order of publishing
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
        self._open[future] = None
        now = self._now()
        try:
            if self._gate.request(waiting, len(data), now):
                self._add_one(waiting, now)
                if self._timer is not None:
                    return future  # it rings early enough: no batch is older than the one that it was set for
        except FlowControlTimeout as error:
            self._settle_failure(future, error)
        self._set_timer()
        return future

    async def flush(self) -> None:
        """Send everything now, and wait until everything published before is durable."""
        mine = list(self._open)
        # Each round sends what is open; what waits for admission is sent by a later round.
        while any(not future.done() for future in mine):
            self._send(self._batcher.flush())
            self._set_timer()
            await asyncio.wait([future for future in mine if not future.done()], return_when=asyncio.FIRST_COMPLETED)
        self._raise_first_unseen()

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
            self._send(self._batcher.flush())
            await asyncio.wait(list(self._open), return_when=asyncio.FIRST_COMPLETED)
        if self._timer is not None:
            self._timer.cancel()

    # -- how ------------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._loop.time()

    def _add(self, admitted: Iterable[_Waiting]) -> None:
        """Put admitted messages into their batches."""
        for waiting in admitted:
            self._add_one(waiting, self._now())

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
            error = asyncio.CancelledError() if written.cancelled() else written.exception()
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
            self._open.pop(future, None)
            if not future.done():
                future.set_result(str(offset))
        self._send(self._batcher.confirm(batch.number))
        self._release(batch.messages)

    def _batch_failed(self, batch: Batch[_Waiting], error: BaseException) -> None:
        behind = self._batcher.fail(batch.number)
        self._fail(batch.messages, error)
        refusal = PublishingPaused(
            f"Not published, because an earlier message of key {batch.key!r} failed ({error}); "
            f"call resume_publishing({batch.key!r}) and publish again"
        )
        self._fail(behind, refusal)

    def _fail(self, failed: Sequence[_Waiting], error: BaseException) -> None:
        for waiting in failed:
            self._settle_failure(waiting.future, error)
        self._release(failed)

    def _settle_failure(self, future: PublishFuture, error: BaseException) -> None:
        self._open.pop(future, None)
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
            self._settle_failure(waiting.future, error)

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
