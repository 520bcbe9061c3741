from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import click
import pytest

from seriatim.cli import commands
from seriatim.cli.commands import COMMANDS, Row, load_command
from seriatim.errors import InvalidArgument, MissingExtra, StaleLease


@pytest.fixture
def failing_command(monkeypatch):
    """Put a command that raises into the table, and say what it raises."""

    def install(error: BaseException) -> None:
        @click.command
        def command() -> None:
            raise error

        monkeypatch.setitem(COMMANDS, "fail", Row("failing", "Fail."))
        monkeypatch.setitem(sys.modules, "failing", type(sys)("failing"))
        monkeypatch.setattr(sys.modules["failing"], "command", command, raising=False)

    return install


def test_help_lists_every_command_with_its_summary(seriatim):
    result = seriatim("--help")
    assert result.exit_code == 0
    width = max(map(len, COMMANDS))
    for name, row in COMMANDS.items():
        assert f"  {name:<{width}}  {row.summary}\n" in result.output


def test_version_is_that_of_the_distribution(seriatim):
    result = seriatim("--version")
    assert (result.exit_code, result.output) == (0, f"seriatim, version {version('seriatim')}\n")


def test_python_dash_m_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "seriatim", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"seriatim, version {version('seriatim')}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_can_be_loaded_and_explains_itself(seriatim, name):
    result = seriatim(name, "--help")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: seriatim {name} ")


def test_an_unknown_command_is_a_usage_error(seriatim):
    result = seriatim("adit")
    assert result.exit_code == 2
    assert "No such command 'adit'" in result.stderr


def test_an_error_is_one_line_on_standard_error_with_status_1(seriatim, failing_command):
    failing_command(StaleLease("lease 7 of key 'a' has expired"))
    result = seriatim("fail")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: lease 7 of key 'a' has expired\n")


def test_an_invalid_argument_exits_with_status_2(seriatim, failing_command):
    failing_command(InvalidArgument("increment must be 1 or more"))
    result = seriatim("fail")
    assert (result.exit_code, result.stderr) == (2, "error: increment must be 1 or more\n")


def test_debug_shows_the_stack_trace_before_the_error(seriatim, failing_command):
    failing_command(StaleLease("expired"))
    result = seriatim("--debug", "fail")
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stderr.endswith("error: expired\n")


def test_an_interrupt_exits_with_status_130_and_no_stack_trace(seriatim, failing_command):
    failing_command(KeyboardInterrupt())
    result = seriatim("fail")
    assert (result.exit_code, result.output.strip()) == (130, "")


def test_a_mistake_of_our_own_is_not_hidden(seriatim, failing_command):
    failing_command(ZeroDivisionError("bug"))
    assert isinstance(seriatim("fail").exception, ZeroDivisionError)


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    """As in ``seriatim audit ... | head -1``."""
    trace = tmp_path / "trace.csv"
    trace.write_text("key,seq\n" + "".join(f"{key},1\n" for key in range(20)))
    command = [sys.executable, "-m", "seriatim", "audit", str(trace), "--key", "key", "--seq", "seq"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_command_whose_extra_is_missing_names_it(monkeypatch):
    monkeypatch.setitem(COMMANDS, "serve", Row("absent.module", "Serve.", extra="server", probes=("no_such_module",)))
    with pytest.raises(
        MissingExtra, match=r"the command 'serve' needs the extra 'server': pip install 'seriatim\[server\]'"
    ):
        load_command("serve")


def test_help_works_while_an_extra_is_missing(seriatim, monkeypatch):
    monkeypatch.setitem(
        commands.COMMANDS, "serve", Row("absent.module", "Serve.", extra="server", probes=("no_such_module",))
    )
    assert seriatim("--help").exit_code == 0
    result = seriatim("serve")
    assert (result.exit_code, result.stderr[:44]) == (1, "error: the command 'serve' needs the extra '")


def test_help_of_a_command_works_while_the_configuration_is_broken(seriatim, tmp_path):
    (tmp_path / "seriatim.toml").write_text("nonsense = 1")
    assert seriatim("config", "--help").exit_code == 0
    assert seriatim("config").exit_code == 2
