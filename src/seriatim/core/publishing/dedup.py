"""Publish once: finds the message that already has an id.

Rules
    - An id belongs to the first message that was stored with it. Publishing the same id again returns the offset of
      that message, and stores nothing; with another key or other data it is an error.
    - The claims of one call are atomic: when one is refused, none of them is taken.
    - An id is known for ``seconds`` after it was stored, while it is among the last ``most`` ids; then it is free.

Theory of operation
    The ids that one transaction stored are a dict, a *generation*; generations are in the order of storing, so the
    oldest ids are always at the front. Claims of an open transaction are separate (``fresh``) and become the newest
    generation when it commits: a rollback leaves nothing behind. The data of an id is one bytes object, the *mark* of
    its message: Python's cycle collector ignores a million of them, but would examine a million tuples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from seriatim.core.validation import is_number
from seriatim.errors import AlreadyExists

DEDUP_ID = "seriatim-dedup-id"
"""The attribute that holds the id of a message on the wire of a Pub/Sub server."""

DEDUP_WINDOW_S = 600.0
DEDUP_MAX_IDS = 1_000_000

REPEAT_FOR_S = 120.0
"""How long a client repeats a publish whose outcome is unknown."""

MIN_DEDUP_WINDOW_S = 2 * REPEAT_FOR_S
"""In a shorter one, the last repetition could arrive after its id expired: a call may take a minute to fail."""


MARK = Struct("<QQ")
"""The mark of a message: a digest of its key and data, and its offset. Stores keep it as it is."""


Fresh = dict[str, bytes]
"""The claims of a transaction so far: marks by id."""


class Claims(NamedTuple):
    """The messages of one call that have ids: the ``first`` with each id, and those that have it ``again``."""

    first: Fresh
    again: Sequence[tuple[str, bytes]]


def claims_of(messages: Iterable[tuple[str | None, bytes, object, object, str | None]], start: int) -> Claims:
    """The claims of messages (key, data, …, and last the id, if any) that have the offsets from ``start`` on.

    In one pass: a busy program publishes thousands in one call, and every pass loads them from memory again.
    """
    first, again, pack = Fresh(), list[tuple[str, bytes]](), MARK.pack
    last_key, seed = None, _digest_seed(None)
    for offset, (key, data, _, _, id_) in enumerate(messages, start):
        if id_ is not None:
            if key != last_key:  # nearly always it is the same, because messages come in batches of a key
                last_key, seed = key, _digest_seed(key)
            mark = pack(crc32(data, seed), offset)
            if first.setdefault(id_, mark) is not mark:
                again.append((id_, mark))
    return Claims(first, again)


@lru_cache(maxsize=4096)
def _digest_seed(key: str | None) -> int:
    """The digest of a payload is ``crc32(data, _digest_seed(key))``: it detects different payloads with the same id.

    Attributes do not count: a repetition may have another trace context.
    """
    return 0 if key is None else (crc32(key.encode()) * 2654435761 + 1) & 0xFFFFFFFF  # separates the key from the data


def limits_of(options: Mapping[str, Any]) -> tuple[float, int]:
    """How long and how many ids are remembered, from the stored options of a topic."""
    seconds, most = options.get("dedup_window"), options.get("dedup_max_ids")
    return (
        seconds if is_number(seconds) else DEDUP_WINDOW_S,
        most if isinstance(most, int) else DEDUP_MAX_IDS,
    )


class IdWindow:
    """The known ids of one topic."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """``options`` are those of the topic; unusable ones are ignored."""
        self._known: Fresh = {}
        self._generations: deque[tuple[float, Fresh]] = deque()
        self.total = 0
        """How many ids were ever stored."""
        self.set_options(options)

    def set_options(self, options: Mapping[str, Any]) -> None:
        self.seconds, self.most = limits_of(options)

    def claim(self, claims: Claims, fresh: Fresh, now: float) -> dict[int, int]:
        """For each claim whose id another message has, the offset of that message by the claimed one. Others are
        new."""
        self.forget(now)
        known, new, repeated = self._known, claims.first, dict[int, int]()
        if not claims.again and known.keys().isdisjoint(new) and fresh.keys().isdisjoint(new.keys()):
            fresh |= new  # nearly always
            return repeated
        new = {}
        for id_, mark in chain(claims.first.items(), claims.again):
            first = known.get(id_) or fresh.get(id_) or new.setdefault(id_, mark)
            digest, offset = MARK.unpack(first)
            own_digest, own_offset = MARK.unpack(mark)
            if digest != own_digest:
                which = "of the same batch, of which nothing was stored" if id_ in new else f"({offset})"
                raise AlreadyExists(
                    f"dedup_id {id_!r} belongs to another message {which}, with another key or other data: "
                    "give each message an id of its own"
                )
            if offset != own_offset:
                repeated[own_offset] = offset
        fresh |= new
        return repeated

    def add(self, fresh: Fresh, time: float) -> None:
        """The claims of a transaction were stored at ``time``: forget what is then too old or too much."""
        self.forget(time)
        self._known |= fresh
        self._generations.append((time, fresh))
        self.total += len(fresh)
        self.forget(time)

    def forget(self, now: float) -> None:
        """Forget what is too old or too much."""
        generations, known, oldest = self._generations, self._known, now - self.seconds
        while generations and (generations[0][0] <= oldest or len(known) > self.most):
            time, first = generations[0]
            gone = list(first if time <= oldest else islice(first, len(known) - self.most))
            for id_ in gone:
                mark = first.pop(id_)
                if known[id_] == mark:  # and not a later one, of a reused id
                    del known[id_]
            if not first:
                generations.popleft()
