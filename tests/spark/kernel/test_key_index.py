"""Keys are found whole, whatever they look like and even when their hashes are equal."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from seriatim.spark.kernel import key_index
from seriatim.spark.kernel.key_index import KeyIndex

TEXTS = st.lists(st.text(max_size=20), unique=True, max_size=40)


@given(known=TEXTS, asked=st.lists(st.text(max_size=20), max_size=40), cut=st.integers(0, 40))
def test_every_key_has_the_slot_of_its_turn_and_strangers_have_none(known, asked, cut):
    index = KeyIndex(pa.array(known[:cut], pa.string()))
    index.add(pa.array(["front", *known[cut:]], pa.string()).slice(1))
    slots = {key: slot for slot, key in enumerate(known)}
    questions = [*known, *asked]
    assert index.find(pa.array(questions, pa.string())).tolist() == [slots.get(key, -1) for key in questions]
    assert index.keys.to_pylist() == known


@given(known=TEXTS, asked=TEXTS)
def test_a_hash_alone_never_decides(known, asked):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "hash_keys", lambda keys: np.array([len(str(key)) % 2 for key in keys], np.uint64))
        index = KeyIndex(pa.array(known[:3], pa.string()))
        index.add(pa.array(known[3:], pa.string()))
        slots = {key: slot for slot, key in enumerate(known)}
        questions = [*known, *asked]
        assert index.find(pa.array(questions, pa.string())).tolist() == [slots.get(key, -1) for key in questions]


def test_hashes_of_many_similar_keys_differ():
    keys = pa.array([f"device-{number:07d}" for number in range(100_000)])
    assert len(set(key_index.hash_keys(keys).tolist())) == 100_000


def test_the_hash_of_a_key_does_not_depend_on_its_neighbours():
    keys = ["", "a", "ab" * 9, "device-1", "device-12"]
    together = key_index.hash_keys(pa.array(keys)).tolist()
    assert together == [key_index.hash_keys(pa.array([key])).tolist()[0] for key in keys]
    assert together[1:] == key_index.hash_keys(pa.array(keys).slice(1)).tolist()
