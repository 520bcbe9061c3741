"""Keys are found whole, whatever they look like and even when their hashes are equal; and damage is noticed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from math import inf

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from seriatim.errors import DamagedStore
from seriatim.spark.kernel import keys, partition_state, state_segment
from seriatim.spark.kernel.key_state import Content, Times
from seriatim.spark.kernel.keys import hash_keys, hash_raw, keys_of, raw_keys
from seriatim.spark.kernel.partition_state import KeyFacts, Partition
from seriatim.spark.kernel.state_segment import PAGE_BYTES, Body, Segment, page_digests, write_segment

TEXTS = st.lists(st.text(max_size=20), unique=True, max_size=40)
SCHEMA = pa.schema({"key": pa.string(), "body": pa.string()})


def content(known: list[str], positions: list[int] | None = None, due: float = inf) -> Content:
    """Keys, each with a position of its own."""
    count = len(known)
    facts = KeyFacts.of_new_keys(count)
    facts.position[:] = list(range(count)) if positions is None else positions
    lists = {name: kind.empty() for name, kind in Partition.lists.items()}
    texts = {"key": raw_keys(pa.array(known, pa.string()))}
    no, dues = np.zeros(count, np.bool_), np.full(count, due)
    return Content(Times(), texts, facts, dues, no, no, lists, SCHEMA.empty_table())


def found(where: Segment, questions: list[str]) -> list[int]:
    """The positions of keys, or -1."""
    raw = raw_keys(pa.array(questions, pa.string()))
    slots = where.find(raw, vars(state_segment)["hash_raw"](raw))  # the one that a test may have put there
    positions = where.content().facts.position  # type: ignore[attr-defined]
    return [int(positions[slot]) if slot >= 0 else -1 for slot in slots]


@given(known=TEXTS, asked=st.lists(st.text(max_size=20), max_size=40))
def test_every_key_is_found_and_strangers_are_not(known, asked):
    slots = {key: slot for slot, key in enumerate(known)}
    questions = [*known, *asked]
    assert found(write_segment(content(known)), questions) == [slots.get(key, -1) for key in questions]


@given(known=TEXTS, asked=TEXTS)
def test_a_hash_alone_never_decides(known, asked):
    def poor(raw: pa.Array) -> keys.Hashes:
        return np.array([len(key) % 2 for key in raw.to_pylist()], np.uint64)

    with pytest.MonkeyPatch.context() as patch:
        for module in (state_segment, partition_state):
            patch.setattr(module, "hash_raw", poor)
        slots = {key: slot for slot, key in enumerate(known)}
        questions = [*known, *asked]
        assert found(write_segment(content(known)), questions) == [slots.get(key, -1) for key in questions]
        partition = Partition(pa.string(), SCHEMA, [write_segment(content(known)), write_segment(content(asked))])
        positions = {**slots, **{key: place for place, key in enumerate(asked)}}
        whole = partition.whole()
        told = zip(keys_of(whole.texts["key"], pa.string()).to_pylist(), whole.facts.position.tolist(), strict=True)  # type: ignore[attr-defined]
        assert dict(told) == positions


def test_hashes_of_many_similar_keys_differ_and_stay_what_they_are():
    names = pa.array([f"device-{number:07d}" for number in range(100_000)])
    assert len(set(hash_keys(names).tolist())) == 100_000
    written = [0, 3509333313402644146, 15906996939938902088]
    assert hash_keys(pa.array(["", "a", "device-0000001"])).tolist() == written


def test_the_hash_of_a_key_does_not_depend_on_its_neighbours():
    names = ["", "a", "ab" * 9, "device-1", "device-12"]
    together = hash_keys(pa.array(names)).tolist()
    assert together == [hash_keys(pa.array([key])).tolist()[0] for key in names]
    assert together[1:] == hash_keys(pa.array(names).slice(1)).tolist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["ä", "", "b"], pa.string()),
        ([b"\0", b"", b"b"], pa.binary()),
        (["ä", "", "b"], pa.large_string()),
        ([1, -(2**40), 3], pa.int64()),
        ([1, -2, 3], pa.int32()),
        ([True, False, True], pa.bool_()),
        ([dt.date(2020, 1, 1)] * 3, pa.date32()),
        ([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)] * 3, pa.timestamp("us", "UTC")),
        ([Decimal("1.10"), Decimal("-1.20"), Decimal("0.00")], pa.decimal128(5, 2)),
    ],
)
def test_keys_of_any_type_are_bytes_and_back(values, kind):
    given_keys = pa.array([values[0], *values], kind).slice(1)
    assert keys_of(raw_keys(given_keys), kind).to_pylist() == values
    assert len(hash_raw(raw_keys(given_keys))) == 3


# -- damage -------------------------------------------------------------------------------------------------------------


def opened(content_: bytes, digests: bytes, layout: dict, reload=None) -> Segment:
    body = Body(memoryview(content_), "the file", memoryview(digests), reload)
    return Segment(layout, body, KeyFacts, Partition.lists)


def test_only_the_pages_that_a_look_up_needs_are_compared_and_those_always():
    names = [f"device-{number:05d}" for number in range(20_000)]
    whole = write_segment(content(names))
    written = bytes(whole.body.content)
    digests = page_digests(written)
    for place in range(0, len(written), PAGE_BYTES // 2):
        damaged = bytearray(written)
        damaged[place] ^= 0x10
        one = opened(bytes(damaged), digests, whole.layout)
        try:
            assert found_one(one, names[77]) == 77
        except DamagedStore as error:
            assert "the file is damaged: a checksum is wrong" in str(error)  # noqa: PT017 - either is right
            with pytest.raises(DamagedStore):
                opened(bytes(damaged), digests, whole.layout).content()
        else:
            with pytest.raises(DamagedStore):
                opened(bytes(damaged), digests, whole.layout).content(), one.moments("dues", -inf, inf), one._fences
            continue
    look_up = opened(written, digests, whole.layout)
    assert found_one(look_up, names[77]) == 77
    assert 0 < look_up.body._is_checked.sum() < len(look_up.body._is_checked) / 10


def found_one(where: Segment, name: str) -> int:
    raw = raw_keys(pa.array([name]))
    (slot,) = where.find(raw, hash_raw(raw)).tolist()
    assert slot >= 0
    return int(where.content(np.array([slot])).facts.position[0])  # type: ignore[attr-defined]


def test_a_damaged_copy_is_brought_once_more():
    names = [f"device-{number}" for number in range(500)]
    whole = write_segment(content(names))
    written = bytes(whole.body.content)
    digests, brought = page_digests(written), []

    def reload() -> memoryview:
        brought.append(1)
        return memoryview(written)

    one = opened(bytes(len(written)), digests, whole.layout, reload)
    assert found_one(one, names[7]) == 7
    assert brought == [1]


def test_what_is_due_is_found_by_its_time():
    known = content([f"k{number}" for number in range(1000)])
    known.due[:] = np.where(np.arange(1000) % 2, np.arange(1000) * 1.0, inf)
    written = write_segment(known)
    slots = written.moments("dues", 10.0, 20.0)
    assert written.content(slots).due.tolist() == [11.0, 13.0, 15.0, 17.0, 19.0]
    assert written.content(written.moments("dues", 10.0, inf, 2, 1)).due.tolist() == [13.0, 15.0]
    assert written.moments("dues", 999.0, inf).size == 0
