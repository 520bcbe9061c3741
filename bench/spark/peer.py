"""The peer: a resequencer on Spark's own state for Python, ``transformWithStateInPandas``, as one would write it by hand.

It does what the benchmark's options ask for and no more: numbers from 0 on, gaps given up after a timeout, the first of several
copies counts. The rows it gives out have the columns of ours. Two things it is spared: time passes only for keys that get
rows (there are no timers), and a row behind is not told apart as late or duplicate. State is read and written once for each
key of a batch, held messages and gaps only where there are any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

OUTPUT = (
    "_tag string, device string, seq long, arrived double, payload string, _position long, _epoch long, _reason string, "
    "_first long, _last long, _size long, _time double, _detail string"
)
NAMES = [column.split()[0] for column in OUTPUT.split(", ")]
Held = dict[int, tuple[float, str]]


class Resequencer(StatefulProcessor):
    def __init__(self, gap_timeout: float) -> None:
        self.gap_timeout = gap_timeout

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.facts = handle.getValueState("facts", "expected long, highest long, position long, held int, gaps int")
        self.held = handle.getListState("held", "seq long, arrived double, payload string")
        self.gaps = handle.getListState("gaps", "first long, last long, deadline double")

    def handleInputRows(  # noqa: N802 (Spark calls it so)
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803, ARG002
    ) -> Iterator[pd.DataFrame]:
        lane = self._load(key[0])
        messages: list[tuple[float, int, str]] = []
        for frame in rows:
            messages.extend(zip(*(frame[name].tolist() for name in ("arrived", "seq", "payload")), strict=True))
        for arrived, seq, payload in sorted(messages):
            lane.advance(arrived)
            lane.push(seq, arrived, payload)
        self._save(lane)
        if lane.out:
            yield pd.DataFrame(lane.out, columns=NAMES)

    def _load(self, device: str) -> Lane:
        facts = self.facts.get() if self.facts.exists() else (0, -1, 0, 0, 0)
        expected, highest, position, held, gaps = facts
        return Lane(
            device,
            self.gap_timeout,
            expected,
            highest,
            position,
            {seq: (arrived, payload) for seq, arrived, payload in self.held.get()} if held else {},
            [tuple(gap) for gap in self.gaps.get()] if gaps else [],
        )

    def _save(self, lane: Lane) -> None:
        held = [(seq, *message) for seq, message in lane.held.items()]
        self.facts.update((lane.expected, lane.highest, lane.position, len(held), len(lane.gaps)))
        _replace(self.held, held, lane.had_held)
        _replace(self.gaps, lane.gaps, lane.had_gaps)


def _replace(state: Any, values: list[Any], had_some: bool) -> None:
    if values:
        state.put(values)
    elif had_some:
        state.clear()


class Lane:
    """One key during one batch."""

    def __init__(
        self,
        device: str,
        timeout: float,
        expected: int,
        highest: int,
        position: int,
        held: Held,
        gaps: list[Any],
    ) -> None:
        self.device, self.timeout = device, timeout
        self.expected, self.highest, self.position = expected, highest, position
        self.held, self.gaps = held, gaps
        self.had_held, self.had_gaps = bool(held), bool(gaps)
        self.out: list[tuple[Any, ...]] = []

    def advance(self, now: float) -> None:
        """Give up the gaps that are due."""
        while self.gaps and self.gaps[0][2] <= now:
            first, last, deadline = self.gaps.pop(0)
            self._tell("lost", first, last, deadline)
            self.expected = last + 1
            self._release()

    def push(self, seq: int, arrived: float, payload: str) -> None:
        if seq < self.expected or seq in self.held or self._was_given_up(seq):
            self._tell("behind", seq, seq, arrived, (seq, arrived, payload))
            return
        if seq > self.highest + 1:
            self.gaps.append((self.highest + 1, seq - 1, arrived + self.timeout))
        elif seq <= self.highest:
            self._narrow(seq)
        self.highest = max(self.highest, seq)
        self.held[seq] = (arrived, payload)
        self._release()

    def _was_given_up(self, seq: int) -> bool:
        return seq <= self.highest and not any(first <= seq <= last for first, last, _ in self.gaps)

    def _narrow(self, seq: int) -> None:
        """Take a number out of the gap that it lies in."""
        place = next(place for place, (first, last, _) in enumerate(self.gaps) if first <= seq <= last)
        first, last, deadline = self.gaps[place]
        parts = ((first, seq - 1, deadline), (seq + 1, last, deadline))
        self.gaps[place : place + 1] = [part for part in parts if part[0] <= part[1]]

    def _release(self) -> None:
        while self.expected in self.held:
            arrived, payload = self.held.pop(self.expected)
            self.out.append(("ordered", self.device, self.expected, arrived, payload, self.position, *[None] * 7))
            self.expected += 1
            self.position += 1

    def _tell(self, reason: str, first: int, last: int, time: float, message: tuple[Any, ...] = (None,) * 3) -> None:
        size = last - first + 1
        self.out.append(("ledger", self.device, *message, None, 0, reason, first, last, size, time, None))
