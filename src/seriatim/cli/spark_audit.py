"""The audit of ``seriatim audit`` where Spark does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from seriatim.cli.frames import read_frame, spark_at_work
from seriatim.core.guarantees import Guarantee, Level
from seriatim.core.traces import Verdict, Witness
from seriatim.spark import audit, total
from seriatim.spark.auditing import BITS, worst_first
from seriatim.spark.report import write_report
from seriatim.spark.roles import ColumnRoles, column

FLAGS = dict(zip(BITS, (Guarantee.NO_INVERSION, Guarantee.NO_DUPLICATE, Guarantee.NO_LOSS), strict=True))


@contextmanager
def audited(
    path: str,
    key: str,
    seq: str,
    *,
    arrival: str | None,
    payload: Sequence[str],
    kind: str | None,
    report: Path | None,
    show_progress: bool,
) -> Iterator[SparkReport]:
    """What an audit of the table found; a page of it is written on the way if there is to be one."""
    with spark_at_work(show_progress=show_progress) as spark:
        frame = read_frame(spark, path, kind)
        verdicts = frame.transform(audit(key=key, sequence=seq, arrival=arrival, payload=payload)).persist()
        try:
            if report is not None:
                write_report(report, frame, verdicts, ColumnRoles(key, seq, arrival), title=path)
            yield SparkReport(verdicts)
        finally:
            verdicts.unpersist()


class SparkReport:
    """The verdicts on every key, of which only the worst ever leave Spark."""

    counted = ("distinct", "duplicates", "lost", "reordered", "conflicts", "invalid")

    def __init__(self, verdicts: DataFrame) -> None:
        self._key = verdicts.columns[0]
        self._verdicts = verdicts.where(column(self._key).isNotNull())
        whole = total(verdicts).first()
        assert whole is not None  # an aggregate of everything has one row
        self._total = whole

    @property
    def is_order_judged(self) -> bool:
        return self._total["no_inversion"] is not None

    @property
    def keys(self) -> int:
        return int(self._total["keys"])

    @property
    def rows(self) -> int:
        return int(self._total["rows"])

    @property
    def guarantee(self) -> Guarantee:
        return _guarantee(self._total)

    def total(self, count: str) -> int:
        return int(self._total[count] or 0)

    def worst(self, limit: int) -> list[tuple[str, Verdict]]:
        return self._worst_of(self._verdicts, limit)

    def lacking(self, expected: Level) -> tuple[int, list[tuple[str, Verdict]]]:
        """For how many keys ``expected`` did not hold, and the worst of them, if any."""
        held = [F.coalesce(F.col(name), F.lit(False)) for name, flag in FLAGS.items() if expected.guarantee & flag]
        lacking = self._verdicts.where(~F.array_min(F.array(F.lit(True), *held)))
        return lacking.count(), self._worst_of(lacking, 1)

    def _worst_of(self, verdicts: DataFrame, limit: int) -> list[tuple[str, Verdict]]:
        rows = verdicts.orderBy(*worst_first(self._key)).limit(limit).collect()
        return [(_text(row[self._key]), _verdict(row)) for row in rows]


def _text(key: object) -> str:
    return bytes(key).decode("utf-8", "backslashreplace") if isinstance(key, bytes | bytearray) else str(key)


def _guarantee(row: Row) -> Guarantee:
    return Guarantee(sum(flag for name, flag in FLAGS.items() if row[name]))


def _verdict(row: Row) -> Verdict:
    return Verdict(
        guarantee=_guarantee(row),
        witnesses=tuple(Witness(*witness) for witness in row["witnesses"]),
        received=row["rows"],
        distinct=row["distinct"],
        duplicates=row["duplicates"],
        phantoms=0,
        lost=row["lost"],
        reordered=row["reordered"] or 0,
        max_displacement=row["max_displacement"] or 0,
    )
