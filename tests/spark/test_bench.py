"""The benchmark of the pipeline on Spark runs, and its rows are what it says they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench.spark.__main__ import Bench, Size
from bench.spark.peer import Lane
from bench.spark.processes import processor_ticks, spent_since
from bench.spark.streams import CORES, STEPS
from bench.spark.trace import Trace, trace_in
from seriatim.core.resequencing.options import Released, ResequenceOptions, Start
from seriatim.core.resequencing.resequencer import Resequencer

TINY = Size(
    rows=2_000,
    batch=1_000,
    few=10,
    many=20,
    most=30,
    peer_rows=500,
    io_rows=500,
    rounds=1,
    backlog=500,
    payload_bytes=400_000,
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Trace:
    return trace_in(tmp_path_factory.mktemp("cache"), keys=100, rows=50_000, batch=20_000)


def test_a_trace_has_the_mix_that_it_promises(trace):
    rows = pq.read_table(trace.files)
    assert [pq.read_metadata(file).num_rows for file in trace.files] == [20_000, 20_000, 10_000]
    assert rows["arrived"].to_numpy().tolist() == sorted(rows["arrived"].to_pylist())
    assert set(map(len, rows["payload"].to_pylist())) == {100}
    messages = list(zip(rows["device"].to_pylist(), rows["seq"].to_pylist(), strict=True))
    highest: dict[str, int] = {}
    for device, seq in messages:
        highest[device] = max(highest.get(device, -1), seq)
    sent = sum(highest.values()) + len(highest)
    assert 1 - len(set(messages)) / sent == pytest.approx(0.005, rel=0.3)
    assert 1 - len(set(messages)) / len(messages) == pytest.approx(0.02, rel=0.2)
    assert 0.03 < _overtaken(messages) < 0.15


def _overtaken(messages: list[tuple[str, int]]) -> float:
    """The share of messages that come after a later one of their key."""
    highest: dict[str, int] = {}
    behind = 0
    for device, seq in dict.fromkeys(messages):
        behind += seq < highest.get(device, -1)
        highest[device] = max(highest.get(device, -1), seq)
    return behind / len(set(messages))


def test_a_trace_is_made_once_and_always_the_same(trace, tmp_path):
    before = [file.stat().st_mtime_ns for file in trace.files]
    assert [file.stat().st_mtime_ns for file in trace_in(trace.folder.parent, 100, 50_000, 20_000).files] == before
    again = trace_in(tmp_path, 100, 50_000, 20_000)
    assert [pq.read_table(file) for file in again.files] == [pq.read_table(file) for file in trace.files]


def test_the_peer_releases_what_the_core_releases(trace):
    """Beaten by a peer that does something else, nobody would be the wiser."""
    rows = pq.read_table(trace.files[0])
    options = ResequenceOptions(start=Start.at(0), gap_timeout=trace.gap_timeout)
    lanes: dict[str, Lane] = {}
    machines: dict[str, Resequencer[str]] = {}
    released: list[tuple[str, int]] = []
    for device, seq, arrived, payload in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        lane = lanes.setdefault(device, Lane(device, trace.gap_timeout, 0, -1, 0, {}, []))
        machine = machines.setdefault(device, Resequencer(options, device))
        lane.advance(arrived)
        lane.push(seq, arrived, payload)
        effects = [*machine.advance(arrived), *machine.push(seq, payload, arrived)]
        released += [(device, effect.sequence) for effect in effects if isinstance(effect, Released)]
    by_peer = {device: [row[2] for row in lane.out if row[0] == "ordered"] for device, lane in lanes.items()}
    by_core = {device: [seq for name, seq in released if name == device] for device in machines}
    assert by_peer == by_core
    assert sum(map(len, by_core.values())) > 15_000


@pytest.mark.parametrize("part", ["pipeline", "streaming", "batch", "payloads", "io", "peer", "keys"])
def test_each_part_finds_a_rate_and_a_ratio(spark, tmp_path: Path, part: str):
    bench = Bench(spark, TINY, 1, tmp_path)
    getattr(bench, part)()
    rates = [row for row in bench.rows if row.figure.endswith("rows/s")]
    assert len(rates) >= 2
    assert all(float(row.figure.split()[0].replace(",", "")) > 0 for row in rates)
    assert [row for row in rates if row.goal and np.isfinite(_ratio(row.beside))]


def test_the_memory_of_a_backlog_is_found_with_its_rate(spark, tmp_path: Path):
    bench = Bench(spark, TINY, 1, tmp_path)
    bench.backlog()
    rate, memory = bench.rows
    assert rate.work == f"backlog of {TINY.backlog:,} messages"
    assert f"x the rows of a batch ({TINY.backlog:,} rows, 0.1 MB), " in memory.beside
    assert float(rate.figure.split()[0].replace(",", "")) > 0
    assert memory.figure.endswith(f" MB in {CORES} workers")


def test_the_steps_of_a_stream_are_told_apart(spark, tmp_path: Path):
    bench = Bench(spark, TINY, 1, tmp_path)
    bench.steps()
    assert [row.work for row in bench.rows] == [f"step: {name}" for name in STEPS]
    # Less than nothing, if workers of earlier tests end meanwhile together with their daemon.
    assert all(re.fullmatch(r"-?\d+\.\d s Java, -?\d+\.\d s Python", row.figure) for row in bench.rows), bench.rows
    assert [row.beside.partition(" ")[0] for row in bench.rows] == [""] * (len(STEPS) - 1) + ["kernel"]


def _ratio(beside: str) -> float:
    return float(beside.split(maxsplit=1)[0].removesuffix("x"))


def test_processor_seconds_include_those_of_a_process_that_has_ended():
    busy = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    with subprocess.Popen(
        ["sh", "-c", f'"$0" -c "{busy}"; echo; read done', sys.executable],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as shell:
        before = processor_ticks()
        assert shell.stdin is not None
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"\n"
        assert spent_since(before).python >= 0.3
        shell.stdin.close()
