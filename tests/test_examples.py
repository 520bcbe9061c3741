"""Every example runs, and prints what it says that it prints."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def grouped(example: Path) -> ParameterSet:
    """Those that use Spark run after each other, with the other tests that do: each is a driver of its own."""
    uses_spark = "seriatim.spark" in example.read_text(encoding="utf-8")
    return pytest.param(example, marks=pytest.mark.xdist_group("spark") if uses_spark else (), id=example.stem)


def promised(example: Path) -> str:
    """The output that the docstring of an example shows."""
    docstring = ast.get_docstring(ast.parse(example.read_text())) or ""
    _, _, output = docstring.partition("Prints:\n\n")
    return textwrap.dedent(output).strip()


@pytest.mark.parametrize("example", map(grouped, EXAMPLES))
def test_an_example_prints_what_it_promises(example, tmp_path: Path):
    for _ in range(2):  # and it can be run again, on the store that it has left
        done = subprocess.run(
            [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.stderr == ""
        assert done.stdout.strip() == promised(example) != ""


def test_every_example_is_numbered_and_listed():
    listed = (FOLDER / "README.md").read_text()
    assert [example.name[:3] for example in EXAMPLES] == [f"{number:02}_" for number in range(1, len(EXAMPLES) + 1)]
    assert all(f"({example.name})" in listed for example in EXAMPLES)
