"""A client of gRPC that breaks its rules: it announces a request and sends part of it, or calls from any address."""

from __future__ import annotations

import socket
import struct
import time
from typing import NamedTuple

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW = 65_535
LARGEST_FRAME = 16_384


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


class Http2Call:
    """One call on a connection of its own."""

    def __init__(self, port: int, path: str, *, source: str = "127.0.0.1", **headers: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
        self._socket.settimeout(0.2)
        self._window = {0: INITIAL_WINDOW, 1: INITIAL_WINDOW}
        self._received = b""
        self.ended = False
        """Whether the server has ended the call."""
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        fields |= {"content-type": "application/grpc", "te": "trailers", **headers}
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(Frame(SETTINGS, 0, 0, b""))
        self._send(Frame(HEADERS, END_HEADERS, 1, b"".join(_literal(*field) for field in fields.items())))

    def announce(self, size: int, sent: int, patience: float = 1.0) -> int:
        """Announce a request of ``size`` bytes and send only some of it, as far as the server lets us. Returns how much."""
        left = memoryview(struct.pack("!BI", 0, size) + bytes(sent))
        gone, last = 0, time.monotonic()
        while gone < len(left) and not self.ended and time.monotonic() - last < patience:
            room = min(self._window[0], self._window[1], LARGEST_FRAME, len(left) - gone)
            if room > 0:
                self._send(Frame(DATA, 0, 1, bytes(left[gone : gone + room])))
                self._window[0] -= room
                self._window[1] -= room
                gone, last = gone + room, time.monotonic()
            else:
                self._receive()
        return gone

    def request(self, data: bytes, patience: float = 10.0) -> bool:
        """Send a whole request; returns whether the call was answered with a message in time."""
        self._send(Frame(DATA, END_STREAM, 1, struct.pack("!BI", 0, len(data)) + data))
        last = time.monotonic()
        while not self.ended and time.monotonic() - last < patience:
            if any(frame.kind == DATA for frame in self._receive()):
                return True
        return False

    def close(self) -> None:
        self._socket.close()

    def _send(self, frame: Frame) -> None:
        head = struct.pack("!I", len(frame.payload))[1:] + struct.pack("!BBI", *frame[:3])
        try:
            self._socket.sendall(head + frame.payload)
        except OSError:
            self.ended = True

    def _receive(self) -> list[Frame]:
        try:
            data = self._socket.recv(65_536)
        except TimeoutError:
            return []
        except OSError:
            data = b""
        self.ended = self.ended or not data
        self._received += data
        found = []
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3])
            if len(self._received) < 9 + size:
                break
            kind, flags, stream = struct.unpack("!BBI", self._received[3:9])
            found.append(Frame(kind, flags, stream, self._received[9 : 9 + size]))
            self._received = self._received[9 + size :]
            self._take(found[-1])
        return found

    def _take(self, frame: Frame) -> None:
        if frame.kind == SETTINGS and not frame.flags & ACK:
            for at in range(0, len(frame.payload), 6):
                name, value = struct.unpack("!HI", frame.payload[at : at + 6])
                if name == 4:
                    self._window[1] += value - INITIAL_WINDOW
            self._send(Frame(SETTINGS, ACK, 0, b""))
        elif frame.kind == PING and not frame.flags & ACK:
            self._send(Frame(PING, ACK, 0, frame.payload))
        elif frame.kind == WINDOW_UPDATE and frame.stream in self._window:
            self._window[frame.stream] += int.from_bytes(frame.payload)
        elif frame.kind in (RST_STREAM, GOAWAY) or (frame.kind == HEADERS and frame.flags & END_STREAM):
            self.ended = True


def _literal(name: str, value: str) -> bytes:
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
