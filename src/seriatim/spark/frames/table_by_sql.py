"""Puts a whole table in order, in pure SQL.

Rules
-----
1. The result is that of the core (``core.resequencing``) for the same rows, epoch by epoch in order of arrival, if nothing is
   given up before the last row: every number is released once, in order, as its first copy by arrival. ``tie_breaking.py``
   decides which of several copies that arrived together is the first.
2. Everything else has a ledger entry: a further copy (``duplicate``, or ``conflict`` if its payload differs), a range of
   missing numbers (``lost``; its time is the arrival of the next row), a row before a literal start (``late``), a row that
   can't be judged (``invalid``).
3. The output is a tagged table like that of the streaming kernel (``tagged.py``), so the same code works with both.

Theory of operation
-------------------
One shuffle brings the rows of a key together and one sort puts them in order; then a row and the previous row tell everything.
Keys are sorted by a hash first, and then by themselves: Spark compares the first 64 bits of a sort key without reading the row,
and the first letters of keys are mostly the same.

Rows that can never be released have no number in the intermediate steps: they sort behind those of their key, so that
``dense_rank`` of the rest is the release position. A gap becomes a row by ``explode`` of a constant list, which has one
element for most rows.

Two neighbours are not enough for options that depend on the order of arrival. Whether a number that wraps (``wrap``) is ahead
or behind depends on all earlier rows, also within an epoch, which may wrap more than once; what is late after a
``gap_timeout`` depends on the time; and a session that starts with the first arrival makes others late. The kernel handles
these, row by row in order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from seriatim.core.resequencing.options import OnDuplicate, Reason
from seriatim.core.sequence import SequenceSpace
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.frames.columns import Fault, arrival_time, column, faults_in, first_fault, refuse_taken
from seriatim.spark.frames.tie_breaking import comparable, other_columns, payload_digest, tie_numbers
from seriatim.spark.kernel.intake import OnInvalid
from seriatim.spark.tagged import ADDED_COLUMNS, INVALID, Tag

# Intermediate columns; none of them is in the output.
INTERMEDIATE = tuple(
    f"__seriatim_{name}"
    for name in (
        *("group", "number", "session", "previous", "new_session", "rank"),
        *("digest", "first_digest", "is_entry", "reason"),
    )
)
GROUP, NUMBER, SESSION, PREVIOUS, NEW_SESSION, RANK, DIGEST, FIRST_DIGEST, IS_ENTRY, REASON = INTERMEDIATE


def put_in_order(frame: DataFrame, roles: ColumnRoles, rules: Rules) -> DataFrame:
    """The tagged table of a static frame, for roles that were found in it."""
    return _Batch(frame, roles, rules).tagged()


@dataclass(frozen=True, slots=True)
class Rules:
    """The options of a batch. ``start`` is None for the lowest number there is."""

    space: SequenceSpace
    start: int | None
    on_duplicate: OnDuplicate
    on_invalid: OnInvalid

    def faults(self, roles: ColumnRoles) -> list[Fault]:
        """What more can be wrong with a number, once it is one."""
        if self.start is None or self.space.increment == 1:
            return []
        step, number = self.space.increment, column(roles.sequence)
        off_grid = F.pmod(number.cast("bigint"), F.lit(step)) != self.start % step
        return [Fault(f"its number is off the grid: {self.start} and multiples of {step} from there", off_grid)]

    def too_low(self, roles: ColumnRoles) -> list[Fault]:
        if self.start is None:
            return []
        return [Fault("before the start", column(roles.sequence) < self.start)]


class _Batch:
    """The steps for one static frame. Expressions are over the rows as the step before leaves them."""

    def __init__(self, frame: DataFrame, roles: ColumnRoles, rules: Rules) -> None:
        refuse_taken(frame, (*ADDED_COLUMNS, *INTERMEDIATE))
        self.frame, self.roles, self.rules = frame, roles, rules
        self.invalid = [*faults_in(frame, roles), *rules.faults(roles)]
        self.late = rules.too_low(roles)

    def tagged(self) -> DataFrame:
        together = self.frame.repartition(column(self.roles.key))
        return self._tagged(self._with_entries(self._with_neighbours(self._with_numbers(together))))

    # -- order ----------------------------------------------------------------------------------------------------------

    def _with_numbers(self, rows: DataFrame) -> DataFrame:
        """Every row with what it is sorted by: its number, and its session if there are any; none if it can't be released."""
        is_sound = first_fault([*self._invalid_or_raise(), *self.late]) == 0
        numbers = {
            GROUP: F.xxhash64(column(self.roles.key)),
            NUMBER: F.when(is_sound, column(self.roles.sequence).cast("bigint")),
        }
        if self.roles.epoch is not None:
            numbers[SESSION] = F.when(is_sound, column(self.roles.epoch))
        if self._compares_payloads:
            numbers[DIGEST] = payload_digest(self.frame, self.roles.payload)
        return rows.withColumns(numbers)

    @property
    def _compares_payloads(self) -> bool:
        return self.rules.on_duplicate is OnDuplicate.CONFLICT

    def _invalid_or_raise(self) -> list[Fault]:
        if self.rules.on_invalid is not OnInvalid.RAISE:
            return self.invalid
        refusal = "on_invalid='raise': row with key %s and number %s can't be judged"
        complaint = F.raise_error(F.format_string(refusal, column(self.roles.key), column(self.roles.sequence)))
        return [fault._replace(code=complaint.cast("int")) for fault in self.invalid]

    def _with_neighbours(self, rows: DataFrame) -> DataFrame:
        """Every row of a key in order, with what the row before it and its place tell."""
        key = column(self.roles.key)
        numbers = [NUMBER] if self.roles.epoch is None else [SESSION, NUMBER]
        in_order = [F.col(name).asc_nulls_last() for name in numbers]
        # The order is made here, and not left to the window: its own ends where copies begin, and theirs is the arrival.
        rows = rows.sortWithinPartitions(GROUP, key, *in_order, *self._order_of_copies())
        return rows.select("*", *self._neighbour_columns(Window.partitionBy(GROUP, key).orderBy(*in_order)))

    def _order_of_copies(self) -> list[Column]:
        """The rule of ``tie_breaking.py``, without which a copy could be the first in one action and not in the next."""
        digest = [F.col(DIGEST)] if self._compares_payloads else []
        numbers = map(column, tie_numbers(self.frame, self.roles))
        return [*numbers, *digest, *comparable(self.frame, other_columns(self.frame, self.roles))]

    def _neighbour_columns(self, neighbours: WindowSpec) -> Iterator[Column]:
        yield F.lag(NUMBER).over(neighbours).alias(PREVIOUS)
        yield F.dense_rank().over(neighbours).alias(RANK)
        if self.roles.epoch is not None:
            yield (~F.col(SESSION).eqNullSafe(F.lag(SESSION).over(neighbours))).alias(NEW_SESSION)
        if self._compares_payloads:
            copies = neighbours.rangeBetween(Window.currentRow, Window.currentRow)
            yield F.first(DIGEST).over(copies).alias(FIRST_DIGEST)

    def _is_first_of_session(self) -> Column:
        return F.col(PREVIOUS).isNull() if self.roles.epoch is None else F.col(NEW_SESSION)

    # -- entries --------------------------------------------------------------------------------------------------------

    def _with_entries(self, rows: DataFrame) -> DataFrame:
        """Each row once, or twice if it follows a hole; ``IS_ENTRY`` is true for what goes into the ledger."""
        row, entry, both = F.array(F.lit(False)), F.array(F.lit(True)), F.array(F.lit(True), F.lit(False))
        is_released = F.col(NUMBER).isNotNull() & ~self._is_copy()
        copies = F.when(self._follows_hole(), both).when(is_released, row).otherwise(entry)
        return rows.select("*", F.explode(copies).alias(IS_ENTRY))

    def _is_copy(self) -> Column:
        return ~self._is_first_of_session() & (F.col(PREVIOUS) == F.col(NUMBER))

    def _follows_hole(self) -> Column:
        is_first = self._is_first_of_session()
        follows = ~is_first & (F.col(PREVIOUS) + self.rules.space.increment < F.col(NUMBER))
        if self.rules.start is not None:
            follows = follows | (is_first & (F.col(NUMBER) > self.rules.start))
        return F.col(NUMBER).isNotNull() & follows

    def _is_hole(self) -> Column:
        return F.col(IS_ENTRY) & self._follows_hole()

    def _first_missing(self) -> Column:
        after_previous = F.col(PREVIOUS) + self.rules.space.increment
        if self.rules.start is None:
            return after_previous
        return F.when(self._is_first_of_session(), F.lit(self.rules.start).cast("bigint")).otherwise(after_previous)

    # -- tags -----------------------------------------------------------------------------------------------------------

    def _tagged(self, rows: DataFrame) -> DataFrame:
        rows = rows.withColumn(REASON, F.when(F.col(IS_ENTRY), self._reason()))
        own = {
            "_tag": F.when(F.col(IS_ENTRY), F.lit(Tag.LEDGER)).otherwise(F.lit(Tag.ORDERED)),
            "_position": F.when(~F.col(IS_ENTRY), F.col(RANK).cast("bigint") - 1),
            **{name: F.when(F.col(IS_ENTRY), value) for name, value in self._entry().items()},
        }
        tag, *others = (own[name].alias(name) for name in ADDED_COLUMNS)
        return rows.select(tag, *map(self._of_message, self.frame.columns), *others)

    def _reason(self) -> Column:
        copy: Column = F.lit(Reason.DUPLICATE)
        if self._compares_payloads:
            copy = F.when(F.col(DIGEST) == F.col(FIRST_DIGEST), copy).otherwise(F.lit(Reason.CONFLICT))
        return (
            F.when(self._is_hole(), F.lit(Reason.LOST))
            .when(F.col(NUMBER).isNotNull(), copy)
            .when(first_fault(self.invalid) > 0, F.lit(INVALID))
            .otherwise(F.lit(Reason.LATE))
        )

    def _of_message(self, name: str) -> Column:
        value = column(name)
        return (value if name == self.roles.key else F.when(~self._is_hole(), value)).alias(name)

    def _entry(self) -> dict[str, Column]:
        """The columns of a ledger entry. Nobody knows the numbers of an invalid row; its own columns tell."""
        is_hole, is_judged = self._is_hole(), F.col(REASON) != INVALID
        number = column(self.roles.sequence).cast("bigint")
        first = F.when(is_hole, self._first_missing()).otherwise(number)
        last = F.when(is_hole, number - self.rules.space.increment).otherwise(number)
        epoch = F.lit(0) if self.roles.epoch is None else column(self.roles.epoch)
        return {
            "_epoch": F.when(is_judged, epoch.cast("bigint")),
            "_reason": F.col(REASON),
            "_first": F.when(is_judged, first),
            "_last": F.when(is_judged, last),
            "_size": F.when(is_hole, self._steps(last - first) + 1).otherwise(F.lit(1)).cast("bigint"),
            "_time": arrival_time(self.frame, self.roles.arrival),
            "_detail": self._detail(),
        }

    def _steps(self, distance: Column) -> Column:
        step = self.rules.space.increment
        return distance if step == 1 else F.call_function("div", distance, F.lit(step))

    def _detail(self) -> Column:
        detail = F.when(self._is_hole(), F.lit("no row has these numbers")).when(
            F.col(NUMBER).isNotNull(), F.lit("another copy came first")
        )
        for fault in [*self.invalid, *self.late]:
            detail = detail.when(fault.applies, F.lit(fault.detail))
        return detail
