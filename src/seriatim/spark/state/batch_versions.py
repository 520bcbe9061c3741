"""The state of a stream's partitions, one version per batch.

Rules
-----
1. State is bound to one query and to one partition count, by ``binding.json`` and by every version; and to the meaning of
   its keys and numbers, by ``binding.json``. Anything else is refused, with an error that says what happened.
2. Batch *b* reads exactly version *b - 1*. A version that is missing, foreign or damaged is an error, never an empty
   state; only batch 0 starts empty, and only in a folder that is empty or the query's own.
3. A version is complete on disk before anything of its batch may be given out: written under another name and renamed. Attempts
   do not see each other's unfinished files. A version that is there is left alone: an attempt that comes late writes nothing.
   A batch that was written before and changed something else then is an error: it was not repeated, and what it gave out the
   first time may be in a sink already. What counts is the content, not the bytes.
4. A version has a segment with what its batch changed, and with what the versions had that it replaces
   (``partition_state.py``). Which those are follows from what the versions say of themselves, so that every attempt decides
   alike. Those that it rests on are listed in its header, with their digests.
5. The last ``keep`` versions can be read. What they don't need is deleted.
6. Nothing is kept in memory from one batch to the next: segments are mapped and searched, so it does not matter which worker
   gets a partition. Where files are far away they are kept on the machine (``files.py``).

Layout: ``binding.json``, and ``of-00016/part-00003/batch-000000000042.state`` for partition 3 of 16. ``repartition``
writes the folder of another count completely, then the binding (from that moment it counts), then deletes the old
folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from seriatim.core.validation import require_whole
from seriatim.errors import DamagedStore, InvalidArgument, StateMismatch
from seriatim.spark.kernel.interfaces import MACHINE, BatchOutcome
from seriatim.spark.kernel.key_state import Content
from seriatim.spark.kernel.keys import require_same_keys
from seriatim.spark.kernel.partition_state import Partition, StackedPartition, Tally
from seriatim.spark.kernel.schema_evolution import misfits, refuse_misfits
from seriatim.spark.kernel.state_segment import UNREADABLE, Segment, write_segment
from seriatim.spark.state.binding import REMEDY, Binding, read_binding, require_bound, require_same_meaning
from seriatim.spark.state.encoding import (
    HEAD_BYTES,
    FirstHeader,
    Header,
    damaged,
    decode_head,
    described,
    encode,
    first_tables,
    head_length,
    segment_in,
    type_text,
)
from seriatim.spark.state.files import Files, files_at

P = TypeVar("P", bound=StackedPartition)

GOLDEN = 0.6180339887498949
MIN_PRUNED = 8
"""How many batches a version must cover before what it replaced is looked for and deleted."""
MAX_QUERY_ID_LENGTH = 512
MAX_READERS = 16
MAX_HEAD_BYTES = 1 << 24
PartitionKinds: TypeAlias = Mapping[str | None, type[StackedPartition]]
"""The class of partitions, by the machine that the meaning of a state names."""
RESEQUENCED: PartitionKinds = {None: Partition}


@dataclass
class PartitionVersion(Generic[P]):
    """A partition as it was after a version, which rests on those in ``stack``, the oldest first and itself the last.

    ``stack`` is None where it was read from the first format, and ``header`` before batch 0.
    """

    partition: P
    header: Header | FirstHeader | None = None
    stack: tuple[tuple[int, str], ...] | None = ()


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
        waits: str = "",
    ) -> None:
        require_whole("partitions", partitions, 1)
        require_whole("keep", keep, 2)
        if not 0 < len(query) <= MAX_QUERY_ID_LENGTH:
            raise InvalidArgument(f"a query id has 1 to {MAX_QUERY_ID_LENGTH} characters")
        self.files = files_at(location) if isinstance(location, str) else location
        self.binding = Binding(query, partitions, dict(meaning or {}))
        self.kinds = kinds
        self.keep, self.waits = keep, waits
        self._latest = -1  # the batch after which ``_next_due`` held
        self._next_due = inf

    # -- reading --------------------------------------------------------------------------------------------------------

    def open(self, partition: int, batch: int, new: Callable[[], P]) -> PartitionVersion[P]:
        """The partition as it is before a batch. The caller owns it and may change it."""
        if not 0 <= partition < self.binding.partitions:
            raise StateMismatch(
                f"partition {partition} does not exist: the state in {self.files.root} has "
                f"{self.binding.partitions} partitions, and the shuffle must have as many"
            )
        require_bound(self.files, self.binding, batch)
        if batch == 0:
            return PartitionVersion(new())
        known = self.read(partition, batch - 1)
        state = known.partition
        if state.waits != self.waits:  # a batch that is run again looks at what it looked at the first time
            before = self._find_header(partition, batch)
            state.is_to_be_revisited = state.waits != (self.waits if before is None else before[0].waits)
        return known

    def read(self, partition: int, batch: int) -> PartitionVersion[Any]:
        """The partition as it was after a batch. The meaning of the state names the kind of partition."""
        kind = self.kind
        header, segment, root = self._segment(partition, batch, kind)
        if isinstance(header, FirstHeader):
            return PartitionVersion(self._read_first(partition, batch, kind), header, None)
        segments = [segment]
        for number, below in reversed(header.stack):
            segments.append(self._segment(partition, number, kind, below)[1])
        schema, key_type, times = described(header, self._name(partition, batch))
        known = kind(key_type, schema, segments[::-1], header.tally, times)
        known.waits = header.waits
        return PartitionVersion(known, header, (*header.stack, (batch, root)))

    def _segment(
        self, partition: int, batch: int, kind: type[StackedPartition], root: str | None = None
    ) -> tuple[Any, Any, str]:
        """Header, segment and root of a version, which must have a root where one is given."""
        name, path = self._name(partition, batch), self._path(partition, batch)
        is_copied = self.files.keeps_copies
        if root is None and is_copied:
            root = self.header(partition, batch)[1]
        for again in (False, True) if is_copied else (False,):
            content = self.files.map(path, root or "", again=again)
            if content is None:
                raise self._missing(partition, batch)
            try:
                header, found = decode_head(content, name)
                self._check_header(header, partition, batch)
                if root not in (None, found):
                    raise StateMismatch(f"{name} is not the version that the one after it was made from: {REMEDY}")
                if isinstance(header, FirstHeader):
                    return header, None, found
                reload = partial(self.files.map, path, found, again=True) if is_copied and not again else None
                return header, segment_in(content, header, name, kind.facts, kind.lists, reload), found
            except (DamagedStore, StateMismatch):
                if again or not is_copied:
                    raise
        raise AssertionError("unreachable")

    def _read_first(self, partition: int, batch: int, kind: type[StackedPartition]) -> StackedPartition:
        """A partition from the first format: all changes since the last full version, one on the other."""
        contents, parent, base = [], None, -1
        while base != batch + 1:
            name = self._name(partition, batch)
            content = self.files.read(self._path(partition, batch))
            if content is None:
                raise self._missing(partition, batch)
            header, checksum = decode_head(content, name)
            self._check_header(header, partition, batch)
            if not isinstance(header, FirstHeader) or parent not in (None, checksum):
                raise StateMismatch(f"{name} is not the version that the one after it was made from: {REMEDY}")
            try:
                tables = first_tables(content, header, name)
                key_type = tables[0].schema.field("key").type
                contents.append((key_type, kind.read_tables(float.fromhex(header.clock), tables)))
                contents[-1][1].require_sound()
            except UNREADABLE as error:
                raise damaged(name, f"it can't be read ({error!r})") from error
            parent, base, batch = header.parent, header.base, batch - 1
        try:
            return _added_up(kind, contents)
        except UNREADABLE as error:
            raise damaged(self._name(partition, batch + 1), f"it does not fit what follows ({error!r})") from error

    def columns(self) -> tuple[pa.Schema, pa.DataType] | None:
        """The columns that the query had in its last batch, and the type of its keys; None before its first."""
        for batch in self.batches(0)[-1:]:
            header, _ = self.header(0, batch)
            if isinstance(header, Header):
                return described(header, self._name(0, batch))[:2]
            known = self._read_first(0, batch, self.kind)
            return known.schema, known.key_type
        return None

    def tally(self, partition: int, batch: int) -> tuple[Tally, float]:
        """How much a partition held after a batch, and when something falls due next. Only headers are read."""
        header, _ = self.header(partition, batch)
        if isinstance(header, Header):
            return header.tally, float.fromhex(header.due)
        return self._read_first(partition, batch, self.kind).tally, float.fromhex(header.due)

    @property
    def kind(self) -> type[StackedPartition]:
        name = self.binding.meaning.get(MACHINE)
        if name not in self.kinds:
            raise StateMismatch(
                f"the state in {self.files.root} is of {name}, which this version of Seriatim does not know: use a newer one"
            )
        return self.kinds[name]

    def header(self, partition: int, batch: int) -> tuple[Header | FirstHeader, str]:
        """Header and root of a version, without reading all of it."""
        found = self._find_header(partition, batch)
        if found is None:
            raise self._missing(partition, batch)
        self._check_header(found[0], partition, batch)
        return found

    def _find_header(self, partition: int, batch: int) -> tuple[Header | FirstHeader, str] | None:
        path = self._path(partition, batch)
        ends = self.files.read_ends(path, HEAD_BYTES, 0)
        if ends is not None and HEAD_BYTES < head_length(ends) <= MAX_HEAD_BYTES:
            ends = self.files.read_ends(path, head_length(ends), 0)
        return None if ends is None else decode_head(ends, self._name(partition, batch))

    # -- ownership -----------------------------------------------------------------------------------------------------

    def _check_header(self, header: Header | FirstHeader, partition: int, batch: int) -> None:
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
        state, change = known.partition, outcome.change
        # Partitions that grow alike would all write everything in the same batch.
        ratio = 1 + partition * GOLDEN % 1
        segment = state.apply(change, outcome.tally, ratio, is_full=known.stack is None)
        stack = (known.stack or ())[: len(state.segments) - 1]
        found = self._find_header(partition, batch)
        state.waits = self.waits if found is None else found[0].waits
        header = self._header_of(state, segment, partition, batch, stack, change.digest())
        if found is None or found[0].rewritten:  # by a change of the partition count: the same state, in another way
            root, content = encode(header, segment)
            (self.files.write_new if found is None else self.files.write)(self._path(partition, batch), content)
            self.files.keep_copy(root, content)
        else:
            self._require_same(found[0], header, state)
        # A repartition that saw no version of this batch must not be followed by one.
        require_bound(self.files, self.binding, batch)
        self._prune(partition, batch)

    def _require_same(self, before: Header | FirstHeader, header: Header, state: StackedPartition) -> None:
        """Refuse to repeat a batch that an earlier run of it decided otherwise."""
        partition, batch = header.partition, header.batch
        if isinstance(before, Header):
            is_same = before.content == header.content
        else:
            first = self._read_first(partition, batch, type(state)).whole()
            is_same = first.digest() == replace(state.whole(), times=first.times).digest()
            is_same &= first.times.clock == state.clock
        if not is_same:
            raise StateMismatch(
                f"{self._name(partition, batch)} was written before, by a run of batch {batch} that decided otherwise: the "
                "source did not give the same rows again (or progress is tracked asynchronously, which is not supported), or "
                f"options were changed before the batch was done. Put them back until it is; otherwise {REMEDY}"
            )

    def write_full(self, state: StackedPartition, partition: int, batch: int) -> None:
        """Write a version that no batch made, of a partition with a single segment."""
        header = self._header_of(state, state.segments[-1], partition, batch, (), "")
        self.files.write(self._path(partition, batch), encode(replace(header, rewritten=True), state.segments[-1])[1])

    def _header_of(
        self,
        state: StackedPartition,
        segment: Segment,
        partition: int,
        batch: int,
        stack: tuple[tuple[int, str], ...],
        content: str,
    ) -> Header:
        return Header(
            self.binding.query,
            self.binding.partitions,
            partition,
            batch,
            due=state.next_due().hex(),
            keys=state.tally.keys,
            held=state.tally.held,
            gaps=state.tally.gaps,
            content=content,
            key_type=type_text(state.key_type),
            layout=segment.layout,
            body=0,
            pages="",
            stack=stack,
            waits=state.waits,
        )

    def _prune(self, partition: int, batch: int) -> None:
        """Delete what the versions to be kept don't need, and what killed writers of that time left.

        What the oldest one needs, the ones before it needed too, unless it replaced several of them. Nothing is listed until
        then.
        """
        oldest = batch - self.keep + 1
        found = self._find_header(partition, oldest) if oldest > 0 else None
        if found is None:  # it was never written here, after a repartition for example: keep what there is
            return
        header = found[0]
        if isinstance(header, FirstHeader):
            covers, needed = (MIN_PRUNED if header.base == oldest else 0), set[int]()
        else:
            covers, needed = header.covers, {number for number, _ in header.stack}
        if covers >= min(MIN_PRUNED, self.keep):
            # From the newest on: what is left behind by a crash must not look like a version that can be read.
            for number, name in reversed(self._versions(partition)):
                if number < oldest and number not in needed:
                    self.files.delete(f"{self._folder(partition)}/{name}")

    # -- layout -------------------------------------------------------------------------------------------------------

    def _folder(self, partition: int) -> str:
        return f"{count_folder(self.binding.partitions)}/part-{partition:05d}"

    def _path(self, partition: int, batch: int) -> str:
        return f"{self._folder(partition)}/batch-{batch:012d}.state"

    def _name(self, partition: int, batch: int) -> str:
        return f"{self.files.root}/{self._path(partition, batch)}"

    def due_by(self, moment: float) -> bool:
        """Whether something falls due by a moment, as the versions of the latest batch tell.

        A batch makes a version of every partition, and versions do not change. So only one is looked for as long as there is
        no new batch, and nothing is listed but once. After one, the headers are read side by side: in an object store each
        takes a while.
        """
        latest = max(self.batches(0), default=-1) if self._latest < 0 else self._latest
        while latest >= 0 and self.files.read_ends(self._path(0, latest + 1), 0, 0) is not None:
            latest += 1
        if latest != self._latest:
            with ThreadPoolExecutor(MAX_READERS) as readers:
                parts = range(self.binding.partitions)
                found = list(readers.map(lambda partition: self._latest_header(partition, latest), parts))
            self._next_due = min((self._due_in(header) for header in found if header is not None), default=inf)
            if all(header is not None and header.batch == latest for header in found):
                self._latest = latest
        return self._next_due <= moment

    def _due_in(self, header: Header | FirstHeader) -> float:
        """When a partition needs a batch: at once where things wait under other options."""
        if header.waits != self.waits and not (isinstance(header, Header) and header.held == 0):
            return -inf
        return float.fromhex(header.due)

    def _latest_header(self, partition: int, batch: int) -> Header | FirstHeader | None:
        """That of a batch, or of the one before if the batch is still under way."""
        found = self._find_header(partition, batch) or self._find_header(partition, batch - 1)
        return None if found is None else found[0]

    def count_held(self) -> int:
        """How many rows wait after the last batch that all partitions have."""
        parts = range(self.binding.partitions)
        return sum(self.tally(number, batch)[0].held for batch in self.complete_batches()[-1:] for number in parts)

    def complete_batches(self) -> list[int]:
        """The batches of which every partition has a version, oldest first."""
        return sorted(set.intersection(*(set(self.batches(number)) for number in range(self.binding.partitions))))

    def batches(self, partition: int) -> list[int]:
        """The batches of which a version can be read, oldest first. What lies before a missing one is what others rest on."""
        numbers = [number for number, name in self._versions(partition) if name.endswith(".state")]
        first = next((place for place in range(len(numbers) - 1, 0, -1) if numbers[place - 1] + 1 < numbers[place]), 0)
        return numbers[first:]

    def _versions(self, partition: int) -> list[tuple[int, str]]:
        """Batches and file names, oldest first; unfinished files too."""
        names = [name for name in self.files.names(self._folder(partition)) if name.startswith("batch-")]
        return [(int(name[len("batch-") :].partition(".")[0]), name) for name in names]


def _added_up(kind: type[StackedPartition], contents: Sequence[tuple[pa.DataType, Content]]) -> StackedPartition:
    """A partition from its changes, the newest first."""
    key_type, newest = contents[0]
    segments = [write_segment(content) for _, content in reversed(contents)]
    whole = kind(key_type, newest.rows.schema, segments, times=newest.times).whole()
    known = kind(key_type, newest.rows.schema)
    known.apply(whole, kind.count(whole))
    return known


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
    found = folder.columns()
    if found is None:
        return
    columns, key_type = found
    require_same_keys(schema.field(key).type, key_type)
    if misfits(columns, schema) and (held := folder.count_held()):
        refuse_misfits(columns, schema, held, f"the state in {files.root}")


def count_folder(partitions: int) -> str:
    return f"of-{partitions:05d}"


def bound_folder(location: str | Files, kinds: PartitionKinds = RESEQUENCED, waits: str = "") -> StateFolder:
    """The state at a location, whichever query owns it, for inspection."""
    files = files_at(location) if isinstance(location, str) else location
    bound = read_binding(files)
    if bound is None:
        raise StateMismatch(f"there is no state in {files.root}: name the folder that a query was given as state=…")
    return StateFolder(
        files, query=bound.query, partitions=bound.partitions, meaning=bound.meaning, kinds=kinds, waits=waits
    )
