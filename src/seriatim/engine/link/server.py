"""The owner's end of the link: whoever may enter is answered by a broker of this process.

Rules
    - Questions are put to the broker in the order in which they come, and answered in the order in which it is done with them.
    - When a connection ends, its consumers are detached at once: what they had is given out again, and counts as not tried.
    - A client that does not read gets nothing more, and is asked nothing more, until it does; its leases expire like anybody's.
      What it can keep the server from forgetting is bounded: by its limits, by what a connection may have unsent, and by what
      it may have asked and not been answered.
    - An owner that ends says so, answers what it was asked before, and hangs up.

Theory of operation
    A session lives in callbacks of its connection and has no task of its own. A consumer of a session has room only while its
    connection is not full, and the connection wakes it when that is over. Whatever takes a lease from a client without its
    saying so (expiry, fencing) passes ``let_go``, which tells it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

from seriatim.core.delivery import Lease
from seriatim.engine.broker import Broker
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.link.address import Listener, keep_from_children, may_enter
from seriatim.engine.link.codec import Blobs
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
    text_of,
)
from seriatim.engine.link.verbs import VERBS, Verb
from seriatim.errors import InvalidArgument, ResourceExhausted, SeriatimError, StaleLease
from seriatim.log import logger

MOST_ASKED = 64 * 1024 * 1024
"""A session whose unanswered questions hold more bytes than this is not read from."""

QUESTION = 1024
"""What it costs to remember a question, besides the bytes of its messages."""

MOST_CHANNELS = 1000
"""How many consumers one connection may attach."""

DELIVERED_AT_ONCE = 16 * 1024 * 1024
"""A delivery with more bytes is sent in parts."""

GREETING = 5.0
"""So many seconds a connection has to say who it is."""

GRACE = 5.0
"""So many seconds an owner that ends waits for its clients."""


class LinkServer:
    """Answers at the socket of a store, from ``start`` to ``close``. The store must be owned by this process."""

    def __init__(self, broker: Broker, path: Path) -> None:
        self._broker = broker
        self._path = path
        self._listener: Listener | None = None
        self._entrance: asyncio.Task[None] | None = None
        self._sessions: dict[_Session, None] = {}  # in the order in which they came

    async def start(self) -> None:
        """Raises StoreFailed when there can't be a socket."""
        self._listener = Listener(self._path)
        self._listener.socket.setblocking(False)
        self._entrance = asyncio.create_task(self._let_in(self._listener), name="seriatim-link")

    async def close(self) -> None:
        """Let nobody in any more, answer what was asked, and hang up."""
        if self._entrance is None or self._listener is None:
            return
        self._entrance.cancel()
        await asyncio.wait([self._entrance])
        self._listener.close()
        await asyncio.gather(*(session.finish() for session in self._sessions))

    async def _let_in(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(listener.socket)
            except OSError as error:  # too many open files, for example: others may end
                logger.error("nobody can be let in at '%s' just now: %s", self._path, error)
                await asyncio.sleep(1)
                continue
            try:
                await self._admit(peer)
            except Exception as error:  # noqa: BLE001 - the next one may have better luck
                logger.error("a client could not be let in at '%s': %s", self._path, error)
                peer.close()

    async def _admit(self, peer: socket) -> None:
        if may_enter(peer):
            keep_from_children(peer)
            await asyncio.get_running_loop().connect_accepted_socket(self._welcome, peer)
        else:
            logger.warning("another user was turned away at '%s'", self._path)
            peer.close()

    def _welcome(self) -> Connection:
        session = _Session(self._broker, self._sessions.pop)
        self._sessions[session] = None
        return session.connection


class _Session:
    """One client."""

    def __init__(self, broker: Broker, ended: Callable[[_Session], None]) -> None:
        self.connection = Connection(self)
        self._broker = broker
        self._ended = ended
        self._channels: dict[int, _Channel] = {}
        self._asked: dict[asyncio.Future[Any], int] = {}  # with its cost in bytes
        self._asked_size = 0
        self._unconfirmed: set[int] = set()  # acks of which the client wants to hear
        self._durable: list[int] = []  # acks of which it hears at the end of this turn
        self._calm = asyncio.Event()
        self._over = asyncio.Event()
        self._said_bye = False
        self._timer: asyncio.TimerHandle | None = None
        self._hear: dict[type[Message], Callable[[Any], None]] = {Hello: self._greet}

    # -- life -----------------------------------------------------------------------------------------------------------

    def connected(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(GREETING, self.connection.abort)

    def heard(self, message: Message) -> None:
        try:
            hear = self._hear[type(message)]
        except KeyError:
            raise Malformed(f"{type(message).__name__} at the wrong moment") from None
        hear(message)
        self._read_on()

    def has_room(self) -> None:
        self._read_on()
        for channel in self._channels.values():
            channel.wake()

    def lost(self, error: BaseException | None) -> None:  # noqa: ARG002 - how it ended makes no difference
        if self._timer is not None:
            self._timer.cancel()
        self._leave()
        self._over.set()
        self._ended(self)

    async def finish(self) -> None:
        """End, after everything that the client asked before it said goodbye is answered. One that says nothing is left."""
        self.connection.send(Bye())
        try:
            async with asyncio.timeout(GRACE):
                while not self._over.is_set() and not (self._said_bye and self._is_calm()):
                    self._calm.clear()
                    await self._calm.wait()
                self._send_durable()
                self.connection.close()
                await self._over.wait()
        except TimeoutError:
            self.connection.abort()
            await self._over.wait()

    def _leave(self) -> None:
        while self._channels:
            self._channels.popitem()[1].attachment.detach()
        self._calm.set()

    def _greet(self, hello: Hello) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.connection.send(Hello(VERSION, os.getpid()))
        if hello.version != VERSION:  # the client sees that, and says so
            self._hear = {}
            self.connection.close()
            return
        self.connection.send(Clock(asyncio.get_running_loop().time()))
        self._hear = {
            Call: self._call,
            Attach: self._attach,
            Acks: self._acks,
            Nack: self._nack,
            Extend: self._extend,
            Stop: self._stop,
            Detach: self._detach,
            Bye: self._bye,
        }

    def _bye(self, _: Bye) -> None:
        self._said_bye = True
        self._leave()

    # -- questions ------------------------------------------------------------------------------------------------------

    def _call(self, call: Call) -> None:
        try:
            verb = VERBS.get(call.verb)
            if verb is None:
                raise InvalidArgument(f"there is no verb {call.verb!r}")
            given = verb.unpack_arguments(call.arguments)
            asked: Awaitable[Any] = getattr(self._broker, verb.name)(*given.args, **given.kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this question alone
            self._refuse(call.id, call.verb, error)
            return
        future = asyncio.ensure_future(asked)
        assert isinstance(call.arguments.blobs, Blobs)
        self._asked[future] = size = len(call.arguments.blobs) + QUESTION
        self._asked_size += size
        future.add_done_callback(partial(self._answer, call.id, verb))

    def _answer(self, number: int, verb: Verb, future: asyncio.Future[Any]) -> None:
        self._asked_size -= self._asked.pop(future)
        try:
            self.connection.send(Answer(number, verb.pack_answer(future.result())))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, who asked must hear of it
            self._refuse(number, verb.name, error)
        self._read_on()
        self._calm.set()

    def _refuse(self, number: int, verb: str, error: BaseException) -> None:
        if not isinstance(error, SeriatimError | asyncio.CancelledError):
            logger.error("'%s' failed for a client: %s", verb, error, exc_info=error)
        self.connection.send(Refusal(number, *text_of(error)))

    def _read_on(self) -> None:
        self.connection.read(wanted=not self.connection.is_full and self._asked_size <= MOST_ASKED)

    def _is_calm(self) -> bool:
        return not self._asked and not self._unconfirmed

    # -- consumers ------------------------------------------------------------------------------------------------------

    def _attach(self, attach: Attach) -> None:
        if attach.channel in self._channels:
            raise Malformed(f"channel {attach.channel} is open already")
        try:
            if len(self._channels) >= MOST_CHANNELS:
                raise ResourceExhausted(f"one connection attaches {MOST_CHANNELS} consumers at most")
            self._channels[attach.channel] = _Channel(self.connection, self._broker, attach)
        except SeriatimError as error:
            self.connection.send(Trouble(attach.channel, *text_of(error)))

    def _acks(self, acks: Acks) -> None:
        for ack in acks.acks:
            self._ack(ack)

    def _ack(self, ack: Ack) -> None:
        told = partial(self._confirm, ack.id)
        if ack.tell:
            self._unconfirmed.add(ack.id)
        try:
            channel, lease = self._leased(ack)
            channel.expect(lease)
            channel.attachment.ack(lease, told if ack.tell else None)
        except SeriatimError as error:
            told(error)

    def _confirm(self, number: int, error: BaseException | None) -> None:
        self._unconfirmed.discard(number)
        if error is not None:
            self.connection.send(Refusal(number, *text_of(error)))
        else:
            if not self._durable:
                asyncio.get_running_loop().call_soon(self._send_durable)
            self._durable.append(number)
        self._calm.set()

    def _send_durable(self) -> None:
        """Acks become durable many at once, and are reported together."""
        if self._durable:
            self.connection.send(Durable(self._durable))
            self._durable = []

    def _nack(self, nack: Nack) -> None:
        with self._reporting(nack.channel):
            channel, lease = self._leased(nack)
            channel.expect(lease)
            channel.attachment.nack(lease, nack.delay, nack.error)

    def _extend(self, extend: Extend) -> None:
        with self._reporting(extend.channel):
            channel, lease = self._leased(extend)
            channel.attachment.extend(lease, extend.seconds)

    def _stop(self, stop: Stop) -> None:
        if (channel := self._channels.get(stop.channel)) is not None:
            channel.attachment.stop()

    def _detach(self, detach: Detach) -> None:
        if (channel := self._channels.pop(detach.channel, None)) is not None:
            channel.attachment.detach()

    def _leased(self, said: Ack | Nack | Extend) -> tuple[_Channel, Lease]:
        """The lease that is spoken of, and whose it is."""
        channel = self._channels.get(said.channel)
        lease = None if channel is None else channel.leases.get(said.offset)
        if channel is None or lease is None or lease.token != said.token:
            raise StaleLease(f"message {said.offset} is not leased any more: it will be, or was, delivered again")
        return channel, lease

    @contextmanager
    def _reporting(self, channel: int) -> Iterator[None]:
        try:
            yield
        except StaleLease:
            pass  # the client was told when the lease was lost
        except SeriatimError as error:
            self.connection.send(Trouble(channel, *text_of(error)))


class _Channel(Consumer):
    """A consumer at the other end of a connection."""

    def __init__(self, connection: Connection, broker: Broker, attach: Attach) -> None:
        super().__init__(
            self._deliver,
            max_messages=attach.max_messages,
            max_bytes=attach.max_bytes,
            failed=self._failed,
            ack_deadline=attach.ack_deadline,
        )
        self._connection = connection
        self._number = attach.channel
        self._expected: int | None = None
        self.attachment = broker.attach(attach.subscription, self)

    def room(self) -> int:
        return 0 if self._connection.is_full else super().room()

    def expect(self, lease: Lease) -> None:
        """The client itself ends a lease, and need not be told so."""
        self._expected = lease.token

    def let_go(self, offset: int) -> Lease:
        lease = super().let_go(offset)
        if lease.token != self._expected:
            self._connection.send(Fence(self._number, lease.token))
        return lease

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        part: list[Delivered] = []
        size = 0
        for one in delivered:
            part.append(one)
            size += len(one.record.data)
            if size >= DELIVERED_AT_ONCE:
                self._send(part)
                part, size = [], 0
        self._send(part)

    def _send(self, delivered: list[Delivered]) -> None:
        if delivered:
            now = asyncio.get_running_loop().time()
            self._connection.send(Deliver(self._number, self.attachment.ack_deadline, delivered, now))

    def _failed(self, error: BaseException) -> None:
        self._connection.send(Trouble(self._number, *text_of(error)))
