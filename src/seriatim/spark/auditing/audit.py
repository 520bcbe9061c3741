"""In what order did a table arrive, per key?

Rules
-----
1. The verdict on a key is that of the core (``core/traces.py``) on its rows in order of arrival: the same counts, the same
   guarantee and the same text of the first witnesses. ``tie_breaking.py`` orders rows that arrived together.
2. A *conflict* is a further copy of a number whose payload differs from that of the first copy. It has its own witness, before
   that of the first duplicate.
3. Without an arrival column the order is unknown: ``no_inversion`` and ``guarantee`` are null, and so are ``reordered`` and
   ``max_displacement``. Duplicates, conflicts and losses need no order.
4. A row that can't be judged (no key, no number, no time) counts as ``invalid`` and is otherwise ignored. The first one of a
   key is its last witness. Rows without a key are reported together, under the key null.

Theory of operation
-------------------
One shuffle brings the rows of a key together, with a digest instead of the payload. Sorted by arrival, the highest number so
far shows what was overtaken, and by how much. Sorted by number, the previous row shows copies and gaps. numpy does both sorts,
in chunks of whole keys (``facts.py``). If that is not possible, SQL does the same: without an arrival, with keys or arrivals of
other types, or if the rows of a key may not fit into memory. Its second sort moves no data between machines, and its input is
almost sorted.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    IntegralType,
    StringType,
)

from seriatim.core.guarantees import Level
from seriatim.errors import InvalidArgument
from seriatim.spark.auditing.facts import COUNTS as COUNTED
from seriatim.spark.auditing.facts import WITNESSES, AuditTask
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.frames.columns import Fault, Transformation, column, faults_in, found_in
from seriatim.spark.frames.tie_breaking import offset_beside, payload_digest

GROUP, KEY, NUMBER, ARRIVAL, DIGEST = "group", "key", "number", "arrival", "digest"
OFFSET, COMPLAINT = "offset", "complaint"
AT, HIGHEST, PREVIOUS, FIRST_DIGEST = "at", "highest", "previous", "first_digest"

COUNTS = ("rows", "distinct", "duplicates", "conflicts", "lost", "reordered", "max_displacement", "invalid")
BITS = ("no_inversion", "no_duplicate", "no_loss")
AUDIT_COLUMNS = (*COUNTS, *BITS, "guarantee", "witnesses")
"""The columns of an audit besides the key."""


def audit(
    *,
    key: str,
    sequence: str,
    arrival: str | None = None,
    payload: str | Sequence[str] = (),
    in_memory: bool = True,
) -> Transformation:
    """A transformation that returns one row per key: what was received, and which guarantee held.

    ``arrival`` is the column with the order of arrival, by default ``offset`` if there is one. Copies of a number are compared
    by the columns ``payload``. ``in_memory=False`` is slower; use it if a key has more rows (tens of millions) than fit into a
    worker's memory.
    """
    roles = ColumnRoles(key, sequence, arrival, None, (payload,) if isinstance(payload, str) else tuple(payload))

    def transformation(frame: DataFrame) -> DataFrame:
        if frame.isStreaming:
            raise InvalidArgument("an audit needs all rows: write the stream to a table, and audit that")
        if key in AUDIT_COLUMNS:
            raise InvalidArgument(f"the audit has a column '{key}' of its own: rename yours")
        found = found_in(frame, roles)
        if in_memory and _suits_numpy(frame, found):
            return _verdicts(_facts_by_numpy(frame, found), key, has_order=True)
        return _verdicts(_facts(judged(frame, found)), key, has_order=found.arrival is not None)

    return transformation


def total(verdicts: DataFrame) -> DataFrame:
    """One row for all keys together: the sums, the furthest displacement, and the guarantee that held for every key."""
    is_judged = F.count("*") == F.count(BITS[0])  # all keys or none
    bits = {name: F.coalesce(F.every(name), F.lit(True)) for name in BITS}  # an empty table breaks no promise
    bits[BITS[0]] = F.when(is_judged, bits[BITS[0]])
    totals = {"keys": F.count(column(verdicts.columns[0])), **{name: _together(name) for name in COUNTS}, **bits}
    return verdicts.agg(*(value.alias(name) for name, value in totals.items())).withColumn("guarantee", _level())


def _together(count: str) -> Column:
    if count == "max_displacement":
        return F.max(count)
    # Where order was not judged, what was reordered was not counted.
    is_unknown = F.count("*") > F.count(count)
    return F.when(~is_unknown, F.coalesce(F.sum(count), F.lit(0))).cast("bigint")


def worst_first(key: str) -> list[Column]:
    """The order of keys from the worst to the best: by level, then by the number of faults.

    Keys with rows that can't be judged rank with the lowest level, because nothing can be promised for them.
    """
    bits = [F.when(F.col("no_inversion") & F.col(name), 1).otherwise(0) for name in BITS]
    level = F.when(F.col("invalid") > 0, 0).otherwise(bits[0] + bits[1] + bits[2])
    counts = (F.coalesce(F.col(name), F.lit(0)) for name in ("conflicts", "lost", "reordered", "invalid"))
    return [level, sum(counts, F.col("duplicates")).desc(), column(key)]


# --- rows ---------------------------------------------------------------------------------------------------------------


def judged(frame: DataFrame, roles: ColumnRoles) -> DataFrame:
    """The rows of a frame, narrow, with what their neighbours in both orders tell.

    ``number`` is null for a row that can't be judged. ``at`` counts the rows of a key by arrival, and ``highest`` is the
    highest number before (both null without an arrival). ``previous`` is the next lower number, or the same for a copy;
    ``first_digest`` is that of the first copy. ``complaint`` says why a row can't be judged.
    """
    # Sorted by a hash of the key first: see the theory of ``table_by_sql.py``.
    together = _narrow(frame, roles).repartition(F.col(KEY)).withColumn(GROUP, F.xxhash64(KEY))
    rows = _in_order_of_arrival(together, roles)
    by_number = Window.partitionBy(GROUP, KEY).orderBy(NUMBER)
    # The order is made here, and not left to the window: its own ends where copies begin, and theirs is the arrival.
    rows = rows.sortWithinPartitions(GROUP, KEY, NUMBER, AT, *_present(rows, DIGEST))
    neighbours = [F.lag(NUMBER).over(by_number).alias(PREVIOUS)]
    if roles.payload:
        copies = by_number.rangeBetween(Window.currentRow, Window.currentRow)
        neighbours.append(F.first(DIGEST).over(copies).alias(FIRST_DIGEST))
    return rows.select("*", *neighbours)


def _narrow(frame: DataFrame, roles: ColumnRoles) -> DataFrame:
    """All that is needed of a row, and of its payload the digest."""
    complaint = _complaint(list(faults_in(frame, roles)), roles)
    columns = {
        KEY: column(roles.key),
        NUMBER: F.when(complaint.isNull(), column(roles.sequence).cast("bigint")),
        COMPLAINT: complaint,
    }
    if roles.arrival is not None:
        columns[ARRIVAL] = column(roles.arrival)
    offset = offset_beside(frame, roles)
    if offset is not None:
        columns[OFFSET] = column(offset)
    if roles.payload:
        columns[DIGEST] = payload_digest(frame, roles.payload)
    return frame.select(*(value.alias(name) for name, value in columns.items()))


def _complaint(faults: Sequence[Fault], roles: ColumnRoles) -> Column:
    """Which row it is and why it can't be judged; null for one that can."""
    named = [("with number ", roles.sequence), ("that arrived at ", roles.arrival)]
    details = [F.concat(F.lit(words), column(name).cast("string")) for words, name in named if name is not None]
    complaint: Column = F.lit(None).cast("string")
    for fault in reversed(faults):
        text = F.concat_ws(" ", F.lit("a row"), *details, F.lit(f"can't be judged: {fault.detail}"))
        complaint = F.when(fault.applies, text).otherwise(complaint)
    return complaint


