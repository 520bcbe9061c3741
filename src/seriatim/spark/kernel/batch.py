"""The input (``Batch``) and output (``Decision``) of both paths of the kernel.

A batch lists the keys that take part, in the order of its rows: those with rows, and those with a due deadline. The
data of keys is sorted by key and number. A message is identified by its *source*: the index of its row, or, for a
message that was held before, the number of rows plus its index among the rows of the partition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from seriatim.spark.kernel.arrays import Bools, Columns, Floats, Ints, Objects, Owned, Pool, arange, owners
from seriatim.spark.kernel.partition_state import Gaps, HeldMessages, KeyFacts, Ranges

NO_SOURCE = -1
"""The source of an entry without a message."""


@dataclass
class Rows(Columns):
    """The valid rows of a batch, grouped by key, in order of arrival. ``time`` never decreases within a key."""

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
    held: HeldMessages
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
        """The part that belongs to some keys, given by rising numbers."""
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
    """All other results, sorted by ``order`` within each owner. ``source`` is -1 if there is no message."""

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
class Decision:
    """The result of a batch, for some of its keys (``owners``, rising)."""

    owners: Ints
    released: Released
    entries: Entries
    facts: KeyFacts
    gaps: Gaps
    fresh_memory: Bools
    given_up: Ranges
    held: HeldMessages

    def renumbered(self, numbers: Ints) -> Decision:
        """The decision on a selection of keys, with their numbers in the whole batch."""
        return replace(
            self,
            owners=numbers[self.owners],
            released=self.released.renumbered(numbers),
            entries=self.entries.renumbered(numbers),
            gaps=self.gaps.renumbered(numbers),
            given_up=self.given_up.renumbered(numbers),
            held=self.held.renumbered(numbers),
        )
