"""``resequence``: the options of putting a frame in order, checked before a frame is there. Nothing here needs Spark.

The fields of ``[order]`` in a pipeline file are those of ``resequence``: its signature says what they are called and hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from seriatim.core.options import one_of
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
from seriatim.spark.frames.options import StreamOptions, Time, optional_duration
from seriatim.spark.kernel.intake import MAX_NUMBER, OnInvalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOWEST: Literal["lowest"] = "lowest"
FIRST: Literal["first"] = "first"
StartOption: TypeAlias = int | Literal["lowest", "first"]


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
) -> Callable[[DataFrame], DataFrame]:
    """A transformation that puts the rows of each key in order: ``df.transform(resequence(key=…, sequence=…))``.

    It gives a tagged frame, which ``ordered`` and ``ledger`` take apart. Durations are seconds, or texts such as ``2s``,
    ``500ms`` and ``1m``.

    ``arrival`` is the column with the order of arrival, a number or a timestamp (by default ``offset``, if there is one). Where
    durations are chosen a number counts seconds. Rows that arrived together are taken in the order of ``tie_breaking.py``.
    ``epoch`` is the column with the number of a source's session: sequences start over with each. ``start`` is the first
    number of a session, ``first`` (whatever arrives first) or ``lowest``: the lowest of a table, or, with a
    ``gap_timeout``, the lowest that arrives within that time of the first. ``wrap=256`` means numbers from 0 to 255.

    ``gap_timeout`` is how long a missing number is waited for, by the times of ``arrival`` (``time="event"``) or of the batches
    (``time="processing"``). ``on_duplicate="conflict"`` compares the columns ``payload`` of a copy with those of the first; on
    a stream only as long as the first is held, because what was released is not kept.
    ``on_invalid="raise"`` fails for a row that can't be judged. The others are those of the core's ``Resequencing``.

    A streaming frame needs ``state``, a folder for what the query remembers. ``partitions`` is how many parts it has, for good.
    ``idle_after`` is when a key to which nothing happens is forgotten; ``tick`` is how often an idle stream looks whether
    something is due. In event time a row whose time is more than ``max_ahead`` later than that of its batch is invalid and
    moves no clock: by default an hour, where durations are chosen.
    """
    names = (payload,) if isinstance(payload, str) else tuple(payload)
    choices = Choices(
        roles=ColumnRoles(key, sequence, arrival, epoch, names),
        start=start,
        options=Resequencing(
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
    return choices.applied_to


def _start(start: object) -> Start:
    """The start rule; how long the lowest number is awaited, the frame will tell."""
    if start in (LOWEST, FIRST):
        return Start.first_seen()
    if isinstance(start, bool) or not isinstance(start, int) or abs(start) > MAX_NUMBER:
        raise InvalidArgument(f"start must be a whole number, 'lowest' or 'first', not {start!r}")
    return Start.at(start)


@dataclass(frozen=True, slots=True)
class Choices:
    """What was chosen, before a frame is there. ``options.start`` is right unless ``start`` is ``lowest``."""

    roles: ColumnRoles
    start: StartOption
    options: Resequencing
    on_invalid: OnInvalid
    idle_after: float | None
    streaming: StreamOptions

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
        from seriatim.spark.frames.dispatch import put_in_order

        return put_in_order(frame, self)
