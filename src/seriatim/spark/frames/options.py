"""The options that ``resequence`` and ``order_nodes`` share, checked before a frame is there. Nothing here needs Spark."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from seriatim.core.options import duration, one_of
from seriatim.errors import InvalidArgument

MAX_AHEAD_S = 3600.0
"""By how much a row may be ahead of its batch. Clocks that are kept at all are off by less, and a row that is ahead holds up
the timeouts of its partition for no longer than this."""


class Time(StrEnum):
    """Which times count: those of the rows, or those of the batches that bring them."""

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
        return cls(
            time=one_of("time", Time, time),
            state=state,
            partitions=partitions,
            tick=optional_duration("tick", tick),
            max_ahead=optional_duration("max_ahead", max_ahead),
        )

    @property
    def in_processing_time(self) -> bool:
        return self.time is Time.PROCESSING

    @property
    def folder(self) -> str:
        """The folder for the state, which a stream needs."""
        if self.state is None:
            raise InvalidArgument("a stream needs a folder for what it remembers: state=PATH")
        return self.state

    def limit(self, *, is_needed: bool) -> float | None:
        """By how much a row may be ahead of its batch, if that matters: without durations nothing depends on the clock."""
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
