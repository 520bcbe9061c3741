"""The folder with the results of a run. Existing files are never touched."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from seriatim.errors import AlreadyExists, FailedPrecondition

DEFAULT_NAME = "seriatim-demo"
PIPELINE = Path(__file__).with_name("pipeline.toml")
"""Every run on Spark gets a copy of this pipeline."""


class DemoFolder:
    """The paths of the results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path / "demo.db"
        self.url = f"sqlite:///{self.store.absolute()}"
        self.pipeline = path / "pipeline.toml"
        self.ordered, self.ledger = path / "ordered", path / "ledger"
        self.report, self.spark_log = path / "report.html", path / "spark.log"

    @classmethod
    def make(cls, chosen: Path | None) -> DemoFolder:
        """The chosen folder, which must be new or empty, or else a new one here: ``seriatim-demo``, ``seriatim-demo-2`` …"""
        try:
            return cls(_made_new(Path(DEFAULT_NAME)) if chosen is None else _made_empty(chosen))
        except OSError as error:
            raise FailedPrecondition(
                f"can't create the folder '{error.filename}' ({error.strerror}): choose another with --folder"
            ) from error


def _made_new(name: Path) -> Path:
    for number in count(2):
        try:
            name.mkdir()
        except FileExistsError:
            name = Path(f"{DEFAULT_NAME}-{number}")
        else:
            return name
    raise AssertionError("numbers do not end")


def _made_empty(path: Path) -> Path:
    if (path.exists() and not path.is_dir()) or (path.is_dir() and any(path.iterdir())):
        raise AlreadyExists(f"'{path}' already exists, and is not an empty folder: choose another with --folder")
    path.mkdir(parents=True, exist_ok=True)
    return path
