"""A short day: every message is accounted for. And the judges: they object to what is lost, repeated or grown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from xml.etree import ElementTree as ET

from tests.day.picture import svg
from tests.day.work import Day, Hour, grown


def test_a_short_day_has_every_message_once_and_in_order(tmp_path, caplog):
    day = Day(tmp_path, 500, seed=1)
    hours: list[Hour] = []
    asyncio.run(day.work(2, hours.append))
    assert day.objections() == []
    assert [hour.messages for hour in hours] == [500, 500]
    assert day.failed


def test_the_audit_objects_to_what_comes_after_its_key_was_settled(tmp_path):
    day = Day(tmp_path, 1, seed=1)
    handle = day._handler("billing")
    day._numbers["hour-0-1"] = 1
    for subscription in day._seen:
        day._handler(subscription)(Delivered("hour-0-1", 0))  # type: ignore[arg-type]
    day._judge(["hour-0-1"])
    assert day.objections() == []
    handle(Delivered("hour-0-1", 0))  # type: ignore[arg-type]
    assert [found.partition(":")[0] for found in day.objections()] == ["billing, hour-0-1"]


def test_the_audit_objects_to_what_is_lost_repeated_or_late(tmp_path):
    for numbers, objection in (
        ([0, 1], "3 sent, 2 handled"),
        ([0, 1, 1, 2], "received before"),
        ([0, 2, 1], "after 2"),
    ):
        day = Day(tmp_path, 1, seed=1)
        day._numbers["k"] = 3
        for subscription in day._seen:
            handle = day._handler(subscription)
            for number in numbers:
                handle(Delivered("k", number))  # type: ignore[arg-type]
        assert any(objection in found for found in day.objections()), objection


class Delivered:
    """A message for the third time, so that nothing fails."""

    delivery_attempt = 3

    def __init__(self, key: str, number: int) -> None:
        self.ordering_key, self.data = key, b"%012d" % number


EVEN = [Hour(number, 10, 100.0, 5.0, 1.0, 20, 3.0, 9.0, 1.0) for number in range(24)]


def test_what_grows_is_objected_to_and_what_is_flat_is_not():
    assert grown(EVEN) == []
    for field, step in (("memory_mb", 0.2), ("store_mb", 0.5), ("log_mb", 0.5), ("files", 1), ("p99_ms", 40.0)):
        rising = [replace(hour, **{field: getattr(hour, field) + step * hour.hour}) for hour in EVEN]
        assert [found.partition(":")[0] for found in grown(rising)] == [field]


def test_the_picture_has_a_line_for_each_thing_that_was_measured():
    root = ET.fromstring(svg(EVEN, "a day"))
    assert len([part for part in root.iter() if part.tag.endswith("polyline")]) == 5
