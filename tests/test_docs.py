"""The README and the docs are true: their code runs, their commands print what they show, their links lead somewhere.

A page's blocks run in order, in one empty folder and one namespace:

- ``python`` runs. A ``text`` block right after it is what it prints.
- ``console`` runs each ``$ seriatim ...`` line; the lines below it are what it prints, where ``...`` stands for anything.
- a block ``file=NAME``, of any language, is written to that file first.

A page that speaks of ``DATABASE_URL`` finds the address of an empty PostgreSQL in that variable.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from _pytest.mark.structures import ParameterSet

from seriatim.cli.commands import COMMANDS, load_command
from seriatim.cli.main import cli
from seriatim.config import Config
from tests import postgres

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
RUNS_SERIATIM = re.compile(r"(?:^|\| |^[A-Z_]+=\S+ )seriatim\b")


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
    if "DATABASE_URL" in page.read_text(encoding="utf-8"):
        monkeypatch.setenv("DATABASE_URL", postgres.server().new_url())
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


def run_python(source: str, namespace: dict[str, object], page: Path) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(source, page_id(page), "exec"), namespace)
    return output.getvalue()


def run_console(session: str) -> None:
    for command, shown in commands_of(session):
        if not RUNS_SERIATIM.search(command):
            continue
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ = os.environ | {"PATH": path}
        done = subprocess.run(
            command, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, check=False
        )
        if shown:
            assert_shown(shown, done.stdout)
        else:
            assert done.returncode == 0, f"$ {command}\n{done.stdout}"


def commands_of(session: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def assert_shown(shown: str, printed: str) -> None:
    expected, actual = ("\n".join(line.rstrip() for line in text.strip("\n").splitlines()) for text in (shown, printed))
    pattern = re.escape(expected).replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, actual, re.DOTALL), f"the page shows\n{expected}\nbut this is printed\n{actual}"


def test_output_that_differs_from_what_is_shown_is_noticed():
    assert_shown("total: ... rows", "total: 8 rows  \n")
    with pytest.raises(AssertionError, match="the page shows"):
        assert_shown("total: 8 rows", "total: 9 rows")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_python_block_is_excused_from_running(page):
    assert [block.info for block in blocks_of(page) if block.language.startswith("py") and block.info != "python"] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_leads_to_a_file(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)
    assert [target for target in targets if not (page.parent / target).exists()] == []


ON_A_STORE = "Every command on a store"
"""The section of the reference with the options that all those commands share."""


def sections_of_the_cli_reference() -> dict[str, str]:
    """The text below each heading; that of a command is its call, in backticks."""
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    parts = re.split(r"^##+ (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands_below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and, when it is a group, those in it, each with what is typed to call it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands_below(f"{path} {name}", child)


def every_command() -> dict[str, click.Command]:
    found = ((f"seriatim {name}", load_command(name)) for name in COMMANDS)
    return {path: below for name, row in found if row for path, below in commands_below(name, row)}


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


def test_every_command_on_a_store_takes_its_address_and_prints_json():
    on_a_store = {path for path, command in EVERY_COMMAND.items() if "--store" in options_of(command)}
    leaves = {path for path, command in EVERY_COMMAND.items() if not isinstance(command, click.Group)}
    on_state = {"seriatim state held", "seriatim state info", "seriatim state repartition"}
    others = {
        f"seriatim {name}" for name in ("audit", "config", "demo", "explain", "repair", "run", "sparkplug rebirth")
    }
    assert leaves - on_a_store - on_state == others
    assert all("--json" in options_of(EVERY_COMMAND[path]) for path in leaves)


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
