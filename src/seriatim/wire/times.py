"""Durations and timestamps of protobuf as seconds, and back."""

from __future__ import annotations

from typing import Any

_BILLION = 1_000_000_000


def seconds_of(message: Any) -> float:
    """The seconds of a Duration, or since 1970 of a Timestamp."""
    return float(message.seconds + message.nanos / _BILLION)


def set_seconds(message: Any, seconds: float) -> None:
    """Let a Duration or Timestamp say so many seconds, to the microsecond: a float knows no more of the present."""
    whole = round(seconds * 1_000_000)
    message.seconds, message.nanos = whole // 1_000_000, whole % 1_000_000 * 1000
