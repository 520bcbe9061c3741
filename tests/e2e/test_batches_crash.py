"""SIGKILL while a subscription is handled in batches: order, nothing lost, and a message that can't be handled costs itself."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests import postgres
from tests.e2e.lives import lives

KILLS = 6


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_killed_at_random_moments_batches_keep_their_order_and_only_poison_is_dead_lettered(store, tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/store.db" if store == "sqlite" else postgres.server().new_url()
    published, newest, acked = defaultdict[str, list[int]](list), defaultdict[str, int](lambda: -1), dict[str, int]()
    delivered, dead, sizes = set[int](), set[int](), list[int]()
    for said in lives("batches_child.py", url, kills=KILLS, seed=18):
        for what, key, *texts in said:
            numbers = [int(text) for text in texts]
            if what == "P":
                published[key] += numbers
            elif what == "A":
                acked[key] = numbers[0]
            elif what == "L":
                dead.update(numbers)
            else:
                sizes.append(len(numbers))
                assert numbers == sorted(set(numbers))
                assert numbers[0] > acked.get(key, -1), "settled before"
                new = [number for number in numbers if number not in delivered]
                assert all(number > newest[key] for number in new), "one was passed"
                newest[key] = max(newest[key], numbers[-1])
                delivered.update(numbers)
    everything = {number for numbers in published.values() for number in numbers}
    assert everything <= delivered
    assert dead == {number for number in delivered if number % 10 == 7}
    for key, numbers in published.items():
        assert acked[key] >= max(number for number in numbers if number not in dead)
    assert sum(size > 1 for size in sizes) > KILLS, "hardly anything was going on"
