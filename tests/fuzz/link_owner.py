"""What another process asks of the owner of a store, in frames that are well formed: it is their fields that are wrong.

The input chooses frames and fields, so that fuzzing is not spent on sizes and JSON. A field has a value of its type most of the
time, and anything else otherwise.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from seriatim import errors
from seriatim.engine.broker import Broker, Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.link import frames as link_frames
from seriatim.engine.link.codec import NAMES
from seriatim.engine.link.server import _Client
from seriatim.engine.link.verbs import VERBS
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import AlreadyExists, SeriatimError
from seriatim.log import logger
from tests.fuzz import MAX_SECONDS
from tests.fuzz.engines import EngineTarget

MOST_FRAMES = 20
SKIPPED = {"add_outbox", "remove_outbox", "backup", "wait_until_empty"}
"""Those that make files wherever they are told to, and the one that waits."""

VERB_NAMES = [name for name in VERBS if name not in SKIPPED]
HINTS = {name: get_type_hints(getattr(Broker, name), localns=NAMES) for name in VERB_NAMES}
KINDS: list[Any] = [
    *(link_frames.Attach, link_frames.Acks, link_frames.Nack, link_frames.GiveUp, link_frames.Extend),
    *(link_frames.Stop, link_frames.Detach, link_frames.Bye, link_frames.Hello, link_frames.Durable),
]

INTS = [0, 1, 2, 3, 100, -1, 2**31, 2**63 - 1, 2**63, 10**30]
FLOATS = [0.0, 1.0, 60.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 2**70]
TEXTS = [
    "t",
    "s",
    "k",
    "0",
    "1",
    "2",
    "",
    "x" * 2000,
    "\ud800",
    "\0",
    "é/ü",
    "attributes:a",
    "_deleted-topic_/1/t",
    "-1",
]
WRONG: list[Any] = [None, True, -1, 1.5, "", [], {}, [[]], {"a": 1}, 2**64, float("nan"), "\ud800", [None], {"": None}]
ALIVE = "alive"
"""A topic that inputs do not know of: whatever they did, it can be published to."""


class Choices:
    """The bytes of an input, one for each choice; zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)
        self._blobs: list[bytes] = []
        self.ints = list(INTS)

    def frame(self, number: int) -> bytes | None:
        byte = self._byte()
        if not byte:
            return None
        self._blobs.clear()
        verb = VERB_NAMES[byte - 1] if byte <= len(VERB_NAMES) else None
        kind = KINDS[byte % len(KINDS)]
        said = [kind.__name__, *self._fields(kind)] if verb is None else ["Call", number, verb, self._arguments(verb)]
        text, blob = json.dumps(said).encode(), b"".join(self._blobs)
        return struct.pack("!II", len(text), len(blob)) + text + blob

    def _byte(self) -> int:
        return next(self._data, 0)

    def _arguments(self, verb: str) -> dict[str, Any]:
        parameters = VERBS[verb].signature.parameters.values()
        given = [one.name for one in parameters if one.default is one.empty or self._byte() & 1]
        return {name: self._value(HINTS[verb][name]) for name in given}

    def _value(self, hint: Any) -> Any:
        """A value as JSON, of this type or now and then of another."""
        byte, inner = self._byte(), get_args(hint)
        if byte >= 0xE0:
            return WRONG[byte % len(WRONG)]
        if NoneType in inner:
            return None if byte & 1 else self._value(inner[0])
        if get_origin(hint) is Literal:
            return inner[byte % len(inner)]
        if get_origin(hint) in {dict, Mapping}:
            return {str(self._value(inner[0])): self._value(inner[1]) for _ in range(byte % 3)}
        if inner:
            return [self._value(inner[0]) for _ in range(byte % 4)]
        return self._single(hint, byte)

    def _single(self, hint: Any, byte: int) -> Any:
        values: dict[Any, Sequence[Any]] = {int: self.ints, str: TEXTS, bool: [False, True]}
        values |= dict.fromkeys((float, datetime), FLOATS)
        if hint in values:
            return values[hint][byte % len(values[hint])]
        if hint is bytes:
            self._blobs.append(b"x" * (byte % 5))
            return byte % 5
        if issubclass(hint, Enum):
            return [one.value for one in hint][byte % len(hint)]
        if is_dataclass(hint):
            hints = get_type_hints(hint, localns=NAMES)
            return {own.name: self._value(hints[own.name]) for own in fields(hint) if self._byte() & 1}
        return self._fields(hint)

    def _fields(self, kind: Any) -> list[Any]:
        hints = get_type_hints(kind, localns=NAMES)
        return [self._value(hints[name]) for name in kind._fields]


class Transport(asyncio.Transport):
    """What the client would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[link_frames.Frame] = []
        self._decoder = link_frames.Decoder()
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.heard += self._decoder.feed(data)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is always room."""

    def pause_reading(self) -> None:
        """What it is fed is bounded."""

    def resume_reading(self) -> None:
        """See there."""


class LinkOwner(EngineTarget):
    """Frames to the owner of a store, which has a topic and a subscription. Others come and go with the inputs."""

    async def start(self, engine: Engine) -> None:
        await engine.create_topic(ALIVE)

    async def take(self, engine: Engine, data: bytes) -> None:
        before, logger.disabled = logger.disabled, True  # it says so of each call that failed
        try:
            await self._serve(engine, data)
        finally:
            logger.disabled = before

    async def _serve(self, engine: Engine, data: bytes) -> None:
        await _prepare(engine)
        client, transport = _Client(cast(Broker, engine), lambda _: None), Transport()
        client.connection.connection_made(transport)
        asked: set[asyncio.Future[Any]] = set()
        async for frame in _frames(data, transport):
            client.connection.data_received(frame)
            asked |= client._pending.keys()
        client.connection.connection_lost(None)
        _, late = await asyncio.wait(asked, timeout=MAX_SECONDS) if asked else ((), ())
        assert not late, "a call that is not answered"
        for future in asked:
            error = None if future.cancelled() else future.exception()
            assert error is None or isinstance(error, SeriatimError), repr(error)
        for heard in transport.heard:
            if isinstance(heard, link_frames.Failure | link_frames.ConsumerError):
                assert hasattr(errors, heard.error), heard
        await asyncio.wait_for(engine.publish(ALIVE, [Outgoing(None, b"x")]), MAX_SECONDS)


async def _prepare(engine: Engine) -> None:
    with suppress(AlreadyExists):
        await engine.create_topic("t")
    with suppress(AlreadyExists):
        await engine.create_subscription("t", "s", SubscriptionOptions(message_ordering=True))
    await engine.publish("t", [Outgoing("k", b"%d" % number) for number in range(3)])


async def _frames(data: bytes, transport: Transport) -> AsyncIterator[bytes]:
    """The frames of an input, until the connection ends. Numbers may be those of leases that were given out by then."""
    choices = Choices(data)
    yield link_frames.encode(link_frames.Hello(link_frames.VERSION, 1))
    for number in range(MOST_FRAMES):
        for _ in range(5):
            await asyncio.sleep(0)
        leases = [
            one.lease for heard in transport.heard if isinstance(heard, link_frames.Deliver) for one in heard.delivered
        ]
        choices.ints = [*INTS, *(number for lease in leases[-4:] for number in (lease.offset, lease.token))]
        frame = choices.frame(number)
        if frame is None or transport.is_closing():
            return
        yield frame
