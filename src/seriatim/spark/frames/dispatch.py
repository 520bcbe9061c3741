"""Which of the three ways puts a frame in order; all of them give the same tagged table (``tagged.py``).

========================================================  ==========================================
a table, where nothing depends on the order of arrival    SQL alone (``sql.py``)
any other table                                           the kernel, after one sort (``table.py``)
a stream                                                  the kernel with its state (``stream.py``)
========================================================  ==========================================
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from seriatim.core.resequencing import OnDuplicate, OnGap, Resequencing, Start
from seriatim.errors import InvalidArgument
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.frames import sql
from seriatim.spark.frames.columns import found_in
from seriatim.spark.frames.preparation import Preparation
from seriatim.spark.frames.resequence import FIRST, LOWEST, Choices
from seriatim.spark.frames.stream import put_stream_in_order
from seriatim.spark.frames.table import FOREVER, put_table_in_order
from seriatim.spark.kernel.kernel import Kernel

UNLIMITED = 2**31
"""How many rows of a key a table may hold back: as many as there are."""
_JUDGED_BY_ARRIVAL = ("gap_timeout", "on_gap", "on_late", "on_epoch", "capacity", "resync_after")


def put_in_order(frame: DataFrame, choices: Choices) -> DataFrame:
    """The tagged frame."""
    roles = found_in(frame, choices.roles)
    if frame.isStreaming:
        return _stream(frame, roles, choices)
    _refuse_on_table(choices)
    if _depends_on_arrival(choices):
        return _table_by_kernel(frame, roles, choices)
    start = None if choices.start == LOWEST else int(choices.start)
    options = choices.options
    return sql.put_in_order(frame, roles, sql.Rules(options.space, start, options.on_duplicate, choices.on_invalid))


# -- tables -------------------------------------------------------------------------------------------------------------


def _refuse_on_table(choices: Choices) -> None:
    choices.streaming.refuse_on_table(idle_after=choices.idle_after)
    if choices.options.on_gap is OnGap.HOLD:
        raise InvalidArgument(
            "on_gap='hold' waits for an operator, and a table ends before one can come: choose 'skip' or 'dead-letter'"
        )


def _depends_on_arrival(choices: Choices) -> bool:
    """Whether anything else matters than what SQL decides from a row and its neighbours."""
    options, usual = choices.options, Resequencing()
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


def _stream(frame: DataFrame, roles: ColumnRoles, choices: Choices) -> DataFrame:
    state, options = choices.streaming.folder, choices.options
    if choices.start == LOWEST:
        if options.gap_timeout is None:
            raise InvalidArgument(
                "a stream has no end at which its lowest number is known: set a gap_timeout, or start='first', or "
                "start=NUMBER"
            )
        options = replace(options, start=Start.lowest_within(options.gap_timeout))
    preparation = _preparation(frame, roles, choices)
    limit = choices.streaming.limit(is_needed=(options.gap_timeout, choices.idle_after) != (None, None))
    streaming = replace(choices.streaming, state=state, max_ahead=limit)
    return put_stream_in_order(preparation, _kernel(choices, options, preparation), streaming)


# -- the kernel ---------------------------------------------------------------------------------------------------------


def _preparation(frame: DataFrame, roles: ColumnRoles, choices: Choices) -> Preparation:
    in_processing_time = choices.streaming.in_processing_time
    if roles.arrival is None and not in_processing_time:
        raise InvalidArgument("these options are judged in order of arrival: name its column, arrival=…")
    if choices.roles.arrival is None and not in_processing_time:
        _refuse_durations(choices, roles.arrival)
    return Preparation(frame, roles, in_processing_time, choices.options.on_duplicate is OnDuplicate.CONFLICT)


def _refuse_durations(choices: Choices, arrival: str | None) -> None:
    """An offset is an order, and no time."""
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


def _kernel(choices: Choices, options: Resequencing, preparation: Preparation) -> Kernel:
    return Kernel(options, preparation.kernel_roles, choices.on_invalid, choices.idle_after)
