"""The model of persistence: what a disk may hold after its power failed, and what not."""

from __future__ import annotations

import stat
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.power_loss.images import CHOICES, SECTOR, Disk, everything, nothing, only_data, only_names, torn
from tests.power_loss.trace import ROOT, Entry, Event, New, Rename, Resize, Sync, Write

FILE, FOLDER = stat.S_IFREG | 0o600, stat.S_IFDIR | 0o700


def named(node: int, name: str, folder: int = ROOT) -> Rename:
    return Rename((Entry(folder, name, node),))


def created(node: int, name: str, folder: int = ROOT, mode: int = FILE) -> list[Event]:
    return [New(node, mode), named(node, name, folder)]


def held(tmp_path: Path, *events: Event, choice=nothing, seed: int = 0) -> dict[str, bytes]:
    """What is on the disk after these events and a loss of power."""
    disk = Disk()
    for event in events:
        disk.apply(event)
    image = tmp_path / f"image-{len(list(tmp_path.iterdir()))}"
    image.mkdir()
    disk.image(choice(disk.pending, Random(seed)), image)
    return {str(path.relative_to(image)): path.read_bytes() for path in image.rglob("*") if path.is_file()}


WRITTEN: list[Event] = [*created(2, "a"), Write(2, 0, b"old"), Sync(2), Sync(ROOT)]


def test_what_was_synced_survives_and_what_was_not_may_be_lost(tmp_path):
    more = [*WRITTEN, Write(2, 0, b"new and longer")]
    assert held(tmp_path, *more) == {"a": b"old"}
    assert held(tmp_path, *more, choice=everything) == {"a": b"new and longer"}
    assert held(tmp_path, *more, Sync(2)) == {"a": b"new and longer"}


def test_a_name_needs_a_sync_of_its_folder(tmp_path):
    written = [*created(2, "a"), Write(2, 0, b"data"), Sync(2)]
    assert held(tmp_path, *written) == {}
    assert held(tmp_path, *written, Sync(ROOT)) == {"a": b"data"}
    assert held(tmp_path, *created(2, "a"), Write(2, 0, b"data"), Sync(ROOT)) == {"a": b""}


def test_everything_below_a_folder_without_a_name_is_lost(tmp_path):
    below = [*created(2, "folder", mode=FOLDER), *created(3, "a", folder=2), Write(3, 0, b"data"), Sync(3), Sync(2)]
    assert held(tmp_path, *below) == {}
    assert held(tmp_path, *below, Sync(ROOT)) == {"folder/a": b"data"}


def test_a_rename_is_old_or_new_even_between_folders(tmp_path):
    moved = Rename((Entry(ROOT, "a", None), Entry(3, "b", 2)))
    events = [*WRITTEN, *created(3, "folder", mode=FOLDER), Sync(ROOT), moved]
    assert held(tmp_path, *events) == {"a": b"old"}
    assert held(tmp_path, *events, choice=only_names) == {"folder/b": b"old"}
    assert held(tmp_path, *events, Sync(3)) == {"folder/b": b"old"}
    assert held(tmp_path, *events, Sync(ROOT)) == {"folder/b": b"old"}


def test_a_name_may_survive_without_the_data_and_the_data_without_the_name(tmp_path):
    replaced = [*WRITTEN, *created(3, "b"), Write(3, 0, b"new"), Rename((Entry(ROOT, "b", None), Entry(ROOT, "a", 3)))]
    assert held(tmp_path, *replaced, choice=only_names) == {"a": b""}
    assert held(tmp_path, *replaced, choice=only_data) == {"a": b"old"}


def test_a_change_of_the_size_may_be_lost_or_survive_alone(tmp_path):
    cut = [*WRITTEN, Resize(2, 1), Write(2, 5, b"x")]
    found = {held(tmp_path, *cut, choice=choice, seed=seed)["a"] for choice in CHOICES for seed in range(20)}
    assert found == {b"old", b"o", b"old\0\0x", b"o\0\0\0\0x"}


def test_a_torn_write_is_old_or_new_in_every_sector_and_changes_nothing_beside_it(tmp_path):
    before, offset, size = b"o" * 4 * SECTOR, 100, 3 * SECTOR
    events = [*created(2, "a"), Write(2, 0, before), Sync(2), Sync(ROOT), Write(2, offset, b"n" * size)]
    seen = set()
    for seed in range(100):
        found = held(tmp_path, *events, choice=torn, seed=seed)["a"]
        assert found[:offset] == before[:offset]
        assert found[offset + size :] == before[offset + size :]
        bounds = [offset, *range(SECTOR, offset + size, SECTOR), offset + size]
        pieces = [found[low:high] for low, high in pairwise(bounds)]
        assert all(len(set(piece)) == 1 for piece in pieces)
        seen.add("".join(chr(piece[0]) for piece in pieces))
    assert {"nnnn", "oooo", "onon"} <= seen


@pytest.mark.parametrize("choice", CHOICES)
def test_nothing_that_was_synced_depends_on_what_survives(tmp_path, choice):
    assert held(tmp_path, *WRITTEN, Write(2, 3, b"!"), *created(3, "b"), choice=choice)["a"].startswith(b"old")
