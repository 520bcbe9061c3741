"""Whenever the power fails, a table has the batches that were written, whole, and nothing of any other
(``tests/power_loss``)."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.power_loss import syncs
from tests.power_loss.file_system import require_fuse
from tests.power_loss.run import judge, moments, record
from tests.power_loss.sites import NEEDED, REDUNDANT, TABLE, places_of
from tests.power_loss.spark_subjects import ParquetTables
from tests.power_loss.trace import Trace

IMAGES = int(os.environ.get("SOAK_IMAGES", "0")) // 20 or 60
"""In ``make soak`` a twentieth of the images of all other subjects together."""


@pytest.fixture(scope="module")
def subject(spark) -> ParquetTables:
    require_fuse()
    return ParquetTables(spark)


@pytest.fixture(scope="module")
def trace(subject) -> Trace:
    return record(subject)


@pytest.mark.soak
def test_a_table_has_the_batches_that_were_written_and_nothing_of_any_other(subject, trace):
    found = judge(subject, trace, moments(trace, IMAGES, Random()))
    assert [objection for objection in found if objection is not None] == []


@pytest.mark.parametrize("site", [site for name, site in NEEDED if name == TABLE])
def test_each_sync_that_is_left_out_is_objected_to(subject, trace, site):
    shorter = syncs.without(trace, site)
    assert len(shorter) < len(trace)
    assert any(objection for objection in judge(subject, shorter, moments(shorter, 1_000, Random(1))))


def test_the_sync_that_is_listed_as_redundant_is_not_missed(subject, trace):
    (site,) = (site for name, site in REDUNDANT if name == TABLE)
    shorter = syncs.without(trace, site)
    assert len(shorter) < len(trace)
    assert not any(judge(subject, shorter, moments(shorter, 100, Random(1))))


def test_every_place_that_asks_for_a_sync_is_listed(trace):
    assert syncs.sites(trace) == sorted(places_of(TABLE))
