"""The pages of the Python API, for ``make site``: every public name, and the classes that one gets from them.

Public is what a module of ``MODULES`` lists in its ``__all__``. There is no other list: a name that comes or goes there comes
or goes here. The source is read, not run (Griffe), so types count that are only imported for type checkers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

MODULES = (
    "seriatim",
    *(f"seriatim.{name}" for name in ("blocking", "errors", "filters", "guarantees", "options", "outbox")),
    *(f"seriatim.{name}" for name in ("resequencing", "store", "console", "pipes", "spark", "spark.pipeline")),
    *(f"seriatim.{name}" for name in ("sparkplug", "sparkplug.captures", "sparkplug.payload")),
    *(f"seriatim.{name}" for name in ("telemetry.prometheus", "testing")),
)
SOURCE = Path(__file__).parent.parent / "src"


def pages() -> dict[str, str]:
    """The Markdown of each page, by its name."""
    documented = {find(path).path for module in MODULES for path in public_paths(module)}
    written = {f"{module}.md": _module_page(module, documented) for module in MODULES}
    return {"index.md": _overview(), **written}


def public_paths(module: str) -> list[str]:
    """What can be imported from a module, with its path."""
    exports = find(module).exports or []
    return [f"{module}.{name}" for name in map(str, exports) if not name.startswith("__")]


def _overview() -> str:
    lines = ["# The Python API", "", "Every public name, under the module that it is imported from."]
    for module in MODULES:
        lines += ["", f"## [`{module}`]({module}.md)", "", _about(module), ""]
        lines += [f"- [`{path.removeprefix(f'{module}.')}`][{path}]" for path in public_paths(module)]
    return "\n".join(lines)


def _module_page(module: str, documented: set[str]) -> str:
    public = public_paths(module)
    lines = [f"# `{module}`", "", _about(module), "", *(f"::: {path}\n" for path in public)]
    if others := list(returned(public, documented)):
        lines += ["## What these return and hold", "", "Not to be made by you, so not exported.", ""]
        lines += [f"::: {path}\n    options: {{ heading_level: 3, show_root_full_path: false }}\n" for path in others]
    return "\n".join(lines)


def _about(module: str) -> str:
    """The beginning of a module's docstring; what follows is for those who read its source."""
    docstring = find(module).docstring
    return docstring.value.partition("\n\n")[0] if docstring else ""


def returned(paths: list[str], documented: set[str]) -> Iterator[str]:
    """Classes of ours that public methods return or attributes hold, theirs too, unless they are on some page already."""
    waiting = [find(path) for path in paths]
    for found in waiting:  # grows while it is read
        for path in _annotated(found):
            if path not in documented:
                documented.add(path)
                waiting.append(find(path))
                yield path


def _annotated(found: griffe.Object) -> Iterator[str]:
    """The paths of our classes in the annotations of what a function or a class gives back."""
    for member in [found] if found.is_function else found.members.values():
        if member.is_alias or (member is not found and member.name.startswith("_")):
            continue
        expression = getattr(member, "returns" if member.is_function else "annotation", None)
        for name in expression.iterate() if isinstance(expression, griffe.Expr) else ():
            if isinstance(name, griffe.ExprName) and name.canonical_path.startswith("seriatim."):
                target = find(name.canonical_path)
                if target.is_class:
                    yield target.path


def find(path: str) -> griffe.Object:
    """What is found at a path, where it is defined."""
    package, _, rest = path.partition(".")
    found = _package(package)[rest] if rest else _package(package)
    return found.final_target if isinstance(found, griffe.Alias) else found


@cache
def _package(name: str) -> griffe.Module:
    loaded = griffe.load(name, search_paths=[SOURCE])
    assert isinstance(loaded, griffe.Module)
    return loaded
