"""What a subscription's filter rejects never enters its lanes, and counts as settled.

Rules
    - Rejected messages are settled in the store, so that they do not keep the log from being cleaned up. There is no hurry: who
      loads the subscription before that rejects them again. So they wait for company, and cost no commit of their own.
    - They are settled when many have come together, before clean-up, and when the engine is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from seriatim.core.filters import Predicate, compile_filter
from seriatim.engine.commit import Commit
from seriatim.log import logger
from seriatim.store.base import Position, Record

MANY = 4096

Message = TypeVar("Message", bound=Record | Position)


class Sieve:
    """The filter of one subscription, and what it has rejected lately."""

    def __init__(self, subscription_id: int, text: str | None, commit: Callable[[], Commit]) -> None:
        self.id = subscription_id
        self._wants: Predicate | None = None if text is None else compile_filter(text)
        self._commit = commit
        self._rejected: list[int] = []

    def reject_all(self) -> None:
        """Let nothing through any more."""
        self._wants = lambda _: False

    def rejects(self, message: Record | Position) -> bool:
        return self._wants is not None and not self._wants(message.attributes)

    def sift(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Those that the filter lets through; the others are settled sooner or later."""
        if self._wants is None:
            return messages
        wanted = [message for message in messages if not self.rejects(message)]
        if len(wanted) < len(messages):
            self.settle_later(message.offset for message in messages if self.rejects(message))
        return wanted

    def settle_later(self, rejected: Iterable[int]) -> None:
        self._rejected += rejected
        if len(self._rejected) >= MANY:
            self.settle()

    def settle(self) -> bool:
        """Let what was rejected ride in the next commit; False when there is nothing."""
        rejected, self._rejected = self._rejected, []
        if rejected:
            self._commit().settle(self, rejected)
        return bool(rejected)

    def confirmed(self, offsets: Sequence[int]) -> None:
        """Nobody waits for it."""

    def refused(self, offsets: Sequence[int], error: BaseException) -> None:
        """Nobody waits for it: they are rejected again when they are loaded again."""
        logger.error("%d rejected messages can't be settled: %s", len(offsets), error)
