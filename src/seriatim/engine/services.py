"""What the parts of an engine need of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from seriatim.engine.commit import Commit
from seriatim.engine.topic import TopicState
from seriatim.store.base import Record, StoreReader, Transaction

T = TypeVar("T")


class Wakeful(Protocol):
    """Somebody who hands out messages when there is reason to."""

    def pump(self) -> None: ...
    def wake(self) -> None: ...


class Services(Protocol):
    def now(self) -> float:
        """Wall-clock time that does not jump."""

    def wake(self, sleeper: Wakeful) -> None:
        """Let somebody pump, at the end of this turn of the loop or as soon as a commit is done."""

    def first_token(self) -> int:
        """The first fencing token that is this owner's to give."""

    def commit(self) -> Commit:
        """The commit that is being filled."""

    def change(self, change: Callable[[Transaction], T]) -> Awaitable[T]:
        """Let a change ride in the next commit, and wait until it is durable; it may be refused.

        Whoever has to change something in memory along with it does so in a task of the engine, which nobody cancels.
        """

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> Awaitable[list[Record]]:
        """Messages with these rising offsets, from the store."""

    def load(self, work: Callable[[StoreReader], T]) -> Awaitable[T]:
        """Ask the store something that may take long."""

    def topic(self, name: str) -> TopicState | None: ...
    def failed(self, error: BaseException) -> None:
        """Something went wrong that no caller waits for."""

    def can_write(self) -> bool:
        """Whether the store has not been lost."""
