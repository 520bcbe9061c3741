"""Converts durations and timestamps of protobuf to seconds, and back.

A parsed message may contain any numbers. ``check_times`` refuses those outside the ranges that protobuf defines (years 1
to 9999; about ±10,000 years), so that other code can rely on valid ones.
"""

from __future__ import annotations

from typing import Any

from seriatim.errors import InvalidArgument

_BILLION = 1_000_000_000
_RANGES = {
    "google.protobuf.Timestamp": (-62_135_596_800, 253_402_300_799),
    "google.protobuf.Duration": (-315_576_000_000, 315_576_000_000),
}


def check_times(message: Any) -> None:
    """Raise InvalidArgument unless every Duration and Timestamp in a message is valid. Lists are left out: no list of the API
    has times, but for published messages, and there they are the server's to set."""
    for field, value in message.ListFields():
        if field.message_type is None or field.is_repeated:
            continue
        if field.message_type.full_name in _RANGES:
            _check_time(field, value)
        else:
            check_times(value)


def _check_time(field: Any, value: Any) -> None:
    kind = field.message_type
    least, most = _RANGES[kind.full_name]
    has_sign = kind.name == "Duration" and value.seconds <= 0
    nanos = range(1 - _BILLION if has_sign else 0, 1 if value.seconds < 0 and has_sign else _BILLION)
    if not least <= value.seconds <= most or value.nanos not in nanos:
        raise InvalidArgument(
            f"{field.name} is not a valid {kind.name}: seconds are {least} to {most}, "
            f"and nanos {nanos[0]} to {nanos[-1]} here, not {value.seconds} and {value.nanos}"
        )


def seconds_of(message: Any) -> float:
    """The seconds of a Duration, or since 1970 of a Timestamp."""
    return float(message.seconds + message.nanos / _BILLION)


def set_seconds(message: Any, seconds: float) -> None:
    """Set a Duration or Timestamp to a number of seconds, to the microsecond (a float of today's time is no more exact).
    Values out of range are clamped."""
    least, most = _RANGES[message.DESCRIPTOR.full_name]
    whole = round(min(max(seconds, least), most) * 1_000_000)
    message.seconds, message.nanos = whole // 1_000_000, whole % 1_000_000 * 1000
