"""Publish once, against a model that remembers everything and looks at all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.publishing.dedup import DEDUP_MAX_IDS, DEDUP_WINDOW_S, MARK, Fresh, IdWindow, claims_of, limits_of
from seriatim.errors import AlreadyExists
from tests.core.publishing.claims import claims, fresh

CALLS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 1)), min_size=1, max_size=4)
TRANSACTIONS = st.lists(
    st.tuples(st.integers(0, 4), st.lists(CALLS, max_size=3), st.booleans(), st.booleans()), max_size=15
)


class Model:
    """Every id ever stored, in order."""

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self.stored: list[tuple[str, int, int, float]] = []

    def known(self, now: float) -> dict[str, tuple[int, int]]:
        last = {name: (digest, offset, time) for name, digest, offset, time in self.stored}
        order = sorted(last.items(), key=lambda item: item[1][1])[-self.most :]
        return {name: (digest, offset) for name, (digest, offset, time) in order if time > now - self.seconds}


@given(TRANSACTIONS, st.integers(1, 4))
def test_a_window_knows_what_the_model_knows(transactions, most):
    window = IdWindow({"dedup_window": 5, "dedup_max_ids": most})
    model, now, offset = Model(5, most), 0.0, 0
    for seconds, calls, commits, cleans in transactions:
        now += seconds
        claimed, taken = Fresh(), dict[str, tuple[int, int]]()
        for call in calls:
            marked = [(name, (digest, offset + at)) for at, (name, digest) in enumerate(call)]
            offset += len(call)
            draft, expected = dict(taken), list[int]()
            for name, (digest, at) in marked:
                first = draft.get(name) or model.known(now).get(name) or draft.setdefault(name, (digest, at))
                expected.append(first[1] if first[0] == digest else -1)
            if -1 in expected:
                with pytest.raises(AlreadyExists):
                    window.claim(claims(*marked), claimed, now)
            else:
                own = [at for _, (_, at) in marked]
                repeated = {at: first for at, first in zip(own, expected, strict=True) if at != first}
                assert window.claim(claims(*marked), claimed, now) == repeated
                taken = draft
            assert claimed == fresh(taken)
        if commits:
            window.add(claimed, now)
            model.stored += [(name, digest, at, now) for name, (digest, at) in taken.items()]
        if cleans:
            window.forget(now)


def test_a_payload_is_its_key_and_its_data():
    payloads = [(None, b"ab"), ("", b"ab"), ("b", b"a"), ("a", b"b"), ("ab", b""), (None, b""), ("", b"")]
    marks = claims_of([(key, data, None, 0.0, f"{at}") for at, (key, data) in enumerate(payloads)], 7).first.values()
    assert len({MARK.unpack(mark)[0] for mark in marks}) == len(payloads)
    assert [MARK.unpack(mark)[1] for mark in marks] == list(range(7, 14))


def test_messages_without_an_id_claim_nothing_and_a_second_one_with_an_id_claims_it_again():
    messages = [(None, b"", None, 0.0, id_) for id_ in (None, "a", None, "a", "b")]
    digest = 0  # of no key and no data
    expected = claims(("a", (digest, 1)), ("a", (digest, 3)), ("b", (digest, 4)))
    assert claims_of(messages, 0) == expected
    assert [id_ for id_, _ in expected.again] == ["a"]


def test_options_that_cannot_be_used_count_as_not_given():
    assert (
        limits_of({})
        == limits_of({"dedup_window": None, "dedup_max_ids": "many"})
        == (
            DEDUP_WINDOW_S,
            DEDUP_MAX_IDS,
        )
    )


def test_of_too_many_ids_that_were_stored_together_only_the_first_are_forgotten():
    window, claimed = IdWindow({"dedup_max_ids": 3}), Fresh()
    window.add(fresh({"a": (1, 0)}), 0.0)
    window.add(fresh({"b": (1, 1), "c": (1, 2), "d": (1, 3), "e": (1, 4)}), 1.0)
    wanted = claims(*[(id_, (1, 10 + at)) for at, id_ in enumerate("abcde")])
    assert window.claim(wanted, claimed, 2.0) == {12: 2, 13: 3, 14: 4}
    assert list(claimed) == ["a", "b"]


def test_ids_are_counted_also_when_they_are_known_no_longer():
    window = IdWindow({"dedup_max_ids": 1})
    assert window.total == 0
    window.add(fresh({"a": (1, 0), "b": (1, 1)}), 0.0)
    window.add(fresh({"c": (1, 2)}), 1e9)
    assert window.total == 3


def test_who_gives_an_id_to_another_message_is_told_which_one_has_it():
    window = IdWindow({})
    window.add(fresh({"a": (1, 7)}), 0.0)
    told = r"'a' belongs to another message \(7\), with another key or other data: give each message an id of its own$"
    with pytest.raises(AlreadyExists, match=told):
        window.claim(claims(("a", (2, 8))), Fresh(), 1.0)


def test_two_messages_of_a_batch_with_one_id_are_told_that_neither_is_stored():
    claimed = Fresh()
    with pytest.raises(
        AlreadyExists, match="'a' belongs to another message of the same batch, of which nothing was stored"
    ):
        IdWindow({}).claim(claims(("a", (1, 7)), ("a", (2, 8))), claimed, 0.0)
    assert not claimed


def test_an_id_that_is_used_again_after_its_window_is_known_from_its_later_message():
    """Rows of both are read when a store is opened before clean-up has removed the first."""
    window = IdWindow({"dedup_window": 600})
    window.add(fresh({"a": (1, 0)}), 0.0)
    window.add(fresh({"a": (1, 1)}), 700.0)
    assert window.claim(claims(("a", (1, 2))), Fresh(), 701.0) == {2: 1}
    assert window.claim(claims(("b", (1, 3))), Fresh(), 1500.0) == {}


def test_ids_of_two_generations_are_forgotten_one_after_the_other():
    window = IdWindow({"dedup_window": 600, "dedup_max_ids": 1})
    for offset in range(3):
        window.add(fresh({"a": (1, offset)}), float(offset))
    window.add(fresh({"b": (1, 3)}), 3.0)
    assert window.claim(claims(("b", (1, 4))), Fresh(), 4.0) == {4: 3}
    assert window.claim(claims(("a", (1, 5))), Fresh(), 4.0) == {}
    assert window.claim(claims(("a", (1, 6)), ("b", (1, 7))), Fresh(), 1500.0) == {}
