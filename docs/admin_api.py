"""The reference of the admin API, from its own description: ``python -m docs.admin_api``."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from seriatim.console import Console
from seriatim.engine.access_tokens import Access

PAGE = Path(__file__).parent / "reference" / "admin-api.md"
BLOCK = re.compile(r"(<!-- operations -->\n).*?(<!-- end of operations -->)", re.DOTALL)


async def _description() -> dict[str, Any]:
    found: dict[str, Any] = Console(None, Access({})).app.openapi()
    return found


def operations() -> str:
    """A table of every operation."""
    description = asyncio.run(_description())
    lines = ["| operation | parameters | what it does |", "|---|---|---|"]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            name = path.removeprefix("/api/v1/")
            taken = ", ".join(_parameters(operation, description)) or "–"
            lines.append(f"| `{method.upper()} {name}` | {taken} | {_text(operation['description'])} |")
    return "\n".join(lines)


def _parameters(operation: dict[str, Any], description: dict[str, Any]) -> list[str]:
    """Names; those that may be left out are in italics."""
    given = [(one["name"], one.get("required", False)) for one in operation.get("parameters", [])]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = description["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        given += [(name, name in schema.get("required", [])) for name in schema["properties"]]
    return [f"`{name}`" if required else f"*`{name}`*" for name, required in given]


def _text(description: str) -> str:
    return " ".join(description.replace("``", "`").replace("|", "\\|").split())


def rewrite(page: str) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}{operations()}\n{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
