"""``seriatim trace resequence``: put a table of messages in order."""

from __future__ import annotations

from typing import Any

import click
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from seriatim.cli.common.command import with_output
from seriatim.cli.common.output import Output, counted
from seriatim.cli.common.spark import (
    format_of,
    is_address,
    read_frame,
    refuse_to_overwrite,
    refuse_to_overwrite_address,
    save_frame,
    spark_session,
)
from seriatim.cli.trace import columns_options
from seriatim.core.resequencing.options import OnDuplicate
from seriatim.spark import ledger, ordered, resequence

LEDGER_ENDING = "-ledger"


@click.command("resequence")
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@columns_options
@click.option("--arrival", metavar="COLUMN", help="The column with the order of arrival: the first copy is kept.")
@click.option("--epoch", metavar="COLUMN", help="The column with the session of the source.")
@click.option("--payload", multiple=True, metavar="COLUMN", help="Compare duplicates by this column; repeatable.")
@click.option(
    "--start", type=int, metavar="NUMBER", help="The first sequence number of a session.  [default: the lowest]"
)
@click.option("--increment", type=int, default=1, show_default=True, help="The distance between consecutive numbers.")
@click.option("--format", "kind", metavar="FORMAT", help="The format of IN, if not clear from its name.")
@click.option("--to", metavar="FORMAT", help="The format of OUT.  [default: that of IN]")
@with_output
def command(output: Output, source: str, target: str, kind: str | None, to: str | None, **options: Any) -> None:
    """Put a table of messages in order, per key.

    Reads IN, a file or a folder in any format that Spark reads, and writes each row once, with its position, to OUT. Both
    may be addresses that Spark knows, such as s3a://... What is not in OUT is in OUT-ledger, with the reason. Nothing is ever
    overwritten.
    """
    target = target.rstrip("/")
    entries = target + LEDGER_ENDING
    for path in () if is_address(target) else (target, entries):
        refuse_to_overwrite(path)
    with spark_session(show_progress=output.progress) as spark:
        for path in (target, entries) if is_address(target) else ():
            refuse_to_overwrite_address(spark, path)
        frame = read_frame(spark, source, kind)
        counts = _write(_tagged(frame, **options), target, entries, to or kind or format_of(source))
    _show(output, counts, target, entries)


def _tagged(
    frame: DataFrame, key: str, seq: str, start: int | None, payload: tuple[str, ...], **options: Any
) -> DataFrame:
    on_duplicate = OnDuplicate.CONFLICT if payload else OnDuplicate.FIRST
    first = "lowest" if start is None else start
    chosen = {"start": first, "payload": payload, "on_duplicate": on_duplicate, **options}
    return frame.transform(resequence(key=key, sequence=seq, **chosen))


def _write(tagged: DataFrame, target: str, entries: str, kind: str) -> dict[str, int]:
    """Write both parts, and count them. They are computed once: what is kept for the second lies on the disk."""
    tagged.persist(StorageLevel.DISK_ONLY)
    try:
        # As an audit counts: rows, and numbers that are missing, of which one entry may tell many.
        rows = tagged.groupBy("_tag", "_reason").agg(F.sum(F.coalesce("_size", F.lit(1))).alias("count")).collect()
        counts = {row["_reason"] or row["_tag"]: int(row["count"]) for row in rows}
        # The rows come last: where they are, their ledger is too.
        for part, path in ((ledger(tagged), entries), (ordered(tagged), target)):
            save_frame(part, path, kind)
    finally:
        tagged.unpersist()
    return dict(sorted(counts.items()))


def _show(output: Output, counts: dict[str, int], target: str, entries: str) -> None:
    released = counts.pop("ordered", 0)
    fields = {"out": target, "rows": released, "ledger": entries, "entries": counts}
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts.items()) or "nothing"
    output.result(fields, f"wrote {counted(released, 'row')} in order to '{target}'\nledger '{entries}': {reasons}")
