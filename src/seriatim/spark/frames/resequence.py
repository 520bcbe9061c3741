"""``resequence``: the options of putting a frame in order, checked once, and the choice of who does it.

========================================================  ==========================================
a static frame, where nothing depends on the order of arrival  SQL alone (``sql.py``)
any other static frame                                    the kernel, after one sort (``table.py``)
a streaming frame                                         the kernel with its state (``stream.py``)
========================================================  ==========================================

All of them give the same tagged table (``tagged.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from pyspark.sql import DataFrame

from seriatim.core.options import duration, one_of
from seriatim.core.resequencing import (
    OnDuplicate,
    OnEpoch,
    OnGap,
    OnLate,
    OnOverflow,
    Resequencing,
    Start,
)
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import InvalidArgument
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.frames.columns import Transformation, found_in
from seriatim.spark.frames.preparation import Preparation
from seriatim.spark.frames.sql import Rules, put_in_order
from seriatim.spark.frames.stream import Streaming, put_stream_in_order
from seriatim.spark.frames.table import FOREVER, put_table_in_order
from seriatim.spark.kernel.intake import LIMIT, OnInvalid
from seriatim.spark.kernel.kernel import Kernel

LOWEST: Literal["lowest"] = "lowest"
FIRST: Literal["first"] = "first"
NO_LIMIT = 2**31
"""How many rows of a key a table may hold back: as many as there are."""


_JUDGED_BY_ARRIVAL = ("gap_timeout", "on_gap", "on_late", "on_epoch", "capacity", "resync_after")
_OF_STREAMS = ("state", "partitions", "tick", "idle_after", "max_ahead")
MAX_AHEAD_S = 3600.0
"""By how much a row may be ahead of its batch. Clocks that are kept at all are off by less, and a row that is ahead holds up
the timeouts of its partition for no longer than this."""


class Time(StrEnum):
    """Which times count: those of the rows, or those of the batches that bring them."""

    EVENT = "event"
    PROCESSING = "processing"


def resequence(
    *,
    key: str,
    sequence: str,
    arrival: str | None = None,
    epoch: str | None = None,
    payload: str | Sequence[str] = (),
    start: int | Literal["lowest", "first"] = LOWEST,
    increment: int = 1,
    wrap: int | None = None,
    gap_timeout: str | float | None = None,
    time: str = Time.EVENT,
    on_gap: str = OnGap.SKIP,
    max_requests: int = 3,
    on_late: str = OnLate.DROP,
    on_duplicate: str = OnDuplicate.FIRST,
    on_epoch: str = OnEpoch.RELEASE,
    capacity: int | None = None,
    on_overflow: str | None = None,
    remember: int = 128,
    resync_after: int | None = None,
    idle_after: str | float | None = None,
    max_ahead: str | float | None = None,
    on_invalid: str = OnInvalid.LEDGER,
    state: str | None = None,
    partitions: int | None = None,
    tick: str | float | None = None,
) -> Transformation:
    """A transformation that puts the rows of each key in order: ``df.transform(resequence(key=…, sequence=…))``.

    It gives a tagged frame, which ``ordered`` and ``ledger`` take apart. Durations are seconds, or texts such as ``2s``,
    ``500ms`` and ``1m``.

    ``arrival`` is the column with the order of arrival, a number or a timestamp (by default ``offset``, if there is one). Where
    durations are chosen a number counts seconds. Rows that arrived together are taken in the order of ``tie_breaking.py``.
    ``epoch`` is the column with the number of a source's session: sequences begin anew with each. ``start`` is the first
    number of a session, ``first`` (whatever arrives first) or ``lowest``: the lowest of a table, or, with a
    ``gap_timeout``, the lowest that arrives within that time of the first. ``wrap=256`` means numbers from 0 to 255.

    ``gap_timeout`` is how long a missing number is waited for, by the times of ``arrival`` (``time="event"``) or of the batches
    (``time="processing"``). ``on_duplicate="conflict"`` compares the columns ``payload`` of a copy with those of the first; on
    a stream only as long as the first is held, because what was released is not kept.
    ``on_invalid="raise"`` fails for a row that nobody can judge. The others are those of the core's ``Resequencing``.

    A streaming frame needs ``state``, a folder for what the query remembers. ``partitions`` is how many parts it has, for good.
    ``idle_after`` is when a key to which nothing happens is forgotten; ``tick`` is how often an idle stream looks whether
    something is due. In event time a row whose time is more than ``max_ahead`` later than that of its batch is invalid and
    moves no clock: by default an hour, where durations are chosen.
    """
    names = (payload,) if isinstance(payload, str) else tuple(payload)
    options = Resequencing(
        space=SequenceSpace(wrap, increment),
        start=_start(start),
        gap_timeout=optional_duration("gap_timeout", gap_timeout),
        on_gap=one_of("on_gap", OnGap, on_gap),
        max_requests=max_requests,
        on_late=one_of("on_late", OnLate, on_late),
        on_duplicate=one_of("on_duplicate", OnDuplicate, on_duplicate),
        on_epoch=one_of("on_epoch", OnEpoch, on_epoch),
        capacity=capacity,
        on_overflow=None if on_overflow is None else one_of("on_overflow", OnOverflow, on_overflow),
        remember=remember,
        resync_after=resync_after,
    )
    choices = Choices(
        roles=ColumnRoles(key, sequence, arrival, epoch, names),
        start=start,
        options=options,
        time=one_of("time", Time, time),
        on_invalid=one_of("on_invalid", OnInvalid, on_invalid),
        idle_after=optional_duration("idle_after", idle_after),
        max_ahead=optional_duration("max_ahead", max_ahead),
        state=state,
        partitions=partitions,
        tick=optional_duration("tick", tick),
    )
    choices.check()
    return choices.applied_to


def _start(start: object) -> Start:
    """The start rule; how long the lowest number is awaited, the frame will tell."""
    if start in (LOWEST, FIRST):
        return Start.first_seen()
    if isinstance(start, bool) or not isinstance(start, int) or abs(start) > LIMIT:
        raise InvalidArgument(f"start must be a whole number, 'lowest' or 'first', not {start!r}")
    return Start.at(start)


def optional_duration(name: str, value: str | float | None) -> float | None:
    return None if value is None else duration(name, value)


def refuse_on_table(time: Time, **given: object) -> None:
    """Refuse what a table can't have."""
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(f"{name}=… is for streams, and this frame is static: leave it out")
    if time is Time.PROCESSING:
        raise InvalidArgument("time='processing' is for streams, and this frame is static: leave it out")


