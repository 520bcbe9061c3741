"""Valid inputs of every target, to begin with: ``python -m tests.fuzz.seeds`` writes them to the corpus."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from seriatim.core.pipes.protocol import Confirm, Data, Hello, Welcome
from seriatim.engine.link import frames as link_frames
from seriatim.pipes import frames as pipe_frames
from seriatim.spark.state.encoding import FIRST_MAGIC, FirstHeader
from seriatim.sparkplug.payload import Payload, rebirth_command
from seriatim.store.pack import encode as encode_pack
from seriatim.store.state_checksums import CHECKSUM_BYTES
from seriatim.wire.services import SERVICES, SUBSCRIBER, StreamingPullRequest
from tests.fuzz.link_owner import KINDS, VERB_NAMES
from tests.fuzz.pubsub_api import EXACTLY_ONCE, GIVEN, METHODS, PROJECT, SUBSCRIPTION, TOPIC
from tests.fuzz.sealed import unsealed
from tests.fuzz.targets import RECORD
from tests.spark.state.memory_files import MemoryFiles
from tests.spark.state.test_batch_versions import Query, rows, state_path
from tests.store.contract.kit import records

CORPUS = Path(__file__).parent / "corpus"


def seeds() -> dict[str, list[bytes]]:
    return {
        "link": _link(),
        "pipe": [
            pipe_frames.encode(frame)
            for frame in (Hello(1, 2), Welcome(1, 2, 3, 4), Data(1, 2, 3, 4, (b"a", b"bc"), 5, 6), _CONFIRM)
        ],
        "sparkplug": _sparkplug(),
        "pubsub": _pubsub(),
        "link_owner": _link_owner(),
        "pulls": _pulls(),
        "avro": _avro(),
        "filters": [
            b'attributes.colour = "red"',
            b'hasPrefix(attributes.colour, "r") AND NOT attributes:a',
            b'attributes:"a" OR (attributes.b != "\\u00e9" AND -attributes:c)',
        ],
        "state": _state(),
        "sealed_state": [unsealed(content) for content in (_versions()[0], _versions()[1], _first_format())],
        "sealed_pack": _packs(),
        "declaration": [
            (Path(__file__).parents[2] / "src/seriatim/demo/pipeline.toml").read_bytes(),
            (
                b'[pipeline]\ncheckpoint = "c"\n[source]\nformat = "rate"\n[order]\nkey = "k"\nsequence = "value"\n'
                b'[[sink]]\nformat = "parquet"\n[sink.options]\npath = "${HOME}/x"\n'
            ),
        ],
    }


_CONFIRM = Confirm(1, 2, 10, 20, ((11, 12), (14, 16)), 5, 6)


def _link() -> list[bytes]:
    frames: list[link_frames.Frame] = [
        link_frames.Hello(link_frames.VERSION, 1),
        link_frames.Attach(1, "s", 10, 1e6),
        link_frames.Acks([link_frames.Ack(1, 2, 3, 4, True)]),
        link_frames.Nack(1, 2, 3, None, "it broke"),
        link_frames.Durable([1, 2]),
        link_frames.Bye(),
    ]
    call = b'["Call",1,"publish",["t",[["k",3,null]]]]'
    return [
        b"".join(map(link_frames.encode, frames)),
        *map(link_frames.encode, frames),
        struct.pack("!II", len(call), 3) + call + b"abc",
    ]


def _link_owner() -> list[bytes]:
    """Each verb with arguments that are all alike, and an attachment with acks."""
    attaching = next(byte for byte in range(len(VERB_NAMES) + 1, 256) if KINDS[byte % len(KINDS)] is link_frames.Attach)
    attach = bytes([attaching, 1, 1, 4, 1, 1, 0])
    return [bytes([number + 1, *[fill] * 30]) for number in range(len(VERB_NAMES)) for fill in (0, 1)] + [attach * 3]


def _pulls() -> list[bytes]:
    pull = SUBSCRIBER["Pull"].request(subscription=SUBSCRIPTION, max_messages=2).SerializeToString()
    seeds = [b"\1" + _sized(pull) * 2]
    for name in (SUBSCRIPTION, EXACTLY_ONCE):
        first = StreamingPullRequest(subscription=name, stream_ack_deadline_seconds=10, max_outstanding_messages=5)
        later = StreamingPullRequest(
            ack_ids=[GIVEN, "1-2-3"], modify_deadline_ack_ids=[GIVEN, "1-1-1"], modify_deadline_seconds=[20, 0]
        )
        requests = [first, later, StreamingPullRequest(), StreamingPullRequest(ack_ids=[GIVEN])]
        seeds.append(b"\0" + b"".join(_sized(request.SerializeToString()) for request in requests))
    return seeds


def _sized(request: bytes) -> bytes:
    return len(request).to_bytes(2, "big") + request


def _sparkplug() -> list[bytes]:
    payload = Payload(timestamp=1, seq=2)
    for number, (name, field, value) in enumerate(
        [
            ("bdSeq", "long_value", 3),
            ("b", "string_value", "text"),
            ("c", "double_value", 1.5),
            ("d", "bytes_value", b"x"),
        ]
    ):
        metric = payload.metrics.add(name=name, alias=number, datatype=number + 8)
        setattr(metric, field, value)
    return [rebirth_command(1), payload.SerializeToString()]


def _pubsub() -> list[bytes]:
    fields: dict[str, dict[str, Any]] = {
        "CreateTopic": {"name": f"{PROJECT}/topics/top2", "labels": {"a": "b"}},
        "Publish": {"topic": TOPIC, "messages": [{"data": b"x", "ordering_key": "k", "attributes": {"a": "b"}}]},
        "CreateSubscription": {"name": f"{PROJECT}/subscriptions/sub2", "topic": TOPIC, "filter": "attributes:a"},
        "Seek": {"subscription": SUBSCRIPTION, "time": {"seconds": 1}},
        "Acknowledge": {"subscription": SUBSCRIPTION, "ack_ids": ["1-2"]},
        "ModifyAckDeadline": {"subscription": SUBSCRIPTION, "ack_ids": ["1-2"], "ack_deadline_seconds": 10},
        "ListTopics": {"project": PROJECT, "page_size": 2, "page_token": "x"},
        "CreateSnapshot": {"name": f"{PROJECT}/snapshots/snap", "subscription": SUBSCRIPTION},
        "UpdateSubscription": {
            "subscription": {"name": SUBSCRIPTION, "ack_deadline_seconds": 20},
            "update_mask": {"paths": ["ack_deadline_seconds"]},
        },
        "CreateSchema": {
            "parent": PROJECT,
            "schema_id": "abcd",
            "schema": {"type_": 2, "definition": json.dumps(RECORD)},
        },
        "GetIamPolicy": {"resource": TOPIC},
    }
    return [
        bytes([number]) + SERVICES[service][name].request(**fields[name]).SerializeToString()
        for number, (service, name) in enumerate(METHODS)
        if name in fields
    ]


def _avro() -> list[bytes]:
    datum = b"\x02\x04\x02\x02\x02a\x02b\x00\x00abc\x00\x00"
    text = b'{"a": {"long": 1}, "b": [{"k": "v"}], "c": "abc", "d": "X", "e": null}'
    schema = json.dumps({"type": "record", "name": "S", "fields": [{"name": "n", "type": "long"}]}).encode()
    return [datum, text, schema + b"\0\x02", json.dumps(RECORD).encode() + b"\0" + text]


def _state() -> list[bytes]:
    files = MemoryFiles()
    Query(files).run(0, rows(0, 1))
    binding = {"query": "q", "partitions": 2, "meaning": {"key": "k"}}
    return [
        files.content[state_path(0)],
        _first_format(),
        json.dumps(binding).encode(),
        b"\n".join(encode_pack(records(range(3)))),
    ]


def _versions() -> list[bytes]:
    """Two versions of a state, the first of which rests on nothing: with rows that wait, and with a key that is done."""
    files = MemoryFiles()
    query = Query(files)
    query.run(0, [*rows(0, 2, 3), *rows(5, key="x")])
    other = MemoryFiles()
    Query(other).run(0, rows(0, 1))
    return [files.content[state_path(0)], other.content[state_path(0)]]


def _packs() -> list[bytes]:
    plain = records(range(3))
    varied = [plain[0], plain[1]._replace(offset=7, key=None, attributes={"a": "b"}, published=5.0, not_before=9.0)]
    packs = [encode_pack(plain), encode_pack(varied), encode_pack(records(range(2), "ü"))]
    sizes = [(len(head) - CHECKSUM_BYTES).to_bytes(2, "big") for head, _ in packs]
    return [size + head[:-CHECKSUM_BYTES] + data for size, (head, data) in zip(sizes, packs, strict=True)]


def _first_format() -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"key": ["k"], "seq": [1]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    section = bytes(sink.getvalue())
    header = FirstHeader("q", 2, 0, 3, 3, None, 1, 0, (1.0).hex(), (2.0).hex(), (len(section),), rewritten=False)
    text = json.dumps(asdict(header), sort_keys=True).encode()
    content = FIRST_MAGIC + len(text).to_bytes(8, "big") + text + section
    return content + hashlib.blake2b(content, digest_size=16).digest()


def write(folder: Path, content: bytes) -> None:
    (folder / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)


def main() -> None:
    for target, inputs in seeds().items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for content in inputs:
            write(folder, content)


if __name__ == "__main__":
    main()
