"""State files and packs whose checksums are right, so that what lies behind them is reached."""

from __future__ import annotations

import json
from contextlib import suppress
from zlib import crc32

import pyarrow as pa

from seriatim.errors import SeriatimError
from seriatim.spark.kernel.state_segment import DIGEST_BYTES, page_digests
from seriatim.spark.state.batch_versions import StateFolder
from seriatim.spark.state.encoding import FIRST_MAGIC, LENGTH_BYTES, MAGIC, _digest
from seriatim.store.pack import _HEAD, PackHead
from seriatim.store.state_checksums import CHECKSUM_BYTES
from tests.spark.state.memory_files import MemoryFiles

PATH = "of-00001/part-00000/batch-000000000000.state"
END = b"\n\n"


def sealed_state(data: bytes) -> None:
    """A file of a stream's state: the header as JSON, an empty line and the body. Sizes and digests are put right."""
    text, _, body = data.partition(END)
    with suppress(ValueError, RecursionError):
        header = json.loads(text)
        if isinstance(header, dict):
            _read(_first(header, body) if "sections" in header else _second(header, body))


def _second(header: dict[str, object], body: bytes) -> bytes:
    digests = page_digests(body)
    head = _head(MAGIC, {**header, "body": len(body), "pages": _digest(digests)})
    return head + bytes.fromhex(_digest(head)) + body + digests


def _first(header: dict[str, object], body: bytes) -> bytes:
    content = _head(FIRST_MAGIC, header) + body
    return content + bytes.fromhex(_digest(content))


def _head(magic: bytes, header: dict[str, object]) -> bytes:
    text = json.dumps(header).encode()
    return magic + len(text).to_bytes(LENGTH_BYTES, "big") + text


def unsealed(content: bytes) -> bytes:
    """An input from a state file."""
    begin = len(MAGIC) + LENGTH_BYTES
    end = begin + int.from_bytes(content[len(MAGIC) : begin], "big")
    if content.startswith(FIRST_MAGIC):
        return content[begin:end] + END + content[end:-DIGEST_BYTES]
    header = json.loads(content[begin:end])
    body = content[end + DIGEST_BYTES :][: header["body"]]
    return json.dumps(header).encode() + END + body


def _read(content: bytes) -> None:
    """As the next batch would, and as those do who look at what waits."""
    files = MemoryFiles()
    files.write(PATH, content)
    folder = StateFolder(files, query="q", partitions=1)
    for look in (folder.columns, folder.count_held, lambda: folder.due_by(1e9)):
        with suppress(SeriatimError):
            look()
    with suppress(SeriatimError):
        known = folder.read(0, 0).partition
        for look in (known.next_due, known.waiting, lambda: known.look_up(pa.array(["k", "x"]), 1e9), known.whole):
            with suppress(SeriatimError):
                look()


def sealed_pack(data: bytes) -> None:
    """The messages of a store: the size of the head in two bytes, the head and the payloads. Checksums are put right."""
    size = int.from_bytes(data[:2], "big")
    head, payload = bytearray(data[2 : 2 + size]), data[2 + size :]
    if len(head) >= _HEAD.size:
        head[_HEAD.size - CHECKSUM_BYTES : _HEAD.size] = crc32(payload).to_bytes(CHECKSUM_BYTES, "little")
    with suppress(SeriatimError):
        pack = PackHead(bytes(head) + crc32(head).to_bytes(CHECKSUM_BYTES, "little"))
        for look in (pack.headers, lambda: pack.records(payload), lambda: pack.select(payload, [0, 3])):
            with suppress(SeriatimError):
                look()
        with suppress(SeriatimError):
            _ = pack.key_bytes, list(pack.attributes() if pack.has_attributes else ())
            pack.stamped(3, 1.0)
