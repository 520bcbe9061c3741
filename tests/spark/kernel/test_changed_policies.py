"""A query that is started again with other policies: no row is lost, none waits for ever, and the core says what happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from seriatim.core.resequencing.options import OnGap, ResequenceOptions, Start
from seriatim.core.resequencing.resequencer import Resequencer
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import StateMismatch
from seriatim.spark.kernel.kernel import Kernel
from seriatim.spark.kernel.partition_state import Partition
from seriatim.spark.state.batch_versions import StateFolder, bound_folder
from seriatim.spark.state.repartition import repartition
from tests.core.resequencing.test_changed_options import policies
from tests.spark.kernel.traces import ROLES, SCHEMA, Core, Row, known_to, known_to_core, table, told_by
from tests.spark.state.memory_files import MemoryFiles
from tests.spark.state.repartitioning import by_function

FROM_0 = ResequenceOptions(start=Start.at(0))


class Query:
    """A query that may be started again with other options between two batches."""

    def __init__(self, options: ResequenceOptions) -> None:
        self.files, self.batch, self.sent = MemoryFiles(), 0, 0
        self.restart(options)

    def restart(self, options: ResequenceOptions) -> None:
        self.kernel = Kernel(options, ROLES)

    def folder(self) -> StateFolder:
        return StateFolder(self.files, query="q", partitions=1, waits=self.kernel.waits)

    def rows(self, *numbers: int, key: str = "k", at: float = 0) -> list[Row]:
        self.sent += len(numbers)
        bodies = range(self.sent - len(numbers), self.sent)
        return [Row(key, number, at, body) for number, body in zip(numbers, bodies, strict=True)]

    def attempt(self, rows: list[Row], now: float | None = None) -> tuple[Partition, Any]:
        folder = self.folder()
        known = folder.open(0, self.batch, lambda: self.kernel.new_partition(SCHEMA))
        outcome = self.kernel.run(known.partition, table(rows), now)
        folder.commit(known, 0, self.batch, outcome)
        return known.partition, outcome

    def run(self, rows: list[Row], now: float | None = None) -> tuple[Partition, Any]:
        found = self.attempt(rows, now)
        self.batch += 1
        return found

    def released(self, rows: list[Row], now: float | None = None) -> list[int]:
        _, outcome = self.run(rows, now)
        return [row["seq"] for row in outcome.table.to_pylist() if row["_tag"] == "ordered"]


# -- what was lost, or waited for ever ----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [Start.at(0), Start.first_seen()])
def test_rows_that_were_gathered_are_released_when_the_start_is_changed(start):
    query = Query(ResequenceOptions(start=Start.lowest_within(6)))
    assert query.released(query.rows(3, 5)) == []
    query.restart(ResequenceOptions(start=start))
    assert query.released(query.rows(4, at=1)) == [3, 4, 5]
    assert query.released(query.rows(6, at=2)) == [6]


def test_a_gap_without_a_deadline_gets_one_though_no_row_of_its_key_comes():
    query = Query(FROM_0)
    query.run(query.rows(1))
    query.restart(replace(FROM_0, gap_timeout=5))
    assert query.released(query.rows(0, key="other", at=1)) == [0]
    assert query.released(query.rows(1, key="other", at=5)) == [1, 1]


def test_a_gap_that_was_reported_is_given_up_when_that_is_chosen():
    query = Query(replace(FROM_0, gap_timeout=5, on_gap=OnGap.HOLD))
    query.run(query.rows(1))
    query.run(query.rows(0, key="other", at=9))
    query.restart(replace(FROM_0, gap_timeout=5))
    assert query.released(query.rows(1, key="other", at=13)) == [1]
    assert query.released(query.rows(2, key="other", at=14)) == [2, 1]


def test_a_shorter_timeout_counts_for_gaps_that_are_open():
    query = Query(replace(FROM_0, gap_timeout=100))
    query.run(query.rows(1))
    query.restart(replace(FROM_0, gap_timeout=5))
    assert query.released(query.rows(0, key="other", at=5)) == [0, 1]


def test_a_tick_comes_at_once_where_rows_wait_under_other_options():
    query = Query(FROM_0)
    query.run(query.rows(1))
    assert not query.folder().due_by(1e9)
    query.restart(replace(FROM_0, gap_timeout=5))
    assert query.folder().due_by(0)
    query.run([], now=1)
    assert [query.folder().due_by(moment) for moment in (4.9, 5)] == [False, True]


def test_nothing_is_looked_at_where_nothing_waits_or_nothing_changed():
    query = Query(FROM_0)
    query.run(query.rows(0))
    query.restart(replace(FROM_0, gap_timeout=5))
    assert not query.folder().due_by(1e9)
    query.run(query.rows(2))
    query.restart(replace(FROM_0, gap_timeout=5, capacity=7))
    _, outcome = query.run(query.rows(0, key="other"))
    assert outcome.change.texts["key"].to_pylist() == [b"other"]


# -- a batch that is run again ------------------------------------------------------------------------------------------


def test_a_batch_after_a_change_may_be_run_again():
    query = Query(FROM_0)
    query.run(query.rows(1))
    query.restart(replace(FROM_0, gap_timeout=5))
    rows = query.rows(0, key="other", at=1)
    _, first = query.attempt(rows)
    written = dict(query.files.content)
    _, again = query.attempt(rows)
    assert again.table == first.table
    assert query.files.content == written


def test_a_batch_that_was_begun_before_a_change_is_ended_and_the_next_one_looks_at_what_waits():
    query = Query(FROM_0)
    query.run(query.rows(1))
    rows = query.rows(0, key="other", at=1)
    query.attempt(rows)
    query.restart(replace(FROM_0, gap_timeout=5))
    query.run(rows)
    assert query.released(query.rows(1, key="other", at=2)) == [1]
    assert query.released(query.rows(2, key="other", at=6)) == [2, 1]


def test_a_batch_that_a_change_would_decide_otherwise_is_refused():
    query = Query(FROM_0)
    query.run(query.rows(1))
    rows = query.rows(3, at=9)
    query.attempt(rows)
    query.restart(replace(FROM_0, gap_timeout=5))
    with pytest.raises(StateMismatch, match="options were changed before the batch was done"):
        query.attempt(rows)


def test_a_change_is_noticed_after_a_repartition_too():
    query = Query(FROM_0)
    query.run(query.rows(1))
    query.run(query.rows(3))
    repartition(query.files, 2, by_function(lambda keys: np.ones(len(keys), np.int64)))
    for waits in ("", query.kernel.waits):
        assert bound_folder(query.files, waits=waits).due_by(1e9) == (waits == "")


# -- any change ---------------------------------------------------------------------------------------------------------

SPACES = [SequenceSpace(), SequenceSpace(16), SequenceSpace(20, 2)]


@given(space=st.sampled_from(SPACES), data=st.data())
def test_no_change_of_policies_loses_a_row_or_lets_one_wait_for_ever_and_the_core_decides_the_same(space, data):
    draw, now = data.draw, 0.0
    query = Query(draw(policies(space)))
    core = Core(query.kernel.options)
    came_out: Counter[int] = Counter()
    for _ in range(draw(st.integers(1, 5))):
        rows = []
        for key, number, pause in draw(
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.sampled_from([0, 1, 7])), max_size=8)
        ):
            now += pause
            rows += query.rows(space.wrap(number * space.increment + 5), key=key, at=now)
        now += draw(st.sampled_from([0, 3]))
        run(query, core, rows, now, came_out)
        options = draw(policies(space))
        query.restart(options)
        restart(core, options)
    if query.kernel.options.on_gap is not OnGap.HOLD and query.kernel.options.gap_timeout is not None:
        for _ in range(5):
            now += 100
            partition = run(query, core, [], now, came_out)
        assert partition.tally.held == 0
        assert sorted(came_out.elements()) == [*range(query.sent)]


def run(query: Query, core: Core, rows: list[Row], now: float, came_out: Counter[int]) -> Partition:
    """One batch, after which every row is ordered, in the ledger, or held: once."""
    partition, outcome = query.run(rows, now)
    assert told_by(outcome) == core.run(rows, now)
    assert _comparable(known_to(partition)) == _comparable(known_to_core(core))
    assert partition.tally == Partition.count(partition.whole())
    told = outcome.table.to_pylist()
    came_out.update(row["body"] for row in told if row["_tag"] in ("ordered", "ledger") and row["body"] is not None)
    held = partition.whole().rows["body"].to_pylist()
    assert sorted([*came_out.elements(), *held]) == [*range(query.sent)]
    return partition


def restart(core: Core, options: ResequenceOptions) -> None:
    core.options = options
    core.machines = {
        key: Resequencer.restore(replace(machine.save(), now=max(machine.save().now, core.clock)), options, key)
        for key, machine in core.machines.items()
    }


def _comparable(known: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Without the run behind: a key that holds nothing is not looked at, and may count on where the core's forgot it."""
    return {key: facts[:-1] for key, facts in known.items()}


def test_a_partition_that_was_never_decided_under_known_options_is_looked_at():
    """Versions of the first format, and of the second before it noted them."""
    query = Query(FROM_0)
    query.run(query.rows(1))
    folder = StateFolder(query.files, query="q", partitions=1)
    known = folder.open(0, 1, lambda: query.kernel.new_partition(SCHEMA))
    assert known.partition.is_to_be_revisited
    assert query.folder().open(0, 1, lambda: query.kernel.new_partition(SCHEMA)).partition.is_to_be_revisited is False
    assert known.partition.look_up(known.partition.keys.slice(0, 0), -inf).keys.to_pylist() == ["k"]
