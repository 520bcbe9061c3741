"""What a seek and a snapshot do in their transactions, to the offset and to the second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from seriatim.engine import seeking
from seriatim.engine.broker import SnapshotInfo
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from seriatim.store.base import Cursor, Record, SnapshotRow
from seriatim.store.memory import MemoryStore

NOW = 100.0
MESSAGES = 10
"""Of topic ``t``, published at the seconds 0 to 9; the first two are gone."""


class Place:
    """A topic ``t`` with a subscription ``s``, and another topic."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        with self.store.transaction() as work:
            self.topic, self.other = (work.create_topic(name, {}).id for name in ("t", "other"))
            self.id = work.create_subscription(self.topic, "s", {}, Cursor(0)).id
            records = [Record(offset, "k", b"", None, float(offset)) for offset in range(MESSAGES)]
            work.append(self.topic, records)
            work.settle(self.id, [0, 1])
        self.store.upkeep(NOW)
        assert self.store.earliest(self.topic) == 2

    def do(self, move: seeking.Move[Any]) -> Any:
        with self.store.transaction() as work:
            return move(self.store, work)

    @property
    def cursor(self) -> Cursor:
        return self.store.cursor(self.id)

    def snapshot(self, name: str) -> SnapshotRow | None:
        with self.store.transaction() as work:
            return work.snapshot(name)


@pytest.fixture
def place() -> Place:
    return Place()


# -- offsets and times ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [2, 5, MESSAGES])
def test_a_move_to_an_offset_settles_what_is_below_it_and_nothing_else(place, offset):
    place.do(seeking.to_offset(place.id, place.topic, offset, MESSAGES))
    assert place.cursor == Cursor(offset)


def test_a_move_to_an_offset_that_is_not_kept_any_more_names_the_earliest(place):
    move = seeking.to_offset(place.id, place.topic, 1, MESSAGES)
    before = place.cursor
    with pytest.raises(FailedPrecondition) as refused:
        place.do(move)
    assert str(refused.value) == "messages from offset 1 on are no longer kept: the earliest offset is 2"
    assert place.cursor == before


def test_a_move_past_the_last_message_settles_no_offset_that_the_log_does_not_know(place):
    """What failed to be published leaves offsets that were given and are not there."""
    place.do(seeking.to_offset(place.id, place.topic, MESSAGES + 3, MESSAGES + 5))
    assert place.cursor == Cursor(MESSAGES)
    place.do(seeking.to_time(place.id, place.topic, 50.0, MESSAGES + 5))
    assert place.cursor == Cursor(MESSAGES)


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (-1, "offset must be a whole number of 0 or more, not -1"),
        (1.0, "offset must be a whole number of 0 or more, not 1.0"),
        (11, "offset 11 was not given to any message yet: the next one is 10"),
    ],
)
def test_an_offset_that_can_be_none_is_refused_before_anything_is_read(offset, said):
    with pytest.raises(InvalidArgument) as refused:
        seeking.to_offset(1, 1, offset, MESSAGES)
    assert str(refused.value) == said


@pytest.mark.parametrize(("time", "offset"), [(0.0, 2), (4.0, 4), (4.5, 5), (9.0, 9), (9.1, MESSAGES)])
def test_a_move_to_a_time_begins_with_what_was_published_at_it_or_after_it(place, time, offset):
    place.do(seeking.to_time(place.id, place.topic, time, MESSAGES))
    assert place.cursor == Cursor(offset)


def test_a_topic_without_messages_is_entered_at_its_end(place):
    assert seeking.first_published(place.store, place.other, 5.0, 0) == 0
    assert seeking.first_published(place.store, place.topic, 99.0, MESSAGES) == MESSAGES


# -- snapshots ------------------------------------------------------------------------------------------------------------


def take(place: Place, name: str = "then", lasts: float = 10.0, now: float = NOW, resource: str | None = None) -> None:
    place.do(seeking.take_snapshot(place.id, place.topic, name, lasts, now, resource))


def test_a_snapshot_is_what_a_subscription_has_settled_and_lasts_for_its_time(place):
    take(place)
    assert place.snapshot("then") == SnapshotRow("then", place.topic, place.cursor, 110.0, {})
    take(place, "named", resource="r")
    assert place.snapshot("named") == SnapshotRow("named", place.topic, place.cursor, 110.0, {"resource": "r"})


