"""``report.html``: the report of an audit, in one file that needs no network.

The page stays small regardless of the number of rows: Spark counts into buckets, and samples the rows of the worst keys.
``page.py`` and ``charts.py`` draw the data that is gathered here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampNTZType, TimestampType

from seriatim.spark.auditing.audit import ARRIVAL, AT, KEY, NUMBER, PREVIOUS, RowFaults, judged, total, worst_first
from seriatim.spark.auditing.charts import Bucket, KeyRow, Point, Trail
from seriatim.spark.auditing.page import Page, draw
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.frames.columns import arrival_time, column, found_in

TRAILS = 4
POINTS = 600
BARS = 12
TIME_BUCKETS = 60


class Audited(NamedTuple):
    """A frame, the verdicts of an audit on it, and the roles of its columns."""

    title: str
    frame: DataFrame
    verdicts: DataFrame
    roles: ColumnRoles


def write_report(path: Path, *audits: Audited) -> None:
    """Write the report of an audit, or of two: before and after. The file appears only when it is complete."""
    first = gather(audits[0])
    others = [gather(audited, [trail.key for trail in first.trails]) for audited in audits[1:]]
    text = draw(first, *others)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.umask(mask := os.umask(0))
    Path(file.name).chmod(0o666 & ~mask)
    Path(file.name).replace(path)


def gather(audited: Audited, keys: Sequence[str] = ()) -> Page:
    """Everything that the page shows of one audit. Trails are of these keys, or of the worst."""
    frame, verdicts = audited.frame, audited.verdicts
    roles, key = found_in(frame, audited.roles), verdicts.columns[0]
    whole = total(verdicts).first()
    assert whole is not None  # an aggregate of everything has one row
    worst = verdicts.orderBy(*worst_first(key)).limit(BARS).collect()
    rows = [_key_row(row) for row in worst]
    page = Page(audited.title, whole.asDict(), tuple(row for row in rows if row.faults))
    if roles.arrival is None:
        return page
    faulty = _faulty_rows(judged(frame, replace(roles, payload=())), frame, roles).persist()
    try:
        return replace(
            page,
            trails=_trails(frame, roles, keys or [row.key for row in rows if row.rows][:TRAILS]),
            displacements=_displacements(faulty),
            gaps=_gaps(faulty, isinstance(frame.schema[roles.arrival].dataType, TimestampType | TimestampNTZType)),
        )
    finally:
        faulty.unpersist()


def _key_row(row: Row) -> KeyRow:
    witness = row["witnesses"][0]["text"] if row["witnesses"] else None
    values = {name: row[name] for name in KeyRow._fields if name not in ("key", "witness")}
    return KeyRow(key=text_of(row[0]), witness=witness, **values)


def text_of(key: object) -> str:
    if key is None:
        return "(no key)"
    return bytes(key).decode("utf-8", "backslashreplace") if isinstance(key, bytes | bytearray) else str(key)


def _faulty_rows(rows: DataFrame, frame: DataFrame, roles: ColumnRoles) -> DataFrame:
    """The few rows that were overtaken or follow a hole: when, how far behind, and how many are missing."""
    row_faults = RowFaults(has_digest=False)
    missing = F.when(row_faults.after_hole, F.col(NUMBER) - F.col(PREVIOUS) - 1)
    time = arrival_time(frame.select(column(roles.time).alias(ARRIVAL)), ARRIVAL)
    found = rows.select(time.alias("time"), row_faults.behind.alias("behind"), missing.alias("missing"))
    return found.where("behind is not null or missing is not null")


def _displacements(faulty: DataFrame) -> tuple[Bucket, ...]:
    """How many rows were behind by 1, 2, 3–4, 5–8 and so on."""
    power = F.ceil(F.log2("behind")).cast("int")
    counted = faulty.where("behind is not null").groupBy(power.alias("power")).count().orderBy("power").collect()
    counts = {row["power"]: row["count"] for row in counted}
    return tuple(Bucket(_range_of(power), counts.get(power, 0)) for power in range(max(counts, default=-1) + 1))


def _range_of(power: int) -> str:
    low, high = 2 ** (power - 1) + 1 if power else 1, 2**power
    return f"{high:,}" if low >= high else f"{low:,}–{high:,}"


def _gaps(faulty: DataFrame, is_time: bool) -> tuple[Bucket, ...]:
    """How many numbers are missing, by when the row behind their hole came."""
    ends = faulty.agg(F.min("time"), F.max("time")).first()
    if ends is None or ends[0] is None:
        return ()
    low, high = ends
    width = (high - low) / TIME_BUCKETS or 1.0
    place = F.least(F.floor((F.col("time") - low) / width), F.lit(TIME_BUCKETS - 1)).cast("int")
    rows = faulty.where("missing is not null").groupBy(place.alias("place")).agg(F.sum("missing")).collect()
    counts = {row[0]: row[1] for row in rows}
    return tuple(
        Bucket(_moment(low + place * width, is_time=is_time), int(counts.get(place, 0)))
        for place in range(TIME_BUCKETS)
    )


def _moment(time: float, *, is_time: bool) -> str:
    if is_time:
        return datetime.fromtimestamp(time, UTC).isoformat(" ", timespec="seconds").replace("+00:00", "")
    return f"{time:,.0f}"


def _trails(frame: DataFrame, roles: ColumnRoles, keys: Sequence[str]) -> tuple[Trail, ...]:
    """Of the worst keys, the rows in order of arrival: all of them, or evenly chosen ones."""
    # As text: two tables that are compared may have keys of different types.
    of_keys = column(roles.key).cast("string").isin(list(keys))
    rows = judged(frame.where(of_keys), replace(roles, payload=()))
    row_faults = RowFaults(has_digest=False)
    kind = F.when(row_faults.copied, "copy").when(row_faults.inverted, "overtaken").otherwise("in order")
    step = F.greatest(F.lit(1), F.ceil(F.count(NUMBER).over(Window.partitionBy(KEY)) / POINTS))
    chosen = rows.select(KEY, AT, NUMBER, kind.alias("kind"), step.alias("step")).where(
        "number is not null and at % step = 0"
    )
    points: dict[str, list[Point]] = {key: [] for key in keys}
    for row in chosen.collect():
        points[text_of(row[KEY])].append(Point(row[AT], row[NUMBER], row["kind"]))
    return tuple(Trail(key, tuple(sorted(found))) for key, found in points.items() if found)
