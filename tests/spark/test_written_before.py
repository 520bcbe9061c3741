"""What an earlier version wrote is gone on from: state, checkpoints and tables."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from seriatim.core.resequencing.options import ResequenceOptions, Start
from seriatim.errors import StateMismatch
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.kernel import Kernel
from seriatim.spark.state.batch_versions import StateFolder, bound_folder
from seriatim.spark.state.encoding import FIRST_MAGIC
from seriatim.spark.state_admin import inspect_state
from tests.spark import written_before
from tests.spark.pipeline.pipelines import rows_of


@pytest.fixture
def root(tmp_path):
    written_before.unpack(tmp_path)
    return tmp_path


@pytest.mark.parametrize("state", ["devices/work/telemetry-state", "nodes/state"])
def test_the_state_can_be_looked_at(root, state):
    info = inspect_state(str(root / state))
    assert info.batch == 1
    assert sum(part.held for part in info.partitions) == 1
    assert sum(part.keys for part in info.partitions) == 2


def repeated(state: str, partition: int, rows: list[tuple[str, int, float]]) -> list[tuple[str, str, int]]:
    """Batch 1 of the sample once more, from the rows that belong to a partition."""
    bound = bound_folder(state)
    kernel = Kernel(ResequenceOptions(start=Start.at(1), gap_timeout=60), ColumnRoles("device", "n", "__seriatim_time"))
    folder = StateFolder(
        state, query=bound.binding.query, partitions=2, meaning=bound.binding.meaning, waits=kernel.waits
    )
    found = folder.columns()
    assert found is not None
    known = folder.open(partition, 1, lambda: kernel.new_partition(found[0]))
    own = [row for row in rows if row[0] in known.partition.keys.to_pylist()]
    columns = [*zip(*((*row, row[2]) for row in own), strict=True)] or [()] * 4
    names = ["device", "n", "at", "__seriatim_time"]
    given = pa.table(dict(zip(names, columns, strict=True))).select(found[0].names).cast(found[0])
    outcome = kernel.run(known.partition, given, None)
    folder.commit(known, partition, 1, outcome)
    return [(row["_tag"], row["device"], row["n"]) for row in outcome.table.to_pylist()]


def test_a_batch_that_an_earlier_version_wrote_is_compared_with_what_this_one_decides(root):
    """It was under way when Seriatim was replaced: its version is there, and Spark runs it again."""
    state = root / "devices/work/telemetry-state"
    written = {path: path.read_bytes() for path in state.rglob("*.state")}
    assert all(content.startswith(FIRST_MAGIC) for content in written.values())
    told = [entry for partition in (0, 1) for entry in repeated(str(state), partition, written_before.DEVICE_ROWS[1])]
    assert sorted(told) == [("ledger", "a", 1), ("ordered", "b", 2)]
    assert {path: path.read_bytes() for path in state.rglob("*.state")} == written
    other = [("a", 4, 2.0), ("a", 1, 3.0), ("b", 3, 3.0)]
    for partition in {partition_with(str(state), key) for key in "ab"}:
        with pytest.raises(StateMismatch, match="batch 1 that decided otherwise"):
            repeated(str(state), partition, other)


def partition_with(state: str, key: str) -> int:
    folder = bound_folder(state)
    (found,) = (number for number in (0, 1) if key in folder.read(number, 1).partition.keys.to_pylist())
    return found


def test_a_pipeline_goes_on_into_its_tables(spark, root):
    before = rows_of(root / "devices/ordered")
    assert [(row["device"], row["n"]) for row in before if row["batch"] == "batch=000000000001"] == [("b", 2)]
    writer = json.loads((root / "devices/ordered/_seriatim/table.json").read_text())["writer"]
    stream = written_before.devices(spark, root)
    stream.files = 2
    stream.add(written_before.DEVICE_ROWS_AFTER)
    written_before.run_pipeline(spark, root)
    after = rows_of(root / "devices/ordered")
    assert after[: len(before)] == before
    told = {(row["device"], row["n"], row["_position"]) for row in after[len(before) :]}
    assert told == {("a", 2, 1), ("a", 3, 2), ("b", 3, 2)}
    assert [(row["_reason"], row["_first"]) for row in rows_of(root / "devices/ledger")] == [("duplicate", 1)]
    assert json.loads((root / "devices/ordered/_seriatim/table.json").read_text())["writer"] == writer


def test_a_stream_of_edge_nodes_goes_on(spark, root):
    stream = written_before.nodes(spark, root)
    stream.files = 2
    stream.add(written_before.NODE_ROWS_AFTER).run()
    assert [row["body"] for row in stream.rows()] == ["data 1", "data 2"]
    assert [row["_position"] for row in stream.rows()] == [1, 2]
