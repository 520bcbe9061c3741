"""Whenever the power fails, nothing that was acknowledged is lost, and what is left is sound. The judges are proven by
what they object to: a store that does not wait for its disk, and each sync left out."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from tests.power_loss import syncs
from tests.power_loss.file_system import clear_leftovers, mounted, require_fuse
from tests.power_loss.run import Objection, judge, moments, record
from tests.power_loss.sites import NEEDED, REDUNDANT, places_of
from tests.power_loss.spark_subjects import WITHOUT_SESSION
from tests.power_loss.subjects import WITHOUT_SPARK, EpochsInAFile, StoreVerbs, Subject, UnsyncedStore, share
from tests.power_loss.trace import ROOT, Said, Sync, Trace

IMAGES = int(os.environ.get("SOAK_IMAGES", "0")) or 200
"""How many images of all subjects together are judged."""

SUBJECTS = {subject.name: subject for subject in [*WITHOUT_SPARK, *WITHOUT_SESSION]}


@pytest.fixture(autouse=True)
def _fuse() -> None:
    require_fuse()


@cache
def traced(name: str) -> Trace:
    return record(SUBJECTS[name])


def objections(subject: Subject, trace: Trace, images: int, seed: int) -> Iterator[Objection]:
    found = judge(subject, trace, moments(trace, images, Random(seed)))
    return (objection for objection in found if objection is not None)


@pytest.mark.soak
@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_that_was_acknowledged_is_lost_and_what_is_left_is_sound(name):
    subject = SUBJECTS[name]
    assert list(objections(subject, traced(name), share(subject, IMAGES), Random().getrandbits(32))) == []


def test_a_store_that_does_not_wait_for_its_disk_is_objected_to():
    subject = UnsyncedStore()
    assert any(objections(subject, record(subject), 20, seed=1))


@pytest.mark.parametrize("file", ["store.db-wal", "store.db"])
def test_a_file_of_sqlite_that_is_never_synced_is_objected_to(file):
    subject = StoreVerbs()
    trace = syncs.without_syncs_of(traced(subject.name), file)
    assert any(objections(subject, trace, 40, seed=1))


@pytest.mark.parametrize(("name", "site"), [place for place in NEEDED if place[0] in SUBJECTS])
def test_each_sync_that_is_left_out_is_objected_to(name, site):
    trace = syncs.without(traced(name), site)
    assert len(trace) < len(traced(name))
    assert any(objections(SUBJECTS[name], trace, 1_000, seed=1))


@pytest.mark.parametrize(("name", "site"), [place for place in REDUNDANT if place[0] in SUBJECTS])
def test_syncs_that_are_listed_as_redundant_are_not_missed(name, site):
    trace = syncs.without(traced(name), site)
    assert len(trace) < len(traced(name))
    assert list(objections(SUBJECTS[name], trace, 200, seed=1)) == []


def test_every_place_that_asks_for_a_sync_is_listed():
    found = {site for name in SUBJECTS for site in syncs.sites(traced(name))}
    assert found == {site for name in SUBJECTS for site in places_of(name)}


def test_a_line_of_a_function_that_asks_at_several_is_a_place_of_its_own():
    folder = Sync(ROOT)
    trace: Trace = [
        Said(f"{syncs.MARK}folder a.f:30 > b.g:7"),
        folder,
        Said(f"{syncs.MARK}folder a.f:12 > b.g:7"),
        folder,
    ]
    assert syncs.sites(trace) == ["folder a.f#1 > b.g", "folder a.f#2 > b.g"]
    assert syncs.without(trace, "folder a.f#2 > b.g") == [trace[0], *trace[2:]]


def test_each_point_of_a_trace_is_judged_once_before_any_is_judged_again():
    trace = traced(EpochsInAFile.name)
    points = {moment.point for moment in moments(trace, 10_000, Random(1))}
    assert {moment.point for moment in moments(trace, len(points), Random(2))} == points


def test_a_disk_that_killed_tests_left_behind_is_unmounted(tmp_path):
    def work_until_the_file_system_is_killed() -> None:
        with mounted(tmp_path) as disk:
            os.kill(disk.server, signal.SIGKILL)

    with pytest.raises(OSError):  # noqa: PT011 - it is not connected any more, or has left no trace
        work_until_the_file_system_is_killed()
    clear_leftovers()
    assert list((tmp_path / "disk").iterdir()) == []