def test_a_subscription_goes_back_to_its_snapshot(place):
    with place.store.transaction() as work:
        work.settle(place.id, [3])
    take(place)
    before = place.cursor
    place.do(seeking.to_offset(place.id, place.topic, MESSAGES, MESSAGES))
    place.do(seeking.to_snapshot(place.id, place.topic, "then", NOW))
    assert place.cursor == before
    assert before.has(3)


def test_a_snapshot_of_another_topic_is_refused(place):
    take(place)
    with pytest.raises(InvalidArgument) as refused:
        place.do(seeking.to_snapshot(place.id, place.other, "then", NOW))
    assert str(refused.value) == (
        "snapshot 'then' belongs to another topic: only its own subscriptions can go back to it"
    )


def test_a_snapshot_is_there_until_the_second_in_which_it_expires(place):
    take(place)
    gone: list[Callable[[], object]] = [
        lambda: place.do(seeking.to_snapshot(place.id, place.topic, "then", 110.0)),
        lambda: place.do(seeking.change_snapshot("then", 200.0, None, None, 110.0)),
        lambda: place.do(seeking.to_snapshot(place.id, place.topic, "never", NOW)),
    ]
    for ask in gone:
        with pytest.raises(NotFound, match=r"^snapshot '(then|never)' does not exist, or has expired$"):
            ask()
    place.do(seeking.to_snapshot(place.id, place.topic, "then", 109.9))
    catalog = place.store.catalog()
    assert seeking.snapshots_in(catalog, 109.9) == [SnapshotInfo("then", "t", 110.0)]
    assert seeking.snapshots_in(catalog, 110.0) == []


def test_the_name_of_a_snapshot_is_free_again_when_it_has_expired(place):
    take(place)
    with pytest.raises(AlreadyExists) as refused:
        take(place, now=109.9)
    assert str(refused.value) == "snapshot 'then' already exists: choose another name, or delete it first"
    take(place, now=110.0)
    assert place.snapshot("then").expires == 120.0


@pytest.mark.parametrize(
    ("fields", "expires", "resource"),
    [(None, 300.0, "new"), ([], 300.0, "new"), (["expires"], 300.0, "old"), (["resource"], 110.0, "new")],
)
def test_a_snapshot_is_changed_in_the_fields_that_are_named_or_in_all(place, fields, expires, resource):
    take(place, resource="old")
    before = place.snapshot("then")
    info = place.do(seeking.change_snapshot("then", 300.0, "new", fields, NOW))
    assert info == SnapshotInfo("then", "t", expires, resource)
    assert place.snapshot("then") == before._replace(expires=expires, options={"resource": resource})
    assert seeking.snapshots_in(place.store.catalog(), NOW) == [info]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: seeking.to_snapshot(1, 1, "", NOW), "Snapshot name"),
        (lambda: seeking.take_snapshot(1, 1, "", 1.0, NOW), "Snapshot name"),
        (lambda: seeking.take_snapshot(1, 1, "a", -1.0, NOW), "lasts must be"),
        (lambda: seeking.take_snapshot(1, 1, "a", 1.0, NOW, "\ud800"), "resource"),
        (lambda: seeking.change_snapshot("", 1.0, None, None, NOW), "Snapshot name"),
        (lambda: seeking.change_snapshot("a", float("nan"), None, None, NOW), "expires must be"),
        (lambda: seeking.change_snapshot("a", 1.0, "\ud800", None, NOW), "resource"),
        (lambda: seeking.to_time(1, 1, -1.0, 0), "time must be"),
    ],
)
def test_what_can_never_work_is_refused_by_its_name_before_anything_is_read(ask, said):
    with pytest.raises(InvalidArgument, match=f"^{said}"):
        ask()


def test_a_field_that_a_snapshot_does_not_have_is_named_with_those_that_it_has():
    with pytest.raises(InvalidArgument) as refused:
        seeking.change_snapshot("a", 1.0, None, ["topic", "labels", "expires"], NOW)
    assert str(refused.value) == "a snapshot has no field 'labels': use expires, resource"
