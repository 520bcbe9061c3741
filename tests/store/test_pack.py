"""Packs give back what was packed, and refuse what was damaged."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.errors import DamagedStore, InvalidArgument
from seriatim.store.base import MessageHeader, Pack, Record
from seriatim.store.pack import NO_KEY, PackHead, encode, encode_columns

TIMES = st.sampled_from([0.0, 1.5, 1e9 + 0.25])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
MESSAGES = st.tuples(
    st.integers(1, 5),
    st.none() | TEXTS,
    st.binary(max_size=20),
    st.none() | st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=3),
    TIMES,
    TIMES,
)


@st.composite
def packs_of_records(draw) -> list[Record]:
    offset, records = draw(st.integers(0, 2**62)), []
    for step, *rest in draw(st.lists(MESSAGES, min_size=1, max_size=30)):
        offset += step
        records.append(Record(offset, *rest))
    return records


RECORDS = [Record(5, "a", b"one"), Record(6, None, b""), Record(9, "ä", b"three", {"x": "y"}, 1.0, 2.0)]


@given(packs_of_records())
def test_what_was_packed_comes_back(records):
    pack = encode(records)
    assert PackHead(pack.head).records(pack.data) == records


@given(packs_of_records())
def test_positions_need_no_data(records):
    head = PackHead(encode(records).head)
    assert head.headers() == [MessageHeader(r.offset, r.key, r.attributes, r.not_before) for r in records]
    assert list(head.offsets) == [r.offset for r in records]
    assert list(head.data_sizes) == [len(r.data) for r in records]


@given(packs_of_records(), st.data())
def test_single_messages_are_found_in_sparse_packs_and_missing_ones_left_out(records, data):
    pack = encode(records)
    span = range(records[0].offset - 1, records[-1].offset + 2)
    wanted = sorted(data.draw(st.sets(st.sampled_from(span))))
    assert PackHead(pack.head).select(pack.data, wanted) == [r for r in records if r.offset in wanted]


def test_consecutive_offsets_cost_nothing():
    dense = encode([Record(offset, "k", b"x") for offset in range(100, 200)])
    sparse = encode([Record(offset * 2, "k", b"x") for offset in range(100, 200)])
    assert len(sparse.head) == len(dense.head) + 8 * 100


@pytest.mark.parametrize("at", range(len(encode(RECORDS).head)))
def test_a_changed_byte_in_the_head_is_refused(at):
    head = bytearray(encode(RECORDS).head)
    head[at] ^= 0x10
    with pytest.raises(DamagedStore):
        PackHead(bytes(head))


@pytest.mark.parametrize("length", range(len(encode(RECORDS).head)))
def test_a_head_that_was_cut_off_is_refused(length):
    with pytest.raises(DamagedStore):
        PackHead(encode(RECORDS).head[:length])


@pytest.mark.parametrize("data", [b"", b"onethre", b"onethreex", b"onEthree"])
def test_damaged_data_is_refused(data):
    with pytest.raises(DamagedStore, match="data"):
        PackHead(encode(RECORDS).head).records(data)


def test_a_pack_of_a_newer_version_is_refused_by_name():
    pack = encode(RECORDS)
    with pytest.raises(DamagedStore, match="version 2"):
        PackHead(b"\x02" + pack.head[1:])


def test_a_key_that_is_too_long_is_refused():
    with pytest.raises(InvalidArgument, match="65535"):
        encode([Record(1, "k" * 0xFFFF, b"")])
    assert isinstance(encode([Record(1, "k" * 0xFFFE, b""), Record(2, None, b"")]), Pack)


@given(packs_of_records())
def test_columns_say_the_same_as_messages(records):
    head = PackHead(encode(records).head)
    sizes = [len(r.key.encode()) if r.key is not None else NO_KEY for r in records]
    assert list(head.key_sizes) == sizes
    assert head.key_bytes == "".join(r.key or "" for r in records).encode()
    assert list(head.times or [head.published] * head.count) == [r.published for r in records]
    assert list(head.delays or [0.0] * head.count) == [r.not_before for r in records]
    assert [one for one, _ in zip(head.attributes(), records, strict=False)] == [r.attributes for r in records]


@given(packs_of_records(), st.integers(0, 2**62), TIMES)
def test_a_pack_is_stamped_with_other_offsets_and_another_time(records, first, published):
    staged = [record._replace(offset=number, published=0.0) for number, record in enumerate(records)]
    head, data = encode(staged)
    stamped = PackHead(PackHead(head).stamped(first, published)).records(data)
    assert stamped == [r._replace(offset=first + n, published=published) for n, r in enumerate(staged)]


@given(packs_of_records())
def test_columns_are_packed_as_their_messages_are(records):
    staged = [record._replace(offset=n, published=0.0, not_before=0.0) for n, record in enumerate(records)]
    keys = [None if record.key is None else record.key.encode() for record in staged]
    sizes = array("H", [NO_KEY if key is None else len(key) for key in keys])
    data = [record.data for record in staged]
    assert encode(staged) == encode_columns(
        sizes.tobytes(),
        b"".join(key or b"" for key in keys),
        array("I", map(len, data)).tobytes(),
        b"".join(data),
        [record.attributes for record in staged],
    )


@pytest.mark.parametrize("other", [Record(2, None, b""), Record(1, None, b"", None, 3.0)])
def test_a_pack_with_holes_or_several_times_is_not_stamped(other):
    with pytest.raises(InvalidArgument, match="can be stamped"):
        PackHead(encode([Record(0, None, b""), other]).head).stamped(5, 1.0)
