"""``report.html``: an audit to look at, in one file that needs no network.

However many rows there are, the page stays small: Spark counts into buckets, and of the worst keys it takes a sample of rows.
``page.py`` draws what is gathered here.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampNTZType, TimestampType

from seriatim.spark.auditing import ARRIVAL, AT, HIGHEST, KEY, NUMBER, PREVIOUS, Trouble, judged, total, worst_first
from seriatim.spark.page import Bucket, KeyBar, Page, Point, Trail, draw
from seriatim.spark.roles import ColumnRoles, column

TRAILS = 4
POINTS = 600
BARS = 12
TIME_BUCKETS = 60


def write_report(path: Path, frame: DataFrame, verdicts: DataFrame, roles: ColumnRoles, *, title: str) -> None:
    """Write the page about an audit of ``frame`` with these ``verdicts``; whoever looks finds all of it or none."""
    text = draw(gather(frame, verdicts, roles.found_in(frame), title))
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).chmod(0o666 & ~_umask())
    Path(file.name).replace(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def gather(frame: DataFrame, verdicts: DataFrame, roles: ColumnRoles, title: str) -> Page:
    """Everything that the page shows."""
    whole = total(verdicts).first()
    assert whole is not None  # an aggregate of everything has one row
    key = verdicts.columns[0]
    known = verdicts.where(column(key).isNotNull())
    worst = known.orderBy(*worst_first(key)).limit(BARS).collect()
    bars = [KeyBar(str(row[key]), row["duplicates"], row["lost"], row["reordered"] or 0) for row in worst]
    page = Page(title, whole.asDict(), tuple(bar for bar in bars if bar.faults))
    if roles.arrival is None:
        return page
    rows = judged(frame, replace(roles, payload=()))
    troubled = _troubled(rows, frame, roles).persist()
    try:
        return replace(
            page,
            trails=_trails(frame, roles, [row[key] for row in worst[:TRAILS]]),
            displacements=_displacements(troubled),
            gaps=_gaps(
                troubled, is_time=isinstance(frame.schema[roles.arrival].dataType, TimestampType | TimestampNTZType)
            ),
        )
    finally:
        troubled.unpersist()


def _troubled(rows: DataFrame, frame: DataFrame, roles: ColumnRoles) -> DataFrame:
    """The few rows that were overtaken or follow a hole: when, how far behind, and how many are missing."""
    trouble = Trouble(has_digest=False)
    behind = F.when(trouble.inverted & ~trouble.copied, F.col(HIGHEST) - F.col(NUMBER))
    missing = F.when(trouble.after_hole, F.col(NUMBER) - F.col(PREVIOUS) - 1)
    time = replace(roles, arrival=ARRIVAL).time(frame.select(column(str(roles.arrival)).alias(ARRIVAL)))
    found = rows.select(time.alias("time"), behind.alias("behind"), missing.alias("missing"))
    return found.where("behind is not null or missing is not null")


def _displacements(troubled: DataFrame) -> tuple[Bucket, ...]:
    """How many rows were behind by 1, 2, 3–4, 5–8 and so on."""
    power = F.ceil(F.log2("behind")).cast("int")
    counted = troubled.where("behind is not null").groupBy(power.alias("power")).count().orderBy("power").collect()
    counts = {row["power"]: row["count"] for row in counted}
    return tuple(Bucket(_range_of(power), counts.get(power, 0)) for power in range(max(counts, default=-1) + 1))


def _range_of(power: int) -> str:
    low, high = 2 ** (power - 1) + 1 if power else 1, 2**power
    return f"{high:,}" if low >= high else f"{low:,}–{high:,}"


def _gaps(troubled: DataFrame, *, is_time: bool) -> tuple[Bucket, ...]:
    """How many numbers are missing, by when the row behind their hole came."""
    ends = troubled.agg(F.min("time"), F.max("time")).first()
    if ends is None or ends[0] is None:
        return ()
    low, high = ends
    width = (high - low) / TIME_BUCKETS or 1.0
    place = F.least(F.floor((F.col("time") - low) / width), F.lit(TIME_BUCKETS - 1)).cast("int")
    rows = troubled.where("missing is not null").groupBy(place.alias("place")).agg(F.sum("missing")).collect()
    counts = {row[0]: row[1] for row in rows}
    return tuple(
        Bucket(_moment(low + place * width, is_time=is_time), int(counts.get(place, 0)))
        for place in range(TIME_BUCKETS)
    )


def _moment(time: float, *, is_time: bool) -> str:
    if is_time:
        return datetime.fromtimestamp(time, UTC).isoformat(" ", timespec="seconds").replace("+00:00", "")
    return f"{time:,.0f}"


def _trails(frame: DataFrame, roles: ColumnRoles, keys: list[object]) -> tuple[Trail, ...]:
    """Of the worst keys, the rows in order of arrival: all of them, or evenly chosen ones."""
    rows = judged(frame.where(column(roles.key).isin(keys)), replace(roles, payload=()))
    trouble = Trouble(has_digest=False)
    kind = F.when(trouble.copied, "copy").when(trouble.inverted, "overtaken").otherwise("in order")
    step = F.greatest(F.lit(1), F.ceil(F.count(NUMBER).over(Window.partitionBy(KEY)) / POINTS))
    chosen = rows.select(KEY, AT, NUMBER, kind.alias("kind"), step.alias("step")).where(
        "number is not null and at % step = 0"
    )
    points: dict[object, list[Point]] = {key: [] for key in keys}
    for row in chosen.collect():
        points[row[KEY]].append(Point(row[AT], row[NUMBER], row["kind"]))
    return tuple(Trail(str(key), tuple(sorted(found))) for key, found in points.items() if found)
