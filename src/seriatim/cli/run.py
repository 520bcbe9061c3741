"""``seriatim run``: a declared pipeline at work, until it ends or is told to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from seriatim.cli.output import Output
from seriatim.cli.run_display import LiveDisplay, RunDisplay, Snapshot
from seriatim.cli.session import configured
from seriatim.cli.signals import STOPPING
from seriatim.cli.store import json_option
from seriatim.config import LoadedConfig
from seriatim.errors import SeriatimError
from seriatim.spark.local.session import local_session
from seriatim.spark.pipeline import Pipeline, load
from seriatim.spark.pipeline.run import Run

SECONDS_BETWEEN_LOOKS = 0.5


class Asked:
    """Which signal asked for the end, if one did. A second one does not wait."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@click.command("run")
@click.argument("path", metavar="PIPELINE", type=click.Path(path_type=Path))
@json_option
@configured
def command(loaded: LoadedConfig, /, path: Path, as_json: bool) -> None:
    """Run the pipeline that the TOML file PIPELINE declares.

    It ends when its source does (trigger = "available-now"), or on Ctrl-C, after the batch under way. It goes on where it
    was when it is run again. A pipeline that promises more than it can keep is not started ('seriatim explain').
    """
    pipeline = load(path)
    pipeline.explain().require()
    log = log_file(pipeline)
    spark = local_session(pipeline.name, settings=pipeline.declaration.filled_in().spark, log_file=log)
    with stop_signals() as asked:
        try:
            run = pipeline.begin(spark)
            last = watch(run, asked, LiveDisplay.for_terminal(enabled=loaded.values.progress))
        except SeriatimError as error:
            raise type(error)(f"{error} (Spark's log: {log})") from error
    Output(as_json).result(last.as_fields(pipeline.name), last.summary(pipeline.name))
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
def stop_signals() -> Iterator[Asked]:
    """Take over the signals that ask for the end: Spark's own answer to Ctrl-C is to cancel what is at work."""
    asked = Asked()
    before = {number: signal.signal(number, asked) for number in STOPPING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch(run: Run, asked: Asked, display: RunDisplay) -> Snapshot:
    """Show what happens until the end, and finish it when asked to."""
    with display:
        while not run.wait(SECONDS_BETWEEN_LOOKS):
            display.show(Snapshot.of(run))
            if asked.signal is not None:
                display.say("finishing the batch under way")
                run.finish()
                break
    return Snapshot.of(run)
