"""What the two paths of the kernel are given, and what they answer.

A *batch* lists the keys that take part in it, in the order of its rows: those with rows, and those without in which
something falls due. What they own is sorted by key and number. A message is named by its *source*: the number of its
row, or, for a message that was held before, the number of rows plus its place among the rows of the partition.

The *verdict* of a path says for each of its keys what was released, what was not and why, and what is known afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import pyarrow as pa

from seriatim.spark.kernel.arrays import Bools, Columns, Floats, Ints, Objects, Owned, Pool, arange, owners
from seriatim.spark.kernel.partition import Gaps, Held, KeyFacts, Ranges

NO_SOURCE = -1
INVALID = "invalid"
EXPIRED = "expired"


class Tag(StrEnum):
    """What a row of the kernel's output is."""

    ORDERED = "ordered"  # the next message of its key
    LEDGER = "ledger"  # something was not released
    LATE = "late"  # a late message on the side output
    DEAD_LETTER = "dead-letter"  # a message stranded behind a gap that was given up
    REQUEST = "request"  # ask the source for these numbers
    REPORT = "report"  # these numbers are overdue and wait for an operator
    SYNC_LOST = "sync-lost"  # ask the source for a resend or a rebirth


@dataclass
class Rows(Columns):
    """The valid rows of a batch, those of a key together and in order of arrival. ``time`` never falls within a key."""

    sequence: Ints
    epoch: Ints
    time: Floats
    source: Ints


@dataclass
class Batch:
    """The keys that take part in a batch. ``starts`` and ``ends`` delimit their rows; ``held.row`` is the source."""

    keys: pa.Array
    known: Bools
    facts: KeyFacts
    starts: Ints
    ends: Ints
    rows: Rows
    held: Held
    gaps: Gaps
    given_up: Ranges
    floors: Floats
    clock: float
    digests: pa.Array | None

    def __len__(self) -> int:
        return len(self.starts)

    def owner_of_rows(self) -> Ints:
        return owners(self.starts, self.ends)

    def select(self, chosen: Ints) -> Batch:
        """The part of it that belongs to some keys, given by rising numbers."""
        if len(chosen) == len(self):
            return self
        ranks = np.full(len(self), -1, np.int64)
        ranks[chosen] = arange(len(chosen))
        lengths = (self.ends - self.starts)[chosen]
        ends = np.cumsum(lengths)
        return replace(
            self,
            keys=self.keys.take(pa.array(chosen)),
            known=self.known[chosen],
            facts=self.facts.take(chosen),
            starts=ends - lengths,
            ends=ends,
            rows=self.rows.take(np.repeat(ranks >= 0, self.ends - self.starts)),
            held=_of_ranked(self.held, ranks),
            gaps=_of_ranked(self.gaps, ranks),
            given_up=_of_ranked(self.given_up, ranks),
            floors=self.floors[chosen],
        )


def _of_ranked(pool: Pool, ranks: Ints) -> Pool:
    return pool.take(ranks[pool.owner] >= 0).renumbered(ranks)


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
    held: Held

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
