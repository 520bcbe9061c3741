from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from seriatim.cli.main import cli


@pytest.fixture
def seriatim(tmp_path, monkeypatch, logger_as_it_was) -> Callable[..., Result]:
    """Run ``seriatim`` in an empty folder, with nobody's configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*args: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(cli, args, input=stdin, prog_name="seriatim")

    return run
