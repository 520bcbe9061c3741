"""The verdict of a path: what was released of each of its keys, what was not and why, and what is known afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seriatim.spark.kernel.arrays import Bools, Floats, Ints, Objects, Owned
from seriatim.spark.kernel.partition import Gaps, HeldMessages, KeyFacts, Ranges

NO_SOURCE = -1
"""The source of an entry that is about no message (``batch.py``)."""


@dataclass
class Released(Owned):
    """Messages in order. ``owner`` is the number of the key in the batch."""

    source: Ints


@dataclass
class Entries(Owned):
    """Everything else that is to be told, in order for each owner by ``order``. ``source`` is -1 where there is no message."""

    order: Ints
    tag: Objects
    reason: Objects
    epoch: Ints
    first: Ints
    last: Ints
    size: Ints
    time: Floats
    detail: Objects
    source: Ints


@dataclass
class Verdict:
    """What became of a batch, for some of its keys (``owners``, rising)."""

    owners: Ints
    released: Released
    entries: Entries
    facts: KeyFacts
    gaps: Gaps
    fresh_memory: Bools
    given_up: Ranges
    held: HeldMessages

    def renumbered(self, numbers: Ints) -> Verdict:
        """The verdict on a selection of keys, with the numbers that they have in the whole batch."""
        return replace(
            self,
            owners=numbers[self.owners],
            released=self.released.renumbered(numbers),
            entries=self.entries.renumbered(numbers),
            gaps=self.gaps.renumbered(numbers),
            given_up=self.given_up.renumbered(numbers),
            held=self.held.renumbered(numbers),
        )
