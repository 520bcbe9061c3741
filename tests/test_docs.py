"""The README and the docs are true: their code runs, their commands print what they show, their links lead somewhere.

A page's blocks run in order, in one empty folder and one namespace:

- ``python`` runs. A ``text`` block right after it is what it prints.
- ``console`` runs each line behind a ``$``; the lines below it are what it prints, where ``...`` stands for anything.
- ``sh`` runs each line. A server runs until the end of its block, at any free port.
- ``sql`` runs, all of it in one transaction, in the database of the page.
- a block ``file=NAME``, of any language, is written to that file first.
- what readers need not see, such as the file that a command reads, is in a block inside of an HTML comment.

Two programs would change the machine instead of showing something. ``pip install 'seriatim[...]'`` is checked: there are such
extras. ``make TARGET`` is run as far as saying what it would do. Blocks of ``sh`` that need what no test has are marked
``not-run`` and counted. Some pages are run by tests of their own.

A page that speaks of ``DATABASE_URL`` finds the address of an empty database of PostgreSQL in that variable.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from _pytest.mark.structures import ParameterSet

from seriatim.cli.main import cli
from seriatim.config import Config
from seriatim.extras import EXTRAS
from tests import postgres

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_BY = {
    "docs/how-to/audit-a-stream.md": "tests/spark/test_commands.py",
    "docs/how-to/connect-sparkplug-nodes.md": "tests/sparkplug/test_how_to.py",
    "docs/tutorial/demo.md": "tests/e2e/test_demo.py",
}
"""Pages whose blocks of ``sh`` need a broker, a session of Spark or the outcome of the demo, and the tests that have it."""
PROGRAMS_RUN_BY = {
    "docs/how-to/use-kafka.md": "tests/integration/kafka/test_how_to.py",
    "docs/how-to/connect-sparkplug-nodes.md": "tests/sparkplug/test_how_to.py",
    "docs/how-to/use-spark-connect.md": "tests/integration/test_connect.py",
}
"""Pages with a program in a file of its own that needs more than a page has, and the tests that run it."""
NOT_RUN = 1
"""A packed environment for a cluster, which pip would download; tests/integration/test_submit.py packs what is installed."""
PATIENCE = 60.0


class Block(NamedTuple):
    info: str
    body: str

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]

    @property
    def file(self) -> str | None:
        named = re.search(r"file=(\S+)", self.info)
        return named[1] if named else None


def blocks_of(page: Path) -> list[Block]:
    return [Block(found["info"].strip(), found["body"]) for found in FENCE.finditer(page.read_text(encoding="utf-8"))]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def grouped(page: Path) -> ParameterSet:
    """Pages that use Spark run where the other tests that do have a session already."""
    uses_spark = "seriatim.spark" in page.read_text(encoding="utf-8")
    return pytest.param(page, marks=pytest.mark.xdist_group("spark") if uses_spark else ())


@pytest.mark.parametrize("page", map(grouped, PAGES), ids=[page_id(page) for page in PAGES])
def test_the_code_of_a_page_does_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    if "seriatim pipeline run" in page.read_text(encoding="utf-8"):
        monkeypatch.setenv("SERIATIM_PROGRESS", "false")  # it prints a line when the first batch takes long
    if "DATABASE_URL" in page.read_text(encoding="utf-8"):
        monkeypatch.setenv("DATABASE_URL", postgres.server().new_database())
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = blocks_of(page)
    for block, following in zip_longest(blocks, blocks[1:], fillvalue=Block("", "")):
        if block.file:
            Path(block.file).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            printed = run_python(block.body, namespace, page)
            assert_shown(following.body if following.info == "text" else printed, printed)
        elif block.language == "console":
            run_console(block.body)
        elif block.language == "sql":
            postgres.run(os.environ["DATABASE_URL"], block.body)
        elif block.info == "sh" and page_id(page) not in RUN_BY:
            run_script(block.body, monkeypatch)


def run_python(source: str, namespace: dict[str, object], page: Path) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(source, page_id(page), "exec"), namespace)
    return output.getvalue()


def run_console(session: str) -> None:
    for command, shown in commands_of(session):
        if not checked_only(command):
            status, printed = run_command(command)
            if shown:
                assert_shown(shown, printed)
            else:
                assert status == 0, f"$ {command}\n{printed}"


def run_script(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as servers:
        for line in lines_of(script):
            words = shlex.split(line, comments=True)
            if words[0] == "export":
                monkeypatch.setenv(*words[1].split("=", 1))
            elif words[:2] == ["seriatim", "serve"]:
                servers.enter_context(server(words[1:]))
            elif not checked_only(line):
                status, printed = run_command(line)
                assert status == 0, f"{line}\n{printed}"


def lines_of(script: str) -> list[str]:
    return [line for line in script.replace("\\\n", " ").splitlines() if line.strip()]


def run_command(command: str) -> tuple[int, str]:
    """Exit status and output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PATH": path},
        check=False,
    )
    return done.returncode, done.stdout


