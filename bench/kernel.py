"""What the kernel of the Spark pipeline costs: ``python -m bench.kernel``.

The mix: rows of 100 bytes, 10 % displaced, 2 % duplicated, 0.5 % missing, in batches of 500,000, with a gap timeout. Every
round runs the same batches through the kernel, through a bare numpy sort by key and number, and (a slice of them) through the
core's resequencer, so that a noisy moment of the machine hits all three. Only the ratios mean anything on another machine.
Memory is kept as in the workers of our sessions.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from time import process_time
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from bench.record import Cell, Recorder
from bench.report import add_record_option
from seriatim.core.resequencing.options import ResequenceOptions, Start
from seriatim.core.resequencing.resequencer import Resequencer
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.kernel import Kernel
from seriatim.spark.local.session import _SETTINGS as SETTINGS

KEYS = (1_000, 100_000, 1_000_000)
ROWS = 2_000_000
BATCH = 500_000
SECONDS_PER_BATCH = 1.0
CORE_ROWS = 100_000
TIMEOUTS = (2.0, 0.05)
OPTIONS = ResequenceOptions(start=Start.at(0), gap_timeout=TIMEOUTS[0])
Readings: TypeAlias = dict[str, list[float]]
"""CPU seconds, in every round."""
ROLES = ColumnRoles(key="key", sequence="seq", arrival="at")


@dataclass(frozen=True)
class Figure:
    timeout: float
    keys: int
    rows: int
    kernel_per_second: int
    sort_per_second: int
    core_per_second: int
    ratio_to_sort: float
    ratio_to_core: float
    ratio_to_fewest_keys: float
    slow_rows: int
    held_after: int
    state_bytes_per_key: float
    peak_megabytes: int


def mix(keys: int, rows: int, seed: int = 1, batch: int = BATCH) -> Iterator[pa.Table]:
    """Batches as the kernel gets them: sorted by key, within a key in order of arrival."""
    random = np.random.default_rng(seed)
    key = random.integers(0, keys, rows)
    by_key = np.argsort(key, kind="stable")
    starts = np.searchsorted(key[by_key], np.arange(keys))
    sequence = np.empty(rows, np.int64)
    sequence[by_key] = np.arange(rows) - starts[key[by_key]]
    keep = random.random(rows) >= 0.005
    key, sequence = key[keep], sequence[keep]
    arrival = np.arange(len(key), dtype=np.float64)
    # Displaced by up to five messages of the same key, as a retry or a slower route would.
    moved = random.random(len(key)) < 0.10
    arrival[moved] += random.random(moved.sum()) * 5 * min(keys, rows / 10)
    twice = np.flatnonzero(random.random(len(key)) < 0.02)
    key, sequence = np.append(key, key[twice]), np.append(sequence, sequence[twice])
    arrival = np.append(arrival, arrival[twice] + random.random(len(twice)) * 5 * min(keys, rows / 10))
    order = np.argsort(arrival, kind="stable")
    for begin in range(0, len(order), batch):
        chosen = order[begin : begin + batch]
        time = np.arange(begin, begin + len(chosen)) * (SECONDS_PER_BATCH / batch)
        yield batch_of(key[chosen], sequence[chosen], time)


def batch_of(key: np.ndarray, sequence: np.ndarray, time: np.ndarray) -> pa.Table:
    names = np.char.add("device-", np.char.zfill(np.arange(int(key.max()) + 1).astype("U7"), 7))
    by_key = np.argsort(key, kind="stable")
    body = pa.array([b"%0100d" % number for number in range(1000)]).take(pa.array(np.arange(len(key)) % 1000))
    return pa.table(
        {
            "key": pa.array(names).take(pa.array(key[by_key])),
            "seq": sequence[by_key],
            "at": time[by_key],
            "body": body,
        }
    )


def run_kernel(batches: list[pa.Table], options: ResequenceOptions = OPTIONS) -> tuple[float, int, int, float]:
    """Seconds, rows on the slow path, messages held at the end, and bytes of state for each key."""
    kernel = Kernel(options, ROLES)
    partition = kernel.new_partition(batches[0].schema)
    slow, begin = 0, process_time()
    for number, batch in enumerate(batches):
        outcome = kernel.run(partition, batch, (number + 1) * SECONDS_PER_BATCH)
        partition.apply(outcome.change, outcome.tally)
        slow += outcome.counters.slow_rows
    seconds = process_time() - begin
    size = sum(len(segment.body.content) for segment in partition.segments)
    return seconds, slow, partition.tally.held, size / partition.tally.keys


def run_sort(batches: list[pa.Table]) -> float:
    """The least that has to be done: sort by key and number, and take the rows in that order."""
    begin = process_time()
    for batch in batches:
        code = batch["key"].combine_chunks().dictionary_encode().indices.to_numpy()
        batch.take(pa.array(np.lexsort((batch["seq"].to_numpy(), code))))
    return process_time() - begin


def run_core(batch: pa.Table, options: ResequenceOptions) -> float:
    """Seconds a row for the first rows of the first batch, so that the keys are at their start, as for the kernel.

    Making Python objects of the rows is not counted.
    """
    rows = batch.slice(0, CORE_ROWS)
    columns = [rows[name].to_pylist() for name in ("key", "seq", "at", "body")]
    machines: dict[str, Resequencer[bytes]] = {}
    begin = process_time()
    for key, sequence, time, body in zip(*columns, strict=True):
        machine = machines.get(key)
        if machine is None:
            machines[key] = machine = Resequencer(options, key)
        machine.advance(time)
        machine.push(sequence, body, time)
    return (process_time() - begin) / len(columns[0])


def measure(keys: int, rows: int, rounds: int, timeout: float, fewest: float | None) -> tuple[Figure, Readings]:
    batches, options = list(mix(keys, rows)), replace(OPTIONS, gap_timeout=timeout)
    count = sum(batch.num_rows for batch in batches)
    seconds, sorting, core = [], [], []
    for _ in range(rounds):
        took, slow, held, size = run_kernel(batches, options)
        seconds.append(took)
        sorting.append(run_sort(batches))
        core.append(run_core(batches[0], options))
    best = min(seconds) / count
    figure = Figure(
        timeout=timeout,
        keys=keys,
        rows=count,
        kernel_per_second=round(1 / best),
        sort_per_second=round(count / min(sorting)),
        core_per_second=round(1 / min(core)),
        ratio_to_sort=round(min(sorting) / min(seconds), 2),
        ratio_to_core=round(min(core) / best, 1),
        ratio_to_fewest_keys=round(best / (fewest or best), 2),
        slow_rows=slow,
        held_after=held,
        state_bytes_per_key=round(size, 1),
        peak_megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )
    name = f"{keys:,} keys, timeout {timeout} s"
    return figure, {f"{name}, kernel": seconds, f"{name}, sort": sorting, f"{name}, core, a row": core}


def keep_memory_like_a_worker() -> None:
    """Begin again with the allocators' settings, which are read once."""
    prefix = "spark.executorEnv."
    wanted = {name.removeprefix(prefix): value for name, value in SETTINGS.items() if name.startswith(prefix)}
    if not wanted.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "bench.kernel", *sys.argv[1:]], {**os.environ, **wanted})


def main() -> None:
    keep_memory_like_a_worker()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--timeout", type=float, nargs="*", default=TIMEOUTS, help="how long gaps stay open; a batch lasts 1"
    )
    parser.add_argument("--keys", type=int, nargs="*", default=KEYS)
    add_record_option(parser)
    arguments = parser.parse_args()
    recorder = Recorder("kernel")
    figures: list[dict[str, Cell]] = []
    readings: Readings = {}
    for timeout in arguments.timeout:
        fewest: float | None = None
        for keys in arguments.keys:
            figure, seconds = measure(keys, arguments.rows, arguments.rounds, timeout, fewest)
            fewest = fewest or 1 / figure.kernel_per_second
            figures.append(asdict(figure))
            readings |= seconds
            print(json.dumps(asdict(figure)), flush=True)
    if arguments.record:
        recorder.write(figures, readings)


if __name__ == "__main__":
    main()
