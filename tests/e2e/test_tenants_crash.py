"""SIGKILL while tenants are limited and handlers dead-letter messages: limits, order, and reasons that are kept."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests import postgres
from tests.e2e.lives import lives
from tests.e2e.tenants_child import LIMIT, reason_for

KILLS = 6


class Judge:
    """Hears what the lives say."""

    def __init__(self) -> None:
        self.published = defaultdict[str, list[int]](list)
        self.delivered = defaultdict[str, list[int]](list)
        self.done: set[int] = set()  # acked durably, or given up and passed
        self.given_up = dict[str, int]()
        self.letters: set[int] = set()
        self.reasons: list[str] = []
        self.most_at_once = 0

    def hear(self, said: list[list[str]]) -> None:
        """One life. What its handlers had in hand at its end comes again; so may a dead letter that nothing followed."""
        at_work = defaultdict[str, set[str]](set)
        self.given_up.clear()
        for what, key, *texts in said:
            if what == "R":
                self.reasons = [key, *texts]
                continue
            number, tenant = int(texts[0]), key.partition("/")[0]
            if what == "P":
                self.published[key].append(number)
            elif what == "D":
                self.deliver(key, number)
                at_work[tenant].add(key)
                self.most_at_once = max(self.most_at_once, len(at_work[tenant]))
            elif what == "E":
                at_work[tenant].discard(key)
            elif what == "A":
                self.done.add(number)
            elif what == "G":
                self.given_up[key] = number
            else:
                assert number not in self.letters, "one dead letter, and one copy"
                self.letters.add(number)

    def deliver(self, key: str, number: int) -> None:
        if key in self.given_up:  # the next one came, so the dead letter is durable
            self.done.add(self.given_up.pop(key))
        assert number not in self.done, "it was settled, and must not come again"
        assert number >= max(self.delivered[key], default=-1), "one was passed"
        self.delivered[key].append(number)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_killed_at_random_moments_tenants_stay_within_their_limit_and_dead_letters_keep_their_reasons(
    store, tmp_path
) -> None:
    url, judge = f"sqlite:///{tmp_path}/store.db" if store == "sqlite" else postgres.server().new_url(), Judge()
    for said in lives("tenants_child.py", url, kills=KILLS, seed=6):
        judge.hear(said)
    assert judge.most_at_once == LIMIT
    delivered = {number for numbers in judge.delivered.values() for number in numbers}
    assert {number for numbers in judge.published.values() for number in numbers} <= delivered
    assert judge.letters == {number for number in delivered if number % 5 == 3}
    assert judge.reasons == sorted(map(reason_for, judge.letters))
    assert len(delivered) > 10 * KILLS, "hardly anything was going on"
