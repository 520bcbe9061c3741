"""Draws the state diagrams in the docs from the transition tables of the code: ``make docs``.

A block between the marks ``<!-- diagram: NAME -->`` and ``<!-- end of diagram -->`` is replaced by the diagram of that table. A
test fails when a page is stale.
"""

from __future__ import annotations

import re
from pathlib import Path

from seriatim.core.lanes import lane
from seriatim.core.pipes import receiver, sender
from seriatim.core.publishing import batching, flow
from seriatim.core.resequencing import resequencer
from seriatim.core.sparkplug import edge_node
from seriatim.engine import subscription_states

OTHERS = (batching.LINES, flow.TICKETS, sender.TABLE, receiver.TABLE, edge_node.TABLE, subscription_states.TABLE)
TABLES = {table.name: table for table in (resequencer.TABLE, lane.TABLE, *OTHERS)}
PAGES = (Path(__file__).parent / "explanation" / "state-machines.md",)
BLOCK = re.compile(r"(<!-- diagram: (?P<name>[a-z ]+) -->\n).*?(<!-- end of diagram -->)", re.DOTALL)


def redraw(page: str) -> str:
    """The page with every diagram drawn anew."""
    return BLOCK.sub(lambda match: f"{match[1]}```mermaid\n{TABLES[match['name']].to_mermaid()}\n```\n{match[3]}", page)


def main() -> None:
    for path in PAGES:
        path.write_text(redraw(path.read_text()))


if __name__ == "__main__":
    main()
