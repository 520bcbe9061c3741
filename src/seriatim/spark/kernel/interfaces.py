"""What tables and streams require of a kernel, and of the state that it keeps.

There are two who do: the ``Kernel`` for rows that are numbered, and the ``NodeKernel`` for the messages of Sparkplug's edge
nodes. What reads rows, keeps time and looks after state works with either (``table.py``, ``stream.py``, ``versions.py``,
``state_admin.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.arrays import Ints

MACHINE = "machine"
"""What the meaning of a state calls whose it is. The state of numbered rows has no such word."""


class StateChange(Protocol):
    """What a batch changes in a partition."""

    @property
    def clock(self) -> float: ...

    @property
    def entries(self) -> int:
        """How much has to be written."""

    def tables(self) -> list[pa.Table]:
        """The change as it is written; the clock is written elsewhere."""


class PartitionState(Protocol):
    """What is known of the keys of a partition. It changes by ``apply`` alone."""

    @property
    def clock(self) -> float: ...

    def __len__(self) -> int:
        """How many keys are known."""

    @property
    def held_count(self) -> int: ...

    @property
    def gap_count(self) -> int: ...

    def next_due(self) -> float:
        """When something falls due next; infinite for never."""

    def waiting(self) -> pa.Table:
        """The rows that wait, with the columns ``partition.WAITING``."""

    def adopt(self, schema: pa.Schema) -> None:
        """Give the rows that wait the columns that the query has now."""

    def apply(self, change: Any, places: Any = None) -> None: ...

    def as_change(self) -> StateChange:
        """The change that makes an empty partition into this one."""

    @classmethod
    def change_of(cls, clock: float, tables: list[pa.Table]) -> Any:
        """A change as it was written."""

    @classmethod
    def from_change(cls, change: Any) -> PartitionState: ...

    @classmethod
    def join(cls, parts: list[Any]) -> PartitionState:
        """All keys of several partitions in one."""

    def split(self, assign: Callable[[pa.Array], Ints], count: int) -> list[Any]:
        """One partition for each number from 0 to ``count - 1`` that ``assign`` gives the keys."""


class BatchOutcome(Protocol):
    """What a batch gives out, and what it changes. ``places`` is for ``apply``."""

    @property
    def table(self) -> pa.Table: ...

    @property
    def change(self) -> StateChange: ...

    @property
    def places(self) -> Any: ...


class PartitionKernel(Protocol):
    """Puts the micro-batches of a partition in order, one after another."""

    @property
    def roles(self) -> ColumnRoles: ...

    @property
    def timeout(self) -> float | None:
        """How long a message may wait."""

    def meaning(self) -> dict[str, str]:
        """What must not change under a state, besides keys and times."""

    @property
    def partition_type(self) -> type[PartitionState]:
        """What the partitions of this kernel are."""

    def new_partition(self, schema: pa.Schema) -> Any:
        """What is known before the first batch."""

    def run(
        self, partition: Any, table: pa.Table, now: float | None, order: Ints | None = None, latest: float = ...
    ) -> BatchOutcome:
        """Decide one batch, at the time ``now`` or that of its latest row, without changing the partition."""
