"""The public surface is exactly what docs/reference/public-api.md says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import griffe
import pytest

from docs import public_api
from docs.api_reference import MODULES, SOURCE, find, public_paths, returned
from tests.test_docs import PAGES, ROOT, blocks_of, page_id

PUBLIC = {*MODULES, *(path for module in MODULES for path in public_paths(module))}
FOR_USERS = [page for page in PAGES if not re.match("docs/(explanation|decisions)/", page_id(page))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
NOT_A_DOOR = {"seriatim.spark.compatibility"}
"""Passes on what this Spark has, to the rest of ``seriatim.spark``."""


def test_the_page_is_the_public_api():
    assert public_api.PAGE.read_text(encoding="utf-8") == public_api.page(), "run make docs"


def test_the_page_has_every_module_that_says_what_is_public():
    doors = {module_of(path) for path in SOURCE.rglob("*.py") if re.search("^__all__", path.read_text("utf-8"), re.M)}
    assert doors - NOT_A_DOOR == set(MODULES)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("page", FOR_USERS, ids=page_id)
def test_what_a_page_for_users_imports_is_public(page):
    programs = [block.body for block in blocks_of(page) if block.language.startswith("py")]
    assert [name for program in programs for name in imported(program) if name not in PUBLIC] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=page_id)
def test_what_an_example_imports_is_public(example):
    assert [name for name in imported(example.read_text(encoding="utf-8")) if name not in PUBLIC] == []


def imported(program: str) -> Iterator[str]:
    """What a program imports from Seriatim; in a module, the names."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "seriatim":
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.partition(".")[0] == "seriatim")


def test_an_import_of_something_private_is_noticed():
    program = "import seriatim.store, os\nif os:\n    from seriatim.core.traces import classify, Trace"
    assert [name for name in imported(program) if name not in PUBLIC] == [
        "seriatim.core.traces.classify",
        "seriatim.core.traces.Trace",
    ]


def test_no_public_function_takes_options_without_types():
    found = [line for line in public_api.page().splitlines() if re.search(r"\*\*\w+(: Any\b|[,)])", line)]
    assert found == []


def test_everything_public_has_a_docstring():
    assert [path for found in on_the_page() for path in without_docstring(found)] == []


def on_the_page() -> Iterator[griffe.Object]:
    for module in MODULES:
        public = public_paths(module)
        yield from map(find, [*public, *returned(public, set())])


def without_docstring(found: griffe.Object) -> Iterator[str]:
    """A member needs none if the class it is inherited from describes it, and an attribute only if it is a property."""
    if (found.is_class or found.is_function) and not found.docstring:
        yield found.path
    if isinstance(found, griffe.Class):
        classes = [found, *found.mro()]
        for name in dict.fromkeys(name for each in classes for name in each.members if not name.startswith("_")):
            members = [each.members[name] for each in classes if name in each.members]
            targets = [each.final_target if isinstance(each, griffe.Alias) else each for each in members]
            is_called = targets[0].is_function or "property" in targets[0].labels
            if is_called and targets[0].path.startswith("seriatim.") and not any(each.docstring for each in targets):
                yield targets[0].path


def test_a_member_without_a_docstring_is_noticed():
    found = find("seriatim.engine.broker.Broker")
    described, found.members["close"].docstring = found.members["close"].docstring, None
    try:
        assert list(without_docstring(found)) == ["seriatim.engine.broker.Broker.close"]
    finally:
        found.members["close"].docstring = described
