"""Publish once: which message has an id already.

Rules
    - An id belongs to the first message that was stored with it. Whoever publishes the same id again gets the offset of that
      message, and nothing is stored; with another key or other data it is a mistake, and refused.
    - The claims of one call stand or fall together: when one is refused, none of them is taken.
    - An id is known for ``seconds`` after it was stored, while it is among the last ``most`` ids. Then it may be used again.

Theory of operation
    What one transaction stored is a dict, a *generation*; generations stand in the order of storing, so what is to be forgotten
    is always at the front. Claims of a transaction that is not over yet are kept apart (``fresh``) and become the newest
    generation when it commits: one that is rolled back leaves nothing behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias
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


Claim: TypeAlias = tuple[str, tuple[int, int]]
"""A message that wants to be the one with an id: the id, and a digest of its key and data with its offset."""

Fresh = dict[str, tuple[int, int]]
"""What a transaction has claimed so far: digest and offset by id."""


@lru_cache(maxsize=4096)
def digest_seed(key: str | None) -> int:
    """The digest of a payload is ``crc32(data, digest_seed(key))``: it tells payloads apart that got the same id by mistake.

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

    def claim(self, claims: Sequence[Claim], fresh: Fresh, now: float) -> dict[int, int]:
        """For each claim whose id another message has, the offset of that message by the claimed one. The others are new."""
        self.forget(now)
        known, new, repeated = self._known, dict(claims), dict[int, int]()
        if len(new) == len(claims) and known.keys().isdisjoint(new) and fresh.keys().isdisjoint(new):
            fresh |= new  # nearly always
            return repeated
        new.clear()
        for id_, claim in claims:
            first = known.get(id_) or fresh.get(id_) or new.setdefault(id_, claim)
            if first[0] != claim[0]:
                which = "of the same batch, of which nothing was stored" if id_ in new else f"({first[1]})"
                raise AlreadyExists(
                    f"dedup_id {id_!r} belongs to another message {which}, with another key or other data: "
                    "give each message an id of its own"
                )
            if first is not claim:
                repeated[claim[1]] = first[1]
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
                claim = first.pop(id_)
                if known[id_] is claim:  # and not a later one, of an id that was used again
                    del known[id_]
            if not first:
                generations.popleft()
