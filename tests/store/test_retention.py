"""Which messages of a log may go: by age, by who began when, and by who still needs them."""

from __future__ import annotations

import pytest

from seriatim.store.retention import Follower, Retention
from seriatim.store.settled_set import SettledSet

DAY = 24 * 3600.0
DENSE = range(2, 8)
SPARSE = [2, 3, 5, 6, 7]


def needed(retention: Retention, offsets, age: float) -> list[int]:
    return list(retention.needed(offsets, newest=100.0, now=100.0 + age))


@pytest.mark.parametrize("offsets", [DENSE, SPARSE])
class TestAPackFromBeforeAndAfterTheFirstFollower:
    """Such a pack is made when leftovers are packed together."""

    @staticmethod
    def since_five(**options: float | None) -> Retention:
        first, second = Follower(SettledSet(8), since=5), Follower(SettledSet(8), since=7)
        return Retention(options, [second, first], (), ())

    def test_what_is_older_than_the_first_follower_keeps_its_retention(self, offsets):
        assert needed(self.since_five(), offsets, 0) == [offset for offset in offsets if offset < 5]
        assert needed(self.since_five(), offsets, 7 * DAY - 1) == [offset for offset in offsets if offset < 5]
        assert needed(self.since_five(), offsets, 7 * DAY) == []

    def test_what_is_younger_is_retained_as_long_as_settled_messages_are(self, offsets):
        retention = self.since_five(retention=10, retain_settled=20)
        assert needed(retention, offsets, 9) == list(offsets)
        assert needed(retention, offsets, 10) == [offset for offset in offsets if offset >= 5]
        assert needed(retention, offsets, 20) == []

    def test_none_is_for_ever(self, offsets):
        assert needed(self.since_five(retention=None), offsets, 1e9) == [offset for offset in offsets if offset < 5]
        forever = self.since_five(retain_settled=None)
        assert needed(forever, offsets, 1e9) == [offset for offset in offsets if offset >= 5]

    def test_what_somebody_needs_stays_on_either_side(self, offsets):
        reading = Retention({}, [Follower(SettledSet(6), since=5)], [SettledSet(0, {0: 0b1111_0111}.items())], [2])
        assert needed(reading, offsets, 1000 * DAY) == [2, 3, 6, 7]

    def test_without_a_follower_everything_keeps_its_retention(self, offsets):
        assert needed(Retention({}, (), (), ()), offsets, 7 * DAY - 1) == list(offsets)
        assert needed(Retention({}, (), (), ()), offsets, 7 * DAY) == []
