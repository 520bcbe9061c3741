"""What a batch costs in a worker that never saw its partition: ``python -m bench.spark_state``.

A partition with many keys is written. Then batches of 1,000 rows of keys drawn at random follow, each opened from the files
alone: the state, the kernel and the new version. Nothing is kept in memory between batches, so every worker pays the same.
``--keys 10000000`` measures the largest size; it takes some gigabytes.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
import pyarrow as pa

from bench.record import Cell, Recorder
from bench.report import add_record_option
from seriatim.core.resequencing.options import ResequenceOptions, Start
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.kernel import Kernel
from seriatim.spark.state.batch_versions import StateFolder
from seriatim.spark.state.files import LocalFiles

KEYS = (100_000, 1_000_000)
ROWS = 1_000
BATCHES = 40
KERNEL = Kernel(ResequenceOptions(start=Start.at(0), gap_timeout=60), ColumnRoles("key", "seq", "at"))


@dataclass(frozen=True)
class Figure:
    keys: int
    batch_rows: int
    batches: int
    median_batch_ms: float
    slowest_batch_ms: float
    median_batch_cpu_ms: float
    median_pages_read: int
    """Of 4 KiB; a batch that merges segments reads more."""
    first_version_seconds: float
    bytes_per_key: float
    bytes_per_changed_key: float
    most_segments: int
    peak_megabytes: int


def rows_of(numbers: np.ndarray, sequence: np.ndarray, at: float) -> pa.Table:
    names = pa.array(np.char.add("device-", np.char.zfill(numbers.astype("U8"), 8)))
    body = pa.array([b"%0100d" % number for number in range(100)]).take(pa.array(numbers % 100))
    return pa.table({"key": names, "seq": sequence, "at": np.full(len(numbers), at), "body": body})


def measure(folder: Path, keys: int, batches: int = BATCHES) -> tuple[Figure, list[float]]:
    """The figures, and the milliseconds of each batch by the clock."""
    random, files = np.random.default_rng(1), LocalFiles(str(folder))
    sequence = np.zeros(keys, np.int64)
    begun = perf_counter()
    run_batch(files, 0, rows_of(np.arange(keys), sequence, 0.0))
    first_seconds = perf_counter() - begun
    first_bytes = size_of(folder, 0)
    times, cpu, written, segments, pages = [], [], [], [], []
    for batch in range(1, batches + 1):
        chosen = np.sort(random.choice(keys, ROWS, replace=False))
        sequence[chosen] += np.where(random.random(ROWS) < 0.05, 2, 1)  # some open a gap, and are held
        table = rows_of(chosen, sequence[chosen], float(batch))
        begun, used = perf_counter(), process_time()
        after, read = run_batch(files, batch, table)
        times.append(1e3 * (perf_counter() - begun))
        cpu.append(1e3 * (process_time() - used))
        segments.append(after)
        pages.append(read)
        written.append(size_of(folder, batch))
    figure = Figure(
        keys=keys,
        batch_rows=ROWS,
        batches=batches,
        median_batch_ms=round(median(times), 1),
        slowest_batch_ms=round(max(times), 1),
        median_batch_cpu_ms=round(median(cpu), 1),
        median_pages_read=round(median(pages)),
        first_version_seconds=round(first_seconds, 2),
        bytes_per_key=round(first_bytes / keys, 1),
        bytes_per_changed_key=round(sum(written) / (batches * ROWS), 1),
        most_segments=max(segments),
        peak_megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )
    return figure, times


def run_batch(files: LocalFiles, batch: int, table: pa.Table) -> tuple[int, int]:
    """How many segments there are then, and how many pages of those before were read."""
    folder = StateFolder(files, query="q", partitions=1)
    known = folder.open(0, batch, lambda: KERNEL.new_partition(table.schema))
    before = list(known.partition.segments)
    folder.commit(known, 0, batch, KERNEL.run(known.partition, table, None))
    return len(known.partition.segments), sum(int(segment.body._is_checked.sum()) for segment in before)  # noqa: SLF001


def size_of(folder: Path, batch: int) -> int:
    return (folder / f"of-00001/part-00000/batch-{batch:012d}.state").stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=list(KEYS))
    parser.add_argument("--batches", type=int, default=BATCHES)
    add_record_option(parser)
    options = parser.parse_args()
    recorder = Recorder("spark_state")
    figures: list[dict[str, Cell]] = []
    readings: dict[str, list[float]] = {}
    for keys in options.keys:
        with tempfile.TemporaryDirectory() as folder:
            figure, readings[f"{keys} keys, ms"] = measure(Path(folder), keys, options.batches)
        figures.append(asdict(figure))
        print(json.dumps(figures[-1]))
    if options.record:
        print(recorder.write(figures, readings))


if __name__ == "__main__":
    main()
