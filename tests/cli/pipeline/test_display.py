"""The figures of a running pipeline."""

from __future__ import annotations

from seriatim.cli.pipeline.display import Snapshot

BUSY = Snapshot(
    batch=12, batches=3, rows_in=24_000, ordered=23_700, held=180, ledger={"duplicate": 100, "lost": 2}, rate=5_900.4
)


def test_a_line_has_all_figures():
    assert Snapshot().line() == "waiting for the first batch"
    assert BUSY.line() == ("batch 12: 24,000 in, 23,700 ordered, 180 held, ledger: 100 duplicate, 2 lost; 5,900 rows/s")
