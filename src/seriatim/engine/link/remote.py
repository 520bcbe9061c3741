"""The other end of the link: a broker that asks the owner of a store.

Rules
    - Every verb waits for its answer. An owner that goes away before it answered leaves the outcome unknown, and nothing is
      asked a second time by itself.
    - What a consumer says about a lease is sent and not waited for. A lease that is known to be lost raises StaleLease at once;
      an ack that the owner refuses is reported to ``told``, or logged when there is none.
    - When the connection ends, every lease of it is lost, and consumers hear of that.
    - A process that is stopped and continued finds deliveries whose time is over, and hears only later that they are lost. So
      each delivery says when it was sent, and leases whose time is over by the clock are held no more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

from seriatim.core.delivery import Lease
from seriatim.core.limits import reason_of
from seriatim.core.options import require_duration
from seriatim.engine.broker import Attachment, Outgoing, Told
from seriatim.engine.consumer import Consumer, Delivered
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
    Deliver,
    Detach,
    Durable,
    Extend,
    Fence,
    Hello,
    Malformed,
    Message,
    Nack,
    Refusal,
    Stop,
    Trouble,
    error_of,
)
from seriatim.engine.link.verbs import VERBS, Verb
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import FailedPrecondition, OutcomeUnknown, SeriatimError, StaleLease, StoreLost
from seriatim.log import logger

GREETING = 5.0
"""So many seconds an owner has to say who it is."""

Lost = Callable[[SeriatimError], None]
"""Called once, when an owner ended or went away."""


class RemoteBroker:
    """A broker in another process. It has every verb of ``Broker``."""

    def __init__(self) -> None:
        self._connection = Connection(self)
        self._lost: Lost | None = None
        self._owner: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._ids = count(1)
        self._asked: dict[int, tuple[Verb, asyncio.Future[Any]]] = {}
        self._acks: list[Ack] = []  # what is sent at the end of this turn
        self._told: dict[int, Told] = {}
        self._channels: dict[int, RemoteAttachment] = {}
        self._over: SeriatimError | None = None
        self._ended = asyncio.Event()
        self._clock_offset = inf  # how far this process' clock is ahead of the owner's, at most
        self._hear: dict[type[Message], Callable[[Any], None]] = {
            Hello: self._greeted,
            Clock: self._compare_clocks,
            Answer: self._answered,
            Refusal: self._refused,
            Durable: self._durable,
            Deliver: self._delivered,
            Fence: self._fenced,
            Trouble: self._trouble,
            Bye: self._bye,
        }

    @classmethod
    async def connect(cls, path: Path, lost: Lost | None = None) -> RemoteBroker:
        """The broker behind a socket. Raises OSError when nobody answers there.

        ``lost`` is called when the owner ends or goes away; without it consumers hear of that as a failure.
        """
        remote = cls()
        await asyncio.get_running_loop().create_connection(lambda: remote._connection, sock=connect(path))
        try:
            async with asyncio.timeout(GREETING):
                owner = await remote._owner
            if owner.version != VERSION:
                raise FailedPrecondition(
                    f"process {owner.pid} owns the store and speaks version {owner.version} of the link, this program "
                    f"version {VERSION}: run the same version of Seriatim in both"
                )
            if remote._over is not None:
                raise ConnectionResetError(str(remote._over))
        except BaseException:
            remote._connection.abort()
            raise
        remote._lost = lost
        return remote

    # -- what programs ask ----------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Every verb that is not written out here."""
        if name not in VERBS:
            raise AttributeError(name)
        return partial(self._answer_to, VERBS[name])

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[range]:
        return self._ask(VERBS["publish"], topic, messages)

    def backup(self, path: str) -> Coroutine[Any, Any, Any]:
        # The owner may be at work in another folder.
        return self._answer_to(VERBS["backup"], str(Path(path).absolute()))

    def require_topic(self, name: str) -> None:
        """Whether a topic exists is known to the owner: a publish will say."""

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        """A subscription that does not exist is reported to the consumer."""
        self._check()
        attachment = RemoteAttachment(self, next(self._ids), consumer)
        self._channels[attachment.channel] = attachment
        limits = consumer.max_messages, consumer.max_bytes, consumer.ack_deadline
        self.send(Attach(attachment.channel, subscription, *limits))
        return attachment

    async def close(self) -> None:
        """Hang up. What is asked and not answered stays unknown."""
        self._lost = lambda _: None  # nobody needs to be told what he does himself
        self._send_acks()
        self._connection.close()
        try:
            async with asyncio.timeout(GREETING):
                await self._ended.wait()
        except TimeoutError:
            self._connection.abort()

    async def _answer_to(self, verb: Verb, *given: Any, **named: Any) -> Any:
        return await self._ask(verb, *given, **named)

    def _ask(self, verb: Verb, *given: Any, **named: Any) -> asyncio.Future[Any]:
        self._check()
        number = next(self._ids)
        self.send(Call(number, verb.name, verb.pack_arguments(*given, **named)))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = verb, future
        return future

    def _check(self) -> None:
        if self._over is not None:
            raise StoreLost(f"the link to the store is over: {self._over}")

    # -- for attachments ------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        self._send_acks()
        self._connection.send(message)

    def ack(self, channel: int, lease: Lease, told: Told | None) -> None:
        """Send an ack, together with others that are said in the same turn of the loop and before anything else."""
        self._connection.refuse_in_child()
        number = next(self._ids)
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._send_acks)
        self._acks.append(Ack(channel, lease.offset, lease.token, number, tell=told is not None))
        if told is not None:
            self._told[number] = told

    def _send_acks(self) -> None:
        if self._acks:
            acks, self._acks = self._acks, []
            self._connection.send(Acks(acks))

    def forget(self, channel: int) -> None:
        self._channels.pop(channel, None)

    # -- what the connection says ---------------------------------------------------------------------------------------

    def connected(self) -> None:
        self.send(Hello(VERSION, os.getpid()))

    def heard(self, message: Message) -> None:
        try:
            hear = self._hear[type(message)]
        except KeyError:
            raise Malformed(f"{type(message).__name__} from an owner") from None
        hear(message)

    def has_room(self) -> None:
        """Nothing is held back here: who publishes has its own flow control."""

    def lost(self, error: BaseException | None) -> None:
        if not self._owner.done():
            self._owner.set_exception(ConnectionResetError(f"hung up before saying who it is ({error})"))
            self._owner.exception()  # nobody may be waiting for it any more
        self._end("went away")
        unknown = OutcomeUnknown(
            f"{self._name()} went away before it answered: what was asked may have happened or not, look before you ask again"
        )
        asked, self._asked = self._asked, {}
        for _, future in asked.values():
            if not future.done():
                future.set_exception(unknown)
        told, self._told = self._told, {}
        for tell in told.values():
            tell(unknown)
        self._ended.set()

    def _bye(self, _: Bye) -> None:
        """The owner ends: it answers what it was asked, and nothing more may be asked."""
        self.send(Bye())
        self._end("ended")

    def _end(self, how: str) -> None:
        if self._over is not None:
            return
        self._over = StoreLost(f"{self._name()} {how}")
        channels, self._channels = self._channels, {}
        if self._lost is not None:  # first: what consumers do when they hear of it is for the next owner
            self._lost(self._over)
        for channel in channels.values():
            channel.end()
            if self._lost is None:
                channel.consumer.failed(self._over)

    def _name(self) -> str:
        known = self._owner.done() and not self._owner.cancelled() and self._owner.exception() is None
        return f"the owner of the store (process {self._owner.result().pid})" if known else "the owner of the store"

    # -- what the owner says --------------------------------------------------------------------------------------------

    def age_of(self, time: float) -> float:
        """How long ago the owner's clock showed this. The clocks are compared by the fastest message of the connection."""
        offset = asyncio.get_running_loop().time() - time
        self._clock_offset = min(self._clock_offset, offset)
        return offset - self._clock_offset

    def _compare_clocks(self, clock: Clock) -> None:
        self.age_of(clock.time)

    def _greeted(self, hello: Hello) -> None:
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

    def _refused(self, refusal: Refusal) -> None:
        error = error_of(refusal.error, refusal.text)
        if refusal.id in self._asked:
            _fail(self._take(refusal.id)[1], error)
        elif (told := self._told.pop(refusal.id, None)) is not None:
            told(error)
        else:
            logger.warning("an ack was refused: %s", error)

    def _take(self, number: int) -> tuple[Verb, asyncio.Future[Any]]:
        try:
            return self._asked.pop(number)
        except KeyError:
            raise Malformed(f"an answer to {number}, which was not asked") from None

    def _durable(self, durable: Durable) -> None:
        for number in durable.ids:
            if (told := self._told.pop(number, None)) is not None:
                told(None)

    def _delivered(self, deliver: Deliver) -> None:
        if (channel := self._channels.get(deliver.channel)) is not None:
            channel.deliver(deliver)

    def _fenced(self, fence: Fence) -> None:
        if (channel := self._channels.get(fence.channel)) is not None:
            channel.fence(fence.token)

    def _trouble(self, trouble: Trouble) -> None:
        if (channel := self._channels.get(trouble.channel)) is not None:
            channel.consumer.failed(error_of(trouble.error, trouble.text))


