"""The kernel: one micro-batch of one partition, put in order.

Rules
-----
1. Rows and state go in; ordered rows, ledger and the change of the state come out. Nothing is read or written, no clock
   is looked at, and equal input gives equal output, byte by byte.
2. For each key the outcome is the core's: for every row, in order of arrival, ``advance(its time)`` and ``push``, and
   then ``advance(now)``, the time of the batch; also for keys without rows. Time never runs backwards for a key that is
   known. Invalid rows move no clock.
3. Ordered rows come first, key by key, each with its release position: 0, 1, 2 … for each key, going on from batch to
   batch. Everything else follows, key by key in the order in which it happened; then invalid rows, then keys that
   expired.
4. A key that holds nothing and to which nothing happened for ``idle_after`` is forgotten, with a ledger entry. If it
   comes back it is a new key: the start rule applies again, its position begins at 0, and copies of what was released
   before are not noticed.

Theory of operation
-------------------
``intake`` finds the rows that can be judged and groups them by key, ``key_index`` finds what is known of those keys,
``fast_path`` decides all keys together with numpy, and ``slow_path`` those that it left, with the core's resequencer. Both
give a ``Verdict``; here the two are put together into one table and one change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import pyarrow as pa

from seriatim.core.options import require_duration
from seriatim.core.resequencing import OnDuplicate, Resequencing
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.arrays import Bools, Ints, Pool, arange, first_of_each, flat, rising
from seriatim.spark.kernel.batch import Batch
from seriatim.spark.kernel.fast_path import FastPath
from seriatim.spark.kernel.fast_verdict import FastVerdict, wrapped
from seriatim.spark.kernel.intake import Intake, OnInvalid, check_columns, refuse, take_in
from seriatim.spark.kernel.output import Output, expired_entries, output_schema
from seriatim.spark.kernel.partition import KeyFacts, Partition, PartitionChange, Places, joined_rows, owned
from seriatim.spark.kernel.slow_path import SlowPath
from seriatim.spark.kernel.slow_path_causes import Cause, begin_sessions, slow_path_causes
from seriatim.spark.kernel.verdict import NO_SOURCE, Released, Verdict


@dataclass(frozen=True)
class Counters:
    """How many keys and rows took which path, and why keys took the slow one."""

    fast_keys: int = 0
    fast_rows: int = 0
    slow_keys: int = 0
    slow_rows: int = 0
    invalid_rows: int = 0
    causes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a batch gives out, and what it changes. ``places`` spare ``Partition.apply`` a search."""

    table: pa.Table
    change: PartitionChange
    places: Places
    counters: Counters