@contextlib.contextmanager
def server(arguments: list[str]) -> Iterator[None]:
    """A server that has said where it serves, and is stopped with Ctrl-C."""
    command = [sys.executable, "-m", "seriatim", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
            yield
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def checked_only(command: str) -> bool:
    """Whether the command would change the machine; then it is checked instead."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["pip", "install"]:
        (wanted,) = words[2:]
        named = re.fullmatch(r"seriatim(?:\[(.+)\])?", wanted)
        assert named is not None, command
        assert set((named[1] or "server").split(",")) <= set(EXTRAS)
    elif words[0] == "make":
        done = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return words[0] in {"pip", "make"}


def commands_of(session: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def assert_shown(shown: str, printed: str) -> None:
    expected, actual = ("\n".join(line.rstrip() for line in text.strip("\n").splitlines()) for text in (shown, printed))
    pattern = re.sub(r"^\\.\\.\\.\\\n", r"(?:.*\\n)?", re.escape(expected), flags=re.MULTILINE)
    pattern = pattern.replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, actual, re.DOTALL), f"the page shows\n{expected}\nbut this is printed\n{actual}"


def test_output_that_differs_from_what_is_shown_is_noticed():
    assert_shown("total: ... rows", "total: 8 rows  \n")
    assert_shown("...\ntotal: 8 rows", "total: 8 rows")
    assert_shown("...\ntotal: 8 rows", "first\nsecond\ntotal: 8 rows")
    with pytest.raises(AssertionError, match="the page shows"):
        assert_shown("total: 8 rows", "total: 9 rows")


def test_blocks_of_toml_are_toml():
    """Also those that are a part of a file: names with dots must not be a value and a table at once."""
    for page in PAGES:
        for block in blocks_of(page):
            if block.language == "toml":
                tomllib.loads(block.body)


def test_shell_blocks_that_are_not_run_are_few():
    assert len([block for page in PAGES for block in blocks_of(page) if block.info == "sh not-run"]) == NOT_RUN


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_sentences_and_their_options_exist(page):
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for command in re.findall(r"`seriatim ([a-z][^`]*)`", prose):
        words = command.split()
        context = click.Context(cli, info_name="seriatim")
        while words and isinstance(context.command, click.Group) and words[0][0].isalpha() and words[0].islower():
            child = context.command.get_command(context, words.pop(0))
            assert child is not None, command
            context = click.Context(child, context)
        known = {name for option in context.command.params for name in (*option.opts, *option.secondary_opts)}
        unknown = {re.split(r"[=\]]", word)[0] for word in words if word.startswith("--")} - known - {"--help"}
        assert unknown == set(), command


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_shell_block_is_run_or_marked(page):
    shells = [block.info for block in blocks_of(page) if re.match(r"(?:sh|bash|shell|console|zsh)\b", block.info)]
    assert set(shells) <= {"sh", "console", "sh not-run"}


@pytest.mark.parametrize(("page", "test"), RUN_BY.items())
def test_a_page_that_is_run_elsewhere_is_read_there(page, test):
    assert page in (ROOT / test).read_text(encoding="utf-8")
    assert any(block.info == "sh" for block in blocks_of(ROOT / page))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_python_block_is_excused_from_running(page):
    """A program in a file of its own is run by a block, or a test, that names the file."""
    blocks = blocks_of(page)
    run = [block.body for block in blocks if block.info in {"python", "console"}]
    if page_id(page) in PROGRAMS_RUN_BY:
        run.append((ROOT / PROGRAMS_RUN_BY[page_id(page)]).read_text(encoding="utf-8"))
        assert page_id(page) in run[-1]
    named = {block.info for block in blocks if block.file and any(block.file in body for body in run)}
    python = {block.info for block in blocks if block.language.startswith("py")}
    assert python - named - {"python"} == set()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_leads_to_a_file(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_first_page_of_the_docs_leads_to_every_other():
    start = ROOT / "docs/README.md"
    linked = {
        (start.parent / target).resolve() for target in re.findall(r"\]\(([^)]+\.md)\)", start.read_text("utf-8"))
    }
    pages = {page for page in start.parent.rglob("*.md") if not re.match(r"\d", page.name)}
    assert pages - linked == {start}


def test_every_decision_is_numbered_and_listed_under_its_title():
    folder = ROOT / "docs/decisions"
    pages = sorted(folder.glob("[0-9]*.md"))
    assert [int(page.name[:3]) for page in pages] == list(range(1, len(pages) + 1))
    titles = {page.name: page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages}
    listed = re.findall(
        r"^- \[(.+)\]\((\d{3}-[a-z0-9-]+\.md)\)$", (folder / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert listed == [(title, name) for name, title in titles.items()]


ON_A_STORE = "Every command on a store"
"""The section of the reference with the options that all those commands share."""


def sections_of_the_cli_reference() -> dict[str, str]:
    """The text below each heading; that of a command is its call, in backticks."""
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    parts = re.split(r"^##+ (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands_below(ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    """The commands in a group and in the groups below it, each with what is typed to call it."""
    assert isinstance(ctx.command, click.Group)
    for name in ctx.command.list_commands(ctx):
        child = ctx.command.get_command(ctx, name)
        assert child is not None
        below = click.Context(child, ctx, name)
        yield below.command_path, child
        if isinstance(child, click.Group):
            yield from commands_below(below)


def every_command() -> dict[str, click.Command]:
    return dict(commands_below(click.Context(cli, info_name="seriatim")))


EVERY_COMMAND = every_command()


def options_of(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def options_in(section: str) -> set[str]:
    """The options in the first column of a section's table."""
    rows = re.findall(r"^\| (`-[^|]*) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(--?[\w-]+)", row)}


