from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from seriatim.cli.commands import SECTIONS, Row
from seriatim.cli.main import cli
from seriatim.errors import InvalidArgument, StaleLease

ROWS = cli.rows


@pytest.fixture
def failing_command(monkeypatch):
    """Put a command that raises into the table, and say what it raises."""

    def install(error: BaseException) -> None:
        @click.command
        def command() -> None:
            raise error

        monkeypatch.setitem(ROWS, "fail", Row("Fail.", "failing"))
        module = type(sys)("seriatim.cli.failing")
        setattr(module, "command", command)  # noqa: B010 - a module made here has no such attribute to a type checker
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


def test_help_lists_every_command_with_its_summary_in_a_section(seriatim):
    result = seriatim("--help")
    assert result.exit_code == 0
    for title, rows in SECTIONS.items():
        section = result.output.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        width = max(map(len, rows))
        assert section == [f"  {name:<{width}}  {row.summary}" for name, row in rows.items()]


def test_version_is_that_of_the_distribution(seriatim):
    result = seriatim("--version")
    assert (result.exit_code, result.output) == (0, f"seriatim, version {version('seriatim')}\n")


def test_python_dash_m_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "seriatim", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"seriatim, version {version('seriatim')}\n"


def every_row(rows: Mapping[str, Row], *path: str) -> Iterator[tuple[tuple[str, ...], Row]]:
    for name, row in rows.items():
        yield (*path, name), row
        yield from every_row(row.commands, *path, name)


@pytest.mark.parametrize(("path", "row"), [pytest.param(*found, id=" ".join(found[0])) for found in every_row(ROWS)])
def test_every_command_of_the_table_can_be_loaded_and_begins_with_its_summary(seriatim, path, row):
    result = seriatim(*path, "--help")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: seriatim {' '.join(path)} ")
    assert result.output.splitlines()[2].strip() == row.summary


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        ("publish", "Did you mean 'seriatim messages publish'?"),
        ("repair", "Did you mean 'seriatim trace resequence'?"),
        ("state", "Did you mean 'seriatim pipeline state'?"),
        ("topic", "Did you mean 'seriatim topics'?"),
        ("publihs", "Did you mean 'seriatim messages publish'?"),
        ("topics crate", "Did you mean 'seriatim topics create'?"),
        ("store chek", "Did you mean 'seriatim store check'?"),
        ("topics publish", "Did you mean 'seriatim messages publish'?"),
        ("seek", "Did you mean 'seriatim subscriptions seek'?"),
        ("ack", "Did you mean 'seriatim messages pull --ack'?"),
        ("keys show", "Did you mean 'seriatim keys why'?"),
        ("topics rm", "Did you mean 'seriatim topics delete'?"),
        ("subscriptions describe", "Did you mean 'seriatim subscriptions show'?"),
        ("version", "Did you mean 'seriatim --version'?"),
        ("console --port 8086", "Use --listen instead."),
        ("messages pull s --max 3", "Use --limit instead."),
        ("subscriptions seek s --to-end", "Use --time now instead."),
        ("topics create --topic t", "No such option '--topic'"),
        ("store --store x check", "No such option '--store'. The options of a command go after its name."),
        ("--json topics list", "No such option '--json'. The options of a command go after its name."),
        ("topics list -v", "No such option '-v' here: it goes before the command."),
        ("--log-levle info", "Did you mean '--log-level'?"),
        ("topics list --jsn", "Did you mean '--json'?"),
        ("--log-level inof", "Did you mean 'info'?"),
        ("subscriptions create t s --retry-mode blok", "Did you mean 'block'?"),
        ("xyzzy", "See 'seriatim --help'."),
    ],
)
def test_a_mistyped_or_moved_name_gets_a_suggestion(seriatim, typed, suggestion):
    result = seriatim(*typed.split())
    assert result.exit_code == 2
    # Click has its own words for options.
    assert suggestion.removeprefix("Did you mean ") in result.stderr.replace("(Did you mean ", "").replace("?)", "?")


def test_suggestions_need_no_extra(seriatim, monkeypatch):
    monkeypatch.setattr("seriatim.extras.find_spec", lambda module: None)
    assert "Did you mean 'seriatim messages pull'?" in seriatim("pull").stderr


def test_an_error_is_one_line_on_standard_error_with_status_1(seriatim, failing_command):
    failing_command(StaleLease("lease 7 of key 'a' has expired"))
    result = seriatim("fail")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: lease 7 of key 'a' has expired\n")


def test_an_invalid_argument_exits_with_status_2(seriatim, failing_command):
    failing_command(InvalidArgument("increment must be 1 or more"))
    result = seriatim("fail")
    assert (result.exit_code, result.stderr) == (2, "error: increment must be 1 or more\n")


def test_an_empty_store_is_not_the_configured_one(seriatim):
    result = seriatim("topics", "list", "--store", "")
    assert (result.exit_code, "it is empty: is a variable not set?" in result.stderr) == (2, True)


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


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), OSError("about no file")])
def test_a_mistake_of_our_own_is_not_hidden(seriatim, failing_command, error):
    failing_command(error)
    assert seriatim("fail").exception is error


