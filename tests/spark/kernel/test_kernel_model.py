"""The kernel does exactly what the core's resequencers do, row by row, however the stream is cut into batches and whenever the
process restarts between them; and a second attempt at a batch gives the same bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import inf

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from bench.kernel import mix
from seriatim.core.resequencing.options import OnDuplicate, OnEpoch, OnGap, OnLate, OnOverflow, ResequenceOptions, Start
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import CapacityExceeded, LateMessage
from seriatim.spark.kernel.arrival_order import by_arrival
from seriatim.spark.kernel.interfaces import BatchOutcome
from seriatim.spark.kernel.kernel import Kernel
from seriatim.spark.kernel.partition_state import Partition
from seriatim.spark.state.batch_versions import StateFolder
from tests.spark.kernel.traces import (
    IN_ORDER,
    ROLES,
    SCHEMA,
    Core,
    Row,
    fault_of,
    known_to,
    known_to_core,
    table,
    told_by,
)
from tests.spark.state.memory_files import MemoryFiles

SPACES = [
    SequenceSpace(),
    SequenceSpace(),
    SequenceSpace(increment=3),
    SequenceSpace(16),
    SequenceSpace(9),
    SequenceSpace(20, 2),
]
STARTS = [Start.first_seen(), Start.at(5), Start.at(5), Start.lowest_within(0), Start.lowest_within(3)]


@st.composite
def resequencing(draw: st.DrawFn) -> ResequenceOptions:
    on_gap = draw(st.sampled_from([OnGap.SKIP, *OnGap]))
    timeouts: list[float | None] = [2, 5] if on_gap is OnGap.REQUEST else [2, 5, None, 0]
    overflows = [policy for policy in OnOverflow if not (on_gap is OnGap.HOLD and policy is OnOverflow.GIVE_UP)]
    return ResequenceOptions(
        space=draw(st.sampled_from(SPACES)),
        start=draw(st.sampled_from(STARTS)),
        gap_timeout=draw(st.sampled_from(timeouts)),
        on_gap=on_gap,
        max_requests=draw(st.integers(1, 2)),
        on_late=draw(st.sampled_from(OnLate)),
        on_duplicate=draw(st.sampled_from(OnDuplicate)),
        on_epoch=draw(st.sampled_from(OnEpoch)),
        capacity=draw(st.sampled_from([None, None, 4, 2, 1])),
        on_overflow=draw(st.sampled_from([None, *overflows])),
        remember=draw(st.sampled_from([100, 2, 1])),
        resync_after=draw(st.sampled_from([None, 3, 2])),
    )


@dataclass(frozen=True)
class Habits:
    """What kinds of trouble a trace has: rare ones would otherwise send every key down the slow path."""

    pace: float
    new_sessions: bool
    off_grid: bool
    clock_jumps_back: bool
    has_nulls: bool
    from_the_future: bool


HABITS = st.builds(
    Habits,
    pace=st.sampled_from([0, 0.3, 1]),
    new_sessions=st.sampled_from([False, False, False, True]),
    off_grid=st.sampled_from([False, False, False, True]),
    clock_jumps_back=st.sampled_from([False, False, False, True]),
    has_nulls=st.sampled_from([False, False, True]),
    from_the_future=st.sampled_from([False, False, True]),
)
MAX_AHEAD = 2.0


class Source:
    """Counts for each key, and numbers its messages with more or less discipline."""

    def __init__(self, options: ResequenceOptions, habits: Habits) -> None:
        self.space, self.habits = options.space, habits
        self.next: dict[str, int] = {}
        self.epoch: dict[str, int] = {}
        self.now, self.sent = 0.0, 0

    def rows(self, draw: st.DrawFn) -> list[Row]:
        count = draw(st.integers(0, 12))
        return [self._row(draw) for _ in range(count)]

    def _row(self, draw: st.DrawFn) -> Row:
        habits, step = self.habits, self.space.increment
        key = draw(st.sampled_from("abc"))
        near = self.next.get(key, 5)
        distance = draw(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, -1, -2, -3, -5, 7]))
        slip = draw(st.sampled_from([0] * 9 + [1])) if habits.off_grid else 0
        if distance >= 0:
            self.next[key] = near + draw(st.sampled_from([1, distance + 1])) * step
        session = draw(st.sampled_from([0] * 12 + [-1, 1])) if habits.new_sessions else 0
        self.epoch[key] = self.epoch.get(key, 0) + max(session, 0)
        self.now += draw(st.sampled_from([0, 0.5, 1])) * habits.pace
        back = draw(st.sampled_from([0, 0, 3])) if habits.clock_jumps_back else 0
        self.sent += 1
        lacks = draw(st.sampled_from([None] * 9 + ["key", "seq", "at"])) if habits.has_nulls else None
        ahead = draw(st.sampled_from([0] * 9 + [2 * MAX_AHEAD, 1e11])) if habits.from_the_future else 0
        return Row(
            key=None if lacks == "key" else key,
            seq=None if lacks == "seq" else self.space.wrap(near + distance * step + slip),
            at=None if lacks == "at" else self.now - back + ahead,
            body=self.sent,
            epoch=self.epoch[key] + min(session, 0),
            digest=draw(st.sampled_from([1, 1, 2, None])),
        )


@given(options=resequencing(), habits=HABITS, data=st.data())
def test_the_kernel_is_the_core_row_by_row_over_any_batches_and_restarts(options, habits, data):
    draw = data.draw
    source, core, kernel, files = Source(options, habits), Core(options), Kernel(options, ROLES), MemoryFiles()
    for batch in range(draw(st.integers(1, 5))):
        rows = source.rows(draw)
        latest = source.now + MAX_AHEAD
        source.now += draw(st.sampled_from([0, 0, 1, 3]))
        is_event_time = draw(st.booleans())
        folder = StateFolder(files, query="q", partitions=1, keep=2)
        known = folder.open(0, batch, lambda: kernel.new_partition(SCHEMA))
        attempt = Attempt(draw(st.permutations(rows)), None if is_event_time else source.now, latest)
        try:
            expected = core.run(attempt.in_order, attempt.clock, latest)
        except (LateMessage, CapacityExceeded):
            with pytest.raises((LateMessage, CapacityExceeded)):
                attempt.run(kernel, known.partition)
            return
        outcome = attempt.run(kernel, known.partition)
        assert told_by(outcome) == expected
        folder.commit(known, 0, batch, outcome)
        assert known_to(known.partition) == known_to_core(core)
        assert known_to(folder.read(0, batch).partition) == known_to_core(core)
        assert known.partition.tally == Partition.count(known.partition.whole())
        again = replace(attempt, rows=draw(st.permutations(rows)))
        assert second_attempt(kernel, files, batch, again) == (outcome.table, files.content)


@dataclass(frozen=True)
class Attempt:
    """The rows of a batch as a shuffle gives them out, and its time: none in event time."""

    rows: list[Row]
    now: float | None
    latest: float

    @property
    def in_order(self) -> list[Row]:
        return sorted(self.rows, key=lambda row: [(value is not None, value or 0) for value in by_rule(row)])

    @property
    def clock(self) -> float:
        times = [row.at for row in self.rows if row.at is not None and fault_of(row, self.latest) is None]
        return max(times, default=-inf) if self.now is None else self.now

    def run(self, kernel: Kernel, partition: Partition) -> BatchOutcome:
        given = pa.Table.from_pylist([asdict(row) for row in self.rows], SCHEMA)
        return kernel.run(partition, given, self.now, by_arrival(given, IN_ORDER), self.latest)


def by_rule(row: Row) -> tuple:
    return row.at, row.epoch, row.seq, row.digest, row.body


@pytest.mark.parametrize(
    ("modulus", "timeout"), [(None, None), (None, 0.01), (None, 0.2), (None, 2.0), (256, 0.01), (256, 0.2)]
)
def test_a_long_stream_of_the_usual_trouble_is_the_cores_too_and_takes_the_fast_path(modulus, timeout):
    """Gaps fall due in the middle of batches, and rows come late: with a timeout of 0.01 most that are displaced do."""
    options = ResequenceOptions(SequenceSpace(modulus), Start.at(0), gap_timeout=timeout, on_late=OnLate.SIDE_OUTPUT)
    kernel, core, sent = Kernel(options, ROLES), Core(options), 0
    partition = kernel.new_partition(SCHEMA)
    for number, batch in enumerate(mix(keys=7, rows=6_000, batch=1_000)):
        columns = [batch[name].to_pylist() for name in ("key", "seq", "at")]
        wrap = options.space.wrap
        rows = [
            Row(key, wrap(seq), at, sent + place) for place, (key, seq, at) in enumerate(zip(*columns, strict=True))
        ]
        sent += len(rows)
        outcome = kernel.run(partition, table(rows), number + 1.0)
        assert told_by(outcome) == core.run(rows, number + 1.0)
        partition.apply(outcome.change, outcome.tally)
        assert known_to(partition) == known_to_core(core)
        assert outcome.counters.slow_keys == 0


def second_attempt(kernel, files, batch, attempt):
    """What a process gives out and writes that knows nothing but the files of the batch before."""
    copy = MemoryFiles(content=dict(files.content))
    folder = StateFolder(copy, query="q", partitions=1, keep=2)
    known = folder.open(0, batch, lambda: kernel.new_partition(SCHEMA))
    outcome = attempt.run(kernel, known.partition)
    folder.commit(known, 0, batch, outcome)
    return outcome.table, copy.content