def _present(rows: DataFrame, *names: str) -> list[str]:
    return [name for name in names if name in rows.columns]


def _in_order_of_arrival(rows: DataFrame, roles: ColumnRoles) -> DataFrame:
    if roles.arrival is None:
        return rows.withColumns({AT: F.lit(None).cast("bigint"), HIGHEST: F.lit(None).cast("bigint")})
    # The rule of ``tie_breaking.py``, as far as it matters here: rows that are equal in all of these get the same verdict.
    order = _present(rows, ARRIVAL, OFFSET, NUMBER, DIGEST)
    by_arrival = Window.partitionBy(GROUP, KEY).orderBy(*order)
    before = by_arrival.rowsBetween(Window.unboundedPreceding, -1)
    return rows.withColumns({AT: F.count(NUMBER).over(before), HIGHEST: F.max(NUMBER).over(before)})


def _suits_numpy(frame: DataFrame, roles: ColumnRoles) -> bool:
    if roles.arrival is None or isinstance(frame.schema[roles.arrival].dataType, DecimalType):
        return False
    kind = frame.schema[roles.key].dataType
    return kind == StringType() or isinstance(kind, (BinaryType, BooleanType, IntegralType))


def _facts_by_numpy(frame: DataFrame, roles: ColumnRoles) -> DataFrame:
    rows = _narrow(frame, roles).repartition(F.col(KEY)).withColumn(GROUP, F.xxhash64(KEY)).sortWithinPartitions(GROUP)
    witnesses = [
        f"{name} struct<{', '.join(f'{part}: bigint' for part in parts)}>" for name, parts in WITNESSES.items()
    ]
    kind = frame.schema[roles.key].dataType.simpleString()
    schema = [f"{KEY} {kind}", *(f"{name} bigint" for name in COUNTED), *witnesses, "first_invalid string"]
    return rows.mapInArrow(AuditTask().run, ", ".join(schema))


