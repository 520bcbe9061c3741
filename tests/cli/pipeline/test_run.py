"""Watching a pipeline until it ends or is asked to stop. What Spark does is in tests/spark/pipeline."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import closing
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from seriatim.cli.common.display import StatusLine
from seriatim.cli.pipeline.run import serving_metrics, stop_signals, watch
from seriatim.errors import FailedPrecondition
from seriatim.spark.pipeline.run import Totals


class ScriptedRun:
    """A run that ends by itself after a few looks, or when it is finished."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.finished = False

    def wait(self, seconds: float) -> bool:
        self.looks -= 1
        return self.looks < 0

    def finish(self) -> None:
        self.finished = True

    def totals(self) -> Any:
        rows = Counter({"ordered": 4})
        return SimpleNamespace(last_batch=0, batches=1, rows_in=6, rows=rows, held=1, ledger=Counter(), rate=2.0)


def test_a_run_that_ends_by_itself_is_watched_to_its_end(capsys):
    run = ScriptedRun(looks=3)
    with stop_signals() as asked:
        last = watch(run, asked, StatusLine(enabled=True, interval=0.0))  # type: ignore[arg-type]
    assert (last.rows_in, last.ordered, last.held, run.finished) == (6, 4, 1, False)
    # The same figures are printed once.
    assert capsys.readouterr().err == "batch 0: 6 in, 4 ordered, 1 held, ledger: nothing; 2 rows/s\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_current_batch_finish_and_a_second_one_does_not_wait(capsys, number):
    run, before = ScriptedRun(looks=1_000), signal.getsignal(number)
    with stop_signals() as asked:
        os.kill(os.getpid(), number)
        watch(run, asked, StatusLine(enabled=False))  # type: ignore[arg-type]
        assert (asked.signal, run.finished) == (number, True)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert capsys.readouterr().err == "finishing the current batch\n"
    assert signal.getsignal(number) is before


# -- metrics ------------------------------------------------------------------------------------------------------------


class Counted(ScriptedRun):
    """A run with figures, whose query is active."""

    query = SimpleNamespace(isActive=True)

    def totals(self) -> Totals:
        figures = Counter({"rows": 6, "keys": 2, "gaps": 1, "kernel_ms": 1500, "state_ms": 250, "slow/room": 3})
        return Totals(
            last_batch=0, batches=1, held=1, rows=Counter(ordered=4), ledger=Counter(duplicate=1), figures=figures
        )


def test_prometheus_finds_the_figures_and_whether_the_query_runs():
    run = Counted(looks=0)
    with serving_metrics(run, "calls", 0) as port:  # type: ignore[arg-type]
        text = _get(port, "/metrics")[1]
        found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        prefix, label = "seriatim_pipeline", '{pipeline="calls"}'
        assert found[f"{prefix}_rows_in_total{label}"] == "6.0"
        assert found[f"{prefix}_held_rows{label}"] == "1.0"
        assert found[f"{prefix}_kernel_seconds_total{label}"] == "1.5"
        assert found[f'{prefix}_rows_out_total{{pipeline="calls",what="ordered"}}'] == "4.0"
        assert found[f'{prefix}_ledger_total{{pipeline="calls",reason="duplicate"}}'] == "1.0"
        assert found[f'{prefix}_slow_keys_total{{cause="room",pipeline="calls"}}'] == "3.0"
        assert _get(port, "/health")[0] == 200
        run.query = SimpleNamespace(isActive=False)
        assert _get(port, "/health")[0] == 503
    with pytest.raises(ConnectionRefusedError):
        _get(port, "/health")


def test_a_port_that_is_taken_is_a_refusal_and_no_trace():
    with (
        serving_metrics(Counted(looks=0), "calls", 0) as port,  # type: ignore[arg-type]
        pytest.raises(FailedPrecondition, match=f"can't serve metrics at 127.0.0.1:{port}"),
        serving_metrics(Counted(looks=0), "calls", port),  # type: ignore[arg-type]
    ):
        pass


def _get(port: int, path: str) -> tuple[int, str]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
