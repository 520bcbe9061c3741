"""The client's end of the link: a broker that calls the owner of a store.

Rules
    - Every call waits for its answer. If the owner disconnects before it answers, the outcome is unknown; no call is repeated
      automatically.
    - Acks, nacks and extensions are sent without waiting. If the lease is known to be lost they raise StaleLease at once. An
      ack that the owner refuses is reported to its callback, or logged if there is none.
    - When the connection ends, all its leases are lost, and their consumers are notified.
    - A process that was suspended and continued reads expired deliveries before it learns that they are lost. So each delivery
      carries the time it was sent, and leases that have expired by the clock are no longer held.
    - Closing waits for answers as long as any arrive. After ``ANSWER_TIMEOUT_S`` without one, for example because the owner's
      store is unavailable, the outcome of pending calls is unknown.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

from seriatim.core.lanes.types import Lease
from seriatim.core.text_checks import reason_of
from seriatim.core.validation import require_duration
from seriatim.engine.broker import Attachment, OnDurable
from seriatim.engine.consumer import Consumer, Delivered, whole_leases
from seriatim.engine.link.address import connect
from seriatim.engine.link.connection import Connection
from seriatim.engine.link.frames import (
    VERSION,
    Ack,
    Acks,
    Answer,
    Attach,
    Bye,
    Call,
    Clock,
    ConsumerError,
    Deliver,
    Detach,
    Durable,
    Extend,
    Failure,
    Fence,
    Frame,
    GiveUp,
    Hello,
    MalformedFrame,
    Nack,
    Stop,
    error_of,
)
from seriatim.engine.link.verbs import VERBS, CallingBroker, Verb
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import FailedPrecondition, OutcomeUnknown, SeriatimError, StaleLease, StoreLost
from seriatim.log import logger

GREETING_TIMEOUT_S = 5.0
"""How long an owner has to answer a new connection."""

ANSWER_TIMEOUT_S = 10.0
"""How long closing waits for an owner that does not answer."""

MAX_UNAWAITED = 1_000
"""How many acks that nobody waits for are remembered. A refusal comes within a round trip."""

Lost = Callable[[SeriatimError], None]
"""Called once, when the owner exits or disappears."""


class RemoteBroker(CallingBroker):
    """A broker in another process."""

    def __init__(self) -> None:
        self._connection = Connection(self)
        self._lost: Lost | None = None
        self._owner: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._ids = count(1)
        self._pending: dict[int, tuple[Verb, asyncio.Future[Any]]] = {}
        self._answers = 0  # how many calls were answered
        self._acks: list[Ack] = []  # what is sent at the end of this turn
        self._acked: dict[int, OnDurable] = {}
        self._unawaited: deque[tuple[int, str, Lease]] = deque(maxlen=MAX_UNAWAITED)  # a refusal names its message
        self._channels: dict[int, RemoteAttachment] = {}
        self._closed: SeriatimError | None = None
        self._ended = asyncio.Event()
        self._clock_offset = inf  # how far this process' clock is ahead of the owner's, at most
        self._handlers: dict[type[Frame], Callable[[Any], None]] = {
            Hello: self._on_hello,
            Clock: self._compare_clocks,
            Answer: self._answered,
            Failure: self._refused,
            Durable: self._durable,
            Deliver: self._delivered,
            Fence: self._fenced,
            ConsumerError: self._trouble,
            Bye: self._bye,
        }

    @classmethod
    async def connect(cls, path: Path, lost: Lost | None = None) -> RemoteBroker:
        """The broker behind a socket. Raises OSError if there is no answer.

        ``lost`` is called when the owner exits or disappears; without it, consumers get that as a failure.
        """
        remote = cls()
        await asyncio.get_running_loop().create_connection(lambda: remote._connection, sock=connect(path))
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                owner = await remote._owner
            if owner.version != VERSION:
                raise FailedPrecondition(
                    f"process {owner.pid} owns the store and speaks version {owner.version} of the link, this program "
                    f"version {VERSION}: run the same version of Seriatim in both"
                )
            if remote._closed is not None:
                raise ConnectionResetError(str(remote._closed))
        except BaseException:
            remote._connection.abort()
            raise
        remote._lost = lost
        return remote

    # -- what programs ask ----------------------------------------------------------------------------------------------

    def backup(self, path: str) -> Coroutine[Any, Any, None]:
        return super().backup(str(Path(path).absolute()))  # the owner may run in another folder

    def require_topic(self, name: str) -> None:
        """Only the owner knows whether a topic exists: a publish will fail."""

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        """A subscription that does not exist is reported to the consumer."""
        self._check()
        attachment = RemoteAttachment(self, next(self._ids), subscription, consumer)
        self._channels[attachment.channel] = attachment
        limits = consumer.max_messages, consumer.max_bytes, consumer.ack_deadline, consumer.batch
        self.send(Attach(attachment.channel, subscription, *limits))
        return attachment

    def begin_closing(self) -> None:
        asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_S, self._give_up_if_silent, self._answers)

    def _give_up_if_silent(self, answers: int) -> None:
        if self._ended.is_set():
            return
        if answers == self._answers:  # what is answered later is not heard any more
            silent = OutcomeUnknown(
                f"{self._name()} did not answer before this program ended: it may have happened or not"
            )
            for _, future in self._pending.values():
                _fail(future, silent)
        self.begin_closing()

    async def close(self) -> None:
        """Disconnect. The outcome of unanswered calls is unknown."""
        self._lost = lambda _: None  # nobody needs to be told what he does himself
        self._send_acks()
        self._connection.close()
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                await self._ended.wait()
        except TimeoutError:
            self._connection.abort()

    def _call(self, verb: str, *given: Any, **named: Any) -> asyncio.Future[Any]:
        self._check()
        number, called = next(self._ids), VERBS[verb]
        self.send(Call(number, verb, called.pack_arguments(*given, **named)))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = called, future
        return future

    def _check(self) -> None:
        if self._closed is not None:
            raise StoreLost(f"the link to the store is over: {self._closed}")

    # -- for attachments ------------------------------------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        self._send_acks()
        self._connection.send(frame)

    def ack(self, by: RemoteAttachment, lease: Lease, on_durable: OnDurable | None) -> None:
        """Send an ack, together with the others of this turn of the loop, and before anything else."""
        self._connection.refuse_in_child()
        number = next(self._ids)
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._send_acks)
        self._acks.append(Ack(by.channel, lease.offsets[-1], lease.token, number, tell=on_durable is not None))
        if on_durable is not None:
            self._acked[number] = on_durable
        else:
            self._unawaited.append((number, by.subscription, lease))

    def _send_acks(self) -> None:
        if self._acks:
            acks, self._acks = self._acks, []
            self._connection.send(Acks(acks))

    def forget(self, channel: int) -> None:
        self._channels.pop(channel, None)

    # -- what the connection says ---------------------------------------------------------------------------------------

    def on_connect(self) -> None:
        self.send(Hello(VERSION, os.getpid()))

    def on_frame(self, frame: Frame) -> None:
        try:
            handle = self._handlers[type(frame)]
        except KeyError:
            raise MalformedFrame(f"{type(frame).__name__} from an owner") from None
        handle(frame)

    def on_room(self) -> None:
        """Nothing is held back here: publishers have flow control of their own."""

    def on_disconnect(self, error: BaseException | None) -> None:
        if not self._owner.done():
            self._owner.set_exception(ConnectionResetError(f"hung up before saying who it is ({error})"))
            self._owner.exception()  # nobody may be waiting for it any more
        self._end("went away")
        unknown = OutcomeUnknown(
            f"{self._name()} went away before it answered: what was asked may have happened or not, look before you ask again"
        )
        asked, self._pending = self._pending, {}
        for _, future in asked.values():
            if not future.done():
                future.set_exception(unknown)
        waiting, self._acked = self._acked, {}
        for tell in waiting.values():
            tell(unknown)
        self._ended.set()

    def _bye(self, _: Bye) -> None:
        """The owner exits: it answers earlier calls, and accepts no more."""
        self.send(Bye())
        self._end("ended")

    def _end(self, how: str) -> None:
        if self._closed is not None:
            return
        self._closed = StoreLost(f"{self._name()} {how}")
        channels, self._channels = self._channels, {}
        if self._lost is not None:  # first: what consumers do when they hear of it is for the next owner
            self._lost(self._closed)
        for channel in channels.values():
            channel.end()
            if self._lost is None:
                channel.consumer.failed(self._closed)

    def _name(self) -> str:
        known = self._owner.done() and not self._owner.cancelled() and self._owner.exception() is None
        return f"the owner of the store (process {self._owner.result().pid})" if known else "the owner of the store"

    # -- what the owner says --------------------------------------------------------------------------------------------

    def age_of(self, time: float) -> float:
        """How long ago the owner's clock showed this time. The clocks are compared by the fastest message of the connection."""
        offset = asyncio.get_running_loop().time() - time
        self._clock_offset = min(self._clock_offset, offset)
        return offset - self._clock_offset

    def _compare_clocks(self, clock: Clock) -> None:
        self.age_of(clock.time)

    def _on_hello(self, hello: Hello) -> None:
        if not self._owner.done():
            self._owner.set_result(hello)

    def _answered(self, answer: Answer) -> None:
        verb, future = self._take(answer.id)
        try:
            value = verb.unpack_answer(answer.value)
        except SeriatimError as error:
            _fail(future, error)
        else:
            if not future.done():
                future.set_result(value)

    def _refused(self, refusal: Failure) -> None:
        error = error_of(refusal.error, refusal.text)
        if refusal.id in self._pending:
            _fail(self._take(refusal.id)[1], error)
        elif (on_durable := self._acked.pop(refusal.id, None)) is not None:
            on_durable(error)
        else:
            fields = (
                {"subscription": name, "ordering_key": lease.key, "message_id": str(lease.offsets[-1])}
                for number, name, lease in self._unawaited
                if number == refusal.id
            )
            logger.warning("an ack was refused: %s", error, extra=next(fields, None))

    def _take(self, number: int) -> tuple[Verb, asyncio.Future[Any]]:
        self._answers += 1
        try:
            return self._pending.pop(number)
        except KeyError:
            raise MalformedFrame(f"an answer to {number}, which was not asked") from None

    def _durable(self, durable: Durable) -> None:
        for number in durable.ids:
            if (on_durable := self._acked.pop(number, None)) is not None:
                on_durable(None)

    def _delivered(self, deliver: Deliver) -> None:
        if (channel := self._channels.get(deliver.channel)) is not None:
            channel.deliver(deliver)

    def _fenced(self, fence: Fence) -> None:
        if (channel := self._channels.get(fence.channel)) is not None:
            channel.fence(fence.token)

    def _trouble(self, trouble: ConsumerError) -> None:
        if (channel := self._channels.get(trouble.channel)) is not None:
            channel.consumer.failed(error_of(trouble.error, trouble.text))


