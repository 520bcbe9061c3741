"""Chooses how a frame is put in order; all three ways return the same tagged table (``tagged.py``).

========================================================  ===============================================
a table, where nothing depends on the order of arrival    SQL alone (``table_by_sql.py``)
any other table                                           the kernel, after one sort (``table_by_kernel.py``)
a stream                                                  the kernel with its state (``stream.py``)
========================================================  ===============================================
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from seriatim.core.resequencing.options import OnDuplicate, OnGap, ResequenceOptions, Start
from seriatim.errors import InvalidArgument
from seriatim.log import logger
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.frames import table_by_sql
from seriatim.spark.frames.columns import found_in
from seriatim.spark.frames.preparation import Preparation
from seriatim.spark.frames.resequence import FIRST, LOWEST, Choices, StreamOptions
from seriatim.spark.frames.table_by_kernel import FOREVER, put_table_in_order
from seriatim.spark.identity import BatchIdentity
from seriatim.spark.kernel.kernel import Kernel

WATERMARK_DELAY = "spark.watermarkDelayMs"
"""Where Spark notes the delay of a watermark, in the metadata of its column."""
UNLIMITED = 2**31
"""The capacity for tables: no limit."""
_JUDGED_BY_ARRIVAL = ("gap_timeout", "on_gap", "on_late", "on_epoch", "capacity", "resync_after")


def put_in_order(frame: DataFrame, choices: Choices, batch: BatchIdentity | None = None) -> DataFrame:
    """The tagged frame. A static frame that is a ``batch`` of a stream is treated like the stream."""
    if frame.isStreaming or batch is not None:
        from seriatim.spark.frames.stream import put_stream_in_order

        return put_stream_in_order(*prepared_stream(frame, choices, batch), batch)
    roles = found_in(frame, choices.roles)
    _refuse_on_table(choices)
    if _depends_on_arrival(choices):
        return _table_by_kernel(frame, roles, choices)
    start = None if choices.start == LOWEST else int(choices.start)
    options = choices.options
    return table_by_sql.put_in_order(
        frame, roles, table_by_sql.Rules(options.space, start, options.on_duplicate, choices.on_invalid)
    )


# -- tables -------------------------------------------------------------------------------------------------------------


def _refuse_on_table(choices: Choices) -> None:
    choices.streaming.refuse_on_table(idle_after=choices.idle_after)
    if choices.options.on_gap is OnGap.HOLD:
        raise InvalidArgument(
            "on_gap='hold' waits for an operator, which makes no sense for a table: choose 'skip' or 'dead-letter'"
        )


def _depends_on_arrival(choices: Choices) -> bool:
    """Whether the options need more than SQL can decide from a row and its neighbours."""
    options, usual = choices.options, ResequenceOptions()
    return (
        choices.start == FIRST
        or options.space.modulus is not None
        or options.on_duplicate is OnDuplicate.LAST
        or any(getattr(options, name) != getattr(usual, name) for name in _JUDGED_BY_ARRIVAL)
    )


def _table_by_kernel(frame: DataFrame, roles: ColumnRoles, choices: Choices) -> DataFrame:
    options = choices.options
    timeout = FOREVER if options.gap_timeout is None else options.gap_timeout
    options = replace(
        options,
        start=Start.lowest_within(timeout) if choices.start == LOWEST else options.start,
        gap_timeout=timeout,
        capacity=options.capacity or options.space.max_ahead or UNLIMITED,
    )
    preparation = _preparation(frame, roles, choices)
    return put_table_in_order(preparation, _kernel(choices, options, preparation))


# -- streams ------------------------------------------------------------------------------------------------------------


def prepared_stream(
    frame: DataFrame, choices: Choices, batch: BatchIdentity | None = None
) -> tuple[Preparation, Kernel, StreamOptions]:
    """What ``stream.py`` needs to put a stream in order."""
    state, options = choices.streaming.folder, choices.options
    if choices.start == LOWEST:
        if options.gap_timeout is None:
            raise InvalidArgument(
                "a stream has no end, so its lowest number is never known: set a gap_timeout, or start='first', or "
                "start=NUMBER"
            )
        options = replace(options, start=Start.lowest_within(options.gap_timeout))
    preparation = _preparation(frame, found_in(frame, choices.roles), choices)
    _warn_of_watermarks(frame, options.gap_timeout)
    has_durations = (options.gap_timeout, choices.idle_after) != (None, None)
    limit = choices.streaming.limit(is_needed=has_durations and batch is None)
    streaming = replace(choices.streaming, state=state, max_ahead=limit)
    return preparation, _kernel(choices, options, preparation), streaming


def _warn_of_watermarks(frame: DataFrame, gap_timeout: float | None) -> None:
    """Warn of watermarks: they advance with arriving rows, so later operators drop rows that waited longer than the delay."""
    for field in frame.schema.fields:
        delay = field.metadata.get(WATERMARK_DELAY)
        if delay is not None:
            wait = "without end (no gap_timeout)" if gap_timeout is None else f"for {gap_timeout:g} s (gap_timeout)"
            logger.warning(
                "column %r has a watermark with a delay of %g s, and rows may wait %s to be in order: what follows would drop "
                "them silently. Set the watermark behind resequence, with a delay longer than gap_timeout",
                field.name,
                delay / 1000,
                wait,
            )


# -- the kernel ---------------------------------------------------------------------------------------------------------


def _preparation(frame: DataFrame, roles: ColumnRoles, choices: Choices) -> Preparation:
    in_processing_time = choices.streaming.in_processing_time
    if roles.arrival is None and not in_processing_time:
        raise InvalidArgument("these options depend on the order of arrival: name its column with arrival=…")
    if choices.roles.arrival is None and not in_processing_time:
        _refuse_durations(choices, roles.arrival)
    return Preparation(frame, roles, in_processing_time, choices.options.on_duplicate is OnDuplicate.CONFLICT)


def _refuse_durations(choices: Choices, arrival: str | None) -> None:
    """Refuse durations if arrival is an offset, which is not a time."""
    durations = {
        "gap_timeout": choices.options.gap_timeout,
        "idle_after": choices.idle_after,
        "max_ahead": choices.streaming.max_ahead,
    }
    for name, value in durations.items():
        if value is not None:
            raise InvalidArgument(
                f"{name}=… is a time, and '{arrival}' is not: name the column with the times of arrival, arrival=…"
            )


def _kernel(choices: Choices, options: ResequenceOptions, preparation: Preparation) -> Kernel:
    return Kernel(options, preparation.kernel_roles, choices.on_invalid, choices.idle_after)
