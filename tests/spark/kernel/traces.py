"""Random batches, the core as the measure of the kernel, and the kernel's output in the core's words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pyarrow as pa

from seriatim.core.resequencing.options import (
    DeadLettered,
    GapReported,
    Late,
    LedgerEntry,
    Released,
    ResendRequested,
    ResequenceOptions,
    SyncLost,
)
from seriatim.core.resequencing.resequencer import Resequencer, SavedResequencer
from seriatim.errors import InvalidSequence
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.arrival_order import ArrivalOrder
from seriatim.spark.kernel.intake import TOO_FAR_AHEAD
from seriatim.spark.kernel.interfaces import BatchOutcome
from seriatim.spark.kernel.keys import keys_of
from seriatim.spark.kernel.partition_state import Partition

ROLES = ColumnRoles(key="key", sequence="seq", arrival="at", epoch="epoch", payload=("digest",))
SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "seq": pa.int64(),
        "epoch": pa.int64(),
        "at": pa.float64(),
        "digest": pa.int64(),
        "body": pa.int64(),
    }
)


IN_ORDER = ArrivalOrder(("at", "epoch", "seq", "digest"), "key", ("body",))
"""The rule of ``tie_breaking.py`` for these rows."""


@dataclass(frozen=True)
class Row:
    key: str | None
    seq: int | None
    at: float | None
    body: int
    epoch: int = 0
    digest: int | str | None = None


def table(rows: list[Row]) -> pa.Table:
    """The rows as Spark hands them over: sorted by key, and within a key in order of arrival."""
    ordered = sorted(rows, key=lambda row: row.key or "")
    return pa.table({name: [getattr(row, name) for row in ordered] for name in SCHEMA.names}, schema=SCHEMA)


@dataclass
class Core:
    """The same batches, message by message through the core's resequencers."""

    options: ResequenceOptions
    machines: dict[str, Resequencer[int]] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    clock: float = -inf

    def run(
        self, rows: list[Row], now: float, latest: float = inf
    ) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """The ordered rows and everything else, each key by itself and sorted by key."""
        faults = {row.body: fault for row in rows if (fault := fault_of(row, latest)) is not None}
        invalid, rows = (
            [row for row in rows if row.body in faults],
            [row for row in rows if row.body not in faults],
        )
        self.clock = max(now, self.clock)
        for row in rows:
            assert row.key is not None
            if row.key not in self.machines:
                self.machines[row.key] = Resequencer(self.options, row.key)
        ordered: list[tuple[Any, ...]] = []
        told: list[tuple[Any, ...]] = []
        for key, machine in sorted(self.machines.items()):
            for effect in self._effects(machine, [row for row in rows if row.key == key]):
                if isinstance(effect, Released):
                    position = self.positions.get(key, 0)
                    self.positions[key] = position + 1
                    ordered.append((key, effect.message, position))
                else:
                    told.append(effect)
        self.machines = {key: machine for key, machine in self.machines.items() if machine.epoch is not None}
        unknown = (None, None, None, 1, self.clock)
        told += [("ledger", row.key, "invalid", *unknown, faults[row.body], row.body) for row in invalid]
        return ordered, sorted(told, key=lambda entry: str(entry[1]))

    def _effects(self, machine: Resequencer[int], rows: list[Row]) -> Iterator[Any]:
        for row in rows:
            assert row.at is not None
            assert row.seq is not None
            yield from self._told(machine.advance(row.at))
            try:
                yield from self._told(machine.push(row.seq, row.body, row.at, epoch=row.epoch, digest=row.digest))
            except InvalidSequence as error:
                yield (
                    "ledger",
                    row.key,
                    "invalid",
                    row.epoch,
                    row.seq,
                    row.seq,
                    1,
                    machine.save().now,
                    str(error),
                    row.body,
                )
        yield from self._told(machine.advance(self.clock))

    def _told(self, effects: list[Any]) -> Iterator[Any]:
        for effect in effects:
            match effect:
                case LedgerEntry(key, epoch, reason, first, last, size, time, detail, message):
                    yield ("ledger", key, str(reason), epoch, first, last, size, time, detail, message)
                case Late(key, epoch, sequence, message):
                    yield ("late", key, None, epoch, sequence, sequence, 1, None, None, message)
                case DeadLettered(key, epoch, sequence, message):
                    yield ("dead-letter", key, None, epoch, sequence, sequence, 1, None, None, message)
                case SyncLost(key, epoch, sequence):
                    yield ("sync-lost", key, None, epoch, sequence, sequence, 1, None, None, None)
                case ResendRequested(key, epoch, ranges):
                    yield from (("request", key, None, epoch, *span, None, None, None, None) for span in ranges)
                case GapReported(key, epoch, ranges):
                    yield from (("report", key, None, epoch, *span, None, None, None, None) for span in ranges)
                case _:
                    yield effect

    def saved(self) -> dict[str, SavedResequencer[int]]:
        return {key: machine.save() for key, machine in self.machines.items()}


