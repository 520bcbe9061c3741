"""The rows that everybody gets: made once for each number of keys, and kept as parquet files of one batch each.

100 bytes of payload or as many as are asked for, 10 % displaced, 2 % twice, 0.5 % missing. Seen from a key the mix is the same
whatever the number of keys: a message is displaced by up to five places of its own key, and a gap may stay open for as long as
ten messages of a key take. So the work of one row does not change with the keys, only where it has to look.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "device string, seq long, arrived double, payload string"
SEED = 4
PAYLOAD_BYTES = 100
PER_SECOND = 100_000
"""How many rows arrive in a second of the trace. Times count relative to each other only."""
ROW_GROUPS = 4
"""In each file, so that several cores can read one batch together."""
DISPLACED, TWICE, MISSING = 0.10, 0.02, 0.005
FARTHEST = 5
PATIENCE = 10
"""A gap stays open for as long as so many messages of a key take: twice the longest way of a displaced one."""


@dataclass(frozen=True)
class Trace:
    """One trace, on disk: one file is one batch."""

    folder: Path
    keys: int
    rows: int
    batch: int
    payload: int = PAYLOAD_BYTES

    @property
    def gap_timeout(self) -> float:
        """In seconds. A key with fewer than ten messages waits to the end of the trace."""
        return min(PATIENCE * self.keys, self.rows) / PER_SECOND

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))

    @property
    def batches(self) -> int:
        return len(self.files)


def trace_in(cache: Path, keys: int, rows: int, batch: int, payload: int = PAYLOAD_BYTES) -> Trace:
    """The trace, from the cache if it is there. ``payload`` is how many bytes that of a row has."""
    trace = Trace(cache / f"trace-{SEED}-{keys}-{rows}-{batch}-{payload}", keys, rows, batch, payload)
    if not trace.folder.is_dir():
        beside = trace.folder.with_suffix(".unfinished")
        beside.mkdir(parents=True, exist_ok=True)
        _write(beside, trace)
        beside.rename(trace.folder)
    return trace


def _write(folder: Path, trace: Trace) -> None:
    keys, rows, batch = trace.keys, trace.rows, trace.batch
    random = np.random.default_rng(SEED)
    key, sequence = _arrivals(random, keys, rows)
    names = pa.array([f"device-{number:07d}" for number in range(keys)])
    for number, begin in enumerate(range(0, rows, batch)):
        chosen = slice(begin, min(begin + batch, rows))
        table = pa.table(
            {
                "device": names.take(pa.array(key[chosen])),
                "seq": sequence[chosen],
                "arrived": np.arange(chosen.start, chosen.stop) / PER_SECOND,
                "payload": _payloads(random, chosen.stop - chosen.start, trace.payload),
            }
        )
        file = folder / f"{number:05d}.parquet"
        pq.write_table(table, file, row_group_size=-(-batch // ROW_GROUPS))
        os.utime(file, (number, number))  # Spark takes the oldest file first


def _arrivals(random: np.random.Generator, keys: int, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Key and number of each row, in the order in which rows arrive; as many as ``rows``."""
    key = random.integers(0, keys, rows)
    sequence = _numbers_within(key, keys)
    there = random.random(rows) >= MISSING
    key, sequence = key[there], sequence[there]
    arrival = np.arange(len(key), dtype=np.float64)
    way = FARTHEST * min(keys, rows / PATIENCE)
    moved = random.random(len(key)) < DISPLACED
    arrival[moved] += random.random(moved.sum()) * way
    twice = np.flatnonzero(random.random(len(key)) < TWICE)
    again = arrival[twice] + random.random(len(twice)) * way
    order = np.argsort(np.append(arrival, again), kind="stable")[:rows]
    return np.append(key, key[twice])[order], np.append(sequence, sequence[twice])[order]


def _numbers_within(key: npt.NDArray[np.int64], keys: int) -> npt.NDArray[np.int64]:
    """For each row how many rows of its key come before it."""
    by_key = np.argsort(key, kind="stable")
    starts = np.searchsorted(key[by_key], np.arange(keys))
    numbers = np.empty(len(key), np.int64)
    numbers[by_key] = np.arange(len(key)) - starts[key[by_key]]
    return numbers


def _payloads(random: np.random.Generator, count: int, size: int) -> pa.Array:
    """Hexadecimal digits: nothing that compression would make vanish."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[random.integers(0, 16, count * size, np.uint8)]
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(digits))
