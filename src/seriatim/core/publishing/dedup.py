"""Publish once: which message has an id already.

Rules
    - An id belongs to the first message that was stored with it. Whoever publishes the same id again gets the offset of that
      message, and nothing is stored; with another key or other data it is a mistake, and refused.
    - The claims of one call stand or fall together: when one is refused, none of them is taken.
    - An id is known for ``seconds`` after it was stored, while it is among the last ``most`` ids. Then it may be used again.

Theory of operation
    What one transaction stored is a dict, a *generation*; generations stand in the order of storing, so what is to be forgotten
    is always at the front. Claims of a transaction that is not over yet are kept apart (``fresh``) and become the newest
    generation when it commits: one that is rolled back leaves nothing behind. What is known of an id is one string of bytes,
    the *mark* of its message: a million of them are nothing to Python's cycle collector, which would look at a million tuples.
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
"""For how long a client repeats a publish whose outcome is unknown."""

MIN_DEDUP_WINDOW_S = 2 * REPEAT_FOR_S
"""With a shorter window the last repetition could come when its id is known no longer: a call may take a minute to fail."""


MARK = Struct("<QQ")
"""The mark of a message: a digest of its key and data, and its offset. Stores keep it as it is."""


Fresh = dict[str, bytes]
"""What a transaction has claimed so far: marks by id."""


class Claims(NamedTuple):
    """The messages of one call that want to be those with their ids: the ``first`` with each id, and those that have it
    ``again``."""

    first: Fresh
    again: Sequence[tuple[str, bytes]]


def claims_of(messages: Iterable[tuple[str | None, bytes, object, object, str | None]], start: int) -> Claims:
    """The claims of messages (key, data, and in the end the id, if any) that have the offsets from ``start`` on.

    One pass does it all: a busy program sends thousands in one call, and every pass fetches them from memory anew.
    """
    first, again, pack = Fresh(), list[tuple[str, bytes]](), MARK.pack
    for offset, (key, data, _, _, id_) in enumerate(messages, start):
        if id_ is not None:
            mark = pack(crc32(data, _digest_seed(key)), offset)
            if first.setdefault(id_, mark) is not mark:
                again.append((id_, mark))
    return Claims(first, again)


@lru_cache(maxsize=4096)
def _digest_seed(key: str | None) -> int:
    """The digest of a payload is ``crc32(data, _digest_seed(key))``: it tells payloads apart that got the same id by mistake.

    Attributes do not count: a repetition may carry another trace context.
    """
    return (
        0 if key is None else (crc32(key.encode()) * 2654435761 + 1) & 0xFFFFFFFF
    )  # data must not go on where a key ends


def limits_of(options: Mapping[str, Any]) -> tuple[float, int]:
    """How long and how many ids are known, by the options of a topic as a store holds them."""
    seconds, most = options.get("dedup_window"), options.get("dedup_max_ids")
    return (
        seconds if is_number(seconds) else DEDUP_WINDOW_S,
        most if isinstance(most, int) else DEDUP_MAX_IDS,
    )


class IdWindow:
    """The ids of one topic that are known."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """``options`` are those of the topic; one that can't be used counts as not given."""
        self._known: Fresh = {}
        self._generations: deque[tuple[float, Fresh]] = deque()
        self.total = 0
        """How many ids were ever stored."""
        self.set_options(options)

    def set_options(self, options: Mapping[str, Any]) -> None:
        self.seconds, self.most = limits_of(options)

    def claim(self, claims: Claims, fresh: Fresh, now: float) -> dict[int, int]:
        """For each claim whose id another message has, the offset of that message by the claimed one. The others are new."""
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
        """The claims of a transaction were stored at ``time``: what is too much or too old then is forgotten."""
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
                if known[id_] == mark:  # and not a later one, of an id that was used again
                    del known[id_]
            if not first:
                generations.popleft()
