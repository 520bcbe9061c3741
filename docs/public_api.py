"""Writes docs/reference/public-api.md: every public name with its signature, on one page (``make docs``).

Like the pages of the site it follows ``api_reference.MODULES`` and their ``__all__``, and adds the classes that one gets
without making them; the source is read and not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import griffe

from docs.api_reference import MODULES, find, public_paths, returned

PAGE = Path(__file__).parent / "reference" / "public-api.md"

_STARS: dict[griffe.ParameterKind | None, str] = {
    griffe.ParameterKind.var_positional: "*",
    griffe.ParameterKind.var_keyword: "**",
}

INTRODUCTION = """# The public API on one page

Everything that programs may rely on, under the module that it is imported from. Whatever is not listed here may change without
notice. `make docs` writes this page from the source, and a test compares the two. For explanations see `make site`.
"""


def page() -> str:
    documented = {find(path).path for module in MODULES for path in public_paths(module)}
    return "\n".join([INTRODUCTION, *(line for module in MODULES for line in _module(module, documented))])


def _module(module: str, documented: set[str]) -> Iterator[str]:
    public = public_paths(module)
    yield f"## `{module}`\n\n```text"
    for path in public:
        yield from _lines(path)
    yield "```\n"
    if others := list(returned(public, documented)):
        yield "What these return and hold; you don't make them yourself:\n\n```text"
        for path in others:
            yield from _lines(path)
        yield "```\n"


def _lines(path: str) -> Iterator[str]:
    name, found = path.rpartition(".")[2], find(path)
    if isinstance(found, griffe.Class):
        yield from _class(name, found)
    elif isinstance(found, griffe.Function):
        yield _signature(name, found)
    else:
        yield name


def _class(name: str, found: griffe.Class) -> Iterator[str]:
    bases = ", ".join(str(base) for base in found.bases)
    yield f"class {name}({bases})" if bases else f"class {name}"
    members = {**found.inherited_members, **found.members}
    for member in members.values():
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if member.name.startswith("_") and member.name != "__init__":
            continue
        if not str(target.path).startswith("seriatim."):
            continue
        if isinstance(target, griffe.Function):
            if member.name != "__init__" or "dataclass" not in found.labels:
                yield f"    {_signature(member.name, target)}"
        elif isinstance(target, griffe.Attribute) and not _is_of_instance(target):
            kind = f": {target.annotation}" if target.annotation is not None else ""
            default = f" = {target.value}" if target.value is not None and "property" not in target.labels else ""
            yield f"    {member.name}{kind}{default}"


def _is_of_instance(attribute: griffe.Attribute) -> bool:
    """Whether an attribute without a type is only set when an object is made: such are said with types, or private."""
    return "instance-attribute" in attribute.labels and attribute.annotation is None


def _signature(name: str, function: griffe.Function) -> str:
    parts, has_star = [], False
    for parameter in function.parameters:
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not has_star:
            parts.append("*")
            has_star = True
        stars = _STARS.get(parameter.kind, "")
        has_star = has_star or stars == "*"
        typed = f"{stars}{parameter.name}" + (f": {parameter.annotation}" if parameter.annotation is not None else "")
        parts.append(typed if parameter.default is None or stars else f"{typed} = {parameter.default}")
    returns = f" -> {function.returns}" if function.returns is not None and name != "__init__" else ""
    return f"{'async ' if 'async' in function.labels else ''}{name}({', '.join(parts)}){returns}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