def max_ahead_of(time: Time, given: float | None, *, is_needed: bool) -> float | None:
    """By how much a row may be ahead of its batch, if that matters: without durations nothing depends on the clock."""
    if time is Time.PROCESSING:
        if given is not None:
            raise InvalidArgument("max_ahead=… is about the times of rows: leave it out with time='processing'")
        return None
    return MAX_AHEAD_S if given is None and is_needed else given


def required_state(state: str | None) -> str:
    """The folder that a stream needs."""
    if state is None:
        raise InvalidArgument("a stream needs a folder for what it remembers: state=PATH")
    return state


@dataclass(frozen=True, slots=True)
class Choices:
    """What was chosen, before a frame is there. ``options.start`` is right unless ``start`` is ``lowest``."""

    roles: ColumnRoles
    start: int | Literal["lowest", "first"]
    options: Resequencing
    time: Time
    on_invalid: OnInvalid
    idle_after: float | None
    max_ahead: float | None
    state: str | None
    partitions: int | None
    tick: float | None

    def check(self) -> None:
        """Refuse what can't work with any frame."""
        space = self.options.space
        if self.options.on_duplicate is OnDuplicate.CONFLICT and not self.roles.payload:
            raise InvalidArgument("on_duplicate='conflict' compares payloads: name their columns, payload=…")
        if space.increment > 1 and self.start == LOWEST:
            raise InvalidArgument(
                f"with increment={space.increment} say which numbers there are: start=NUMBER is one of them"
            )
        if space.modulus is not None and self.start == LOWEST and self.options.gap_timeout is None:
            raise InvalidArgument(
                "on a circle of numbers the lowest is the lowest of some time: set a gap_timeout, or start='first', or "
                "start=NUMBER"
            )

    def applied_to(self, frame: DataFrame) -> DataFrame:
        roles = found_in(frame, self.roles)
        if frame.isStreaming:
            return self._stream(frame, roles)
        self._refuse_on_table()
        if self._depends_on_arrival():
            return self._table_by_kernel(frame, roles)
        start = None if self.start == LOWEST else int(self.start)
        rules = Rules(self.options.space, start, self.options.on_duplicate, self.on_invalid)
        return put_in_order(frame, roles, rules)

    # -- static ---------------------------------------------------------------------------------------------------------

    def _refuse_on_table(self) -> None:
        refuse_on_table(self.time, **{name: getattr(self, name) for name in _OF_STREAMS})
        if self.options.on_gap is OnGap.HOLD:
            raise InvalidArgument(
                "on_gap='hold' waits for an operator, and a table ends before one can come: choose 'skip' or 'dead-letter'"
            )

    def _depends_on_arrival(self) -> bool:
        """Whether anything else matters than what SQL decides from a row and its neighbours."""
        options, usual = self.options, Resequencing()
        return (
            self.start == FIRST
            or options.space.modulus is not None
            or options.on_duplicate is OnDuplicate.LAST
            or any(getattr(options, name) != getattr(usual, name) for name in _JUDGED_BY_ARRIVAL)
        )

    def _table_by_kernel(self, frame: DataFrame, roles: ColumnRoles) -> DataFrame:
        patience = FOREVER if self.options.gap_timeout is None else self.options.gap_timeout
        options = replace(
            self.options,
            start=Start.lowest_within(patience) if self.start == LOWEST else self.options.start,
            gap_timeout=patience,
            capacity=self.options.capacity or self.options.space.max_ahead or NO_LIMIT,
        )
        preparation = self._preparation(frame, roles)
        return put_table_in_order(preparation, self._kernel(options, preparation))

    # -- streams --------------------------------------------------------------------------------------------------------

    def _stream(self, frame: DataFrame, roles: ColumnRoles) -> DataFrame:
        state = required_state(self.state)
        options = self.options
        if self.start == LOWEST:
            if options.gap_timeout is None:
                raise InvalidArgument(
                    "a stream has no end at which its lowest number is known: set a gap_timeout, or start='first', or "
                    "start=NUMBER"
                )
            options = replace(options, start=Start.lowest_within(options.gap_timeout))
        preparation = self._preparation(frame, roles)
        durations = (options.gap_timeout, self.idle_after)
        limit = max_ahead_of(self.time, self.max_ahead, is_needed=durations != (None, None))
        streaming = Streaming(state, self.partitions, self.tick, limit)
        return put_stream_in_order(preparation, self._kernel(options, preparation), streaming)

    # -- the kernel -----------------------------------------------------------------------------------------------------

    def _preparation(self, frame: DataFrame, roles: ColumnRoles) -> Preparation:
        in_processing_time = self.time is Time.PROCESSING
        if roles.arrival is None and not in_processing_time:
            raise InvalidArgument("these options are judged in order of arrival: name its column, arrival=…")
        if self.roles.arrival is None and not in_processing_time:
            self._refuse_durations(roles.arrival)
        return Preparation(frame, roles, in_processing_time, self.options.on_duplicate is OnDuplicate.CONFLICT)

    def _refuse_durations(self, arrival: str | None) -> None:
        """An offset is an order, and no time."""
        durations = {
            "gap_timeout": self.options.gap_timeout,
            "idle_after": self.idle_after,
            "max_ahead": self.max_ahead,
        }
        for name, value in durations.items():
            if value is not None:
                raise InvalidArgument(
                    f"{name}=… is a time, and '{arrival}' is not: name the column with the times of arrival, arrival=…"
                )

    def _kernel(self, options: Resequencing, preparation: Preparation) -> Kernel:
        return Kernel(options, preparation.kernel_roles, self.on_invalid, self.idle_after)
