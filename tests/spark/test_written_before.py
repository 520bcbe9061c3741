"""What an earlier version wrote is gone on from: state, checkpoints and tables."""

from __future__ import annotations

import json

import pytest

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
