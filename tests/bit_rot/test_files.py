"""Damage to files of our own: state of streams, manifests of tables, staged messages, epochs. All have checksums."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from seriatim.errors import DamagedStore, SeriatimError, StateMismatch
from seriatim.pipes import FileEpochs
from seriatim.spark.pipeline.parquet_table import MANIFEST, ParquetTable, TableManifest
from seriatim.spark.state.batch_versions import bound_folder
from seriatim.spark.state.files import LocalFiles
from seriatim.store.pack import encode
from seriatim.store.staged_messages import check_staged, read_staged, write_staged
from tests.bit_rot.damage import KINDS, copied, damaged
from tests.bit_rot.swaps import SWAPS, is_noticed
from tests.bit_rot.times import TIMES
from tests.spark.state.test_batch_versions import Query, rows
from tests.store.contract.kit import records

BATCHES = 4


def make_state(folder: Path) -> None:
    query = Query(LocalFiles(str(folder)), partitions=2)
    for batch in range(BATCHES):
        for partition in range(2):
            others = [row for number in range(40) for row in rows(0, key=f"key-{number}")] if batch == 0 else []
            query.run(batch, [*others, *rows(2 * batch, 2 * batch + 3, key="k" * (partition + 1))], partition)


def read_state(folder: Path) -> object:
    """The state, and whether a tick is due, which looks at headers only."""
    state = bound_folder(str(folder))
    assert (state.binding.query, state.binding.partitions, state.binding.meaning) == ("q", 2, {}) or _refused(state)
    known = [state.read(partition, BATCHES - 1) for partition in range(2)]
    state.due_by(1e9)
    return [(version.header, version.stack, version.partition.whole().digest()) for version in known]


def _refused(state) -> bool:
    """Whether a query is told that the state is not its own."""
    with pytest.raises(StateMismatch):
        Query(state.files, partitions=2).folder().open(0, BATCHES, lambda: None)  # type: ignore[type-var]
    raise StateMismatch("as it should be")


def make_manifest(folder: Path) -> None:
    (folder / "_seriatim").mkdir()
    ParquetTable(folder, "q")._note(TableManifest("q", (("n", "int"), ("key", "string")), empty=41))


def read_manifest(folder: Path) -> object:
    return ParquetTable(folder, "q")._read_manifest()


def make_staged(folder: Path) -> None:
    write_staged(folder / "staged", [encode(records(range(5), published=0.0)), encode(records(range(3), "ü", 99, 0.0))])


def read_staged_file(folder: Path) -> object:
    check_staged(folder / "staged", 8)
    return list(read_staged(folder / "staged"))


def make_epochs(folder: Path) -> None:
    for _ in range(12):
        asyncio.run(FileEpochs(folder / "epoch").next())


def next_epoch(folder: Path) -> object:
    return asyncio.run(FileEpochs(folder / "epoch").next())


SUBJECTS: dict[str, tuple[Callable[[Path], None], Callable[[Path], object], str]] = {
    "state": (make_state, read_state, "of-00002/part-00000/batch-000000000003.state"),
    "state that it rests on": (make_state, read_state, "of-00002/part-00001/batch-000000000000.state"),
    "binding of a state": (make_state, read_state, "binding.json"),
    "manifest of a table": (make_manifest, read_manifest, MANIFEST),
    "staged messages": (make_staged, read_staged_file, "staged"),
    "epochs": (make_epochs, next_epoch, "epoch"),
}


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_damaged_file_is_refused_or_read_as_it_was_written(tmp_path, subject, kind):
    make, read, file = SUBJECTS[subject]
    whole = tmp_path / "whole"
    whole.mkdir()
    make(whole)
    written, random, refused = read(copied(whole, tmp_path / "copy")), Random(), 0
    for _ in range(40 * TIMES):
        seed = random.getrandbits(32)
        folder = damaged(whole, tmp_path / "damaged", file, kind, seed)
        try:
            found = read(folder)
        except SeriatimError:
            refused += 1
        else:
            assert found == written, seed
    assert refused


@pytest.mark.parametrize("one", ["part-00000/batch-000000000003.state"])
@pytest.mark.parametrize("other", ["part-00000/batch-000000000002.state", "part-00001/batch-000000000003.state"])
def test_files_of_a_state_that_were_swapped_are_refused(tmp_path, one, other):
    make_state(tmp_path)
    first, second = tmp_path / "of-00002" / one, tmp_path / "of-00002" / other
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(StateMismatch, match="put there by something else"):
        read_state(tmp_path)


@pytest.mark.parametrize("name", SWAPS)
def test_files_that_were_swapped_are_refused_where_they_say_whose_they_are_and_otherwise_read_whole(tmp_path, name):
    assert is_noticed(tmp_path, SWAPS[name]) is SWAPS[name].is_noticed


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"due": "', b'"due": "z'), (b'"times": ["', b'"times": ["q'), (b'"batch": 3', b'"batch": []'), (b"{", b"[")],
)
def test_a_header_that_is_damaged_is_refused_also_where_only_headers_are_looked_at(tmp_path, before, after):
    make_state(tmp_path)
    for path in tmp_path.rglob("batch-000000000003.state"):
        content = path.read_bytes()
        size = int.from_bytes(content[17:25], "big")
        header = content[25 : 25 + size].replace(before, after, 1)
        assert header != content[25 : 25 + size]
        path.write_bytes(content[:17] + len(header).to_bytes(8, "big") + header + content[25 + size :])
    with pytest.raises(DamagedStore, match="the checksum of its header is wrong"):
        bound_folder(str(tmp_path)).due_by(1e9)
