"""``resequence``: its options, and those that it shares with ``order_nodes``, validated before there is a frame.

Nothing here needs Spark. The fields of ``[order]`` in a pipeline file are derived from the signature of ``resequence``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from seriatim.core.resequencing.options import (
    OnDuplicate,
    OnEpoch,
    OnGap,
    OnLate,
    OnOverflow,
    ResequenceOptions,
    Start,
)
from seriatim.core.sequence import SequenceSpace
from seriatim.core.validation import duration, one_of
from seriatim.errors import InvalidArgument
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.intake import MAX_NUMBER, OnInvalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from seriatim.spark.identity import BatchIdentity

LOWEST: Literal["lowest"] = "lowest"
FIRST: Literal["first"] = "first"
StartOption: TypeAlias = int | Literal["lowest", "first"]


MAX_AHEAD_S = 3600.0
"""By how much a row may be ahead of its batch by default. Clocks that are looked after are off by less, and a row that is ahead
holds up the timeouts of its partition for no longer than this."""


class Time(StrEnum):
    """Whether the times of the rows count, or those of their batches."""

    EVENT = "event"
    PROCESSING = "processing"


def optional_duration(name: str, value: str | float | None) -> float | None:
    return None if value is None else duration(name, value)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options that only streams have. ``tick`` and ``max_ahead`` are in seconds."""

    time: Time = Time.EVENT
    state: str | None = None
    partitions: int | None = None
    tick: float | None = None
    max_ahead: float | None = None

    @classmethod
    def of(
        cls,
        time: str,
        state: str | None,
        partitions: int | None,
        tick: str | float | None,
        max_ahead: str | float | None,
    ) -> StreamOptions:
        """The options, checked, with durations in seconds."""
        return cls(
            time=one_of("time", Time, time),
            state=state,
            partitions=partitions,
            tick=optional_duration("tick", tick),
            max_ahead=optional_duration("max_ahead", max_ahead),
        )

    @property
    def in_processing_time(self) -> bool:
        """Whether the times of the batches count instead of those of the rows."""
        return self.time is Time.PROCESSING

    @property
    def folder(self) -> str:
        """The folder of the state; a stream needs one."""
        if self.state is None:
            raise InvalidArgument("a stream needs a folder for its state: state=PATH")
        return self.state

    def limit(self, *, is_needed: bool) -> float | None:
        """How far a row may be ahead of its batch, if that matters: without durations nothing depends on the clock."""
        if self.in_processing_time:
            if self.max_ahead is not None:
                raise InvalidArgument("max_ahead=… is about the times of rows: leave it out with time='processing'")
            return None
        return MAX_AHEAD_S if self.max_ahead is None and is_needed else self.max_ahead

    def refuse_on_table(self, **others: object) -> None:
        """Refuse what a table can't have, and ``others`` that it can't have either."""
        names = ("state", "partitions", "tick", "max_ahead")
        for name, value in {**{name: getattr(self, name) for name in names}, **others}.items():
            if value is not None:
                raise InvalidArgument(f"{name}=… is for streams, and this frame is static: leave it out")
        if self.in_processing_time:
            raise InvalidArgument("time='processing' is for streams, and this frame is static: leave it out")


