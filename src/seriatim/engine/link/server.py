"""The owner's end of the link: a broker of this process answers the calls of others.

Rules
    - Calls reach the broker in the order in which they arrive, and are answered in the order in which they complete.
    - When a connection ends, its consumers are detached at once. Their messages are redelivered; the attempt does not count.
    - While a client does not read, nothing is sent to it or read from it; its leases expire like any others. The memory that it
      can use is limited by its consumers' limits, by the unsent bytes of a connection, and by its pending calls.
    - An owner that shuts down announces it, answers the calls that were made before, and closes the connections.

Theory of operation
    A client is served by the callbacks of its connection, without a task. A consumer of a client has room only while its
    connection is not full, and is woken when there is room again. If a client loses a lease without asking for it (expiry,
    fencing), that goes through ``let_go``, which notifies it.
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

from seriatim.core.lanes.types import Lease
from seriatim.engine.broker import Broker
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.link.address import Listener, close_in_children, is_allowed
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
    text_of,
)
from seriatim.engine.link.verbs import VERBS, Verb
from seriatim.errors import InvalidArgument, ResourceExhausted, SeriatimError, StaleLease
from seriatim.log import logger

MAX_PENDING_BYTES = 64 * 1024 * 1024
"""A client whose pending calls hold more bytes than this is not read from."""

BYTES_PER_CALL = 1024
"""What a pending call costs, besides the bytes of its messages."""

MAX_CHANNELS = 1000
"""How many consumers one connection may attach."""

MAX_DELIVERY_BYTES = 16 * 1024 * 1024
"""A delivery with more bytes is sent in parts."""

GREETING_TIMEOUT_S = 5.0
"""How long a new connection has to send its ``Hello``."""

CLOSE_TIMEOUT_S = 5.0
"""How long an owner that shuts down waits for its clients."""


class LinkServer:
    """Answers at the socket of a store, from ``start`` to ``close``. The store must be owned by this process."""

    def __init__(self, broker: Broker, path: Path) -> None:
        self._broker = broker
        self._path = path
        self._listener: Listener | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._clients: dict[_Client, None] = {}  # in the order in which they came

    async def start(self) -> None:
        """Begin to listen. Raises StoreFailed if no socket can be created."""
        self._listener = Listener(self._path)
        self._listener.socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._listener), name="seriatim-link")

    async def close(self) -> None:
        """Accept no more connections, answer pending calls, and disconnect."""
        if self._accepting is None or self._listener is None:
            return
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        self._listener.close()
        await asyncio.gather(*(client.close() for client in self._clients))

    async def _accept(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(listener.socket)
            except OSError as error:  # too many open files, for example: others may end
                logger.error("connections can't be accepted at '%s' just now: %s", self._path, error)
                await asyncio.sleep(1)
                continue
            try:
                await self._admit(peer)
            except Exception as error:  # noqa: BLE001 - the next one may have better luck
                logger.error("a client could not be accepted at '%s': %s", self._path, error)
                peer.close()

    async def _admit(self, peer: socket) -> None:
        if is_allowed(peer):
            close_in_children(peer)
            await asyncio.get_running_loop().connect_accepted_socket(self._new_client, peer)
        else:
            logger.warning("a connection of another user was refused at '%s'", self._path)
            peer.close()

    def _new_client(self) -> Connection:
        client = _Client(self._broker, self._clients.pop)
        self._clients[client] = None
        return client.connection


class _Client:
    """One client."""

    def __init__(self, broker: Broker, ended: Callable[[_Client], None]) -> None:
        self.connection = Connection(self)
        self._broker = broker
        self._ended = ended
        self._channels: dict[int, _Channel] = {}
        self._pending: dict[asyncio.Future[Any], int] = {}  # with its cost in bytes
        self._pending_bytes = 0
        self._unconfirmed: set[int] = set()  # acks of which the client wants to hear
        self._durable: list[int] = []  # acks of which it hears at the end of this turn
        self._idle = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._said_bye = False
        self._timer: asyncio.TimerHandle | None = None
        self._handlers: dict[type[Frame], Callable[[Any], None]] = {Hello: self._on_hello}

    # -- life -----------------------------------------------------------------------------------------------------------

    def on_connect(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(GREETING_TIMEOUT_S, self.connection.abort)

    def on_frame(self, frame: Frame) -> None:
        try:
            handle = self._handlers[type(frame)]
        except KeyError:
            raise MalformedFrame(f"{type(frame).__name__} at the wrong moment") from None
        handle(frame)
        self._read_on()

    def on_room(self) -> None:
        self._read_on()
        for channel in self._channels.values():
            channel.wake()

    def on_disconnect(self, error: BaseException | None) -> None:  # noqa: ARG002 - how it ended makes no difference
        if self._timer is not None:
            self._timer.cancel()
        self._detach_all()
        self._disconnected.set()
        self._ended(self)

    async def close(self) -> None:
        """Disconnect once the calls that the client made before its ``Bye`` are answered, or after ``CLOSE_TIMEOUT_S``."""
        self.connection.send(Bye())
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while not self._disconnected.is_set() and not (self._said_bye and self._is_idle()):
                    self._idle.clear()
                    await self._idle.wait()
                self._send_durable()
                self.connection.close()
                await self._disconnected.wait()
        except TimeoutError:
            self.connection.abort()
            await self._disconnected.wait()

    def _detach_all(self) -> None:
        while self._channels:
            self._channels.popitem()[1].attachment.detach()
        self._idle.set()

    def _on_hello(self, hello: Hello) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.connection.send(Hello(VERSION, os.getpid()))
        if hello.version != VERSION:  # the client sees that, and says so
            self._handlers = {}
            self.connection.close()
            return
        self.connection.send(Clock(asyncio.get_running_loop().time()))
        self._handlers = {
            Call: self._call,
            Attach: self._attach,
            Acks: self._acks,
            Nack: self._nack,
            GiveUp: self._give_up,
            Extend: self._extend,
            Stop: self._stop,
            Detach: self._detach,
            Bye: self._bye,
        }

    def _bye(self, _: Bye) -> None:
        self._said_bye = True
        self._detach_all()

    # -- questions ------------------------------------------------------------------------------------------------------

    def _call(self, call: Call) -> None:
        try:
            verb = VERBS.get(call.verb)
            if verb is None:
                raise InvalidArgument(f"there is no verb {call.verb!r}")
            given = verb.unpack_arguments(call.arguments)
            asked: Awaitable[Any] = getattr(self._broker, verb.name)(*given.args, **given.kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this question alone
            self._send_failure(call.id, call.verb, error)
            return
        future = asyncio.ensure_future(asked)
        assert isinstance(call.arguments.blobs, Blobs)
        self._pending[future] = size = len(call.arguments.blobs) + BYTES_PER_CALL
        self._pending_bytes += size
        future.add_done_callback(partial(self._answer, call.id, verb))

    def _answer(self, number: int, verb: Verb, future: asyncio.Future[Any]) -> None:
        self._pending_bytes -= self._pending.pop(future)
        try:
            self.connection.send(Answer(number, verb.pack_answer(future.result())))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, who asked must hear of it
            self._send_failure(number, verb.name, error)
        self._read_on()
        self._idle.set()

    def _send_failure(self, number: int, verb: str, error: BaseException) -> None:
        if not isinstance(error, SeriatimError | asyncio.CancelledError):
            logger.error("'%s' failed for a client: %s", verb, error, exc_info=error)
        self.connection.send(Failure(number, *text_of(error)))

    def _read_on(self) -> None:
        self.connection.read(wanted=not self.connection.is_full and self._pending_bytes <= MAX_PENDING_BYTES)

    def _is_idle(self) -> bool:
        return not self._pending and not self._unconfirmed

    # -- consumers ------------------------------------------------------------------------------------------------------

    def _attach(self, attach: Attach) -> None:
        if attach.channel in self._channels:
            raise MalformedFrame(f"channel {attach.channel} is already open")
        try:
            if len(self._channels) >= MAX_CHANNELS:
                raise ResourceExhausted(f"one connection attaches {MAX_CHANNELS} consumers at most")
            self._channels[attach.channel] = _Channel(self.connection, self._broker, attach)
        except SeriatimError as error:
            self.connection.send(ConsumerError(attach.channel, *text_of(error)))

    def _acks(self, acks: Acks) -> None:
        for ack in acks.acks:
            self._ack(ack)

    def _ack(self, ack: Ack) -> None:
        on_durable = partial(self._confirm, ack.id)
        if ack.tell:
            self._unconfirmed.add(ack.id)
        try:
            channel, lease = self._leased(ack)
            channel.expect(lease)
            channel.attachment.ack(lease, on_durable if ack.tell else None)
        except SeriatimError as error:
            on_durable(error)

    def _confirm(self, number: int, error: BaseException | None) -> None:
        self._unconfirmed.discard(number)
        if error is not None:
            self.connection.send(Failure(number, *text_of(error)))
        else:
            if not self._durable:
                asyncio.get_running_loop().call_soon(self._send_durable)
            self._durable.append(number)
        self._idle.set()

    def _send_durable(self) -> None:
        """Many acks become durable at once, and are reported together."""
        if self._durable:
            self.connection.send(Durable(self._durable))
            self._durable = []

    def _nack(self, nack: Nack) -> None:
        with self._reporting(nack.channel):
            channel, lease = self._leased(nack)
            channel.expect(lease)
            whole = channel.lease(nack.token) if nack.somewhere else None
            channel.attachment.nack(whole or lease, nack.delay, nack.error)

    def _give_up(self, given: GiveUp) -> None:
        with self._reporting(given.channel):
            channel, lease = self._leased(given)
            channel.expect(lease)
            channel.attachment.dead_letter(lease, given.reason, rest=given.rest)

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

    def _leased(self, said: Ack | Nack | GiveUp | Extend) -> tuple[_Channel, Lease]:
        """The lease that a frame refers to, and its channel."""
        channel = self._channels.get(said.channel)
        lease = None if channel is None else channel.lease(said.token)
        if channel is None or lease is None or said.offset not in lease.offsets:
            raise StaleLease(f"message {said.offset} is not leased any more: it will be, or was, delivered again")
        return channel, lease._replace(offset=said.offset, behind=())

    @contextmanager
    def _reporting(self, channel: int) -> Iterator[None]:
        try:
            yield
        except StaleLease:
            pass  # the client was told when the lease was lost
        except SeriatimError as error:
            self.connection.send(ConsumerError(channel, *text_of(error)))


class _Channel(Consumer):
    """A consumer at the other end of a connection."""

    def __init__(self, connection: Connection, broker: Broker, attach: Attach) -> None:
        super().__init__(
            self._deliver,
            max_messages=attach.max_messages,
            max_bytes=attach.max_bytes,
            failed=self._failed,
            ack_deadline=attach.ack_deadline,
            batch=attach.batch,
        )
        self._connection = connection
        self._number = attach.channel
        self._expected: int | None = None
        self.attachment = broker.attach(attach.subscription, self)

    def room(self) -> int:
        return 0 if self._connection.is_full else super().room()

    def expect(self, lease: Lease) -> None:
        """The client itself ends a lease, and need not be notified."""
        self._expected = lease.token

    def let_go(self, lease: Lease, left: int = 0) -> int:
        gone = super().let_go(lease, left)
        if lease.token != self._expected:
            self._connection.send(Fence(self._number, lease.token))
        elif left:
            self._expected = None  # it may still lose the rest
        return gone

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        part: list[Delivered] = []
        size = 0
        for one in delivered:
            if size >= MAX_DELIVERY_BYTES:
                self._send(part, continues=part[-1].lease.token == one.lease.token)
                part, size = [], 0
            part.append(one)
            size += len(one.record.data)
        self._send(part)

    def _send(self, delivered: list[Delivered], *, continues: bool = False) -> None:
        if delivered:
            now = asyncio.get_running_loop().time()
            self._connection.send(Deliver(self._number, self.attachment.ack_deadline, delivered, now, continues))

    def _failed(self, error: BaseException) -> None:
        self._connection.send(ConsumerError(self._number, *text_of(error)))
