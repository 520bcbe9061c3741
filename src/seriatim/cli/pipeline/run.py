"""``seriatim pipeline run``: run a declared pipeline until it ends or is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import click

from seriatim.cli.common.command import with_output
from seriatim.cli.common.display import StatusLine
from seriatim.cli.common.output import Output
from seriatim.cli.common.signals import STOPPING
from seriatim.cli.pipeline.display import Snapshot
from seriatim.errors import SeriatimError
from seriatim.spark.local.session import local_session
from seriatim.spark.pipeline import Pipeline, load
from seriatim.spark.pipeline.run import Run, Totals

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_LINES = 10.0


class StopRequest:
    """The signal that asked to stop, if any. A second one does not wait."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@click.command("run")
@click.argument("path", metavar="PIPELINE", type=click.Path(path_type=Path))
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics for Prometheus and /health on this port of loopback.",
)
@with_output
def command(output: Output, path: Path, metrics_port: int | None) -> None:
    """Run a pipeline on Spark.

    PIPELINE is a TOML file. The pipeline ends when its source does (trigger = "available-now"), or on Ctrl-C after the current
    batch; run again, it continues where it stopped. A pipeline that requires guarantees it can't provide is not started (see
    'seriatim pipeline explain').
    """
    pipeline = load(path)
    pipeline.explain().require()
    log = log_file(pipeline)
    spark = local_session(pipeline.name, settings=pipeline.declaration.filled_in().spark, log_file=log)
    with stop_signals() as asked:
        try:
            run, status = pipeline.begin(spark), StatusLine(enabled=output.progress, interval=SECONDS_BETWEEN_LINES)
            with nullcontext() if metrics_port is None else serving_metrics(run, pipeline.name, metrics_port) as port:
                if port is not None:
                    status.notice(f"metrics at http://127.0.0.1:{port}/metrics")
                last = watch(run, asked, status)
        except SeriatimError as error:
            raise type(error)(f"{error} (Spark's log: {log})") from error
    output.result(last.as_fields(pipeline.name), last.summary(pipeline.name))
    if asked.signal is not None:
        raise click.exceptions.Exit(128 + asked.signal)


def log_file(pipeline: Pipeline) -> Path:
    """Beside the checkpoint, or here when that is not on this machine."""
    checkpoint = pipeline.declaration.filled_in().settings.checkpoint
    if "://" in checkpoint:
        return Path(f"{pipeline.name}.log").absolute()
    path = Path(f"{checkpoint.rstrip('/')}.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Handle the signals that ask to stop: Spark itself would cancel the running batch on Ctrl-C."""
    asked = StopRequest()
    before = {number: signal.signal(number, asked) for number in STOPPING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch(run: Run, asked: StopRequest, status: StatusLine) -> Snapshot:
    """Show what happens until the end, and finish it when asked to."""
    with status:
        while not run.wait(SECONDS_BETWEEN_LOOKS):
            status.show(Snapshot.of(run).line())
            if asked.signal is not None:
                status.notice("finishing the current batch")
                run.finish()
                break
    return Snapshot.of(run)


# -- metrics ------------------------------------------------------------------------------------------------------------


@contextmanager
def serving_metrics(run: Run, name: str, port: int) -> Iterator[int]:
    """Serve the figures of a run in a thread of its own; gives the port, which is chosen if it is 0."""
    from seriatim.telemetry.metrics_server import MetricsServer

    async def collect() -> Iterable[Any]:
        return await asyncio.to_thread(lambda: list(families(run.totals(), name)))

    server, loop = MetricsServer(collect, is_healthy=lambda: run.query.isActive), asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", port), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def families(totals: Totals, name: str) -> Iterator[Any]:
    """What a pipeline did since it was started, and how it stands, in the terms of Prometheus."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    figures = totals.figures
    slow = {key.removeprefix("slow/"): value for key, value in figures.items() if key.startswith("slow/")}
    counters: dict[str, tuple[str, float | Mapping[str, int]]] = {
        "batches": ("Batches that are done.", totals.batches),
        "rows_in": ("Rows that came.", figures["rows"]),
        "rows_out": ("Rows that went out, by what they are.", totals.rows),
        "ledger": ("Messages, and numbers that never came, in the ledger, by reason.", totals.ledger),
        "slow_keys": ("Keys of batches that were decided one by one, by cause.", slow),
        "kernel_seconds": ("How long tasks have put rows in order.", figures["kernel_ms"] / 1000),
        "state_seconds": ("How long tasks have read and written state.", figures["state_ms"] / 1000),
    }
    gauges = {
        "keys": ("Keys that are known.", figures["keys"]),
        "held_rows": ("Rows that wait for missing ones.", totals.held),
        "gaps": ("Ranges of missing numbers that are waited for.", figures["gaps"]),
        "rows_per_second": ("How fast the last batch was.", totals.rate),
        "last_batch_timestamp_seconds": ("When the last batch began.", totals.last_batch_at),
    }
    for family, metrics in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
        for what, (text, value) in metrics.items():
            values = value if isinstance(value, Mapping) else {None: value}
            labels = ["pipeline", *([LABELS[what]] if what in LABELS else [])]
            metric = family(f"seriatim_pipeline_{what}", text, labels=labels)
            for label, number in values.items():
                metric.add_metric([name, *([] if label is None else [label])], number)
            yield metric


LABELS = {"rows_out": "what", "ledger": "reason", "slow_keys": "cause"}
