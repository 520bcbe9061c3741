"""Which messages of a log may be deleted. All stores use these rules.

Rules
    - Messages published before any of the present subscriptions and readers began stay for ``retention`` seconds, and so do all
      messages while there are none; None: for ever. So no message disappears because of a new subscription.
    - Messages published since then stay for ``retain_settled`` seconds; None: for ever.
    - However old it is, a message stays until every subscription has settled it, none has it as a dead letter, and every reader
      has passed it.
    - Messages that a snapshot has not settled stay until the snapshot expires.
    - Age is judged pack by pack, by the newest message of the pack.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from seriatim.core.validation import is_number
from seriatim.store.base import DEFAULT_RETENTION_S, Options
from seriatim.store.settled_set import SettledSet, set_bits


class Follower(NamedTuple):
    """A subscription or a reader: which messages it is done with, and the topic's next offset when it began."""

    done: SettledSet
    since: int


class Retention:
    """What is needed of one topic, or of one range of its log, at one moment."""

    def __init__(
        self, options: Options, followers: Sequence[Follower], snapshots: Iterable[SettledSet], buried: Iterable[int]
    ) -> None:
        self._age_before = _seconds(options.get("retention", DEFAULT_RETENTION_S))
        self._age_since = _seconds(options.get("retain_settled", 0.0))
        self._followed_from = min((follower.since for follower in followers), default=None)
        self._pins = [*(follower.done for follower in followers), *snapshots]
        self._buried = frozenset(buried)

    def needed(self, offsets: Sequence[int], newest: float, now: float) -> Sequence[int]:
        """Those of the kept offsets of a pack that must stay; its newest message was published at ``newest``."""
        before, since = _split(offsets, self._followed_from)
        kept_before = before if newest + self._age_before > now else self._pinned(before)
        kept_since = since if newest + self._age_since > now else self._pinned(since)
        if kept_before == before and kept_since == since:
            return offsets
        return [*kept_before, *kept_since]

    def _pinned(self, offsets: Sequence[int]) -> Sequence[int]:
        """Those that must stay whatever their age."""
        if not offsets:
            return offsets
        if not isinstance(offsets, range):
            return [offset for offset in offsets if self._needs(offset)]
        first, last, everything = offsets[0], offsets[-1], (1 << len(offsets)) - 1
        needed = 0
        for pin in self._pins:
            needed |= everything & ~pin.bits(first, last)
        for offset in self._buried:
            if first <= offset <= last:
                needed |= 1 << (offset - first)
        return offsets if needed == everything else [first + index for index in set_bits(needed)]

    def _needs(self, offset: int) -> bool:
        return offset in self._buried or any(offset not in pin for pin in self._pins)


def _split(offsets: Sequence[int], followed_from: int | None) -> tuple[Sequence[int], Sequence[int]]:
    """The offsets published before the first follower began, and those published since."""
    place = len(offsets) if followed_from is None else bisect_left(offsets, followed_from)
    return offsets[:place], offsets[place:]


def _seconds(age: object) -> float:
    """How long messages are kept. A value that is no duration keeps them for ever, until an operator corrects it."""
    return age if is_number(age) and 0 <= age < inf else inf


LEFTOVER_BYTES = 256 * 1024
LEFTOVER_MESSAGES = 4096


def is_mostly_removable(sizes: Iterable[int], offsets: Sequence[int], needed: Sequence[int]) -> bool:
    """Whether at least half of the bytes of a pack may go, so that it is worth writing the rest anew."""
    keep = frozenset(needed)
    total = kept = 0
    for offset, size in zip(offsets, sizes, strict=True):
        total += size + 1
        kept += size + 1 if offset in keep else 0
    return kept * 2 <= total