@dataclass(frozen=True)
class Kernel:
    """Puts the micro-batches of a partition in order, one after another."""

    options: Resequencing
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
        """How numbers count."""
        space = self.options.space
        return {"wrap": repr(space.modulus), "increment": repr(space.increment)}

    @property
    def partition_type(self) -> type[Partition]:
        return Partition

    def new_partition(self, schema: pa.Schema) -> Partition:
        """What is known before the first batch."""
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
    ) -> Outcome:
        """Decide one batch, at the time ``now``. The partition is not changed: apply the outcome's change to it.

        The rows of a key arrived in the order in which they are in the table, or in that of ``order``, numbers of rows.
        Without a ``now`` it is the time of the latest row. A row later than ``latest`` is invalid.
        """
        check_columns(self.roles, table.schema)
        partition.check_key_type(table.schema.field(self.roles.key).type)
        intake = take_in(table, self.roles, self.options.space, order, latest)
        if self.on_invalid is OnInvalid.RAISE:
            refuse(intake.invalid, intake.complaints, table, self.roles)
        clock = max(float(intake.rows.time.max(initial=-inf)) if now is None else now, partition.clock)
        batch, places = self._gather(partition, intake, table, clock)
        verdict, counters = self._decide(batch)
        idle = self._idle(partition, places.slots, clock)
        gone = ~np.isin(batch.held.row, verdict.held.row)
        messages = _Messages(table, partition, batch, gone)
        return Outcome(
            table=self._output(messages, intake, verdict, idle),
            change=_change(verdict, messages, gone, partition.keys.take(pa.array(idle))),
            places=Places(places.slots[verdict.owners], places.released[gone]),
            counters=replace(counters, invalid_rows=len(intake.invalid)),
        )

    # -- in -------------------------------------------------------------------------------------------------------------

    def _gather(self, partition: Partition, intake: Intake, table: pa.Table, clock: float) -> tuple[Batch, Places]:
        """All that is known of the keys that take part, and where it is."""
        slots = partition.index.find(intake.keys)
        others = np.setdiff1d(partition.due(clock), slots, assume_unique=True)
        slots = np.concatenate([slots, others])
        ranks = partition.ranks(slots)
        known = slots >= 0
        facts = KeyFacts.of_new_keys(len(slots))
        facts.put(np.flatnonzero(known), partition.facts.take(slots[known]))
        floors = np.where(known, np.maximum(facts.now, partition.clock), -inf)
        none = np.full(len(others), len(intake.rows))
        starts, ends = np.concatenate([intake.starts, none]), np.concatenate([intake.ends, none])
        held, gaps, given_up = partition.held, partition.gaps, partition.given_up
        places = owned(held, ranks)
        held = held.take(places).renumbered(ranks)
        held.row = held.row + table.num_rows
        batch = Batch(
            keys=pa.concat_arrays([intake.keys, partition.keys.take(pa.array(others))]),
            known=known,
            facts=facts,
            starts=starts,
            ends=ends,
            rows=replace(intake.rows, time=rising(intake.rows.time, starts, ends, floors)),
            held=held,
            gaps=gaps.take(owned(gaps, ranks)).renumbered(ranks),
            given_up=given_up.take(owned(given_up, ranks)).renumbered(ranks),
            floors=floors,
            clock=clock,
            digests=self._digests(table, partition),
        )
        return begin_sessions(batch, self.options), Places(slots, places)

    def _digests(self, table: pa.Table, partition: Partition) -> pa.Array | None:
        """The digests of all sources, where they matter."""
        name = self.roles.digest
        if name is None or self.options.on_duplicate is not OnDuplicate.CONFLICT:
            return None
        return flat(joined_rows(table.select([name]), partition.rows.select([name]))[name])

    def _idle(self, partition: Partition, slots: Ints, clock: float) -> Ints:
        """The slots of the keys that expire."""
        if self.idle_after is None:
            return arange(0)
        return np.setdiff1d(partition.idle(clock - self.idle_after), slots, assume_unique=True)

    # -- both paths -----------------------------------------------------------------------------------------------------

    def _decide(self, batch: Batch) -> tuple[Verdict, Counters]:
        causes = slow_path_causes(batch, self.options)
        tried = np.flatnonzero(causes == Cause.NONE)
        fast = FastPath(batch.select(tried), self.options)
        causes[tried] = fast.causes
        left = np.flatnonzero(causes)
        verdict = FastVerdict(fast).verdict()
        if left.size:
            slow = SlowPath(batch.select(left), self.options, raise_invalid=self.on_invalid is OnInvalid.RAISE)
            verdict = _joined(verdict.renumbered(tried), slow.verdict().renumbered(left))
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
        return verdict, counters

    # -- out ------------------------------------------------------------------------------------------------------------

    def _output(self, messages: _Messages, intake: Intake, verdict: Verdict, idle: Ints) -> pa.Table:
        output = Output(messages.table, self.roles.key)
        batch, partition = messages.batch, messages.partition
        released = replace(verdict.released, source=messages.find(verdict.released.source))
        entries = replace(verdict.entries, source=messages.find(verdict.entries.source))
        parts = [
            output.ordered(released.source, _positions(released, batch)),
            output.entries(entries, batch.keys.take(pa.array(entries.owner))),
        ]
        if intake.invalid.size:
            parts.append(output.invalid(intake.invalid, intake.complaints, batch.clock))
        if idle.size:
            facts = partition.facts.take(idle)
            expired = expired_entries(wrapped(facts.expected, self.options.space), facts.epoch, batch.clock)
            parts.append(output.entries(expired, partition.keys.take(pa.array(idle))))
        return pa.concat_tables([part for part in parts if part.num_rows] or parts[:1])


class _Messages:
    """The rows of a batch, and behind them what was held and leaves: copying what stays held would be wasted work."""

    def __init__(self, rows: pa.Table, partition: Partition, batch: Batch, gone: Bools) -> None:
        self.partition, self.batch, self.row_count = partition, batch, rows.num_rows
        leaving = np.sort(batch.held.row[gone]) - rows.num_rows
        self.table = joined_rows(rows, partition.rows_at(leaving)).combine_chunks()
        self._places = arange(rows.num_rows + partition.rows.num_rows)
        self._places[leaving + rows.num_rows] = arange(len(leaving)) + rows.num_rows

    def find(self, source: Ints) -> Ints:
        return np.where(source == NO_SOURCE, NO_SOURCE, self._places[source])


def _positions(released: Released, batch: Batch) -> Ints:
    """Where each released message stands among all that its key ever released."""
    start = np.flatnonzero(first_of_each(released.owner))
    rank = arange(len(released)) - np.repeat(start, np.diff(np.append(start, len(released))))
    return batch.facts.position[released.owner] + rank


def _joined(one: Verdict, other: Verdict) -> Verdict:
    """Both verdicts, in the order of the keys."""
    order = np.argsort(np.concatenate([one.owners, other.owners]), kind="stable")
    return Verdict(
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


def _change(verdict: Verdict, messages: _Messages, gone: Bools, expired: pa.Array) -> PartitionChange:
    """What the batch changes, for the keys that are known after it. ``gone`` marks what is held no longer."""
    batch = messages.batch
    numbers = np.full(len(batch), -1, np.int64)
    numbers[verdict.owners] = arange(len(verdict.owners))
    waiting = verdict.held.renumbered(numbers)
    added = waiting.take(waiting.row < messages.row_count)
    return PartitionChange(
        clock=batch.clock,
        keys=batch.keys.take(pa.array(verdict.owners)),
        facts=verdict.facts,
        gaps=verdict.gaps.renumbered(numbers),
        fresh_memory=verdict.fresh_memory,
        given_up=verdict.given_up.renumbered(numbers),
        released=batch.held.take(gone).renumbered(numbers),
        held=replace(added, row=arange(len(added))),
        rows=messages.table.take(pa.array(added.row)),
        expired=expired,
    )
