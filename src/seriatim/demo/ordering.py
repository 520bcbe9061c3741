"""What stands in the middle and puts topic ``raw`` in order."""

from __future__ import annotations

from typing import Protocol

from seriatim.demo.books import Audited, Entry
from seriatim.demo.subscribers import Subscribers


class Ordering(Protocol):
    """Puts ``raw`` in order, into ``ordered`` and a ledger, while others publish and consume."""

    async def work(self) -> None:
        """Begin, keep its steps up to date, and raise when it fails. It goes on by itself when this is cancelled."""

    async def finish(self) -> None:
        """Everything was delivered: return when everything is written, and nothing is at work any more."""

    async def ledger(self) -> list[Entry]: ...

    async def audit(self, subscribers: Subscribers) -> tuple[Audited, Audited]:
        """In what order things were before, and are after."""

    async def close(self) -> None:
        """Leave nothing behind that runs, at whatever moment."""
