"""Staged files give back what was staged, and refuse what is not whole."""

from __future__ import annotations

import pytest

from seriatim.errors import DamagedStore, FailedPrecondition
from seriatim.store.base import Record
from seriatim.store.pack import encode
from seriatim.store.staged_messages import check_staged, read_staged, write_staged

PACKS = [encode([Record(0, "a", b"one"), Record(1, None, b"two")]), encode([Record(0, "b", b"")])]


@pytest.fixture
def path(tmp_path):
    write_staged(tmp_path / "staged", PACKS)
    return tmp_path / "staged"


def test_packs_come_back_and_nothing_is_left_beside_them(path):
    assert list(read_staged(path)) == PACKS
    check_staged(path, 3)
    assert list(path.parent.iterdir()) == [path]


def test_a_file_cut_off_anywhere_is_refused(path):
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedStore):
            check_staged(path, 3)


def test_a_changed_byte_anywhere_is_refused(path):
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedStore):
            check_staged(path, 3)


def test_a_file_with_more_or_fewer_messages_than_were_announced_is_refused(path):
    for count in (2, 4):
        with pytest.raises(DamagedStore, match="holds 3 staged messages"):
            check_staged(path, count)


@pytest.mark.parametrize("name", ["gone", "no\0name", "\ud800"])
def test_a_file_that_is_not_there_or_can_not_be_is_named(tmp_path, name):
    with pytest.raises(FailedPrecondition, match=r"'.*' can't be read here"):
        list(read_staged(tmp_path / name))


def test_a_file_that_was_not_completed_is_not_there(tmp_path):
    def packs():
        yield PACKS[0]
        raise KeyError

    with pytest.raises(KeyError):
        write_staged(tmp_path / "staged", packs())
    assert not (tmp_path / "staged").exists()
