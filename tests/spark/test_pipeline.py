"""Declared pipelines at work, in the session of the tests."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import pytest

pytest.importorskip("pyspark")

from seriatim.spark import resequence
from seriatim.spark.declaration import Order
from seriatim.spark.pipeline import load
from tests.spark.pipelines import DEVICES, prepare, written


def test_the_order_of_a_pipeline_has_exactly_the_options_of_resequence():
    assert [one.name for one in fields(Order)] == list(inspect.signature(resequence).parameters)


@pytest.fixture(scope="module")
def done(spark, tmp_path_factory):
    """A pipeline that ran to its end, and what it counted."""
    folder = tmp_path_factory.mktemp("pipeline")
    run = load(prepare(folder, batches=4)).begin(spark)
    assert run.wait(120)
    return folder, run.totals()


def test_every_device_is_in_order_and_every_row_is_accounted_for(done):
    folder, totals = done
    out = written(folder)
    for device in (f"device-{number}" for number in range(DEVICES)):
        numbers = [json.loads(data)["n"] for key, data in out["ordered"] if key == device]
        assert numbers == sorted(set(numbers))
        assert [row["_position"] for row in out["table"] if row["device"] == device] == list(range(len(numbers)))
    assert sorted(out["ordered"]) == sorted((row["device"], row["data"]) for row in out["table"])
    assert totals.rows["ordered"] == len(out["ordered"])
    assert {reason for reason, count in totals.ledger.items() if count} >= {"duplicate", "lost", "late"}
    assert totals.ledger["late"] == len(out["late"])
    assert (totals.rows_in, totals.batches, totals.last_batch) == (160, 4, 3)
