"""``order_nodes``: puts captured or bridged Sparkplug traffic in the order in which the ordering service releases it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, IntegralType, StringType, TimestampNTZType, TimestampType

from seriatim.core.resequencing.options import OnEpoch
from seriatim.core.sparkplug.messages import BeforeBirth, NodeOrdering, OnTimeout
from seriatim.core.validation import duration, one_of
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.edge_nodes.kernel import MessageColumns, NodeKernel
from seriatim.spark.frames.columns import Transformation, found_in, require_column
from seriatim.spark.frames.preparation import Preparation
from seriatim.spark.frames.resequence import StreamOptions, Time
from seriatim.spark.frames.stream import put_stream_in_order
from seriatim.spark.frames.table_by_kernel import put_table_in_order
from seriatim.spark.frames.tie_breaking import offset_beside
from seriatim.spark.kernel.intake import OnInvalid
from seriatim.spark.tagged import ADDED_FIELDS, FLAG


def order_nodes(
    *,
    key: str = "node",
    kind: str = "kind",
    seq: str = "seq",
    bd_seq: str = "bd_seq",
    timestamp: str | None = "timestamp",
    device: str | None = "device",
    arrival: str = "arrival",
    reorder_timeout: str | float = 2.0,
    on_timeout: str = OnTimeout.RELEASE,
    before_birth: str = BeforeBirth.RELEASE,
    on_session_end: str = OnEpoch.RELEASE,
    capacity: int = 127,
    time: str = Time.EVENT,
    max_ahead: str | float | None = None,
    on_invalid: str = OnInvalid.LEDGER,
    state: str | None = None,
    partitions: int | None = None,
    tick: str | float | None = None,
) -> Transformation:
    """A transformation that puts the messages of Sparkplug edge nodes in order: ``df.transform(order_nodes())``.

    It returns a tagged frame, which ``ordered`` and ``ledger`` take apart: the output of ``OrderingService`` when the messages
    reach it at their times of ``arrival``. Ordered rows have ``_epoch``, how often the node's numbers started over, and
    ``_flag``. An ignored NDEATH is a ledger entry.

    ``key`` is the column that names the node, ``kind`` has NBIRTH, NDEATH, NDATA, DBIRTH, DDEATH or DDATA. ``seq`` is null in
    NDEATH, ``bd_seq`` in all but NBIRTH and NDEATH, ``device`` in N messages. ``timestamp`` is the payload's, a number or a
    timestamp. For a frame without devices or timestamps pass ``device=None`` or ``timestamp=None``. ``arrival`` is when the
    message was received: a timestamp, or a number of seconds.

    ``reorder_timeout`` to ``capacity`` are those of ``NodeOrdering``, the others those of ``resequence``.
    """
    options = NodeOrdering(
        reorder_timeout=duration("reorder_timeout", reorder_timeout),
        on_timeout=one_of("on_timeout", OnTimeout, on_timeout),
        before_birth=one_of("before_birth", BeforeBirth, before_birth),
        on_session_end=one_of("on_session_end", OnEpoch, on_session_end),
        capacity=capacity,
    )
    return NodeChoices(
        roles=ColumnRoles(key, seq, arrival),
        columns=MessageColumns(kind, bd_seq, timestamp, device, (arrival,)),
        options=options,
        on_invalid=one_of("on_invalid", OnInvalid, on_invalid),
        streaming=StreamOptions.of(time, state, partitions, tick, max_ahead),
    ).applied_to


@dataclass(frozen=True, slots=True)
class NodeChoices:
    roles: ColumnRoles
    columns: MessageColumns
    options: NodeOrdering
    on_invalid: OnInvalid
    streaming: StreamOptions

    def applied_to(self, frame: DataFrame) -> DataFrame:
        roles = found_in(frame, self.roles)
        self._check_columns(frame)
        preparation = Preparation(frame, roles, self.streaming.in_processing_time, own=(*ADDED_FIELDS, FLAG))
        offset = offset_beside(frame, roles)
        columns = self.columns if offset is None else replace(self.columns, arrival=(*self.columns.arrival, offset))
        kernel = NodeKernel(
            self.options, preparation.kernel_roles, columns, self.on_invalid, is_whole=not frame.isStreaming
        )
        if frame.isStreaming:
            streaming = replace(self.streaming, max_ahead=self.streaming.limit(is_needed=True))
            return put_stream_in_order(preparation, kernel, streaming)
        self.streaming.refuse_on_table()
        return put_table_in_order(preparation, kernel)

    def _check_columns(self, frame: DataFrame) -> None:
        columns = self.columns
        whole, stamps = (IntegralType,), (IntegralType, TimestampType, TimestampNTZType)
        _require(frame, columns.kind, (StringType,), "texts")
        _require(frame, columns.bd_seq, whole, "whole numbers")
        _require(frame, columns.timestamp, stamps, "whole numbers or timestamps")
        _require(frame, columns.device, (StringType,), "texts")


def _require(frame: DataFrame, name: str | None, kinds: tuple[type[DataType], ...], what: str) -> None:
    if name is not None:
        require_column(frame, name, kinds, what)
