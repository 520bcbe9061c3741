"""The status that a pipeline saves for operators, in the store of the first topic that it reads or writes.

Rules
    - It is bounded: at most ``MAX_ENTRIES`` ledger entries of each batch are counted by key; the totals are exact.
    - Held rows are read for about ``SCAN_S`` each time, and for at most a twentieth of the time: for a large state, the
      status has only those of some partitions.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import replace
from datetime import UTC, datetime
from heapq import nlargest

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from seriatim.core.resequencing.options import Reason
from seriatim.engine.reported_status import (
    MAX_BATCHES,
    MAX_GAP_KEYS,
    MAX_HELD_KEYS,
    BatchStatus,
    HeldKey,
    KeyGaps,
    PipelineStatus,
    leave_status,
)
from seriatim.errors import SeriatimError, StateMismatch
from seriatim.log import logger
from seriatim.spark.frames.columns import column
from seriatim.spark.pipeline.declaration import Declaration, Sink, Source
from seriatim.spark.pipeline.exactly_once import TOPIC
from seriatim.spark.state_admin import held_rows
from seriatim.spark.tagged import Tag, tagged_as
from seriatim.spark.topics.address import TopicAddress

MAX_ENTRIES, REMEMBERED_KEYS = 1_000, 1_000
SCAN_S, LOOKS = 0.5, 20
COUNTED = (Reason.LOST, Reason.LATE, Reason.DUPLICATE)

Entries = list[tuple[str, str, int]]
"""Some entries of the ledger: key, reason, and how many messages or numbers they are about."""


def some_entries(tagged: DataFrame, key: str) -> Entries:
    """The first ledger entries of a batch."""
    size = F.greatest(F.col("_size"), F.lit(1))
    ledger = tagged_as(tagged, Tag.LEDGER).select(
        column(key).cast("string").alias("key"), "_reason", size.alias("size")
    )
    return [(str(row["key"]), row["_reason"], int(row["size"])) for row in ledger.limit(MAX_ENTRIES).collect()]


class StatusKeeper:
    """What a run has to tell."""

    def __init__(self, declared: Declaration) -> None:
        self._name, self._key = declared.settings.name, declared.order["key"]
        ends: tuple[Source | Sink, ...] = (declared.source, *declared.sinks)
        self._options = next((end.options for end in ends if end.format == TOPIC), None)
        self._batches: deque[BatchStatus] = deque(maxlen=MAX_BATCHES)
        self._ledger: Counter[str] = Counter()
        self._keys: dict[str, KeyGaps] = {}
        self._held: tuple[int, list[HeldKey]] = 0, []
        self._next_look = 0.0

    @property
    def is_wanted(self) -> bool:
        return self._options is not None

    def leave(self, number: int, ordered: int, ledger: dict[str, int], entries: Entries, state: str) -> None:
        """Tell operators how it goes after a batch."""
        if self._options is None:
            return
        now = datetime.now(UTC)
        self._batches.append(_batch(number, now, ordered, ledger))
        self._ledger.update(ledger)
        found: dict[str, Counter[str]] = {}
        for key, reason, size in entries:
            found.setdefault(key, Counter())[reason] += size
        for key, reasons in found.items():
            self._add(key, _batch(number, now, 0, reasons))
        self._look(state, now)
        status = PipelineStatus(
            self._name,
            now,
            list(self._batches),
            {reason: size for reason, size in self._ledger.items() if size},
            nlargest(MAX_GAP_KEYS, self._keys.values(), lambda one: (one.lost, one.late + one.duplicate + one.other)),
            *self._held,
        )
        try:
            TopicAddress.of(self._options).ask(lambda broker: leave_status(broker, status))
        except SeriatimError as error:  # it has written its batch: that is what counts
            logger.warning("pipeline %r could not leave its status in the store: %s", self._name, error)

    def _add(self, key: str, batch: BatchStatus) -> None:
        before = self._keys.pop(key, None) or KeyGaps(key, 0, 0, 0, 0, [])
        self._keys[key] = KeyGaps(
            key,
            before.lost + batch.lost,
            before.late + batch.late,
            before.duplicate + batch.duplicate,
            before.other + batch.other,
            [*before.batches, batch][-MAX_BATCHES // 4 :],
        )
        if len(self._keys) > REMEMBERED_KEYS:  # the one that nothing was said about for the longest time
            del self._keys[next(iter(self._keys))]

    def _look(self, state: str, now: datetime) -> None:
        """Look at the rows that wait, now and then, and not for long."""
        begun = time.monotonic()
        if begun < self._next_look:
            return
        known = {one.key: one for one in self._held[1]}
        count, found = 0, dict[str, HeldKey]()
        try:
            for table in held_rows(state):
                count += table.num_rows
                if self._key in table.column_names and len(found) < MAX_HELD_KEYS:
                    rows = table.slice(0, MAX_ENTRIES).select([self._key, "_first", "_last"])
                    for key, first, last in zip(*(values.to_pylist() for values in rows.columns), strict=True):
                        one = found.get(str(key)) or HeldKey(str(key), 0, first, last, now)
                        found[str(key)] = replace(one, rows=one.rows + 1)
                if time.monotonic() - begun > SCAN_S:
                    break
        except StateMismatch:  # the first batch is not complete yet
            return
        waiting = [
            replace(one, since=known[key].since) if key in known and known[key].first == one.first else one
            for key, one in found.items()
        ]
        self._held = count, waiting[:MAX_HELD_KEYS]
        self._next_look = begun + LOOKS * (time.monotonic() - begun)


def _batch(number: int, now: datetime, ordered: int, ledger: Counter[str] | dict[str, int]) -> BatchStatus:
    lost, late, duplicate = (ledger.get(reason, 0) for reason in COUNTED)
    return BatchStatus(number, now, ordered, lost, late, duplicate, sum(ledger.values()) - lost - late - duplicate)
