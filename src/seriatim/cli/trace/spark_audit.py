"""``seriatim trace audit`` on Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from seriatim.cli.common.spark import read_frame, refuse_to_overwrite, save_frame, spark_session
from seriatim.cli.trace.findings import KeyFinding
from seriatim.core.guarantees import Guarantee, Level
from seriatim.core.traces import Witness
from seriatim.errors import InvalidArgument
from seriatim.spark import audit, total
from seriatim.spark.auditing.audit import BITS, worst_first
from seriatim.spark.auditing.report import Audited, text_of, write_report
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.tagged import POSITION

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
    verdicts: Path | None,
    compare: str | None,
    compare_arrival: str | None,
    show_progress: bool,
) -> Iterator[list[SparkFindings]]:
    """What an audit of the table found, and of another to compare with if there is one; pages and files on the way."""
    if compare_arrival is not None and compare is None:
        raise InvalidArgument("--compare-arrival is about the table of --compare: name that too")
    if verdicts is not None:
        refuse_to_overwrite(str(verdicts))
    with spark_session(show_progress=show_progress) as spark:
        roles = ColumnRoles(key, seq, arrival, None, tuple(payload))
        looks = [(path, read_frame(spark, path, kind), roles)]
        if compare is not None:
            after = read_frame(spark, compare, None)
            looks.append(
                (compare, after, replace(roles, arrival=compare_arrival or _arrival_afterwards(after, arrival)))
            )
        audits = [_audit(*look) for look in looks]
        try:
            if verdicts is not None:
                save_frame(audits[-1].verdicts, str(verdicts), "parquet")
            if report is not None:
                write_report(report, *audits)
            yield [SparkFindings(one.verdicts) for one in audits]
        finally:
            for one in audits:
                one.verdicts.unpersist()


def _arrival_afterwards(frame: DataFrame, arrival: str | None) -> str | None:
    """If a table was put in order here, its positions are its order of arrival."""
    return POSITION.name if POSITION.name in frame.columns else arrival


def _audit(path: str, frame: DataFrame, roles: ColumnRoles) -> Audited:
    look = audit(key=roles.key, sequence=roles.sequence, arrival=roles.arrival, payload=roles.payload)
    return Audited(path, frame, frame.transform(look).persist(), roles)


class SparkFindings:
    """The verdicts on every key, of which only the worst ever leave Spark."""

    counted = ("distinct", "duplicates", "lost", "reordered", "max_displacement", "conflicts", "invalid")

    def __init__(self, verdicts: DataFrame) -> None:
        self._key, self._verdicts = verdicts.columns[0], verdicts
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

    def total(self, count: str) -> int | None:
        found: int | None = self._total[count]
        return found

    def worst(self, limit: int) -> list[KeyFinding]:
        return self._worst_of(self._verdicts, limit)

    def lacking(self, expected: Level) -> tuple[int, list[KeyFinding]]:
        held = [F.coalesce(F.col(name), F.lit(False)) for name, flag in FLAGS.items() if expected.guarantee & flag]
        lacking = self._verdicts.where(~F.array_min(F.array(F.col("invalid") == 0, *held)))
        return lacking.count(), self._worst_of(lacking, 1)

    def _worst_of(self, verdicts: DataFrame, limit: int) -> list[KeyFinding]:
        rows = verdicts.orderBy(*worst_first(self._key)).limit(limit).collect()
        return [self._finding(row) for row in rows]

    def _finding(self, row: Row) -> KeyFinding:
        counts = {count: row[count] for count in self.counted}
        witnesses = tuple(Witness(*witness) for witness in row["witnesses"])
        key = None if row[self._key] is None else text_of(row[self._key])
        return KeyFinding(key, row["rows"], counts, _guarantee(row), witnesses)


def _guarantee(row: Row) -> Guarantee:
    return Guarantee(sum(flag for name, flag in FLAGS.items() if row[name]))