# --- keys ---------------------------------------------------------------------------------------------------------------


def _facts(rows: DataFrame) -> DataFrame:
    """One row for each key: counts, and the first of each kind of fault."""
    row_faults = RowFaults(has_digest=DIGEST in rows.columns)
    facts = {
        "rows": F.count(NUMBER),
        "invalid": F.count("*") - F.count(NUMBER),
        "duplicates": F.count_if(row_faults.copied),
        "conflicts": F.count_if(row_faults.conflicting),
        "reordered": F.count(row_faults.behind),
        "max_displacement": F.coalesce(F.max(row_faults.behind), F.lit(0)),
        "span": F.coalesce(F.max(NUMBER) - F.min(NUMBER) + 1, F.lit(0)),
        "first_inverted": _first_where(row_faults.inverted, AT, NUMBER, HIGHEST),
        # Without an arrival no copy came first: the one with the lowest number.
        "first_copied": _first_where(row_faults.copied, AT, NUMBER),
        "first_conflict": _first_where(row_faults.conflicting, AT, NUMBER),
        "first_hole": _first_where(row_faults.after_hole, NUMBER, PREVIOUS),
        "first_invalid": _first_where(F.col(COMPLAINT).isNotNull(), *_present(rows, ARRIVAL), COMPLAINT)[COMPLAINT],
    }
    return rows.groupBy(GROUP, KEY).agg(*(value.alias(name) for name, value in facts.items()))


def _first_where(condition: Column, *names: str) -> Column:
    """These columns of the first row, by their own order, that the condition is true of."""
    return F.min(F.when(condition, F.struct(*names)))


