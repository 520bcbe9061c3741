"""State of a stream: bound to its query, complete or absent, never guessed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as arrow_fs
import pytest

from seriatim.core.resequencing.options import OnGap, ResequenceOptions, Start
from seriatim.errors import (
    DamagedStore,
    FailedPrecondition,
    InvalidArgument,
    SeriatimError,
    StateMismatch,
    StoreFailed,
    StoreFull,
)
from seriatim.spark.kernel.kernel import Kernel
from seriatim.spark.kernel.partition_state import Tally
from seriatim.spark.state.batch_versions import MIN_PRUNED, StateFolder
from seriatim.spark.state.encoding import Header
from seriatim.spark.state.files import ArrowFiles, Files, LocalFiles, MachineCopies, files_at
from seriatim.spark.state.repartition import repartition
from tests.spark.kernel.traces import ROLES, SCHEMA, Row, known_to, table
from tests.spark.state.memory_files import MemoryFiles
from tests.spark.state.repartitioning import by_function

KERNEL = Kernel(ResequenceOptions(start=Start.at(0), gap_timeout=3), ROLES)


class Query:
    """A query that runs batches over a state folder, as tasks of several processes would."""

    def __init__(self, files: Files, query: str = "q", partitions: int = 1, keep: int = 100) -> None:
        self.files, self.query, self.partitions, self.keep = files, query, partitions, keep

    def folder(self) -> StateFolder:
        return StateFolder(self.files, query=self.query, partitions=self.partitions, keep=self.keep)

    def stack(self, batch: int, partition: int = 0) -> tuple[tuple[int, str], ...]:
        """The versions that one rests on."""
        header, _ = self.folder().header(partition, batch)
        assert isinstance(header, Header)
        return header.stack

    def run(self, batch: int, rows: list[Row], partition: int = 0) -> list[tuple[str, int]]:
        """One attempt at a batch; the ordered rows that it gives out."""
        folder = self.folder()
        known = folder.open(partition, batch, lambda: KERNEL.new_partition(SCHEMA))
        outcome = KERNEL.run(known.partition, table(rows), float(batch))
        folder.commit(known, partition, batch, outcome)
        released = outcome.table.filter(pa.compute.equal(outcome.table["_tag"], "ordered"))
        return list(zip(released["key"].to_pylist(), released["seq"].to_pylist(), strict=True))


def rows(*numbers: int, key: str = "k", at: float = 0) -> list[Row]:
    return [Row(key, number, at, number) for number in numbers]


@pytest.fixture(params=["memory", "local", "arrow"])
def files(request, tmp_path: Path) -> Files:
    if request.param == "memory":
        return MemoryFiles()
    if request.param == "local":
        return LocalFiles(str(tmp_path / "state"))
    return ArrowFiles(
        arrow_fs.LocalFileSystem(), str(tmp_path / "state"), "arrow", MachineCopies(tmp_path / "copies", 1 << 20)
    )


def state_path(batch: int, partition: int = 0, partitions: int = 1) -> str:
    return f"of-{partitions:05d}/part-{partition:05d}/batch-{batch:012d}.state"


def damage(files: Files, path: str, change) -> None:
    content = files.read(path)
    assert content is not None
    files.write(path, change(content))


# -- going on -----------------------------------------------------------------------------------------------------------


def test_a_batch_goes_on_where_the_one_before_ended_in_another_process(files):
    query = Query(files)
    assert query.run(0, rows(0, 2)) == [("k", 0)]
    assert query.run(1, rows(1)) == [("k", 1), ("k", 2)]
    assert query.run(2, rows(1, 3)) == [("k", 3)]


def test_a_repeated_attempt_gives_out_and_writes_the_same(files):
    query = Query(files)
    query.run(0, rows(0, 2))
    first = query.run(1, rows(1, 4))
    written = files.read(state_path(1))
    assert query.run(1, rows(1, 4)) == first
    assert files.read(state_path(1)) == written


def decided(files: Files, batch: int, given: pa.Table) -> None:
    """One attempt at a batch, with whatever columns its rows have."""
    folder = StateFolder(files, query="q", partitions=1)
    known = folder.open(0, batch, lambda: KERNEL.new_partition(given.schema))
    known.partition.adopt(given.schema)
    folder.commit(known, 0, batch, KERNEL.run(known.partition, given, float(batch)))


def timed(*numbers: int) -> pa.Table:
    """Rows with a narrow number and a moment."""
    given = table(rows(*numbers))
    narrow = given.set_column(given.schema.get_field_index("body"), "body", given["body"].cast(pa.int32()))
    return narrow.append_column("when", pa.array([7] * len(numbers), pa.timestamp("us", "UTC")))


def widened(given: pa.Table) -> pa.Table:
    return given.set_column(given.schema.get_field_index("body"), "body", given["body"].cast(pa.int64()))


def with_a_column_more(given: pa.Table) -> pa.Table:
    return given.append_column("more", pa.nulls(len(given), pa.string()))


def in_another_zone(given: pa.Table) -> pa.Table:
    column = given["when"].cast(pa.timestamp("us", "Europe/Berlin"))
    return given.set_column(given.schema.get_field_index("when"), "when", column)


def shuffled_columns(given: pa.Table) -> pa.Table:
    return given.select(sorted(given.column_names))


@pytest.mark.parametrize("change", [widened, with_a_column_more, in_another_zone, shuffled_columns])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_repeated_batch_is_compared_by_content_whatever_its_columns_look_like(change, batch):
    files = MemoryFiles()
    for number, given in enumerate([timed(0, 2), timed(4)][: batch + 1]):
        decided(files, number, given)
    other = MemoryFiles(content={path: files.content[path] for path in files.content if path != state_path(batch)})
    again = change([timed(0, 2), timed(4)][batch])
    decided(other, batch, again)
    assert other.content[state_path(batch)] != files.content[state_path(batch)]
    written = dict(files.content)
    decided(files, batch, again)
    assert files.content == written
    with pytest.raises(StateMismatch, match="decided otherwise"):
        decided(files, batch, change(timed(8)))


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"compression": None}])
def test_a_repeated_batch_is_compared_by_content_however_arrow_writes_it(options, monkeypatch):
    files, plain = MemoryFiles(), pa.ipc.new_stream
    decided(files, 0, timed(0, 2, 3, 4))
    written = dict(files.content)
    otherwise = {"options": pa.ipc.IpcWriteOptions(**options)}
    monkeypatch.setattr(pa.ipc, "new_stream", lambda *given, **_: plain(*given, **otherwise))
    other = MemoryFiles()
    decided(other, 0, timed(0, 2, 3, 4))
    assert other.content != files.content
    decided(files, 0, timed(0, 2, 3, 4))
    assert files.content == written
    decided(files, 1, timed(1))
    assert files.content[state_path(1)]


def test_attempts_at_the_same_time_do_not_disturb_each_other(files):
    query = Query(files)
    query.run(0, rows(0, 2))
    one, other = query.folder(), query.folder()
    known = [folder.open(0, 1, lambda: KERNEL.new_partition(SCHEMA)) for folder in (one, other)]
    outcomes = [KERNEL.run(each.partition, table(rows(1)), 1.0) for each in known]
    one.commit(known[0], 0, 1, outcomes[0])
    written = files.read(state_path(1))
    other.commit(known[1], 0, 1, outcomes[1])
    assert outcomes[0].table == outcomes[1].table
    assert files.read(state_path(1)) == written


def test_a_failed_attempt_changes_nothing():
    files = MemoryFiles()
    query = Query(files)
    query.run(0, rows(0, 2))
    for fail_at in range(len(files.operations), len(files.operations) + 3):
        files.fail_at = fail_at
        with pytest.raises(StoreFailed):
            query.run(1, rows(1))
    files.fail_at = None
    assert query.run(1, rows(1)) == [("k", 1), ("k", 2)]


def test_a_batch_that_decides_otherwise_when_it_is_run_again_is_refused(files):
    """Its first run may have reached a sink: only the very same may be given out once more."""
    query = Query(files)
    query.run(0, rows(0))
    query.run(1, rows(1))
    kept = files.read(state_path(1))
    for other in (rows(1, 2), rows(), rows(2)):
        with pytest.raises(StateMismatch, match="was written before, by a run of batch 1 that decided otherwise"):
            query.run(1, other)
    assert files.read(state_path(1)) == kept
    assert query.run(1, rows(1)) == [("k", 1)]


def test_when_something_falls_due_is_told_by_the_latest_versions(files):
    query = Query(files, partitions=2)
    query.run(0, rows(0, 2, at=1.5), partition=0)  # the timeout is 3
    query.run(0, rows(0), partition=1)
    assert [query.folder().due_by(moment) for moment in (4.4, 4.5, inf)] == [False, True, True]
    query.run(1, rows(1), partition=0)
    assert not query.folder().due_by(1e9)
    query.run(2, rows(4, at=2.0), partition=0)
    query.run(3, [], partition=0)  # a delta that changes nothing
    assert [query.folder().due_by(moment) for moment in (4.9, 5.0)] == [False, True]


def test_a_gap_that_was_reported_is_not_due_again():
    kernel = replace(KERNEL, options=replace(KERNEL.options, on_gap=OnGap.HOLD))
    partition = kernel.new_partition(SCHEMA)
    for moment, numbers in ((0.0, [1]), (3.0, []), (4.0, [5])):
        outcome = kernel.run(partition, table(rows(*numbers, at=moment)), moment)
        partition.apply(outcome.change, outcome.tally)
    assert partition.whole().lists["gaps"].deadline.min() < inf
    assert partition.next_due() == inf


# -- what is written ----------------------------------------------------------------------------------------------------


def test_what_a_batch_writes_is_proportional_to_what_changed(files):
    query = Query(files)
    query.run(0, [row for number in range(5_000) for row in rows(0, key=f"key-{number:05d}")])
    query.run(1, rows(1, key="key-00007"))
    full, delta = files.read(state_path(0)), files.read(state_path(1))
    assert full is not None
    assert delta is not None
    assert len(delta) < len(full) / 10


def test_messages_that_stay_held_are_not_written_again(files):
    query = Query(files)
    query.run(0, rows(*range(1, 2_000)))
    query.run(1, rows(3_000))
    full, delta = files.read(state_path(0)), files.read(state_path(1))
    assert full is not None
    assert delta is not None
    assert len(delta) < len(full) / 3


def written_bytes(files: Files, batch: int, partition: int = 0, partitions: int = 1) -> int:
    content = files.read(state_path(batch, partition, partitions))
    assert content is not None
    return len(content)


def test_few_segments_hold_many_changes_and_each_change_is_written_only_so_often():
    """With 5,000 keys and one that changes a batch, nothing but that is written for a long time."""
    files, batches = MemoryFiles(), 130
    query = Query(files, keep=1000)
    query.run(0, [row for number in range(5_000) for row in rows(0, key=f"key-{number:05d}")])
    for batch in range(1, batches):
        query.run(batch, rows(1, key=f"key-{batch:05d}"))
    assert max(len(query.stack(batch)) for batch in range(batches)) <= 9
    assert sum(written_bytes(files, batch) for batch in range(1, batches)) < 8 * written_bytes(files, 0)
    assert query.folder().read(0, batches - 1).partition.tally.keys == 5_000


def test_partitions_that_change_alike_do_not_write_everything_in_the_same_batch():
    files, partitions, keys = MemoryFiles(), 6, 400
    query = Query(files, partitions=partitions)
    full: dict[int, list[int]] = {}
    for partition in range(partitions):
        query.run(0, [row for number in range(keys) for row in rows(0, key=f"key-{number}")], partition)
        for batch in range(1, 90):
            query.run(batch, [row for n in range(10) for row in rows(0, key=f"new-{batch}-{n}")], partition)
            if not query.stack(batch, partition):
                full.setdefault(batch, []).append(partition)
    first = {partition: min(batch for batch, whose in full.items() if partition in whose) for partition in range(6)}
    assert max(list(first.values()).count(batch) for batch in first.values()) <= 2


def test_the_header_says_how_much_a_partition_holds_and_what_it_rests_on():
    files = MemoryFiles()
    query = Query(files)
    query.run(0, [*rows(0, 2, key="a"), *rows(0, key="b"), *rows(4, 6, key="c")])
    query.run(1, rows(1, key="a"))
    files.operations.clear()
    assert query.folder().tally(0, 0) == (Tally(keys=3, held=3, gaps=3), 3.0)
    assert query.folder().tally(0, 1) == (Tally(keys=3, held=2, gaps=2), 3.0)
    assert query.folder().count_held() == 2
    assert not [operation for operation in files.operations if operation.startswith(("read of", "map"))]


def test_a_partition_that_is_read_is_the_one_that_was_written():
    query = Query(MemoryFiles())
    remembered = KERNEL.new_partition(SCHEMA)
    for batch in range(20):
        given = [*rows(2 * batch + 1, key="a"), *rows(batch, key=f"b{batch % 7}", at=batch)]
        query.run(batch, given)
        outcome = KERNEL.run(remembered, table(given), float(batch))
        remembered.apply(outcome.change, outcome.tally)
        assert known_to(query.folder().read(0, batch).partition) == known_to(remembered)


@pytest.mark.parametrize("keep", [2, 5])
def test_as_many_versions_can_be_read_as_are_to_be_kept_and_older_ones_go(files, keep):
    query = Query(files, keep=keep)
    for batch in range(60):
        query.run(batch, [*rows(batch), *rows(batch, key="other")])
    batches = query.folder().batches(0)
    assert batches[-keep:] == list(range(60 - keep, 60))
    assert len(query.files.names("of-00001/part-00000")) <= keep + 2 * MIN_PRUNED + 6
    for batch in batches[-keep:]:
        assert query.folder().read(0, batch).header.batch == batch  # type: ignore[union-attr]


def test_garbage_under_missing_values_does_not_show_in_what_is_written():
    def written(under: int) -> dict[str, bytes]:
        digest = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(np.array([under], np.int64))])
        held = table(rows(1)).set_column(4, SCHEMA.field(4), digest)
        files = MemoryFiles()
        folder = Query(files).folder()
        known = folder.open(0, 0, lambda: KERNEL.new_partition(SCHEMA))
        folder.commit(known, 0, 0, KERNEL.run(known.partition, held, 0.0))
        return files.content

    assert written(1) == written(2)


# -- whose it is --------------------------------------------------------------------------------------------------------


def test_another_query_is_refused_from_its_first_batch_on(files):
    Query(files).run(0, rows(0))
    for batch in (0, 1):
        with pytest.raises(StateMismatch, match="belongs to the query q, and this is another"):
            Query(files, query="another").run(batch, rows(0))


def test_another_partition_count_is_refused_and_says_what_to_do(files):
    Query(files, partitions=4).run(0, rows(0))
    told = "has 4 partitions, and the query runs with 3: .* 'seriatim pipeline state repartition .* --partitions 3'"
    with pytest.raises(StateMismatch, match=told):
        Query(files, partitions=3).run(1, rows(1))


def test_keys_and_numbers_can_not_mean_something_else_under_a_state(files):
    def folder(key: str, partitions: int = 1) -> StateFolder:
        return StateFolder(files, query="q", partitions=partitions, meaning={"key": key, "wrap": "None"})

    known = folder("device").open(0, 0, lambda: KERNEL.new_partition(SCHEMA))
    folder("device").commit(known, 0, 0, KERNEL.run(known.partition, table(rows(0)), 0.0))
    told = "was made with key=device, wrap=None, and the query runs with key=user, wrap=None: put that back"
    with pytest.raises(StateMismatch, match=told):
        folder("user").open(0, 1, lambda: KERNEL.new_partition(SCHEMA))
    repartition(files, 2, by_function(by_length(2)))
    with pytest.raises(StateMismatch, match=told):
        folder("user", partitions=2).open(0, 1, lambda: KERNEL.new_partition(SCHEMA))
    assert folder("device", partitions=2).open(0, 1, lambda: KERNEL.new_partition(SCHEMA)).header is not None


def test_a_partition_beyond_the_count_is_refused(files):
    with pytest.raises(StateMismatch, match="partition 2 does not exist"):
        Query(files, partitions=2).run(0, rows(0), partition=2)


def test_a_folder_with_other_things_in_it_is_refused(files):
    files.write("precious.txt", b"something else")
    with pytest.raises(StateMismatch, match=r"not empty \(there is precious.txt\)"):
        Query(files).run(0, rows(0))


def test_state_whose_binding_was_deleted_is_refused(files):
    Query(files).run(0, rows(0))
    files.delete("binding.json")
    with pytest.raises(StateMismatch, match="not empty"):
        Query(files).run(0, rows(0))
    with pytest.raises(StateMismatch, match=r"there is no state in .*, but batch 1 continues from batch 0"):
        Query(files).run(1, rows(1))


def test_several_tasks_may_begin_the_first_batch_at_once():
    class Slow(MemoryFiles):
        def names(self, folder: str) -> list[str]:
            if folder == "" and "binding.json" not in self.content:
                Query(MemoryFiles(content=self.content), partitions=2).run(0, rows(0), partition=1)
            return super().names(folder)

    assert Query(Slow(), partitions=2).run(0, rows(0), partition=0) == [("k", 0)]


@pytest.mark.parametrize(
    "other", [Query(MemoryFiles(), query="p"), Query(MemoryFiles(), partitions=2), Query(MemoryFiles())]
)
def test_a_version_that_somebody_put_there_is_refused(other):
    other.run(0, rows(0, 1, 2))
    other.run(1, rows(3))
    foreign = other.files.read(state_path(1, partitions=other.partitions))
    assert foreign is not None
    files = MemoryFiles()
    Query(files).run(0, rows(0))
    files.write(state_path(0), foreign)
    with pytest.raises(StateMismatch, match="it was put there by something else"):
        Query(files).run(1, rows(1))


def test_a_missing_version_is_an_error_that_says_which_are_there(files):
    query = Query(files)
    for batch in range(3):
        query.run(batch, rows(batch))
    files.delete(state_path(2))
    with pytest.raises(StateMismatch, match=r"batch-000000000002.state is missing \(batches 0 to 1 are there\)"):
        query.run(3, rows(3))


def test_a_link_of_the_chain_that_is_missing_or_another_is_an_error(files, tmp_path):
    query = Query(files)
    query.run(0, [row for number in range(5_000) for row in rows(0, key=f"key-{number}")])
    query.run(1, [row for number in range(9) for row in rows(1, key=f"key-{number}")])
    query.run(2, rows(2, key="key-1"))
    kept = files.read(state_path(1))
    assert kept is not None
    files.delete(state_path(1))
    shutil.rmtree(tmp_path / "copies", ignore_errors=True)  # a copy would do as well
    query.run(1, rows(1, key="key-2"))
    with pytest.raises(StateMismatch, match="is not the version that the one after it was made from"):
        query.run(3, rows(3, key="key-1"))
    files.delete(state_path(1))
    shutil.rmtree(tmp_path / "copies", ignore_errors=True)  # a copy would do as well
    with pytest.raises(StateMismatch, match=r"batch-000000000001\.state is missing"):
        query.run(3, rows(3, key="key-1"))
    files.write(state_path(1), kept)
    assert query.run(3, rows(3, key="key-1")) == [("key-1", 3)]


def test_damage_anywhere_in_a_version_is_an_error():
    files = MemoryFiles()
    query = Query(files)
    query.run(0, rows(0, 2))
    content = files.content[state_path(0)]
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0x40
        files.content[state_path(0)] = bytes(damaged)
        with pytest.raises((DamagedStore, StateMismatch)):
            query.run(1, rows(1))


@pytest.mark.parametrize("length", [0, 5, 40, -1])
def test_a_version_that_was_cut_short_is_an_error(files, length, tmp_path):
    query = Query(files)
    query.run(0, rows(0, 2))
    damage(files, state_path(0), lambda content: content[:length])
    shutil.rmtree(tmp_path / "copies", ignore_errors=True)  # a copy would do as well
    with pytest.raises(DamagedStore, match="is damaged"):
        query.run(1, rows(1))


def test_a_damaged_binding_is_an_error(files):
    Query(files).run(0, rows(0))
    files.write("binding.json", b"{")
    with pytest.raises(DamagedStore, match=r"binding.json is damaged"):
        Query(files).run(1, rows(1))


# -- when writing fails -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_whichever_operation_fails_the_next_attempt_writes_what_an_undisturbed_one_would(killed):
    """A killed writer leaves half a file under a temporary name; any failure may hit any operation."""
    undisturbed = MemoryFiles()
    for batch in range(4):
        Query(undisturbed, keep=2).run(batch, rows(batch, batch + 2))
    files = MemoryFiles()
    for batch in range(4):
        attempt = 0
        while True:
            files.fail_at, files.leave_unfinished = len(files.operations) + attempt, killed
            try:
                Query(files, keep=2).run(batch, rows(batch, batch + 2))
                break
            except StoreFailed:
                attempt += 1
    complete = {path: content for path, content in files.content.items() if not path.endswith(".tmp")}
    assert complete == undisturbed.content
    assert any(path.endswith(".tmp") for path in files.content) == killed


def test_what_killed_writers_left_goes_with_its_batch(files):
    query = Query(files, keep=2)
    query.run(0, rows(0))
    files.write(f"{state_path(0)}.deadbeef.tmp", b"half")
    for batch in range(1, 5 * MIN_PRUNED):
        query.run(batch, rows(batch))
    assert [name for name in files.names("of-00001/part-00000") if name.endswith(".tmp")] == []


@pytest.mark.parametrize("operation", ["_write_through", "_sync", "_rename", "_sync_folder"])
@pytest.mark.parametrize(("number", "error"), [(5, StoreFailed), (28, StoreFull)])
def test_a_local_write_that_fails_shows_nothing_and_leaves_nothing(tmp_path, monkeypatch, operation, number, error):
    local = LocalFiles(str(tmp_path))
    query = Query(local)
    query.run(0, rows(0))

    def fail(*arguments):
        raise OSError(number, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, operation, fail)
        with pytest.raises(error, match=r"writing .* failed: .*injected"):
            query.run(1, rows(1))
    assert not list(tmp_path.rglob("*.tmp"))
    assert query.run(1, rows(1)) == [("k", 1)]


@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("open", lambda files: files.read("folder/file")),
        ("open", lambda files: files.read_ends("folder/file", 1, 1)),
        ("iterdir", lambda files: files.names("folder")),
        ("unlink", lambda files: files.delete("folder/file")),
    ],
    ids=["read", "read_ends", "names", "delete"],
)
def test_a_local_read_that_fails_is_an_error_and_not_an_empty_state(tmp_path, monkeypatch, operation, act):
    local = LocalFiles(str(tmp_path))
    local.write("folder/file", b"content")

    def fail(*arguments, **options):
        raise PermissionError(13, "injected")

    monkeypatch.setattr(Path, operation, fail)
    with pytest.raises(StoreFailed, match="injected"):
        act(local)


# -- where it may be ----------------------------------------------------------------------------------------------------


def test_a_local_address_is_a_local_folder(tmp_path):
    assert isinstance(files_at(f"file://{tmp_path}"), LocalFiles)
    assert isinstance(files_at(str(tmp_path)), LocalFiles)


def test_an_address_that_nobody_knows_is_refused_at_once():
    with pytest.raises(InvalidArgument, match="state can't be kept at ftp://somewhere"):
        StateFolder("ftp://somewhere", query="q", partitions=1)


class DeletesBeforeItRenames(arrow_fs.LocalFileSystem):
    """As HDFS does, where the process is killed in between."""

    def move(self, src: str, dest: str) -> None:
        if Path(dest).exists():
            Path(dest).unlink()
            raise KeyboardInterrupt
        super().move(src, dest)


def test_an_attempt_that_comes_late_does_not_touch_the_version_that_is_there(tmp_path):
    files = ArrowFiles(
        DeletesBeforeItRenames(), str(tmp_path / "state"), "hdfs", MachineCopies(tmp_path / "copies", 1 << 20)
    )
    query = Query(files)
    first = query.run(0, rows(1, 0))
    before = files.read(state_path(0))
    assert query.run(0, rows(1, 0)) == first
    assert files.read(state_path(0)) == before
    files.write_new(state_path(0), b"of an attempt that saw nothing when it began")
    assert files.read(state_path(0)) == before
    assert [name for name in files.names("of-00001/part-00000") if name.endswith(".tmp")] == []


@pytest.mark.parametrize("location", ["dbfs:/state", "s3:bucket", "hdfs:state"])
def test_an_address_is_not_taken_for_a_folder(location):
    with pytest.raises(InvalidArgument, match="write an address as scheme://"):
        files_at(location)


@pytest.mark.parametrize("wrong", [{"partitions": 0}, {"keep": 1}, {"query": ""}, {"query": "q" * 513}])
def test_settings_that_can_never_work_are_refused(wrong):
    with pytest.raises(SeriatimError):
        StateFolder(MemoryFiles(), **{"query": "q", "partitions": 1, **wrong})


# -- another partition count --------------------------------------------------------------------------------------------


def by_length(count: int):
    return lambda keys: np.array([len(key) % count for key in keys.to_pylist()], np.int64)


def test_repartitioned_state_goes_on_as_if_it_had_always_been_so(files):
    old = Query(files, partitions=2)
    for batch in (0, 1):
        old.run(batch, [*rows(3 * batch + 2, 3 * batch, key="aa"), *rows(batch, key="aaaa")], partition=0)
        old.run(batch, rows(2 * batch + 1, key="a"), partition=1)
    before = {**known_to(old.folder().read(0, 1).partition), **known_to(old.folder().read(1, 1).partition)}
    assert repartition(files, 3, by_function(by_length(3))) == [0, 1]
    new = Query(files, partitions=3)
    parts = [known_to(new.folder().read(number, 1).partition) for number in range(3)]
    assert [sorted(part) for part in parts] == [[], ["a", "aaaa"], ["aa"]]
    assert {key: fact for part in parts for key, fact in part.items()} == before
    assert new.run(2, [*rows(0, key="a"), *rows(2, key="aaaa")], partition=1) == [("a", 0), ("a", 1), ("aaaa", 2)]
    assert files.names("of-00002") == []
    with pytest.raises(StateMismatch, match="has 3 partitions"):
        old.run(2, rows(0))


def test_a_batch_may_be_run_again_after_a_repartition(files):
    """Spark may not have noted that its last batch was done."""
    old = Query(files, partitions=2)
    for batch in (0, 1):
        old.run(batch, rows(2 * batch + 1, key="aa"), partition=0)
        old.run(batch, rows(batch, key="a"), partition=1)
    repartition(files, 3, by_function(by_length(3)))
    new = Query(files, partitions=3)
    new.run(1, [], partition=0)
    assert new.run(1, rows(1, key="a"), partition=1) == [("a", 1)]
    assert new.run(1, rows(3, key="aa"), partition=2) == []
    assert new.run(2, rows(0, 2, key="aa"), partition=2) == [("aa", 0), ("aa", 1), ("aa", 2), ("aa", 3)]


def test_a_repartition_under_a_running_query_is_taken_back(files):
    query = Query(files, partitions=1)
    query.run(0, rows(0, key="aa"))

    def assign(keys):
        if not query.folder().batches(0)[1:]:
            query.run(1, rows(1, key="aa"))
        return by_length(2)(keys)

    with pytest.raises(FailedPrecondition, match="is running: stop it, and try again"):
        repartition(files, 2, by_function(assign))
    assert query.run(2, rows(2, key="aa")) == [("aa", 2)]
    assert repartition(files, 2, by_function(by_length(2))) == [1, 2]


def test_a_task_that_ends_after_a_repartition_gives_nothing_out(files):
    query = Query(files, partitions=1)
    query.run(0, rows(0, key="aa"))
    folder = query.folder()
    known = folder.open(0, 1, lambda: KERNEL.new_partition(SCHEMA))
    outcome = KERNEL.run(known.partition, table(rows(1, key="aa")), 1.0)
    repartition(files, 2, by_function(by_length(2)))
    with pytest.raises(StateMismatch, match="has 2 partitions, and the query runs with 1"):
        folder.commit(known, 0, 1, outcome)
    assert Query(files, partitions=2).run(1, rows(1, key="aa")) == [("aa", 1)]


def test_only_batches_that_every_partition_has_are_repartitioned(files):
    query = Query(files, partitions=2)
    for partition in (0, 1):
        query.run(0, rows(0, key="a" * (2 + partition)), partition)
    query.run(1, rows(1, key="aa"), partition=0)
    assert repartition(files, 1, by_function(by_length(1))) == [0]


def test_an_interrupted_repartition_changes_nothing_until_the_binding_is_written():
    for fail_at in range(100):
        files = MemoryFiles()
        query = Query(files, partitions=2)
        for partition in (0, 1):
            query.run(0, rows(0, 2, key="a" * (2 + partition)), partition)
        files.operations.clear()
        files.fail_at = fail_at
        try:
            repartition(files, 3, by_function(by_length(3)))
        except StoreFailed:
            files.fail_at = None
            bound = b'"partitions": 3' in files.content["binding.json"]
            if bound:
                assert files.operations[-1].startswith(("names of-00002", "delete folder of-00002"))
                assert Query(files, partitions=3).run(1, rows(1, key="aa"), 2) == [("aa", 1), ("aa", 2)]
            else:
                assert query.run(1, rows(1, key="aa")) == [("aa", 1), ("aa", 2)]
                assert repartition(files, 3, by_function(by_length(3))) == [0]
        else:
            return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize(
    ("count", "assign", "error"),
    [
        (1, by_length(1), "has 1 partitions already"),
        (2, by_length(3), "must give each key a number from 0 to 1"),
        (2, lambda keys: np.zeros(0, np.int64), "must give each key a number from 0 to 1"),
    ],
)
def test_a_repartition_that_can_never_work_is_refused(count, assign, error):
    files = MemoryFiles()
    Query(files).run(0, rows(0, key="aa"))
    with pytest.raises(InvalidArgument, match=error):
        repartition(files, count, by_function(assign))


def test_nothing_can_be_repartitioned_where_there_is_nothing():
    with pytest.raises(StateMismatch, match="there is no state"):
        repartition(MemoryFiles(), 2, by_length(2))


def test_expired_keys_are_gone_from_what_is_read(files):
    kernel = replace(KERNEL, idle_after=5)
    folder = Query(files).folder()
    for batch, row in enumerate([rows(0, key="gone"), rows(0, key="here", at=9)]):
        known = folder.open(0, batch, lambda: kernel.new_partition(SCHEMA))
        folder.commit(known, 0, batch, kernel.run(known.partition, table(row), batch * 9.0))
    assert sorted(known_to(folder.read(0, 1).partition)) == ["here"]
