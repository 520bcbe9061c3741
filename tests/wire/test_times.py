"""Durations and timestamps: what protobuf allows, and nothing else, goes in and out."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from seriatim.errors import InvalidArgument
from seriatim.wire.services import Snapshot, Subscription
from seriatim.wire.times import check_times, seconds_of, set_seconds

FIRST, LAST, LONGEST = -62_135_596_800, 253_402_300_799, 315_576_000_000
BILLION = 1_000_000_000


@pytest.mark.parametrize(
    ("seconds", "nanos", "is_valid"),
    [
        (0, 0, True),
        (FIRST, 0, True),
        (FIRST - 1, 0, False),
        (LAST, BILLION - 1, True),
        (LAST + 1, 0, False),
        (-5, 1, True),
        (-5, -1, False),
        (0, -1, False),
        (0, BILLION, False),
    ],
)
def test_which_timestamps_are_valid(seconds, nanos, is_valid):
    assert _is_taken(Snapshot(expire_time=Timestamp(seconds=seconds, nanos=nanos))) is is_valid


@pytest.mark.parametrize(
    ("seconds", "nanos", "is_valid"),
    [
        (LONGEST, BILLION - 1, True),
        (LONGEST + 1, 0, False),
        (-LONGEST, 1 - BILLION, True),
        (-LONGEST - 1, 0, False),
        (0, BILLION - 1, True),
        (0, 1 - BILLION, True),
        (0, -BILLION, False),
        (1, -1, False),
        (-1, 1, False),
    ],
)
def test_which_durations_are_valid_however_deep_they_are(seconds, nanos, is_valid):
    duration = Duration(seconds=seconds, nanos=nanos)
    assert _is_taken(Subscription(retry_policy={"maximum_backoff": duration})) is is_valid


def _is_taken(message) -> bool:
    try:
        check_times(message)
    except InvalidArgument:
        return False
    return True


@pytest.mark.parametrize(
    ("seconds", "said"), [(1.5, 1.5), (-1.5, -1.5), (2.0**63, LAST), (float("inf"), LAST), (-(2.0**63), FIRST)]
)
def test_a_timestamp_never_says_more_than_is_allowed(seconds, said):
    message = Snapshot()
    set_seconds(message.expire_time, seconds)
    check_times(message)
    assert seconds_of(message.expire_time) == said