class RowFaults:
    """The faults of a row, as expressions over its neighbours."""

    def __init__(self, *, has_digest: bool) -> None:
        self.copied = F.coalesce(F.col(PREVIOUS) == F.col(NUMBER), F.lit(False))
        self.inverted = F.coalesce(F.col(HIGHEST) > F.col(NUMBER), F.lit(False))
        self.after_hole = F.coalesce(F.col(PREVIOUS) + 1 < F.col(NUMBER), F.lit(False))
        self.behind = F.when(self.inverted & ~self.copied, F.col(HIGHEST) - F.col(NUMBER))
        self.conflicting = self.copied & (F.col(DIGEST) != F.col(FIRST_DIGEST)) if has_digest else F.lit(False)


def _verdicts(facts: DataFrame, key: str, *, has_order: bool) -> DataFrame:
    distinct = F.col("rows") - F.col("duplicates")
    lost = F.col("span") - distinct
    no_inversion = F.col("first_inverted").isNull() if has_order else F.lit(None).cast("boolean")
    counts = {
        "rows": F.col("rows"),
        "distinct": distinct,
        "duplicates": F.col("duplicates"),
        "conflicts": F.col("conflicts"),
        "lost": lost,
        "reordered": F.when(F.lit(has_order), F.col("reordered")),
        "max_displacement": F.when(F.lit(has_order), F.col("max_displacement")),
        "invalid": F.col("invalid"),
    }
    bits = dict(zip(BITS, (no_inversion, F.col("duplicates") == 0, lost == 0), strict=True))
    named = (value.alias(name) for name, value in (counts | bits).items())
    verdicts = facts.select(column(KEY).alias(key), *named, _witnesses().alias("witnesses"))
    return verdicts.select(column(key), *COUNTS, *BITS, _level().alias("guarantee"), "witnesses")


def _level() -> Column:
    """The strongest named level, from the bits; null when order was not judged."""
    in_order, once, all_there = (F.col(name) for name in BITS)
    return (
        F.when(in_order.isNull(), None)
        .when(~in_order, F.lit(Level.NONE))
        .when(once & all_there, F.lit(Level.ABSOLUTE))
        .when(once, F.lit(Level.STRICT))
        .when(all_there, F.lit(Level.CONTINUOUS))
        .otherwise(F.lit(Level.MONOTONIC))
    )


def _witnesses() -> Column:
    """The first of each kind, in the order and the words of the core, which knows no payloads and no invalid rows."""
    inverted, copied, hole = F.col("first_inverted"), F.col("first_copied"), F.col("first_hole")
    conflict, complaint = F.col("first_conflict"), F.col("first_invalid")
    nowhere, missing = F.lit(None).cast("bigint"), hole[PREVIOUS] + 1
    found = (
        _witness(
            "inversion",
            inverted[AT],
            inverted[NUMBER],
            inverted[HIGHEST],
            " was received after {}, which was sent later",
        ),
        _witness(
            "conflict", conflict[AT], conflict[NUMBER], conflict[NUMBER], " was received before, with another payload"
        ),
        _witness("duplicate", copied[AT], copied[NUMBER], copied[NUMBER], " was received before"),
        _witness("loss", nowhere, missing, hole[NUMBER], " is missing before {}"),
        F.when(complaint.isNotNull(), _witness_of("invalid", nowhere, nowhere, nowhere, complaint)),
    )
    return F.array_compact(F.array(*found))


def _witness(kind: str, at: Column, sequence: Column, other: Column, said: str) -> Column:
    place = F.coalesce(F.concat(F.lit(" at index "), at.cast("string")), F.lit(""))
    words = F.replace(F.lit(said), F.lit("{}"), other.cast("string"))
    text = F.concat(sequence.cast("string"), place, words)
    return F.when(sequence.isNotNull(), _witness_of(kind, at, sequence, other, text))


def _witness_of(kind: str, at: Column, sequence: Column, other: Column, text: Column) -> Column:
    fields = {"kind": F.lit(kind), "at": at, "sequence": sequence, "other": other, "text": text}
    return F.struct(*(value.alias(name) for name, value in fields.items()))
