"""Transition tables, which every state machine of the core begins with.

A table lists, for each state, the legal events and the states that each may lead to. Machines check the table before
they change anything, so an illegal event raises and changes nothing. The diagrams in the docs are generated from the
same tables (``TransitionTable.to_mermaid``), so they always match the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from seriatim.errors import IllegalTransition

# StrEnum, because it hashes as a string: looking up a transition needs no Python call.
S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class TransitionTable(Generic[S, E]):
    """The legal transitions of a state machine."""

    def __init__(self, name: str, start: S, rows: Mapping[S, Mapping[E, frozenset[S]]]) -> None:
        self.name = name
        self.start = start
        self._rows = rows
        self._legal = frozenset(self)

    def targets(self, state: S, event: E) -> frozenset[S]:
        """The states that ``event`` may lead to; IllegalTransition if it is illegal in ``state``."""
        try:
            return self._rows[state][event]
        except KeyError:
            legal = ", ".join(sorted(known.value for known in self._rows.get(state, ()))) or "nothing"
            raise IllegalTransition(
                f"{self.name}: '{event.value}' is not possible while '{state.value}'; possible now: {legal}"
            ) from None

    def check(self, state: S, event: E, target: S) -> None:
        """Raise IllegalTransition unless ``event`` may lead from ``state`` to ``target``."""
        if (state, event, target) not in self._legal:
            self.targets(state, event)
            raise IllegalTransition(
                f"{self.name}: '{event.value}' does not lead from '{state.value}' to '{target.value}'"
            )

    def __iter__(self) -> Iterator[tuple[S, E, S]]:
        """All transitions, in the order of the table."""
        for state, row in self._rows.items():
            for event, targets in row.items():
                for target in sorted(targets):
                    yield state, event, target

    def to_mermaid(self) -> str:
        """The table as a Mermaid state diagram: one arrow for each pair of states, labelled with its events."""
        labels: dict[tuple[S, S], list[str]] = {}
        for state, event, target in self:
            labels.setdefault((state, target), []).append(event.value)
        arrows = (f"    {a.value} --> {b.value}: {', '.join(events)}" for (a, b), events in labels.items())
        return "\n".join(["stateDiagram-v2", f"    [*] --> {self.start.value}", *arrows])
