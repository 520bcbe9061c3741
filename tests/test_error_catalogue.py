"""docs/reference/errors.md lists every error with its code, and only texts that are really raised."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from seriatim import errors

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/reference/errors.md").read_text()


def all_errors(kind: type[errors.SeriatimError] = errors.SeriatimError) -> list[type[errors.SeriatimError]]:
    return [
        kind,
        *(each for sub in kind.__subclasses__() if sub.__module__ == errors.__name__ for each in all_errors(sub)),
    ]


def test_every_error_is_listed_with_its_code():
    listed = re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted((kind.__name__, str(int(kind.code))) for kind in all_errors())


def raised_texts() -> Iterator[re.Pattern[str]]:
    """Every text in the code, with anything where a value is filled in."""
    for path in (ROOT / "src/seriatim").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
                if len("".join(str(part) for part in parts if part)) > 10:  # not one that is all values
                    yield re.compile("".join(".*" if part is None else re.escape(str(part)) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.compile(re.escape(node.value))


def test_every_text_that_is_listed_is_one_that_is_raised():
    texts = re.findall(r"^\| `([^`]+)` \| \d+ \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert len(texts) == 7
    raised = list(raised_texts())
    assert [text for text in texts if not any(pattern.fullmatch(text) for pattern in raised)] == []