def resequence(
    *,
    key: str,
    sequence: str,
    arrival: str | None = None,
    epoch: str | None = None,
    payload: str | Sequence[str] = (),
    start: StartOption = LOWEST,
    increment: int = 1,
    wrap: int | None = None,
    gap_timeout: str | float | None = None,
    time: Time | str = Time.EVENT,
    on_gap: OnGap | str = OnGap.SKIP,
    max_requests: int = 3,
    on_late: OnLate | str = OnLate.DROP,
    on_duplicate: OnDuplicate | str = OnDuplicate.FIRST,
    on_epoch: OnEpoch | str = OnEpoch.RELEASE,
    capacity: int | None = None,
    on_overflow: OnOverflow | str | None = None,
    remember: int = 128,
    resync_after: int | None = None,
    idle_after: str | float | None = None,
    max_ahead: str | float | None = None,
    on_invalid: OnInvalid | str = OnInvalid.LEDGER,
    state: str | None = None,
    partitions: int | None = None,
    tick: str | float | None = None,
) -> Choices:
    """A transformation that puts the rows of each key in order: ``df.transform(resequence(key=…, sequence=…))``.

    It returns a tagged frame; ``ordered`` and ``ledger`` take the two parts out of it. Durations are seconds, or texts such as
    ``2s``, ``500ms`` and ``1m``.

    Columns: ``key``, ``sequence``, and ``arrival`` for the order of arrival, a number or a timestamp (default: ``offset``, if
    there is one); with durations, a number means seconds. ``epoch`` holds the number of the source's session, each of which
    starts its sequence again. ``payload`` names columns that tell whether two copies of a number are equal.

    Numbers: ``start`` is the first number of a session, or ``first`` (whatever arrives first), or ``lowest``: the lowest of a
    table, or of a stream within ``gap_timeout`` of the first arrival. ``increment`` is the distance between two numbers.
    ``wrap=256`` means numbers from 0 to 255. ``resync_after``: with ``wrap``, after this many rows in a row from behind that
    continue each other (default 3), the ledger reports that the source has lost sync.

    Gaps: ``gap_timeout`` is how long to wait for a missing number, in the time of ``arrival`` (``time="event"``) or of the
    batches (``time="processing"``). After that ``on_gap`` decides: ``skip`` gives the number up; ``dead-letter`` gives it up
    together with the rows waiting directly behind it; ``hold`` reports it and keeps waiting; ``request`` adds a row that asks
    the source for it, up to ``max_requests`` times, and then gives it up. ``remember`` limits how many ranges of given-up
    numbers are kept for each key: a row with an older number counts as late, even if it is a duplicate.

    Rows that are not released have a ledger entry. ``on_late``: a number that arrives after it was given up is dropped
    (``drop``), also tagged as late (``side-output``), or an error (``raise``). ``on_duplicate``: the ``first`` copy of a number
    counts, or the ``last`` while it is held; ``conflict`` is ``first``, and reports copies whose ``payload`` differs, on a
    stream only while the first is held. ``on_epoch``: when a new session starts, the rows held of the old one are put out in
    order (``release``) or dropped (``discard``). ``on_invalid="raise"`` fails for a row that can't be judged.

    ``capacity`` limits the rows held for a key (default 10,000, or what ``wrap`` allows). ``on_overflow`` is for a row beyond
    it: ``give-up`` the first gap to make room, ``drop`` the row, or ``raise``, which is the default with ``on_gap="hold"``.

    A stream needs ``state``, the folder of its state, which has a fixed number of ``partitions``. A key without rows for
    ``idle_after`` is forgotten. An idle stream checks every ``tick`` whether a timeout is due. In event time, a row that is
    more than ``max_ahead`` ahead of its batch is invalid and moves no clock (default: an hour, if there are durations).
    """
    names = (payload,) if isinstance(payload, str) else tuple(payload)
    choices = Choices(
        roles=ColumnRoles(key, sequence, arrival, epoch, names),
        start=start,
        options=ResequenceOptions(
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
        ),
        on_invalid=one_of("on_invalid", OnInvalid, on_invalid),
        idle_after=optional_duration("idle_after", idle_after),
        streaming=StreamOptions.of(time, state, partitions, tick, max_ahead),
    )
    choices.check()
    return choices


def resequence_batch(
    frame: DataFrame, batch_id: int, rules: Callable[[DataFrame], DataFrame], *, query: str
) -> DataFrame:
    """Put one batch of a stream in order within ``foreachBatch``; ``rules`` is the result of ``resequence``.

    For Spark Connect, where the tasks of ``foreachBatch`` don't know their query and batch. Elsewhere put the stream in order
    before ``writeStream``. ``query`` is a name of your choice, one for each checkpoint: the state belongs to it. A batch may be
    computed any number of times. Only the times of rows count, without ``max_ahead``, because the time of the batch would be
    another one when Spark runs it again.
    """
    from seriatim.spark.identity import BatchIdentity

    if not isinstance(rules, Choices):
        raise InvalidArgument(f"rules must be what resequence(…) returns, not {rules!r}")
    if rules.streaming.in_processing_time or rules.streaming.max_ahead is not None:
        raise InvalidArgument(
            "a batch within foreachBatch has no time of its own: leave out time='processing' and max_ahead, or put the stream "
            "in order before writeStream"
        )
    return rules(frame, BatchIdentity(query, batch_id))


def _start(start: object) -> Start:
    """The start rule; how long the lowest number is awaited, the frame will tell."""
    if start in (LOWEST, FIRST):
        return Start.first_seen()
    if isinstance(start, bool) or not isinstance(start, int) or abs(start) > MAX_NUMBER:
        raise InvalidArgument(f"start must be a whole number, 'lowest' or 'first', not {start!r}")
    return Start.at(start)


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of ``resequence``, before they are applied. ``options.start`` holds unless ``start`` is ``lowest``."""

    roles: ColumnRoles
    start: StartOption
    options: ResequenceOptions
    on_invalid: OnInvalid
    idle_after: float | None
    streaming: StreamOptions

    def check(self) -> None:
        """Refuse what can't work with any frame."""
        space = self.options.space
        if self.options.on_duplicate is OnDuplicate.CONFLICT and not self.roles.payload:
            raise InvalidArgument("on_duplicate='conflict' compares payloads: name their columns, payload=…")
        if space.increment > 1 and self.start == LOWEST:
            raise InvalidArgument(f"with increment={space.increment} set start=NUMBER to one of the numbers that occur")
        if space.modulus is not None and self.start == LOWEST and self.options.gap_timeout is None:
            raise InvalidArgument(
                "numbers that wrap have no lowest one for all time: set a gap_timeout, or start='first', or "
                "start=NUMBER"
            )

    def __call__(self, frame: DataFrame, batch: BatchIdentity | None = None) -> DataFrame:
        from seriatim.spark.frames.dispatch import put_in_order

        return put_in_order(frame, self, batch)
