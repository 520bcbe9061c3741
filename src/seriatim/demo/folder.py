"""The folder of a run: everything that it leaves to be looked at. What exists is never touched."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

from seriatim.errors import AlreadyExists, FailedPrecondition

DEFAULT_NAME = "seriatim-demo"
PIPELINE = Path(__file__).with_name("pipeline.toml")
"""The pipeline of which every run on Spark gets a copy."""


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """Where is what."""

    path: Path

    @classmethod
    def make(cls, chosen: Path | None) -> DemoFolder:
        """The chosen folder, which must be new or empty, or else a new one here: ``seriatim-demo``, ``seriatim-demo-2`` …"""
        try:
            return cls(_made_new(Path(DEFAULT_NAME)) if chosen is None else _made_empty(chosen))
        except OSError as error:
            raise FailedPrecondition(
                f"no folder can be made at '{error.filename}' ({error.strerror}): name another place with --folder"
            ) from error

    @property
    def store(self) -> Path:
        return self.path / "demo.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.store.absolute()}"

    @property
    def pipeline(self) -> Path:
        return self.path / "pipeline.toml"

    @property
    def ordered(self) -> Path:
        return self.path / "ordered"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def spark_log(self) -> Path:
        return self.path / "spark.log"


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
        raise AlreadyExists(f"'{path}' is there already, and not an empty folder: name another place with --folder")
    path.mkdir(parents=True, exist_ok=True)
    return path
