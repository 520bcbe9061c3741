"""What is fuzzed. A target takes any bytes; an exception that leaves it is a finding.

Each input is short, so whatever it costs more than ``MAX_SECONDS`` and ``MAX_BYTES`` is a finding, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from seriatim.core.filters import compile_filter
from seriatim.core.pipes.protocol import Confirm, Data, Hello, PipeOptions, Welcome
from seriatim.core.pipes.receiver import PipeReceiver
from seriatim.core.pipes.sender import PipeSender
from seriatim.core.sparkplug.messages import Kind
from seriatim.engine.link import frames as link_frames
from seriatim.errors import InvalidArgument, SeriatimError
from seriatim.pipes import frames as pipe_frames
from seriatim.spark.kernel.partition_state import Partition
from seriatim.spark.pipeline.declaration import parse as parse_declaration
from seriatim.spark.state.binding import read_binding
from seriatim.spark.state.encoding import FirstHeader, decode_head, first_tables, segment_in
from seriatim.sparkplug.payload import Aliases, bd_seq_of, metrics_as_json
from seriatim.sparkplug.payload import decode as decode_payload
from seriatim.store.base import Pack
from seriatim.store.pack import PackHead
from seriatim.wire.avro import AvroSchema
from seriatim.wire.avro_types import Budget, BudgetSpent
from tests.fuzz import MAX_SECONDS as MAX_SECONDS  # noqa: PLC0414
from tests.fuzz.link_owner import LinkOwner
from tests.fuzz.pubsub_api import Methods, Pulls
from tests.fuzz.sealed import sealed_pack, sealed_state
from tests.spark.state.memory_files import MemoryFiles

Target = Callable[[bytes], None]
MAX_BYTES = 64 * 1024 * 1024
MAX_INPUT = 4096


def link(data: bytes) -> None:
    """What another process says to the owner of a store."""
    with suppress(link_frames.MalformedFrame):
        list(link_frames.Decoder().feed(data))


def pipe(data: bytes) -> None:
    """What comes in by a route. A frame is read as it was written, and both ends of a pipe can stand it."""
    pipe_frames.unseal(data)
    frame = pipe_frames.decode(data)
    if frame is not None:
        assert pipe_frames.decode(pipe_frames.encode(frame)) == frame
    if isinstance(frame, Welcome | Confirm):
        sender = PipeSender(PipeOptions(), 1, first=0)
        sender.receive(Welcome(1, 2, 4096), 0.0)
        for number in range(20):
            sender.push(b"%d" % number, 0.0)
        sender.receive(frame, 1.0)
        sender.advance(100.0)
    elif isinstance(frame, Hello | Data):
        receiver = PipeReceiver(PipeOptions(), 2, position=3)
        receiver.receive(frame, 1.0)
        receiver.advance(100.0)


def sparkplug(data: bytes) -> None:
    """What edge nodes send by MQTT."""
    with suppress(InvalidArgument):
        payload = decode_payload(data)
        bd_seq_of(payload)
        aliases = Aliases()
        for kind, device in ((Kind.NBIRTH, None), (Kind.DBIRTH, "d")):
            aliases.learn(kind, device, payload)
        json.dumps(metrics_as_json(payload, aliases, "d"))


RECORD = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": ["null", "long"]},
        {"name": "b", "type": {"type": "array", "items": {"type": "map", "values": "string"}}},
        {"name": "c", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "d", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        {"name": "e", "type": ["null", "R"]},
    ],
}


def avro(data: bytes) -> None:
    """A schema and data, with a zero byte between them. Without one it is data for a schema that has every kind of type."""
    text, zero, datum = data.partition(b"\0")
    with suppress(InvalidArgument, BudgetSpent, UnicodeDecodeError):  # texts come from protobuf, which refuses others
        schema = AvroSchema(text.decode() if zero else json.dumps(RECORD))
        for check in (schema.check_binary, schema.check_json):
            with suppress(InvalidArgument, BudgetSpent):
                check(datum if zero else data, Budget(10_000))


def filters(data: bytes) -> None:
    """The filter of a subscription, applied to a message."""
    with suppress(InvalidArgument):
        compile_filter(data.decode("utf-8", "surrogateescape"))({"a": "b", "colour": "red"})


def state(data: bytes) -> None:
    """A file of a stream's state, its two ends, its binding; and a pack of a store."""
    with suppress(SeriatimError):
        header, _ = decode_head(data, "file")
        if isinstance(header, FirstHeader):
            first_tables(data, header, "file")
        else:
            segment_in(memoryview(data), header, "file", Partition.facts, Partition.lists).content()
    files = MemoryFiles()
    files.write("binding.json", data)
    with suppress(SeriatimError):
        read_binding(files)
    head, _, payload = data.partition(b"\n")
    with suppress(SeriatimError):
        PackHead(Pack(head, payload).head).records(payload)


def declaration(data: bytes) -> None:
    """A pipeline in TOML."""
    with suppress(SeriatimError, UnicodeDecodeError):
        parse_declaration(data.decode(), Path("/nowhere")).filled_in({})


SERVED = (LinkOwner(), Methods(), Pulls())
"""Those with an engine that goes on from one input to the next, until it is closed."""

TARGETS: Mapping[str, Target] = {
    "link": link,
    "pipe": pipe,
    "sparkplug": sparkplug,
    "link_owner": SERVED[0],
    "pubsub": SERVED[1],
    "pulls": SERVED[2],
    "avro": avro,
    "filters": filters,
    "state": state,
    "sealed_state": sealed_state,
    "sealed_pack": sealed_pack,
    "declaration": declaration,
}
