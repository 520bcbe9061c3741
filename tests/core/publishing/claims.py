"""Claims to test with."""

from __future__ import annotations

from seriatim.core.publishing.dedup import MARK, Claims, Fresh


def claims(*given: tuple[str, tuple[int, int]]) -> Claims:
    """Ids, each with the digest and the offset of its message."""
    marked = [(name, MARK.pack(*mark)) for name, mark in given]
    first = dict(reversed(marked))
    return Claims(
        {name: first[name] for name, _ in marked}, [(name, mark) for name, mark in marked if mark != first[name]]
    )


def fresh(given: dict[str, tuple[int, int]] | None = None) -> Fresh:
    """What a transaction has claimed: the digest and the offset by id."""
    return {name: MARK.pack(*mark) for name, mark in (given or {}).items()}
