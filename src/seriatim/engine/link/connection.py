"""Frames over a socket.

Rules
    - Everything sent in one turn of the event loop is written at once. Senders don't wait for it.
    - While too many bytes are unsent, the connection is full: deliveries wait until ``on_room``, and the end that answers calls
      stops reading them.
    - Bytes that are not a frame end this connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol, cast

from seriatim.engine.link.frames import Decoder, Frame, MalformedFrame, encode
from seriatim.errors import StoreLost
from seriatim.log import logger

MAX_UNSENT_BYTES = 1024 * 1024
"""A connection with more unsent bytes is full."""

_MAX_BUFFERED_BYTES = 64 * 1024
"""More bytes than this are sent without waiting for the end of the turn."""


class Peer(Protocol):
    """The owner of a connection."""

    def on_connect(self) -> None: ...
    def on_frame(self, frame: Frame) -> None: ...
    def on_room(self) -> None:
        """The connection is no longer full."""

    def on_disconnect(self, error: BaseException | None) -> None:
        """The connection ended; called once."""


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

    def send(self, frame: Frame) -> None:
        """Send a frame, soon, unless the connection has ended. Raises ResourceExhausted when it is too large."""
        self.refuse_in_child()
        if self._transport is None or self._transport.is_closing():
            return
        data = encode(frame)
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)
        self._outbox_size += len(data)
        if self._outbox_size >= _MAX_BUFFERED_BYTES:
            self._flush()

    def refuse_in_child(self) -> None:
        if os.getpid() != self._pid:
            raise StoreLost("a link to a store does not survive a fork: open the store in the child itself")

    def read(self, wanted: bool) -> None:
        """Continue or pause reading."""
        if self._transport is None or self._transport.is_closing() or wanted is self._reading:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Send what is unsent, and disconnect. It does not wait for a peer that does not read; see ``abort``."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Disconnect at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- what the event loop says ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._peer.on_connect()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._peer.on_frame(frame)
        except MalformedFrame as error:
            logger.warning("a connection to the store was ended, because it received an invalid frame (%s)", error)
            self.abort()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._peer.on_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._peer.on_disconnect(exc)

    def _flush(self) -> None:
        if self._outbox and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()
        self._outbox_size = 0
