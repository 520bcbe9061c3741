"""The protocol of a kernel.

There are two kernels: ``Kernel`` for rows with sequence numbers, and ``NodeKernel`` for the messages of Sparkplug's edge
nodes. The code that reads rows, tracks time and manages state works with both (``table_by_kernel.py``, ``stream.py``,
``batch_versions.py``, ``state_admin.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.arrays import Ints
from seriatim.spark.kernel.key_state import Content
from seriatim.spark.kernel.partition_state import StackedPartition, Tally

MACHINE = "machine"
"""Names the kernel in the meaning of a state. The state of ``Kernel`` has no such entry."""


@dataclass(frozen=True)
class Counters:
    """How many keys and rows took which path, and the causes of slow ones."""

    fast_keys: int = 0
    fast_rows: int = 0
    slow_keys: int = 0
    slow_rows: int = 0
    invalid_rows: int = 0
    causes: dict[str, int] = field(default_factory=dict)


NO_COUNTERS = Counters()


@dataclass(frozen=True)
class BatchOutcome:
    """The output of a batch, its change of the state, and how that changes the size of the partition."""

    table: pa.Table
    change: Content
    tally: Tally
    counters: Counters = NO_COUNTERS


class PartitionKernel(Protocol):
    """Puts the micro-batches of a partition in order, one after another."""

    @property
    def roles(self) -> ColumnRoles: ...

    @property
    def timeout(self) -> float | None:
        """The longest time that a message may wait."""

    def meaning(self) -> dict[str, str]:
        """The options that must not change while there is state, besides keys and times."""

    @property
    def waits(self) -> str:
        """The options that decide how long a message waits. When they change, all keys that hold messages are
        processed."""

    @property
    def partition_type(self) -> type[StackedPartition]:
        """The class of this kernel's partitions."""

    def new_partition(self, schema: pa.Schema) -> Any:
        """The state before the first batch."""

    def run(
        self, partition: Any, table: pa.Table, now: float | None, order: Ints | None = None, latest: float = ...
    ) -> BatchOutcome:
        """Decide one batch, at the time ``now`` or that of its latest row, without changing the partition."""