class RemoteAttachment:
    """A consumer of this process at work on a subscription of another."""

    def __init__(self, remote: RemoteBroker, channel: int, consumer: Consumer) -> None:
        self._remote = remote
        self.channel = channel
        self.consumer = consumer
        # The owner says it with every delivery, which is before anybody needs to know.
        self.ack_deadline = SubscriptionOptions().ack_deadline
        self._leases: dict[int, Lease] = {}  # by token
        self._until: dict[int, float] = {}  # by token, by the clock of the loop
        self._loop = asyncio.get_running_loop()

    def holds(self, lease: Lease) -> bool:
        return self._until.get(lease.token, -inf) > self._loop.time()

    def ack(self, lease: Lease, told: Told | None = None) -> None:
        self._let_go(lease)
        self._remote.ack(self.channel, lease, told)

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        if delay is not None:
            require_duration("delay", delay)
        error = reason_of(error)
        self._let_go(lease)
        self._remote.send(Nack(self.channel, lease.offset, lease.token, delay, error))

    def extend(self, lease: Lease, seconds: float) -> None:
        self._check(lease)
        require_duration("seconds", seconds)
        if not self.holds(lease):
            raise StaleLease(f"message {lease.offset} is not leased any more: its time was over before it was extended")
        self._remote.send(Extend(self.channel, lease.offset, lease.token, seconds))
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
        self.ack_deadline = deliver.ack_deadline
        self._leases.update((one.lease.token, one.lease) for one in deliver.delivered)
        lasts = self.consumer.ack_deadline or deliver.ack_deadline
        until = self._loop.time() - self._remote.age_of(deliver.sent) + lasts
        self._until.update((one.lease.token, until) for one in deliver.delivered)
        self._loop.call_soon(self._hand_over, deliver.delivered)  # after whatever was read together with it

    def _hand_over(self, delivered: Sequence[Delivered]) -> None:
        if held := [one for one in delivered if self.holds(one.lease)]:
            self.consumer.deliver(held)

    def fence(self, token: int) -> None:
        if (lease := self._leases.pop(token, None)) is not None:
            del self._until[token]
            self.consumer.fenced(lease)

    def end(self) -> None:
        """The connection is over, and every lease with it."""
        for token in list(self._leases):
            self.fence(token)

    def _check(self, lease: Lease) -> None:
        if lease.token not in self._leases:
            raise StaleLease(f"message {lease.offset} is not leased any more: it will be, or was, delivered again")

    def _let_go(self, lease: Lease) -> None:
        self._check(lease)
        del self._leases[lease.token], self._until[lease.token]


def _fail(future: asyncio.Future[Any], error: SeriatimError) -> None:
    if not future.done():
        future.set_exception(error)
