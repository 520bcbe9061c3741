"""Which messages of a log may go. Every store asks here, so that all of them keep the same.

Rules
    - A topic that nobody follows (no subscription, no reader) keeps its messages for ``retention`` seconds; None: for ever.
    - Otherwise a message goes when every subscription has settled it, none has it as a dead letter, every reader has passed
      it, and it is older than ``retain_settled`` seconds.
    - What a snapshot has not settled stays until the snapshot expires, whoever else is done with it.
    - Age is judged pack by pack, by the newest message of the pack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from seriatim.store.base import Options
from seriatim.store.settled import SettledSet, set_bits

RETENTION = 7 * 24 * 3600.0
"""Seconds that a topic keeps messages that nobody follows, unless its option ``retention`` says otherwise."""


class Retention:
    """What is needed of one topic, or of one range of its log, at one moment."""

    def __init__(
        self,
        options: Options,
        subscriptions: Iterable[SettledSet],
        snapshots: Iterable[SettledSet],
        readers: Sequence[int],
        buried: Iterable[int],
    ) -> None:
        followers = list(subscriptions)
        followed = bool(followers or readers)
        age = options.get("retain_settled", 0.0) if followed else options.get("retention", RETENTION)
        self._age = inf if age is None else float(age)
        self._pins = [*followers, *snapshots, *(SettledSet(position) for position in readers)]
        self._buried = frozenset(buried)

    def is_old_enough(self, newest: float, now: float) -> bool:
        """Whether messages published at ``newest`` or before may be looked at."""
        return newest + self._age <= now

    def needed(self, offsets: Sequence[int]) -> Sequence[int]:
        """Those of some kept offsets that must stay, whatever their age."""
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
