"""Messages that a subscription's filter rejects never enter its lanes, and count as settled.

Rules
    - Rejected messages are settled in the store, so that the log can be cleaned up. It is not urgent: if the subscription is
      loaded before that, they are rejected again. So they wait for other changes, and need no commit of their own.
    - They are settled when there are many of them, before clean-up, and when the engine is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import TypeVar

from seriatim.core.filters import Predicate, compile_filter
from seriatim.engine.commit import Commit
from seriatim.log import logger
from seriatim.store.base import MessageHeader, Record

MANY = 4096

Message = TypeVar("Message", bound=Record | MessageHeader)


class SubscriptionFilter:
    """The filter of one subscription, and the messages it rejected that are not settled yet."""

    def __init__(self, subscription_id: int, text: str | None, commit: Callable[[], Commit], name: str = "") -> None:
        self.id, self._name = subscription_id, name
        self._wants: Predicate | None = None if text is None else compile_filter(text)
        self._commit = commit
        self._rejected: list[int] = []

    def reject_all(self) -> None:
        """Let nothing through any more."""
        self._wants = lambda _: False

    def split(self, messages: Sequence[Message]) -> tuple[Sequence[Message], list[int]]:
        """The messages that the filter lets through, and the offsets of the others."""
        if self._wants is None:
            return messages, []
        wants = [self._wants(message.attributes) for message in messages]
        return list(compress(messages, wants)), [
            message.offset for message, wanted in zip(messages, wants, strict=True) if not wanted
        ]

    def sift(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages that the filter lets through. The others are settled later."""
        wanted, rejected = self.split(messages)
        if rejected:
            self.settle_later(rejected)
        return wanted

    def settle_later(self, rejected: Iterable[int]) -> None:
        self._rejected += rejected
        if len(self._rejected) >= MANY:
            self.settle()

    def settle(self) -> bool:
        """Settle rejected messages in the next commit; False if there are none."""
        rejected, self._rejected = self._rejected, []
        if rejected:
            self._commit().settle(self, rejected)
        return bool(rejected)

    def confirmed(self, offsets: Sequence[int]) -> None:
        """Nobody waits for it."""

    def refused(self, offsets: Sequence[int], error: BaseException) -> None:
        """Nobody waits for it: they are rejected again when they are loaded again."""
        logger.error(
            "subscription %r: %d rejected messages can't be settled: %s",
            self._name,
            len(offsets),
            error,
            extra={"subscription": self._name, "message_ids": list(map(str, offsets))},
        )
