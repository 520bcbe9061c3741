"""A broker for one client at a time that speaks just enough MQTT 3.1.1, answers as it is told to, and notes what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from seriatim.sparkplug.mqtt_address import MqttAddress

CONNECT, PUBLISH, SUBSCRIBE, DISCONNECT = 1, 3, 8, 14
CONNACK, PUBACK, SUBACK = 0x20, 0x40, 0x90


class Packet(NamedTuple):
    """One packet as it came: its type, its four flags, and the rest."""

    type: int
    flags: int
    body: bytes


class Connect(NamedTuple):
    """What a CONNECT asks for."""

    clean_session: bool
    will_qos: int
    will_retain: bool
    will_topic: str
    will: bytes

    @classmethod
    def read(cls, packet: Packet) -> Connect:
        flags = packet.body[7]
        assert flags & 4, "there is a will"
        _, rest = _text(packet.body[10:])
        topic, rest = _text(rest)
        will, _ = _text(rest)
        return cls(bool(flags & 2), flags >> 3 & 3, bool(flags & 32), topic.decode(), will)


class ScriptedBroker:
    """``refusal`` and ``granted`` are its answers to a connection and to a subscription; None is no answer.

    Only while ``acknowledging`` does it answer to what is published.
    """

    def __init__(self) -> None:
        self.heard: list[Packet] = []
        self.arrivals: list[float] = []
        self.refusal = 0
        self.acknowledging = True
        self.granted: int | None = 1
        self._writer: asyncio.StreamWriter | None = None
        self.address = MqttAddress("127.0.0.1", 0)

    def published(self) -> list[tuple[str, bytes]]:
        """Topics and payloads, all of QoS 1."""
        return [
            (topic.decode(), rest[2:])
            for topic, rest in (_text(packet.body) for packet in self.heard if packet.type == PUBLISH)
        ]

    def publish(self, topic: str, data: bytes) -> None:
        """Send the client a message of QoS 0."""
        assert self._writer is not None
        body = len(topic).to_bytes(2, "big") + topic.encode() + data
        assert len(body) < 128
        self._writer.write(bytes((PUBLISH << 4, len(body))) + body)

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.arrivals.append(asyncio.get_running_loop().time())
        self._writer = writer
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                packet = await _read(reader)
                self.heard.append(packet)
                writer.write(self._answer(packet))
        writer.close()

    def _answer(self, packet: Packet) -> bytes:
        if packet.type == CONNECT:
            return bytes((CONNACK, 2, 0, self.refusal))
        if packet.type == SUBSCRIBE and self.granted is not None:
            return bytes((SUBACK, 3, *packet.body[:2], self.granted))
        if packet.type == PUBLISH and packet.flags & 2 and self.acknowledging:
            _, rest = _text(packet.body)
            return bytes((PUBACK, 2, *rest[:2]))
        return b""


@asynccontextmanager
async def scripted_broker() -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.address = MqttAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield broker
    finally:
        server.close()


async def _read(reader: asyncio.StreamReader) -> Packet:
    (first,) = await reader.readexactly(1)
    length = shift = 0
    while True:
        (digit,) = await reader.readexactly(1)
        length |= (digit & 127) << shift
        shift += 7
        if digit < 128:
            return Packet(first >> 4, first & 15, await reader.readexactly(length))


def _text(data: bytes) -> tuple[bytes, bytes]:
    """A text with its length in front, and what follows it."""
    end = 2 + int.from_bytes(data[:2], "big")
    return data[2:end], data[end:]
