"""Every example runs, and prints what it says that it prints."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def promised(example: Path) -> str:
    """The output that the docstring of an example shows."""
    docstring = ast.get_docstring(ast.parse(example.read_text())) or ""
    _, _, output = docstring.partition("Prints:\n\n")
    return textwrap.dedent(output).strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_promises(example, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout.strip() == promised(example) != ""


def test_every_example_is_numbered_and_listed():
    listed = (FOLDER / "README.md").read_text()
    assert [example.name[:3] for example in EXAMPLES] == [f"{number:02}_" for number in range(1, len(EXAMPLES) + 1)]
    assert all(f"({example.name})" in listed for example in EXAMPLES)