def test_a_file_that_can_not_be_used_is_one_line(seriatim, failing_command):
    failing_command(PermissionError(13, "Permission denied", "trace.csv"))
    result = seriatim("fail")
    assert (result.exit_code, result.stderr) == (1, "error: 'trace.csv': Permission denied\n")


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    """As in ``seriatim trace audit ... | head -1``."""
    trace = tmp_path / "trace.csv"
    trace.write_text("key,seq\n" + "".join(f"{key},1\n" for key in range(20)))
    command = [sys.executable, "-m", "seriatim", "trace", "audit", str(trace), "--key", "key", "--seq", "seq"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.fixture
def base_install(monkeypatch) -> None:
    """No extra is installed."""
    monkeypatch.setattr("seriatim.extras.find_spec", lambda module: None)


def test_a_command_whose_extra_is_missing_names_it_and_help_does_too(seriatim, base_install):
    result = seriatim("serve")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: 'seriatim serve' needs the extra 'server': pip install 'seriatim[server]'\n",
    )
    assert "Serve the Google Pub/Sub API. (pip install 'seriatim[server]')\n" in seriatim("--help").output
    assert "(pip install 'seriatim[mqtt]')" in seriatim("sparkplug", "--help").output


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("seriatim mess", ["messages"]),
        ("seriatim messages p", ["publish", "pull"]),
        ("seriatim topics cr", ["create"]),
        ("seriatim pipeline r", ["run"]),
        ("seriatim pipeline run --js", []),
        ("seriatim serve --po", []),
        ("seriatim topics create t --reten", ["--retention"]),
        ("seriatim subscriptions create t s --retry-mode o", ["overtake"]),
    ],
)
def test_a_shell_completes_commands_options_and_choices_on_a_base_install(base_install, typed, completed):
    words = typed.split()
    environment = {"_SERIATIM_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(cli, [], prog_name="seriatim", env=environment, complete_var="_SERIATIM_COMPLETE")
    assert [line.partition(",")[2] for line in result.output.split()] == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_calls_back(seriatim, base_install, shell):
    script = seriatim("completion", shell).stdout
    assert f"_SERIATIM_COMPLETE={shell}_complete" in script


def test_help_of_a_command_works_while_the_configuration_is_broken(seriatim, tmp_path):
    (tmp_path / "seriatim.toml").write_text("nonsense = 1")
    assert seriatim("config", "--help").exit_code == 0
    assert seriatim("config").exit_code == 2


# -- words ----------------------------------------------------------------------------------------------------------------


def test_help_shows_the_help_of_any_command(seriatim):
    for words in ((), ("keys",), ("keys", "retry"), ("store", "check"), ("help",)):
        assert seriatim("help", *words).stdout == seriatim(*words, "--help").stdout
    assert "Did you mean 'seriatim keys retry'?" in seriatim("help", "keys", "rety").stderr
    result = seriatim("help", "keys", "retry", "more")
    assert (result.exit_code, "'seriatim keys retry' has no commands." in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "command", ["topics create a", "topics list", "messages publish a b --create", "messages read a", "console"]
)
def test_a_store_in_memory_is_refused_where_it_would_end_with_the_command(seriatim, command):
    result = seriatim(*command.split(), "--store", "memory://")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: a store in memory is gone when the command ends: name a file with --store")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["store", "restore", "monday.db", "new.db"], "(new.db): a store is named with --store sqlite:///new.db"),
        (["store", "check", "sqlite:///new.db"], "(sqlite:///new.db): a store is named with --store sqlite:///new.db"),
        (["topics", "list", "here"], "(here): a store is named with --store sqlite:///here"),
        (["topics", "list", "new.db", "x"], "(new.db x): a store is named with --store sqlite:///new.db"),
        (["subscriptions", "list", "orders"], "(orders): a topic is named with --topic orders"),
        (["topics", "list", "orders"], "(orders)"),
    ],
)
def test_a_store_or_a_topic_that_belongs_into_an_option_is_told_where_it_goes(seriatim, tmp_path, command, hint):
    (tmp_path / "here").touch()
    result = seriatim(*command)
    assert result.exit_code == 2
    assert result.stderr.endswith(f"{hint}\n")


def test_what_is_wrong_with_an_option_is_said_with_its_name_here(seriatim):
    assert seriatim("topics", "create", "a_topic").exit_code == 0
    result = seriatim("subscriptions", "create", "a_topic", "s", "--ack-deadline", "0")
    assert result.stderr == "error: --ack-deadline must be 0.01 seconds or more, not 0.0\n"
    result = seriatim("subscriptions", "create", "a_topic", "s", "--min-backoff", "9", "--max-backoff", "3")
    assert "--min-backoff" in result.stderr
    assert "min_backoff" not in result.stderr
