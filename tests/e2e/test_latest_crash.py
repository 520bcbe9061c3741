"""SIGKILL while a subscription keeps the latest: no key goes back behind what it settled, and each ends with its newest one."""

from __future__ import annotations

import pytest

from tests import postgres
from tests.e2e.lives import lives

KILLS = 8


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_killed_at_random_moments_a_key_never_goes_back_and_its_newest_message_is_handled(tmp_path, store) -> None:
    url = f"sqlite:///{tmp_path}/store.db" if store == "sqlite" else postgres.server().new_url()
    published, acked, delivered = dict[str, int](), dict[str, int](), dict[str, list[int]]()
    for said in lives("latest_child.py", url, kills=KILLS, seed=7):
        for what, key, text in said:
            if what == "P":
                published[key] = int(text)
            elif what == "A":
                acked[key] = int(text)
            else:
                assert int(text) > acked.get(key, -1), "settled, or superseded by what was settled"
                assert int(text) >= max(delivered.get(key, [-1])), "older than what was delivered before"
                delivered.setdefault(key, []).append(int(text))
    for key, newest in published.items():
        assert max(delivered[key]) >= newest
        assert len(set(delivered[key])) > KILLS, "hardly anything was going on"
