"""The order of messages of one edge node that have the same time of arrival, as those of a capture in milliseconds do.

Which of them came first is unknown, so they are processed in the most plausible order:

1. Messages with a timestamp before that of a birth among them: the end of the previous session.
2. Deaths of sessions whose birth is not among them. A broker publishes a death after everything that the node sent.
3. Births, and messages with the same or a later timestamp: by timestamp, a birth before others with its timestamp, then by seq.
4. Deaths of sessions whose birth is among them.

Without a birth this means: data by timestamp and seq, then deaths. Messages without a timestamp belong to the birth. Messages
that are equal by these rules are copies, ordered by device and bdSeq, and their rows by all columns
(``frames/tie_breaking.py``).

If messages have offsets, these decide, and none of this is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeAlias

from seriatim.core.sparkplug.messages import EdgeMessage, Kind

Rank: TypeAlias = tuple[int, int, bool, int, str, int]
"""What messages of one instant are sorted by."""


class Phase(IntEnum):
    """The parts of an instant, numbered as above."""

    BEFORE_BIRTH = 1
    DEATH = 2
    BIRTH = 3
    DEATH_OF_BORN = 4


def ranks(instant: Sequence[EdgeMessage[Any]]) -> list[Rank]:
    """For each message of an instant its rank among them."""
    births = [message for message in instant if message.kind is Kind.NBIRTH]
    born = {birth.bd_seq for birth in births}
    since = min((birth.timestamp for birth in births if birth.timestamp is not None), default=0)

    def phase(message: EdgeMessage[Any], stamp: int) -> Phase:
        if message.kind is Kind.NDEATH:
            return Phase.DEATH_OF_BORN if message.bd_seq in born else Phase.DEATH
        return Phase.BIRTH if births and stamp >= since else Phase.BEFORE_BIRTH

    def rank(message: EdgeMessage[Any]) -> Rank:
        _, _, seq, timestamp, device, bd_seq = message
        stamp = since if timestamp is None else timestamp
        is_data = message.kind is not Kind.NBIRTH
        return phase(message, stamp), stamp, is_data, seq or 0, device or "", -1 if bd_seq is None else bd_seq

    return [rank(message) for message in instant]
