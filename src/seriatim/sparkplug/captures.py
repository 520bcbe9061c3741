"""Captured or bridged MQTT traffic on Spark: decodes topics and payloads into columns that can be put in order.

``read_capture`` decodes row by row; ``seriatim.spark.order_nodes`` puts the result in order.

Rules
    - The columns of the frame are kept. Added are ``node``, ``kind``, ``device``, ``seq``, ``bd_seq``, ``timestamp``,
      ``metrics`` (JSON, as the host application writes them) and ``problem``.
    - A row that can't be decoded, or is not a message of an edge node (a command or STATE), is kept, too: ``kind`` is null, and
      ``problem`` says why.
    - Rows are decoded independently, so aliases are not resolved. A metric with an alias shows it, in births beside the name,
      so that node, epoch and alias identify the name once births and data are in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from seriatim.core.sparkplug.messages import EdgeMessage
from seriatim.errors import InvalidArgument
from seriatim.extras import require_extra
from seriatim.sparkplug.intake import Body, Malformed, read_message
from seriatim.sparkplug.payload import Aliases, metrics_as_json
from seriatim.sparkplug.topics import is_state_topic

require_extra("spark", "pyspark", "pyarrow", what="reading captures on Spark")

import pyarrow as pa  # noqa: E402
from pyspark.sql import DataFrame  # noqa: E402
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType  # noqa: E402

__all__ = ["read_capture"]

MAX_NUMBER = 2**63 - 1
"""The largest integer of a Spark column. Sparkplug allows twice as much, which no node needs."""
NOT_OURS = "a command or a STATE: nothing to put in order"
_NO_NAMES = Aliases()


class Read(NamedTuple):
    """A decoded row. Its fields are the added columns."""

    node: str | None = None
    kind: str | None = None
    device: str | None = None
    seq: int | None = None
    bd_seq: int | None = None
    timestamp: int | None = None
    metrics: str | None = None
    problem: str | None = None


_NUMBERS = ("seq", "bd_seq", "timestamp")
_TYPES = [pa.int64() if name in _NUMBERS else pa.string() for name in Read._fields]


def read_capture(*, topic: str = "topic", payload: str = "payload") -> Callable[[DataFrame], DataFrame]:
    """A transformation that decodes captured MQTT messages, in tables and streams: ``df.transform(read_capture())``.

    ``topic`` is the column with the MQTT topic, as text or bytes; ``payload`` is the one with the bytes of the message.
    """

    def transformation(frame: DataFrame) -> DataFrame:
        _require_column(frame, topic, (StringType, BinaryType), "texts")
        _require_column(frame, payload, (BinaryType,), "bytes")
        taken = set(Read._fields) & set(frame.columns)
        if taken:
            raise InvalidArgument(f"the columns {', '.join(sorted(taken))} are added here: rename yours")
        added = [StructField(name, LongType() if name in _NUMBERS else StringType()) for name in Read._fields]
        return frame.mapInArrow(_Reader(topic, payload).run, StructType([*frame.schema.fields, *added]))

    return transformation


def _require_column(frame: DataFrame, name: str, kinds: tuple[type[DataType], ...], what: str) -> None:
    if name not in frame.columns:
        raise InvalidArgument(f"there is no column '{name}'; columns are: {', '.join(frame.columns)}")
    kind = frame.schema[name].dataType
    if not isinstance(kind, kinds):
        raise InvalidArgument(f"column '{name}' must hold {what}, not {kind.simpleString()}: cast or decode it")


@dataclass(frozen=True)
class _Reader:
    """Decodes the rows of a task."""

    topic: str
    payload: str

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            # Strings in Spark may be any bytes, unlike those of Python.
            topics = batch[self.topic].cast(pa.binary()).to_pylist()
            found = map(read_row, topics, batch[self.payload].to_pylist())
            columns = list(zip(*found, strict=True)) or [()] * len(Read._fields)
            added = [pa.array(values, kind) for values, kind in zip(columns, _TYPES, strict=True)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *added], [*batch.schema.names, *Read._fields])


def read_row(topic: bytes | None, payload: bytes | None) -> Read:
    """One decoded message, or the problem with it."""
    if topic is None or payload is None:
        return Read(problem=f"it has no {'topic' if topic is None else 'payload'}")
    try:
        text = topic.decode()
    except UnicodeDecodeError as error:
        return Read(problem=f"its topic is not text ({error})")
    return _read_text(text, payload)


def _read_text(text: str, payload: bytes) -> Read:
    found = None if is_state_topic(text) else read_message(text, payload)
    if found is None:
        return Read(problem=NOT_OURS)
    if isinstance(found, Malformed):
        return Read(node=found.node and str(found.node), problem=found.detail)
    node, message = found
    numbers = (message.seq, message.bd_seq, message.timestamp)
    for name, number in zip(_NUMBERS, numbers, strict=True):
        if number is not None and number > MAX_NUMBER:
            return Read(node=str(node), problem=f"its {name} is {number}, more than {MAX_NUMBER}")
    return Read(str(node), str(message.kind), message.device, *numbers, _metrics(message))


def _metrics(message: EdgeMessage[Body]) -> str:
    """The metrics as JSON, with their aliases."""
    payload: Any = message.body.payload
    metrics, _ = metrics_as_json(payload, _NO_NAMES, message.device)
    for metric, found in zip(payload.metrics, metrics, strict=True):
        if metric.HasField("alias"):
            found["alias"] = metric.alias
    return json.dumps(metrics, separators=(",", ":"))
