"""Messages over a socket.

Rules
    - What is sent in one turn of the event loop goes out together. Nobody waits for it.
    - While too much is unsent the connection is full: whoever sends of his own accord (deliveries) holds back until
      ``has_room``, and whoever answers stops reading questions.
    - Bytes that are no message end this connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol, cast

from seriatim.engine.link.frames import Decoder, Malformed, Message, encode
from seriatim.errors import StoreLost
from seriatim.log import logger

MOST_UNSENT = 1024 * 1024
"""A connection with more unsent bytes is full."""

_AT_ONCE = 64 * 1024
"""So many bytes go out without waiting for the end of the turn."""


class Peer(Protocol):
    """Who hears what comes over a connection."""

    def connected(self) -> None: ...
    def heard(self, message: Message) -> None: ...
    def has_room(self) -> None:
        """The connection was full and is not any more."""

    def lost(self, error: BaseException | None) -> None:
        """The connection is over; called once."""


class Connection(asyncio.Protocol):
    """One end."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._decoder = Decoder()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outbox: list[bytes] = []
        self._outbox_size = 0
        self._pid = os.getpid()
        self._reading = True
        self.is_full = False

    # -- what the ends do -----------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message, soon; nothing happens when the connection is over. Raises ResourceExhausted when it is too large."""
        self.refuse_in_child()
        if self._transport is None or self._transport.is_closing():
            return
        frame = encode(message)
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(frame)
        self._outbox_size += len(frame)
        if self._outbox_size >= _AT_ONCE:
            self._flush()

    def refuse_in_child(self) -> None:
        if os.getpid() != self._pid:
            raise StoreLost("a link to a store does not survive a fork: open the store in the child itself")

    def read(self, wanted: bool) -> None:
        """Go on reading, or stop until told otherwise."""
        if self._transport is None or self._transport.is_closing() or wanted is self._reading:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Send what is to be sent, and end. A peer that does not read is not waited for; see ``abort``."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- what the event loop says ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MOST_UNSENT)
        self._peer.connected()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._peer.heard(message)
        except Malformed as error:
            logger.warning("a connection to the store was ended, because what came over it is no message (%s)", error)
            self.abort()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._peer.has_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._peer.lost(exc)

    def _flush(self) -> None:
        if self._outbox and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()
        self._outbox_size = 0
