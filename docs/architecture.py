"""Draws the tree, the layers and the way of a message in the docs from the code: ``make docs``.

A block between the marks ``<!-- drawn: NAME -->`` and ``<!-- end of drawing -->`` is replaced. A test notices stale pages.
"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "seriatim"
PAGES = (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "explanation" / "architecture.md")
BLOCK = re.compile(r"(<!-- drawn: (?P<name>[a-z]+) -->\n).*?(<!-- end of drawing -->)", re.DOTALL)


def packages() -> list[Path]:
    """Every folder of the source, a parent before its children."""
    return sorted(init.parent for init in SOURCE.rglob("__init__.py") if init.parent != SOURCE)


def draw_tree() -> str:
    """One line for each folder: the first line of what its ``__init__`` says."""
    folders = [(len(folder.relative_to(SOURCE).parts), folder) for folder in packages()]
    width = max(2 * depth + len(folder.name) + 1 for depth, folder in folders)
    lines = [f"{'  ' * depth}{folder.name}/".ljust(width + 2) + _purpose(folder) for depth, folder in folders]
    return "\n".join(["```text", "src/seriatim/", *lines, "```"])


def _purpose(folder: Path) -> str:
    doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return doc.partition("\n")[0].rstrip(".")


def draw_layers() -> str:
    """Which package imports which, as they do in the code. An arrow that others imply is left out."""
    graph = imports()
    order = list(TopologicalSorter(graph).static_order())
    reach: dict[str, set[str]] = {}
    for package in order:
        reach[package] = graph[package] | {below for other in graph[package] for below in reach[other]}
    arrows = [
        f"    {package} --> {other}"
        for package in sorted(graph)
        for other in sorted(graph[package])
        if not any(other in reach[between] for between in graph[package] - {other})
    ]
    return "\n".join(["```mermaid", "graph TD", *arrows, "```"])


def imports() -> dict[str, set[str]]:
    """The packages of the top level, and which of them each imports, also inside functions."""
    names = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    found: dict[str, set[str]] = {name: set() for name in names}
    for name in names:
        for module in (SOURCE / name).rglob("*.py"):
            for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("seriatim."):
                    found[name].add(str(node.module).split(".")[1])
        found[name] &= names - {name}
    return found


class Station(NamedTuple):
    """A function that a message passes on its way, and who calls it."""

    caller: str
    module: str
    function: str
    why: str


WAY = (
    Station("client", "core.publishing.batching", "Batcher.add", "the message joins the batch of its key"),
    Station("client", "core.publishing.batching", "Batcher.due", "the batch is full, or its time has come"),
    Station("client", "engine.engine", "Engine.publish_checked", "batches of all keys that are due"),
    Station("engine", "engine.commit", "Commit.append", "the messages get their offsets in the open group commit"),
    Station("engine", "store.sql.write_operations", "SqlTransaction.append", "one transaction, one fsync"),
    Station(
        "engine", "engine.topic", "TopicState.appended", "durable: publish futures resolve, subscriptions hear of it"
    ),
    Station("engine", "core.lanes.lanes", "Lanes.push_all", "the message joins the lane of its key"),
    Station("engine", "core.lanes.lanes", "Lanes.take", "the lane's turn: its head is leased"),
    Station("engine", "client.consumer", "_Receiver._deliver", "to the handler"),
    Station("client", "engine.outcomes", "Outcomes.ack", "the handler is done"),
    Station("engine", "core.lanes.lanes", "Lanes.settle_into", "the lease ends, its offset joins the open commit"),
    Station(
        "engine", "store.sql.write_operations", "SqlTransaction.settle", "in the transaction of the next group commit"
    ),
    Station("engine", "core.lanes.lanes", "Lanes.confirm_all", "durable: the next message of the key may go"),
)
"""The way of one message, in the order of the first calls. A test follows a message (``bench.walk``) and compares."""


def draw_way() -> str:
    names = [name for station in WAY for name in (station.caller, _participant(station.module))]
    steps = [f"    {way.caller}->>{_participant(way.module)}: {way.function} ({way.why})" for way in WAY]
    return "\n".join(
        ["```mermaid", "sequenceDiagram", *(f"    participant {name}" for name in dict.fromkeys(names)), *steps, "```"]
    )


def _participant(module: str) -> str:
    """Its package: of the core, the machine."""
    package, _, rest = module.partition(".")
    return f"core.{rest.partition('.')[0]}" if package == "core" else package


DRAWINGS = {"tree": draw_tree, "layers": draw_layers, "way": draw_way}


def redraw(page: str) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}{DRAWINGS[match['name']]()}\n{match[3]}", page)


def main() -> None:
    for path in PAGES:
        path.write_text(redraw(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
