"""The queue of messages that the MQTT client has received and the host has not read yet.

The client must accept whatever the broker sends: if it paused, the broker would consider it dead. So the queue is limited in
messages and in bytes. Beyond that, messages are dropped and counted, with a warning when it begins; resequencing notices the
gaps.
"""

from __future__ import annotations

import asyncio
import ssl
from itertools import count

from seriatim.extras import require_extra
from seriatim.log import logger
from seriatim.sparkplug.intake import Counts

require_extra("mqtt", "aiomqtt", "paho.mqtt", what="the Sparkplug host")

import aiomqtt  # noqa: E402

MAX_UNREAD = 50_000
MAX_UNREAD_BYTES = 64 * 1024 * 1024
MAX_READ_AT_ONCE = 256
"""How many messages are read, and how many handled, before the rest of the program has its turn."""


class Inbox(asyncio.Queue[aiomqtt.Message]):
    """The queue of one connection."""

    def __init__(self, counts: Counts, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._counts = counts
        self._bytes = 0
        self._dropping = False

    def full(self) -> bool:
        return self._bytes >= MAX_UNREAD_BYTES or self.qsize() >= MAX_UNREAD

    def put_nowait(self, message: aiomqtt.Message) -> None:
        if self.full():
            self._drop(message)
        else:
            super().put_nowait(message)

    def leave(self, own: str) -> None:
        """The connection has ended: count the unread messages, without our own last message on the topic ``own``."""
        left = [self.get_nowait() for _ in range(self.qsize())]
        self._counts.leave_unread(sum(message.topic.value != own for message in left))

    def _drop(self, message: aiomqtt.Message) -> None:
        self._counts.leave_unread(1)
        if not self._dropping:
            logger.warning(
                "messages arrive faster than they can be stored: some are dropped unread, the first of them on %s",
                message.topic.value[:200],
            )
        self._dropping = True

    def _put(self, message: aiomqtt.Message) -> None:
        super()._put(message)  # asyncio documents it as overridable
        self._bytes += _size(message.payload)

    def _get(self) -> aiomqtt.Message:
        message: aiomqtt.Message = super()._get()
        self._bytes -= _size(message.payload)
        self._dropping = self._dropping and not self.empty()
        return message


def _size(payload: object) -> int:
    return len(payload) if isinstance(payload, bytes) else 0


def read_arrived(client: aiomqtt.Client, inbox: Inbox) -> None:
    """Read all packets that have arrived. aiomqtt reads one, and then asks the event loop whether there are more."""
    mqtt = client._client  # noqa: SLF001
    try:
        for reads in count(1):
            waiting = inbox.qsize()
            mqtt.loop_read()
            # What TLS has decrypted must be read now: the socket does not become readable for it again.
            is_pending = isinstance(sock := mqtt.socket(), ssl.SSLSocket) and sock.pending() > 0
            if not is_pending and (inbox.qsize() == waiting or reads >= MAX_READ_AT_ONCE):
                return
    except Exception as error:  # noqa: BLE001 - as aiomqtt does
        if not client._disconnected.done():  # noqa: SLF001
            client._disconnected.set_exception(error)  # noqa: SLF001
