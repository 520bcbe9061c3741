"""What the global options said, and how a command gets at its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import click

from seriatim import config, log

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the command line."""

    config_file: Path | None = None
    log_level: str | None = None

    def open(self) -> config.LoadedConfig:
        """Read the configuration and start logging as it says."""
        loaded = config.load(self.config_file, {"log_level": self.log_level})
        log.configure(loaded.values.log_level, loaded.values.log_format)
        return loaded


def configured(command: Callable[Concatenate[config.LoadedConfig, P], R]) -> Callable[P, R]:
    """Give a command the configuration as its first argument.

    It is read only when the command runs, so that ``--help`` works while the configuration is broken.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        session = click.get_current_context().find_object(Session) or Session()
        return command(session.open(), *args, **kwargs)

    return run
