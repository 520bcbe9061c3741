"""Works out the state of 100,000,000 keys from the newest run of ``bench.spark_state`` on record, for its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

KEYS, PARTITION_KEYS, CHANGED_KEYS = 100_000_000, 1_000_000, 100_000
PAGE_BYTES = 4096
GB, MB = 10**9, 10**6
Cell = str | float | int


def worked_out(rows: Sequence[Mapping[str, Cell]]) -> Iterator[Mapping[str, Cell]]:
    """The rows of the table: what a key takes, and what all of them do in partitions of a million."""
    (measured,) = ({name: float(value) for name, value in row.items()} for row in rows if row["keys"] == PARTITION_KEYS)
    of_key, of_change = measured["bytes_per_key"], measured["bytes_per_changed_key"]
    pages, batch = measured.get("median_pages_read"), f"{measured['batch_rows']:,.0f} rows"
    size = f"{of_key * PARTITION_KEYS / MB:,.0f} MB"

    def row(what: str, per_key: str, total: str) -> Mapping[str, Cell]:
        return {"": what, "per key": per_key, "in total": total}

    yield row("disk, one full version", f"{of_key:.0f} bytes", f"{of_key * KEYS / GB:.1f} GB")
    yield row(
        "disk, with changes not yet merged, and retained versions",
        "up to 2 ×",
        f"{2 * of_key * KEYS / GB:.1f} GB, plus what the last batches wrote",
    )
    yield row(
        "memory of a worker for a batch of " + batch,
        "–" if pages is None else f"{pages / measured['batch_rows']:.1f} pages of 4 KiB",
        "mapped pages, which the system may drop"
        + ("" if pages is None else f": {pages * PAGE_BYTES / MB:,.0f} MB of one partition"),
    )
    yield row(
        "restore in a worker that has never seen the partition",
        "–",
        f"nothing is loaded: a batch of {batch} takes {measured['median_batch_ms']:.0f} ms; in object stores one fetch of "
        f"{size} per partition and machine",
    )
    yield row(
        "write, per changed key, rewriting included",
        f"{of_change:.0f} bytes",
        f"{CHANGED_KEYS:,} keys per batch: {of_change * CHANGED_KEYS / MB:,.0f} MB",
    )
    yield row(
        "a full version",
        "written, read and merged",
        f"{size} per partition, once in 500,000 to 1,000,000 changed keys; decided and written anew, all its keys took "
        f"{measured['first_version_seconds']:.1f} s",
    )
