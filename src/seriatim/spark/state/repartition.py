"""Rewrites the state of a stopped query for another partition count.

Each old partition is cut into pieces, one for each new partition, and each new partition is put together from its pieces. A
piece is the content of some keys, so both halves can be done for one partition at a time, anywhere (``state_admin`` does it on
Spark). Only the last two batches are rewritten: the checkpoint knows with which of them the query goes on.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from seriatim.core.validation import require_whole
from seriatim.errors import FailedPrecondition, InvalidArgument, StateMismatch
from seriatim.spark.kernel.arrays import Ints
from seriatim.spark.kernel.key_state import Content, Times
from seriatim.spark.kernel.partition_state import StackedPartition
from seriatim.spark.kernel.state_segment import write_segment
from seriatim.spark.state.batch_versions import RESEQUENCED, PartitionKinds, StateFolder, bound_folder, count_folder
from seriatim.spark.state.binding import REMEDY, write_binding
from seriatim.spark.state.files import Files

NEEDED_BATCHES = 2


def repartition(
    location: str | Files,
    partitions: int,
    rewrite: Callable[[StateFolder, StateFolder, list[int]], None],
    kinds: PartitionKinds = RESEQUENCED,
) -> list[int]:
    """Rewrite the state for another partition count, while the query is stopped; returns the batches that were rewritten.

    ``rewrite`` writes the versions of some batches from the old folder into the new one, by ``cut`` and ``put_together``.
    """
    require_whole("partitions", partitions, 1)
    old = bound_folder(location, kinds)
    files, count = old.files, old.binding.partitions
    if count == partitions:
        raise InvalidArgument(f"the state in {files.root} has {partitions} partitions already")
    new = StateFolder(files, query=old.binding.query, partitions=partitions, meaning=old.binding.meaning, kinds=kinds)
    needed = old.complete_batches()[-NEEDED_BATCHES:]
    if not needed:
        raise StateMismatch(f"no batch of the state in {files.root} is there for all partitions: {REMEDY}")
    # What an interrupted repartition may have left; no query is bound to it.
    files.delete_folder(count_folder(partitions))
    rewrite(old, new, needed)
    write_binding(files, new.binding)
    # From now on no batch of the old count can end: a task looks at the binding when its version is written.
    if old.complete_batches()[-1:] != needed[-1:]:
        write_binding(files, old.binding)
        raise FailedPrecondition(f"the query of the state in {files.root} is running: stop it, and try again")
    files.delete_folder(count_folder(count))
    return needed


def cut(state: StackedPartition, targets: Ints, count: int) -> list[bytes]:
    """The pieces of a partition: for each new partition the keys that belong to it. ``targets`` follow ``state.keys``."""
    whole, targets = state.whole(), np.asarray(targets, np.int64)
    if len(targets) != len(whole) or (len(targets) and not 0 <= targets.min() <= targets.max() < count):
        raise InvalidArgument(f"the partition function must give each key a number from 0 to {count - 1}")
    owners = (whole.take(np.flatnonzero(targets == number)) for number in range(count))
    return [pickle.dumps((state.key_type, state.waits, piece)) for piece in owners]


def put_together(folder: StateFolder, number: int, batch: int, pieces: Iterable[bytes]) -> None:
    """Write a new partition. The earliest of the times counts until which something was looked for, and the latest clock."""
    parts: list[tuple[pa.DataType, str, Content]] = [pickle.loads(piece) for piece in pieces]
    key_type, waits, first = parts[0]
    times = [part.times for *_, part in parts]
    kind = folder.kind
    state = kind(key_type, first.rows.schema, [write_segment(part) for *_, part in parts])
    whole = state.whole()
    whole.times = Times(
        max(time.clock for time in times), min(time.decided for time in times), min(time.idled for time in times)
    )
    state.segments = []
    state.waits = waits if all(other == waits for _, other, _ in parts) else ""
    state.apply(whole, kind.count(whole))
    folder.write_full(state, number, batch)
