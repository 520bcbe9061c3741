"""The state of a stream's partitions, one version a batch.

Rules
-----
1. State is bound to one query and to one partition count, by ``binding.json`` and by every version; and to the meaning of
   its keys and numbers, by ``binding.json``. Anything else is refused, with an error that says what happened.
2. Batch *b* reads exactly version *b - 1*. A version that is missing, foreign or damaged is an error, never an empty
   state; only batch 0 starts empty, and only in a folder that is empty or the query's own.
3. A version is complete on disk before anything of its batch may be given out: written under another name, with a
   checksum, and renamed. Any attempt at a batch writes the same bytes, and attempts do not see each other's unfinished
   files. A version that is there is left alone: an attempt that comes late writes nothing. A batch that was written before
   with other bytes is an error: it was not repeated, and what it gave out the first
   time may be in a sink already.
4. A version is *full* or a *delta* (the changed keys alone). A full one is written when the deltas since the last hold
   twice as much as it, or are many. The decision rests on what the versions say of themselves, so that every attempt
   decides alike.
5. The last ``keep`` versions can be read. What they don't need is deleted.
6. A process that reads the version that it wrote last takes it from memory, when the file still has the same checksum.

Layout: ``binding.json``, and ``of-00016/part-00003/batch-000000000042.state`` for partition 3 of 16. ``repartition``
writes the folder of another count completely, then the binding (from that moment it counts), then deletes the old
folder.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from seriatim.core.options import require_whole
from seriatim.errors import InvalidArgument, StateMismatch
from seriatim.spark.kernel.interfaces import MACHINE, BatchOutcome, PartitionState, StateChange
from seriatim.spark.kernel.partition import Partition, require_same_keys
from seriatim.spark.kernel.schema_evolution import misfits, refuse_misfits
from seriatim.spark.state.binding import REMEDY, Binding, read_binding, require_bound, require_same_meaning
from seriatim.spark.state.encoding import (
    CHECKSUM_BYTES,
    HEAD_BYTES,
    Header,
    Version,
    decode,
    decode_ends,
    encode,
    sections_of,
    tables_in,
)
from seriatim.spark.state.files import Files, files_at

P = TypeVar("P", bound=PartitionState)

MAX_DELTAS = 20
MAX_DELTA_RATIO = 2
"""How many times as much as the last full version the deltas on it may hold together."""
MAX_QUERY_ID_LENGTH = 512
PartitionKinds: TypeAlias = Mapping[str | None, type[PartitionState]]
"""What a partition is, by what the meaning of a state says of its machine."""
RESEQUENCED: PartitionKinds = {None: Partition}


@dataclass
class PartitionVersion(Generic[P]):
    """A partition as it was after a version. ``header`` is None before batch 0."""

    partition: P
    header: Header | None
    checksum: str | None


class Cache:
    """The partitions that this process wrote last. One that is taken out is gone: a batch changes it in place."""

    def __init__(self, limit: int = 8) -> None:
        self._limit = limit
        self._known: OrderedDict[str, PartitionVersion[Any]] = OrderedDict()

    def put(self, place: str, known: PartitionVersion[Any]) -> None:
        self._known.pop(place, None)
        self._known[place] = known
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def take(self, place: str, checksum: str) -> PartitionVersion[Any] | None:
        known = self._known.pop(place, None)
        return known if known is not None and known.checksum == checksum else None


CACHE = Cache()


class StateFolder:
    """The versions of all partitions of one query."""

    def __init__(
        self,
        location: str | Files,
        *,
        query: str,
        partitions: int,
        meaning: Mapping[str, str] | None = None,
        kinds: PartitionKinds = RESEQUENCED,
        keep: int = 100,
        cache: Cache | None = None,
    ) -> None:
        require_whole("partitions", partitions, 1)
        require_whole("keep", keep, 2)
        if not 0 < len(query) <= MAX_QUERY_ID_LENGTH:
            raise InvalidArgument(f"a query id has 1 to {MAX_QUERY_ID_LENGTH} characters")
        self.files = files_at(location) if isinstance(location, str) else location
        self.binding = Binding(query, partitions, dict(meaning or {}))
        self.kinds = kinds
        self.keep = keep
        self.cache = CACHE if cache is None else cache

    # -- reading --------------------------------------------------------------------------------------------------------

    def open(self, partition: int, batch: int, new: Callable[[], P]) -> PartitionVersion[P]:
        """What is known before a batch. It belongs to the caller, who may change it."""
        if not 0 <= partition < self.binding.partitions:
            raise StateMismatch(
                f"partition {partition} does not exist: the state in {self.files.root} has "
                f"{self.binding.partitions} partitions, and the shuffle must have as many"
            )
        require_bound(self.files, self.binding, batch)
        if batch == 0:
            return PartitionVersion(new(), None, None)
        header, checksum = self._look(partition, batch - 1)
        return self.cache.take(self._name(partition, batch - 1), checksum) or self.read(partition, header.batch)

    def read(self, partition: int, batch: int) -> PartitionVersion[Any]:
        """What was known after a batch, from the files alone. What kind of partition it is, the meaning of the state says."""
        version = self._version(partition, batch)
        chain = [version]
        while chain[-1].header.base != chain[-1].header.batch:
            below = self._version(partition, chain[-1].header.batch - 1)
            if below.checksum != chain[-1].header.parent:
                name = self._name(partition, below.header.batch)
                raise StateMismatch(f"{name} is not the version that the one after it was made from: {REMEDY}")
            chain.append(below)
        kind = self._kind()
        changes = [self._change_in(link, kind) for link in reversed(chain)]
        known = kind.from_change(changes[0])
        for change in changes[1:]:
            known.apply(change)
        known.adopt(changes[-1].rows.schema)
        return PartitionVersion(known, version.header, version.checksum)

    def columns(self) -> pa.Schema | None:
        """The columns that the query had in its last batch; None before its first."""
        latest = self.batches(0)[-1:]
        for batch in latest:
            schema: pa.Schema = self._change_in(self._version(0, batch), self._kind()).rows.schema
            return schema
        return None

    def _kind(self) -> type[PartitionState]:
        name = self.binding.meaning.get(MACHINE)
        if name not in self.kinds:
            raise StateMismatch(
                f"the state in {self.files.root} is of {name}, which this version of Seriatim does not know: use a newer one"
            )
        return self.kinds[name]

    def _change_in(self, version: Version, kind: type[PartitionState]) -> Any:
        name = self._name(version.header.partition, version.header.batch)
        return kind.change_of(float.fromhex(version.header.clock), tables_in(version, name))

    def _look(self, partition: int, batch: int) -> tuple[Header, str]:
        """Header and checksum of a version, without reading all of it."""
        ends = self.files.read_ends(self._path(partition, batch), HEAD_BYTES, CHECKSUM_BYTES)
        if ends is None:
            raise self._missing(partition, batch)
        header, checksum = decode_ends(ends, self._name(partition, batch))
        self._check_header(header, partition, batch)
        return header, checksum

    def _version(self, partition: int, batch: int) -> Version:
        content = self.files.read(self._path(partition, batch))
        if content is None:
            raise self._missing(partition, batch)
        version = decode(content, self._name(partition, batch))
        self._check_header(version.header, partition, batch)
        return version

    # -- whose it is ----------------------------------------------------------------------------------------------------

    def _check_header(self, header: Header, partition: int, batch: int) -> None:
        found = (header.query, header.partitions, header.partition, header.batch)
        if found != (self.binding.query, self.binding.partitions, partition, batch):
            raise StateMismatch(
                f"{self._name(partition, batch)} is batch {header.batch} of partition {header.partition} "
                f"of {header.partitions} of the query {header.query}: it was put there by something else; {REMEDY}"
            )

    def _missing(self, partition: int, batch: int) -> StateMismatch:
        versions = self.batches(partition)
        there = f"batches {versions[0]} to {versions[-1]} are there" if versions else "there is none for this partition"
        return StateMismatch(f"{self._name(partition, batch)} is missing ({there}): {REMEDY}")

    # -- writing --------------------------------------------------------------------------------------------------------

    def commit(self, known: PartitionVersion[Any], partition: int, batch: int, outcome: BatchOutcome) -> None:
        """Write what a batch changed, and only then let its outcome be given out. ``known`` is used up."""
        known.partition.apply(outcome.change, outcome.places)
        version = self._next_version(known, partition, batch, outcome.change)
        self._write_once(version)
        require_bound(
            self.files, self.binding, batch
        )  # a repartition that saw no version of this batch must not be followed by one
        self.cache.put(
            self._name(partition, batch), PartitionVersion(known.partition, version.header, version.checksum)
        )
        self._prune(partition, batch)

    def _write_once(self, version: Version) -> None:
        """Write a version unless an earlier run of the same batch did. If that wrote something else, refuse.

        What no batch wrote, but a change of the partition count, is replaced: it is the same state, written in another way.
        """
        partition, batch = version.header.partition, version.header.batch
        path = self._path(partition, batch)
        ends = self.files.read_ends(path, HEAD_BYTES, CHECKSUM_BYTES)
        if ends is None:
            self.files.write_new(path, version.content)
            return
        header, checksum = decode_ends(ends, self._name(partition, batch))
        if checksum == version.checksum:
            return
        if not header.rewritten:
            raise StateMismatch(
                f"{self._name(partition, batch)} was written before, by a run of batch {batch} that decided otherwise: the "
                "source did not give the same rows again (or progress is tracked asynchronously, which is not supported), or "
                f"options were changed before the batch was done. Put them back until it is; otherwise {REMEDY}"
            )
        self.files.write(path, version.content)

    def _next_version(self, known: PartitionVersion[Any], partition: int, batch: int, change: StateChange) -> Version:
        before = known.header
        if (
            before is None
            or before.delta_entries + change.entries > MAX_DELTA_RATIO * before.base_entries
            or batch - before.base >= MAX_DELTAS
        ):
            return self._full_version(known.partition, partition, batch)
        rests_on = (before.base, known.checksum, before.base_entries, before.delta_entries + change.entries)
        return self._version_of(known.partition, partition, batch, change, rests_on)

    def write_full(self, state: PartitionState, partition: int, batch: int) -> None:
        """Write a version that no batch made."""
        version = self._full_version(state, partition, batch, rewritten=True)
        self.files.write(self._path(partition, batch), version.content)

    def _full_version(self, state: PartitionState, partition: int, batch: int, *, rewritten: bool = False) -> Version:
        whole = state.as_change()
        return self._version_of(state, partition, batch, whole, (batch, None, whole.entries, 0), rewritten=rewritten)

    def _version_of(
        self,
        state: PartitionState,
        partition: int,
        batch: int,
        change: StateChange,
        rests_on: tuple[int, str | None, int, int],
        *,
        rewritten: bool = False,
    ) -> Version:
        """A change as a version. ``rests_on``: base, parent, and how much base and deltas hold (``Header``)."""
        sections = sections_of(change)
        header = Header(
            self.binding.query,
            self.binding.partitions,
            partition,
            batch,
            *rests_on,
            clock=float(change.clock).hex(),
            due=state.next_due().hex(),
            sections=tuple(map(len, sections)),
            rewritten=rewritten,
        )
        return encode(header, sections)

    def _prune(self, partition: int, batch: int) -> None:
        """Delete what the versions to be kept don't need, and what killed writers of that time left."""
        oldest = batch - self.keep + 1
        versions = self._versions(partition)
        if not versions or versions[0][0] >= oldest:
            return
        ends = self.files.read_ends(self._path(partition, oldest), HEAD_BYTES, CHECKSUM_BYTES)
        if ends is None:  # it was never written here, after a repartition for example: keep what there is
            return
        base = decode_ends(ends, self._name(partition, oldest))[0].base
        for number, name in versions:
            if number < base:
                self.files.delete(f"{self._folder(partition)}/{name}")

    # -- where things are -----------------------------------------------------------------------------------------------

    def _folder(self, partition: int) -> str:
        return f"{count_folder(self.binding.partitions)}/part-{partition:05d}"

    def _path(self, partition: int, batch: int) -> str:
        return f"{self._folder(partition)}/batch-{batch:012d}.state"

    def _name(self, partition: int, batch: int) -> str:
        return f"{self.files.root}/{self._path(partition, batch)}"

    def due_by(self, moment: float) -> bool:
        """Whether something falls due by a moment, as far as the latest versions tell. No more is read than it takes."""
        return any(self._due(partition) <= moment for partition in range(self.binding.partitions))

    def _due(self, partition: int) -> float:
        latest = self.batches(partition)[-1:]
        return min((float.fromhex(self._look(partition, batch)[0].due) for batch in latest), default=inf)

    def count_held(self) -> int:
        """How many rows wait after the last batch that all partitions have. All of the state is read."""
        parts = range(self.binding.partitions)
        return sum(
            self.read(number, batch).partition.held_count for batch in self.complete_batches()[-1:] for number in parts
        )

    def complete_batches(self) -> list[int]:
        """The batches of which every partition has a version, oldest first."""
        return sorted(set.intersection(*(set(self.batches(number)) for number in range(self.binding.partitions))))

    def batches(self, partition: int) -> list[int]:
        """The batches of which there is a version, oldest first."""
        return [number for number, name in self._versions(partition) if name.endswith(".state")]

    def _versions(self, partition: int) -> list[tuple[int, str]]:
        """Batches and file names, oldest first; unfinished files too."""
        names = [name for name in self.files.names(self._folder(partition)) if name.startswith("batch-")]
        return [(int(name[len("batch-") :].partition(".")[0]), name) for name in names]


