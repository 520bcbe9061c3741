"""What is finished, as the text that is committed with an offset."""

from __future__ import annotations

import zlib
from base64 import b64encode
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.kafka.progress import MAX_AHEAD, MAX_METADATA_BYTES, Progress, decode, encode

OFFSETS = st.sets(st.integers(1, 3000), max_size=400)
LIMITS = st.sampled_from([0, 1, 8, 16, 20, 64, MAX_METADATA_BYTES])


def bitmap(distances):
    bits = sum(1 << distance for distance in distances)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


@given(st.integers(0, 2**48), OFFSETS, LIMITS)
def test_what_was_encoded_is_decoded_and_what_does_not_fit_is_said(lowest, distances, limit):
    encoded = encode(lowest, bitmap(distances), limit)
    assert len(encoded.text) <= limit
    assert decode(lowest, encoded.text) == {lowest + one for one in distances if lowest + one <= encoded.last}
    if limit == MAX_METADATA_BYTES:
        assert encoded.last >= lowest + max(distances, default=-1)


@given(st.text(max_size=60))
def test_metadata_that_is_not_ours_is_ignored(text):
    assert decode(5, text) == decode(5, "s2d" + text) == decode(5, "s2b" + text) == frozenset()


@given(st.integers(0, 10**6), OFFSETS.filter(bool), st.integers(1, 9), st.data())
def test_a_changed_character_or_another_offset_makes_metadata_void(lowest, distances, shift, data):
    text = encode(lowest, bitmap(distances)).text
    place = data.draw(st.integers(3, len(text) - 5))  # the last four may have bits that say nothing
    changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
    assert decode(lowest, changed) == decode(lowest + shift, text) == frozenset()


@pytest.mark.parametrize("text", [None, "", "s2", "s1rABCDE", "s2b\N{SNOWMAN}", "s2d" + "zzzz" * 40, "something else"])
def test_damaged_metadata_repeats_messages_and_does_no_harm(text):
    assert decode(5, text) == frozenset()


def test_scattered_records_are_a_bitmap_and_long_runs_are_deflated():
    random = Random(7)
    scattered = encode(0, bitmap(number for number in range(1, 16_000) if random.random() < 0.5))
    solid = encode(0, ((1 << 900_000) - 2).to_bytes(112_500, "little"))
    assert scattered.text.startswith("s2b")
    assert len(scattered.text) < 3_000
    assert solid.text.startswith("s2d")
    assert len(solid.text) < 1_500
    assert solid.last >= 899_999


def test_metadata_that_would_reach_further_than_anything_in_memory_is_cut_short():
    bomb = zlib.compress(bytes([255]) * MAX_AHEAD, 9)
    text = b64encode(zlib.crc32(b"5" + bomb).to_bytes(4) + bomb).decode()
    assert len(decode(5, "s2d" + text)) == MAX_AHEAD


@given(st.lists(st.integers(1, 3), min_size=1, max_size=80), st.data())
def test_progress_knows_the_lowest_unfinished_record_whatever_holes_there_are(gaps, data):
    progress, offsets, at = Progress(10), [], 10
    for gap in gaps:
        at += gap
        offsets.append(at)
    open_ = []
    for offset in offsets:
        assert progress.see(offset)
        open_.append(offset)
        if data.draw(st.booleans()):
            done = data.draw(st.sampled_from(open_))
            open_.remove(done)
            progress.finish(done)
        lowest, encoded = progress.commit()
        assert lowest == (open_[0] if open_ else offset + 1)
        finished = decode(lowest, encoded.text)
        assert finished == {known for known in offsets if lowest < known <= offset and known not in open_}
    restored = Progress(lowest, finished)
    assert [known for known in offsets if known >= lowest and restored.see(known)] == open_


def test_what_is_said_to_be_over_is_passed_and_what_of_it_is_finished_is_no_loss():
    progress = Progress(10, frozenset({12, 15}))
    assert progress.skip_to(14) == 3
    assert progress.commit()[0] == 14
    assert progress.skip_to(13) == 0
    assert not progress.see(15)
    assert progress.commit()[0] == 16


def test_an_unfinished_record_is_not_passed_when_the_log_ends_behind_it():
    progress = Progress(0)
    assert progress.see(3)
    progress.skip_to(9)
    assert progress.commit()[0] == 3
    progress.finish(3)
    assert progress.commit()[0] == 9


def test_what_is_known_to_be_finished_is_not_forgotten_before_it_is_seen():
    progress = Progress(10, frozenset({12, 15}))
    for offset in (10, 11):
        assert progress.see(offset)
        progress.finish(offset)
    lowest, encoded = progress.commit()
    assert lowest == 12
    assert decode(lowest, encoded.text) == {12, 15}


@given(
    st.lists(st.sampled_from([1, 2, 7, MAX_AHEAD - 9, MAX_AHEAD, MAX_AHEAD + 5, 10**12]), min_size=1, max_size=12),
    st.integers(0, 20),
    st.data(),
)
def test_holes_of_any_size_cost_no_memory_and_no_message(gaps, first, data):
    progress, offsets, open_, lowest = Progress(first), list[int](), set[int](), first
    for gap in gaps:
        offset = (offsets[-1] if offsets else first) + gap
        offsets.append(offset)
        assert progress.see(offset)
        open_.add(offset)
        for done in data.draw(st.sets(st.sampled_from(sorted(open_)))):
            open_.remove(done)
            progress.finish(done)
        if data.draw(st.booleans()):
            lowest, encoded = progress.commit()
            assert lowest == min(open_, default=offset + 1)
            finished = decode(lowest, encoded.text)
            assert finished == {known for known in offsets if lowest < known <= encoded.last and known not in open_}
        assert len(progress._bits) <= MAX_AHEAD // 8 + 1
        assert progress.lowest == min(open_, default=offset + 1)


def test_a_log_that_begins_late_or_lost_much_is_followed_without_a_bit_for_each_offset():
    progress = Progress(0, frozenset({2, 5}))
    assert progress.skip_to(10**15) == 10**15 - 2
    assert progress.see(10**15)
    progress.finish(10**15)
    assert progress.commit() == (10**15 + 1, ("", 10**15))