def fault_of(row: Row, latest: float) -> str | None:
    """Why nobody can judge a row."""
    for value, role in ((row.key, "key"), (row.seq, "number"), (row.at, "time")):
        if value is None:
            return f"it has no {role}"
    return TOO_FAR_AHEAD if row.at is not None and row.at > latest else None


def told_by(outcome: BatchOutcome) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The kernel's output in the words of ``Core.run``."""
    return told_in(outcome.table.to_pylist())


def told_in(rows: list[dict[str, Any]]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Tagged rows in the words of ``Core.run``."""
    ordered, told = [], []
    for row in rows:
        if row["_tag"] == "ordered":
            ordered.append((row["key"], row["body"], row["_position"]))
            continue
        ranges = row["_tag"] in ("request", "report")
        told.append(
            (
                *(row["_tag"], row["key"], row["_reason"], row["_epoch"], row["_first"], row["_last"]),
                None if ranges else row["_size"],
                row["_time"] if row["_tag"] == "ledger" else None,
                row["_detail"],
                row["body"],
            )
        )
    return sorted(ordered, key=lambda row: str(row[0])), sorted(told, key=lambda entry: str(entry[1]))


def known_to(partition: Partition) -> dict[str, tuple[Any, ...]]:
    """What the partition knows of each key, in plain data."""
    facts: dict[str, tuple[Any, ...]] = {}
    content = partition.whole()
    held, gaps, given_up = (
        list(zip(*(column.tolist() for column in content.lists[name].arrays()), strict=True))
        for name in ("held", "gaps", "given_up")
    )
    bodies = content.rows["body"].to_pylist()
    for slot, key in enumerate(keys_of(content.texts["key"], partition.key_type).to_pylist()):
        row = {name: getattr(content.facts, name)[slot].item() for name in vars(content.facts)}
        gathering = row["start_deadline"] == row["start_deadline"]
        facts[key] = (
            max(row["now"], partition.clock),
            row["epoch"],
            None if gathering else row["expected"],
            row["horizon"],
            row["start_deadline"] if gathering else None,
            sorted((number, arrival, bodies[place]) for owner, number, arrival, place in held if owner == slot),
            sorted(gap[1:] for gap in gaps if gap[0] == slot),
            sorted(span[1:] for span in given_up if span[0] == slot),
            row["behind_run"],
        )
    return facts


def known_to_core(core: Core) -> dict[str, tuple[Any, ...]]:
    return {
        key: (
            saved.now,
            saved.epoch,
            saved.expected,
            saved.horizon,
            saved.start_deadline,
            sorted((number, item.arrival, item.message) for number, item in saved.held),
            sorted(saved.gaps),
            sorted(saved.given_up),
            saved.behind_run,
        )
        for key, saved in core.saved().items()
    }