def require_continuable(
    location: str | Files, meaning: Mapping[str, str], schema: pa.Schema, key: str, kinds: PartitionKinds = RESEQUENCED
) -> None:
    """Refuse, before a query is started, what the state that is there can't be continued with. Nothing is changed."""
    files = files_at(location) if isinstance(location, str) else location
    bound = read_binding(files)
    if bound is None:
        return
    require_same_meaning(files.root, bound.meaning, meaning)
    folder = bound_folder(files, kinds)
    columns = folder.columns()
    if columns is None:
        return
    require_same_keys(schema.field(key).type, columns.field(key).type)
    if misfits(columns, schema) and (held := folder.count_held()):
        refuse_misfits(columns, schema, held, f"the state in {files.root}")


def count_folder(partitions: int) -> str:
    return f"of-{partitions:05d}"


def bound_folder(location: str | Files, kinds: PartitionKinds = RESEQUENCED) -> StateFolder:
    """The state at a place, whosever it is, to be looked at."""
    files = files_at(location) if isinstance(location, str) else location
    bound = read_binding(files)
    if bound is None:
        raise StateMismatch(f"there is no state in {files.root}: name the folder that a query was given as state=…")
    return StateFolder(files, query=bound.query, partitions=bound.partitions, meaning=bound.meaning, kinds=kinds)