class RemoteAttachment:
    """A consumer in this process, attached to a subscription in another."""

    def __init__(self, remote: RemoteBroker, channel: int, subscription: str, consumer: Consumer) -> None:
        self._remote = remote
        self.channel = channel
        self.subscription = subscription
        self.consumer = consumer
        # The owner says it with every delivery, which is before anybody needs to know.
        self.ack_deadline = SubscriptionOptions().ack_deadline
        self._leases: dict[int, Lease] = {}  # by token
        self._until: dict[int, float] = {}  # by token, by the clock of the loop
        self._begun: list[Delivered] = []  # the beginning of a batch that comes in several frames
        self._loop = asyncio.get_running_loop()

    def holds(self, lease: Lease) -> bool:
        return self._until.get(lease.token, -inf) > self._loop.time()

    def ack(self, lease: Lease, on_durable: OnDurable | None = None) -> None:
        held = self._check(lease)
        if held.behind and lease.offsets[-1] < held.behind[-1]:
            left = tuple(offset for offset in held.behind if offset > lease.offsets[-1])
            self._leases[lease.token] = held._replace(offset=left[0], behind=left[1:])
        else:
            self._let_go(lease)
        self._remote.ack(self, lease, on_durable)

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        if delay is not None:
            require_duration("delay", delay)
        error = reason_of(error)
        held = self._let_go(lease)
        first = held.offset if lease.behind else lease.offset
        self._remote.send(Nack(self.channel, first, lease.token, delay, error, bool(lease.behind)))

    def dead_letter(self, lease: Lease, reason: str | None = None, *, rest: bool = False) -> None:
        reason = reason_of(reason)
        self._let_go(lease)
        self._remote.send(GiveUp(self.channel, lease.offset, lease.token, reason, rest))

    def extend(self, lease: Lease, seconds: float) -> None:
        held = self._check(lease)
        require_duration("seconds", seconds)
        if not self.holds(lease):
            raise StaleLease(f"message {lease.offset} is not leased any more: its time was over before it was extended")
        self._remote.send(Extend(self.channel, held.offset, lease.token, seconds))
        self._until[lease.token] = self._loop.time() + seconds

    def stop(self) -> None:
        self._remote.send(Stop(self.channel))

    def detach(self) -> None:
        self._leases.clear()
        self._until.clear()
        self._remote.forget(self.channel)
        self._remote.send(Detach(self.channel))

    # -- for the broker -------------------------------------------------------------------------------------------------

    def deliver(self, deliver: Deliver) -> None:
        delivered, self._begun = [*self._begun, *deliver.delivered], []
        if deliver.continues:
            self._begun = delivered
            return
        self.ack_deadline = deliver.ack_deadline
        leases = whole_leases(delivered)
        self._leases.update((lease.token, lease) for lease in leases)
        lasts = self.consumer.ack_deadline or deliver.ack_deadline
        until = self._loop.time() - self._remote.age_of(deliver.sent) + lasts
        self._until.update((lease.token, until) for lease in leases)
        self._loop.call_soon(self._hand_over, delivered)  # after whatever was read together with it

    def _hand_over(self, delivered: Sequence[Delivered]) -> None:
        if held := [one for one in delivered if self.holds(one.lease)]:
            self.consumer.deliver(held)

    def fence(self, token: int) -> None:
        if (lease := self._leases.pop(token, None)) is not None:
            del self._until[token]
            self.consumer.fenced(lease)

    def end(self) -> None:
        """The connection has ended, and every lease with it."""
        for token in list(self._leases):
            self.fence(token)

    def _check(self, lease: Lease) -> Lease:
        held = self._leases.get(lease.token)
        if held is None or lease.offsets[-1] not in held.offsets:
            raise StaleLease(f"message {lease.offset} is not leased any more: it was settled, or is delivered again")
        return held

    def _let_go(self, lease: Lease) -> Lease:
        held = self._check(lease)
        del self._leases[lease.token], self._until[lease.token]
        return held


def _fail(future: asyncio.Future[Any], error: SeriatimError) -> None:
    if not future.done():
        future.set_exception(error)
