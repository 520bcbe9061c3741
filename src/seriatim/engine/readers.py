"""Readers of a log: programs that read a topic by ranges of offsets, such as a query on Spark, and are waited for.

Rules
    - What is at or above a reader's position is kept for it, whatever subscriptions have settled.
    - A reader belongs to one program at a time. It says where it stood when it moves on: two programs under one name notice.
    - A reader that nobody moves keeps its log from being cleaned up until it is deleted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from seriatim.core.limits import check_name
from seriatim.core.options import LARGEST_WHOLE, require_whole
from seriatim.engine.broker import ReaderInfo
from seriatim.engine.seeking import Move
from seriatim.engine.topic import TopicState
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from seriatim.store.base import ReaderRow, StoreReader, Transaction

T = TypeVar("T")


def put(name: str, topic: TopicState, position: int) -> Move[None]:
    require_whole("position", position, 0)
    if position > topic.next_offset:
        raise InvalidArgument(
            f"offset {position} was not given to any message of topic {topic.name!r} yet: the next one is {topic.next_offset}"
        )

    def move(_: StoreReader, work: Transaction) -> None:
        found = work.reader(name)
        if found is not None and found.topic_id != topic.id:
            raise AlreadyExists(f"reader {name!r} reads another topic: choose another name, or delete it first")
        work.put_reader(ReaderRow(name, topic.id, position))

    return move


def advance(name: str, start: int, end: int) -> Move[None]:
    require_whole("start", start, 0, LARGEST_WHOLE)
    require_whole("end", end, 0, LARGEST_WHOLE)
    if end < start:
        raise InvalidArgument(f"a reader can't go back from {start} to {end}: register it again")

    def move(_: StoreReader, work: Transaction) -> None:
        found = work.reader(name)
        if found is None:
            raise NotFound(f"reader {name!r} does not exist: what it has not read may be gone, register it again")
        if found.position not in {start, end}:
            raise FailedPrecondition(
                f"reader {name!r} stands at {found.position} and not at {start}: another program moves it, "
                "give each its own name"
            )
        work.put_reader(found._replace(position=end))

    return move


class Readers(ABC):
    """The part of a broker that knows readers, on top of an engine that knows topics."""

    @abstractmethod
    def get_topic(self, name: str) -> TopicState: ...

    @abstractmethod
    async def load(self, work: Callable[[StoreReader], T]) -> T: ...

    @abstractmethod
    async def move(self, move: Move[T]) -> T:
        """Let a move ride in the next commit, and wait until it is durable."""

    async def register_reader(self, name: str, topic: str, position: int) -> ReaderInfo:
        check_name("Reader", name)
        await self.move(put(name, self.get_topic(topic), position))
        return ReaderInfo(name, topic, position)

    async def move_reader(self, name: str, start: int, end: int) -> None:
        check_name("Reader", name)
        await self.move(advance(name, start, end))

    async def delete_reader(self, name: str) -> None:
        check_name("Reader", name)
        await self.move(lambda _, work: work.delete_reader(name))

    async def list_readers(self) -> list[ReaderInfo]:
        catalog = await self.load(lambda store: store.catalog())
        topics = {row.id: row.name for row in catalog.topics}
        return [ReaderInfo(row.name, topics[row.topic_id], row.position) for row in catalog.readers]
