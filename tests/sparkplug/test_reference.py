"""Every test that the reference names as a proof is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_statement_is_shown_by_a_test_that_exists_or_says_that_it_is_not_done():
    page = (ROOT.parent / "docs/reference/sparkplug.md").read_text(encoding="utf-8")
    table = page.partition("## Conformance with the specification")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "shown by" not in line]
    sources = [path.read_text(encoding="utf-8") for path in (*ROOT.glob("core/**/*.py"), *ROOT.glob("sparkplug/*.py"))]
    defined = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert len(rows) > 20
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named <= defined
        assert named or "**not done**" in row
