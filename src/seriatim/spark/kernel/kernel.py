"""The kernel: puts one micro-batch of one partition in order.

Rules
-----
1. Rows and state go in; ordered rows, ledger and the change of the state come out. There is no IO and no clock, and equal input
   gives equal output, byte by byte.
2. For each key the result is that of the core: for every row, in order of arrival, ``advance(its time)`` and ``push``, and
   then ``advance(now)``, the time of the batch; also for keys without rows. Time never runs backwards for a known key. Invalid
   rows move no clock.
3. Ordered rows come first, key by key, each with its release position: 0, 1, 2 … for each key, continuing from batch to
   batch. Everything else follows, key by key in the order of events; then invalid rows, then expired keys.
4. A key that holds nothing and had no activity for ``idle_after`` is forgotten, with a ledger entry. If it returns it
   is a new key: the start rule applies again, its position begins at 0, and copies of earlier rows are not detected.

Theory of operation
-------------------
``intake`` finds the valid rows and groups them by key, ``Partition.look_up`` finds the state of those keys, ``fast_path``
decides all keys together with numpy, and ``slow_path`` the remaining ones, with the core's resequencer. Both return a
``Decision``; the kernel merges the two into one table and one change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pyarrow as pa

from seriatim.core.resequencing.options import OnDuplicate, OnGap, ResequenceOptions
from seriatim.core.validation import require_duration
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.arrays import Bools, Floats, Ints, Pool, arange, first_of_each, flat, rising, run_bounds
from seriatim.spark.kernel.batch import NO_SOURCE, Batch, Decision, Released
from seriatim.spark.kernel.fast_path import FastPath
from seriatim.spark.kernel.fast_path_result import decision_of, wrapped
from seriatim.spark.kernel.intake import Intake, OnInvalid, check_columns, refuse, take_in
from seriatim.spark.kernel.interfaces import BatchOutcome, Counters
from seriatim.spark.kernel.key_state import GIVEN_UP, HELD, KEY, RELEASED, Content, NoLongerHeld, Times
from seriatim.spark.kernel.keys import raw_keys, require_same_keys
from seriatim.spark.kernel.output import Output, expired_entries, output_schema
from seriatim.spark.kernel.partition_state import (
    GAPS,
    Gaps,
    HeldMessages,
    KeyFacts,
    Partition,
    Ranges,
    Tally,
    dues_of,
    joined_rows,
)
from seriatim.spark.kernel.slow_path import SlowPath
from seriatim.spark.kernel.slow_path_causes import Cause, begin_sessions, slow_path_causes


@dataclass(frozen=True)
class Kernel:
    """Puts the micro-batches of a partition in order, one after another."""

    options: ResequenceOptions
    roles: ColumnRoles
    on_invalid: OnInvalid = OnInvalid.LEDGER
    idle_after: float | None = None

    def __post_init__(self) -> None:
        if self.idle_after is not None:
            require_duration("idle_after", self.idle_after)

    @property
    def timeout(self) -> float | None:
        return self.options.gap_timeout

    def meaning(self) -> dict[str, str]:
        """The options that define the sequence numbers."""
        space = self.options.space
        return {"wrap": repr(space.modulus), "increment": repr(space.increment)}

    @property
    def waits(self) -> str:
        options = self.options
        return f"{options.gap_timeout} {options.on_gap is OnGap.HOLD} {options.start.patience}"

    @property
    def partition_type(self) -> type[Partition]:
        return Partition

    def new_partition(self, schema: pa.Schema) -> Partition:
        check_columns(self.roles, schema)
        output_schema(schema)
        return Partition(schema.field(self.roles.key).type, schema)

    def run(
        self,
        partition: Partition,
        table: pa.Table,
        now: float | None,
        order: Ints | None = None,
        latest: float = inf,
    ) -> BatchOutcome:
        """Decide one batch, at the time ``now``. The partition is not changed: apply the outcome's change to it.

        The rows of a key arrived in the order of the table, or in that of ``order``, a list of row indexes. ``now`` is
        the time of the latest row by default. A row later than ``latest`` is invalid.
        """
        check_columns(self.roles, table.schema)
        require_same_keys(table.schema.field(self.roles.key).type, partition.key_type)
        intake = take_in(table, self.roles, self.options.space, order, latest)
        if self.on_invalid is OnInvalid.RAISE:
            refuse(intake.invalid, intake.complaints, table, self.roles)
        clock = max(float(intake.rows.time.max(initial=-inf)) if now is None else now, partition.clock)
        batch, places = self._gather(partition, intake, table, clock)
        decision, counters = self._decide(batch)
        since = -inf if self.idle_after is None else clock - self.idle_after
        idle, idle_facts = partition.idle(since, batch.keys)
        gone = ~np.isin(batch.held.row, decision.held.row)
        messages = _Messages(table, partition.rows_at(places[gone]), batch, gone)
        change = _change(decision, messages, gone, idle, max(since, partition.times.idled))
        return BatchOutcome(
            table=self._output(messages, intake, decision, idle, idle_facts),
            change=change,
            tally=Tally(
                keys=int(np.sum(~batch.known[decision.owners])) - len(idle),
                held=len(change.lists[HELD]) - int(gone.sum()),
                gaps=len(change.lists[GAPS]) - len(batch.gaps),
            ),
            counters=replace(counters, invalid_rows=len(intake.invalid)),
        )

    # -- input ----------------------------------------------------------------------------------------------------------

    def _gather(self, partition: Partition, intake: Intake, table: pa.Table, clock: float) -> tuple[Batch, Ints]:
        """The state of the keys that take part, and the indexes of the rows that they hold."""
        found = partition.look_up(intake.keys, clock)
        count, lists = len(found.keys), found.content.lists
        known = np.zeros(count, np.bool_)
        known[found.present] = True
        facts = KeyFacts.of_new_keys(count)
        facts.put(found.present, found.content.facts)  # type: ignore[arg-type]
        floors = np.where(known, np.maximum(facts.now, partition.clock), -inf)
        none = np.full(count - len(intake.keys), len(intake.rows))
        starts, ends = np.concatenate([intake.starts, none]), np.concatenate([intake.ends, none])
        held: HeldMessages = lists[HELD]
        gaps: Gaps = lists[GAPS]
        given_up: Ranges = lists[GIVEN_UP]
        batch = Batch(
            keys=found.keys,
            known=known,
            facts=facts,
            starts=starts,
            ends=ends,
            rows=replace(intake.rows, time=rising(intake.rows.time, starts, ends, floors)),
            held=replace(held, row=arange(len(held)) + table.num_rows),
            gaps=self._adopted(gaps, floors),
            given_up=given_up,
            floors=floors,
            clock=clock,
            digests=self._digests(table, partition, held.row),
        )
        return begin_sessions(batch, self.options), held.row

    def _adopted(self, gaps: Gaps, floors: Floats) -> Gaps:
        """Gaps that were opened under other options, adapted as by ``Resequencer.restore``."""
        limit = floors[gaps.owner] + (inf if self.timeout is None else self.timeout)
        deadline = np.minimum(gaps.deadline, limit)
        if self.options.on_gap is OnGap.HOLD:
            return replace(gaps, deadline=np.where(gaps.reported, gaps.deadline, deadline))
        starts, ends = run_bounds(gaps.owner, len(floors))
        deadline = rising(deadline, starts, ends, np.full(len(floors), -inf))
        return replace(gaps, deadline=deadline, reported=np.zeros(len(gaps), np.bool_))

    def _digests(self, table: pa.Table, partition: Partition, places: Ints) -> pa.Array | None:
        """The digests of all sources, if they are needed."""
        name = self.roles.digest
        if name is None or self.options.on_duplicate is not OnDuplicate.CONFLICT:
            return None
        return flat(joined_rows(table.select([name]), partition.rows_at(places).select([name]))[name])

    # -- both paths -----------------------------------------------------------------------------------------------------

    def _decide(self, batch: Batch) -> tuple[Decision, Counters]:
        causes = slow_path_causes(batch, self.options)
        tried = np.flatnonzero(causes == Cause.NONE)
        fast = FastPath(batch.select(tried), self.options)
        causes[tried] = fast.causes
        left = np.flatnonzero(causes)
        decision = decision_of(fast)
        if left.size:
            slow = SlowPath(batch.select(left), self.options, raise_invalid=self.on_invalid is OnInvalid.RAISE)
            decision = _joined(decision.renumbered(tried), slow.decision().renumbered(left))
        lengths = batch.ends - batch.starts
        counters = Counters(
            fast_keys=len(batch) - len(left),
            fast_rows=int(lengths.sum() - lengths[left].sum()),
            slow_keys=len(left),
            slow_rows=int(lengths[left].sum()),
            causes={
                Cause(cause).name.lower(): count for cause, count in sorted(Counter(causes[left].tolist()).items())
            },
        )
        return decision, counters

    # -- output ---------------------------------------------------------------------------------------------------------

    def _output(
        self, messages: _Messages, intake: Intake, decision: Decision, idle: pa.Array, idle_facts: KeyFacts
    ) -> pa.Table:
        output = Output(messages.table, self.roles.key)
        batch = messages.batch
        released = replace(decision.released, source=messages.find(decision.released.source))
        entries = replace(decision.entries, source=messages.find(decision.entries.source))
        parts = [
            output.ordered(released.source, _positions(released, batch)),
            output.entries(entries, batch.keys.take(pa.array(entries.owner))),
        ]
        if intake.invalid.size:
            parts.append(output.invalid(intake.invalid, intake.complaints, batch.clock))
        if len(idle):
            expired = expired_entries(wrapped(idle_facts.expected, self.options.space), idle_facts.epoch, batch.clock)
            parts.append(output.entries(expired, idle))
        return pa.concat_tables([part for part in parts if part.num_rows] or parts[:1])


class _Messages:
    """The rows of a batch, followed by the formerly held rows that leave: rows that stay held are not copied."""

    def __init__(self, rows: pa.Table, leaving: pa.Table, batch: Batch, gone: Bools) -> None:
        self.batch, self.row_count = batch, rows.num_rows
        self.table = joined_rows(rows, leaving).combine_chunks()
        self._places = arange(rows.num_rows + len(gone))
        self._places[np.flatnonzero(gone) + rows.num_rows] = arange(leaving.num_rows) + rows.num_rows

    def find(self, source: Ints) -> Ints:
        return np.where(source == NO_SOURCE, NO_SOURCE, self._places[source])


def _positions(released: Released, batch: Batch) -> Ints:
    """The position of each released message among all that its key ever released."""
    start = np.flatnonzero(first_of_each(released.owner))
    rank = arange(len(released)) - np.repeat(start, np.diff(np.append(start, len(released))))
    return batch.facts.position[released.owner] + rank


def _joined(one: Decision, other: Decision) -> Decision:
    """Both decisions, in the order of the keys."""
    order = np.argsort(np.concatenate([one.owners, other.owners]), kind="stable")
    return Decision(
        owners=np.concatenate([one.owners, other.owners])[order],
        released=_merged(one.released, other.released),
        entries=_merged(one.entries, other.entries),
        facts=KeyFacts.concat([one.facts, other.facts]).take(order),
        gaps=_merged(one.gaps, other.gaps),
        fresh_memory=np.concatenate([one.fresh_memory, other.fresh_memory])[order],
        given_up=_merged(one.given_up, other.given_up),
        held=_merged(one.held, other.held),
    )


def _merged(one: Pool, other: Pool) -> Pool:
    both = type(one).concat([one, other])
    return both.take(np.argsort(both.owner, kind="stable"))


def _change(decision: Decision, messages: _Messages, gone: Bools, idle: pa.Array, idled: float) -> Content:
    """The change of the batch, for the keys known after it. ``gone`` marks messages that are no longer held."""
    batch, count = messages.batch, len(decision.owners)
    numbers = np.full(len(batch), -1, np.int64)
    numbers[decision.owners] = arange(count)
    waiting = decision.held.renumbered(numbers)
    added = waiting.take(waiting.row < messages.row_count)
    gaps, left = decision.gaps.renumbered(numbers), batch.held.take(gone).renumbered(numbers)
    is_idle = np.repeat([False, True], [count, len(idle)])
    return Content(
        times=Times(batch.clock, batch.clock, idled),
        texts={KEY: raw_keys(pa.concat_arrays([batch.keys.take(pa.array(decision.owners)), idle]))},
        facts=KeyFacts.concat([decision.facts, KeyFacts.of_new_keys(len(idle))]),
        due=np.append(dues_of(decision.facts, gaps), np.full(len(idle), inf)),
        fresh=np.append(decision.fresh_memory, np.ones(len(idle), np.bool_)),
        gone=is_idle,
        lists={
            GAPS: gaps,
            GIVEN_UP: decision.given_up.renumbered(numbers),
            HELD: replace(added, row=arange(len(added))),
            RELEASED: NoLongerHeld(left.owner, left.number),
        },
        rows=messages.table.take(pa.array(added.row)),
    )
