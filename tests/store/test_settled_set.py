"""A SettledSet is a set of integers, whatever its floor and blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.errors import DamagedStore
from seriatim.store.base import BLOCK, Cursor
from seriatim.store.settled_set import SettledSet, decode_block, decode_cursor, encode_cursor

LIMIT = 3 * BLOCK
NEAR_EDGES = st.integers(0, 3).flatmap(lambda block: st.integers(max(0, block * BLOCK - 4), block * BLOCK + 4))
OFFSETS = NEAR_EDGES | st.integers(0, LIMIT)
RUNS = st.tuples(OFFSETS, st.integers(1, BLOCK + 3)).map(lambda run: range(run[0], run[0] + run[1]))
CHANGES = st.lists(st.tuples(st.sampled_from(["add", "discard", "raise"]), RUNS), max_size=8)


def built(floor, changes) -> tuple[SettledSet, set[int]]:
    settled, model = SettledSet(floor), set(range(floor))
    for change, run in changes:
        if change == "add":
            settled.add(run)
            model |= set(run)
        elif change == "discard":
            settled.discard(run)
            model -= set(run)
        else:
            settled.raise_floor()
    return settled, model


@given(OFFSETS, CHANGES, OFFSETS, st.integers(0, BLOCK * 2))
def test_it_holds_what_a_plain_set_holds(floor, changes, first, width):
    settled, model = built(floor, changes)
    window = range(first, first + width + 1)
    expected = [offset for offset in window if offset not in model]
    assert list(settled.unsettled(window[0], window[-1])) == expected
    assert [offset for offset in window if offset not in settled] == expected


@given(OFFSETS, CHANGES)
def test_the_floor_rises_over_all_that_is_contiguous_and_leaves_no_block_below(floor, changes):
    settled, model = built(floor, changes)
    settled.raise_floor()
    assert settled.floor == next(offset for offset in range(max(model, default=-1) + 2) if offset not in model)
    assert all(block >= settled.floor // BLOCK for block in settled.blocks)
    assert all(settled.blocks.values())


@given(OFFSETS, CHANGES)
def test_a_cursor_comes_back_from_its_bytes(floor, changes):
    cursor = built(floor, changes)[0].cursor()
    assert decode_cursor(encode_cursor(cursor)) == cursor


@given(OFFSETS, CHANGES)
def test_a_cursor_is_a_copy(floor, changes):
    settled, _ = built(floor, changes)
    cursor = settled.cursor()
    before = Cursor(cursor.floor, dict(cursor.blocks))
    settled.add(range(LIMIT))
    settled.raise_floor()
    assert cursor == before
    assert SettledSet.of(cursor).cursor() == before


@pytest.mark.parametrize("blob", [b"", b"1234567", b"12345678" * 3])
def test_a_cursor_that_was_cut_off_is_refused(blob):
    with pytest.raises(DamagedStore):
        decode_cursor(blob)


def test_a_block_that_was_cut_off_is_refused():
    with pytest.raises(DamagedStore):
        decode_block(b"1234", 1, 0)
