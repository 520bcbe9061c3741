"""Another partition count for the state of a query that is stopped."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from seriatim.core.options import require_whole
from seriatim.errors import FailedPrecondition, InvalidArgument, StateMismatch
from seriatim.spark.kernel.arrays import Ints
from seriatim.spark.state.binding import REMEDY, write_binding
from seriatim.spark.state.files import Files
from seriatim.spark.state.versions import RESEQUENCED, PartitionKinds, StateFolder, bound_folder, count_folder


def repartition(
    location: str | Files, partitions: int, assign: Callable[[pa.Array], Ints], kinds: PartitionKinds = RESEQUENCED
) -> list[int]:
    """Rewrite the state for another partition count, while the query is stopped; the batches that were rewritten.

    ``assign`` gives the number of the partition of each key: the partition function of the shuffle. Every batch that all
    partitions have is rewritten, because only the checkpoint knows with which of the last two the query will go on.
    """
    require_whole("partitions", partitions, 1)
    old = bound_folder(location, kinds)
    files, count = old.files, old.binding.partitions
    if count == partitions:
        raise InvalidArgument(f"the state in {files.root} has {partitions} partitions already")
    new = StateFolder(files, query=old.binding.query, partitions=partitions, meaning=old.binding.meaning)
    complete = old.complete_batches()
    if not complete:
        raise StateMismatch(f"no batch of the state in {files.root} is there for all partitions: {REMEDY}")
    # What an interrupted repartition may have left; no query is bound to it.
    files.delete_folder(count_folder(partitions))
    for batch in complete:
        parts = [old.read(number, batch).partition for number in range(count)]
        for number, part in enumerate(type(parts[0]).join(parts).split(assign, partitions)):
            new.write_full(part, number, batch)
    write_binding(files, new.binding)
    # From now on no batch of the old count can end: a task looks at the binding when its version is written.
    if old.complete_batches()[-1:] != complete[-1:]:
        write_binding(files, old.binding)
        raise FailedPrecondition(f"the query of the state in {files.root} is running: stop it, and try again")
    files.delete_folder(count_folder(count))
    return complete