def test_the_reference_has_a_section_for_every_command_and_no_other():
    headings = {heading.strip("`") for heading in sections_of_the_cli_reference() if heading.startswith("`")}
    assert headings == {"seriatim", *EVERY_COMMAND}


@pytest.mark.parametrize("path", EVERY_COMMAND)
def test_the_reference_lists_exactly_the_options_of_a_command(path):
    sections, options = sections_of_the_cli_reference(), options_of(EVERY_COMMAND[path])
    shared = options_in(sections[ON_A_STORE])
    documented = options_in(sections[f"`{path}`"]) | (shared if "--store" in options else set())
    assert documented == options


def test_the_reference_names_every_command_on_a_store_or_its_group():
    introduction = sections_of_the_cli_reference()[ON_A_STORE].partition("take these options")[0]
    named = set(re.findall(r"`([^`]+)`", introduction))
    on_a_store = {
        path.removeprefix("seriatim ") for path, command in EVERY_COMMAND.items() if "--store" in options_of(command)
    }
    assert {path for path in on_a_store if not {path, path.split(" ")[0]} & named} == set()


def test_every_command_on_a_store_takes_its_address_and_prints_json():
    on_a_store = {path for path, command in EVERY_COMMAND.items() if "--store" in options_of(command)}
    leaves = {path for path, command in EVERY_COMMAND.items() if not isinstance(command, click.Group)}
    without_store = leaves - on_a_store
    assert {path.removeprefix("seriatim ") for path in without_store} == {
        *(
            "pipeline run",
            "pipeline explain",
            "pipeline state info",
            "pipeline state held",
            "pipeline state repartition",
        ),
        *("trace resequence", "sparkplug rebirth", "demo", "config", "completion", "help"),
    }
    assert all(
        "--json" in options_of(EVERY_COMMAND[path]) for path in leaves - {"seriatim completion", "seriatim help"}
    )


def test_the_reference_names_every_command_that_asks_before_it_acts():
    asking = {
        path.removeprefix("seriatim ") for path, command in EVERY_COMMAND.items() if "--yes" in options_of(command)
    }
    said = re.search(r"^\*\*Confirmation\.\*\*(.+)$", sections_of_the_cli_reference()[ON_A_STORE], re.MULTILINE)
    assert said is not None
    assert "every `delete`" in said[1]
    deletions = {path.removeprefix("seriatim ") for path in EVERY_COMMAND if path.endswith(" delete")}
    assert deletions | set(re.findall(r"`([a-z-]+ [a-z-]+)`", said[1])) == asking


def test_the_reference_lists_exactly_the_global_options():
    assert options_in(sections_of_the_cli_reference()["`seriatim`"]) == options_of(cli) | {"-h", "--help"}


def test_the_reference_lists_every_setting_with_its_variable():
    text = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE)
    expected = [
        (setting.name, f"SERIATIM_{setting.name.upper()}", str(setting.default).replace("True", "true") or '""')
        for setting in fields(Config)
    ]
    assert documented == expected
