"""Readers of a log: programs that read a topic by ranges of offsets, such as a query on Spark.

Rules
    - Messages at or above a reader's position are kept for it, even if all subscriptions have settled them.
    - A reader belongs to one program at a time. Each move names the old position, so two programs under one name notice.
    - A reader that never moves keeps its log from being cleaned up, until the reader is deleted.
"""

from __future__ import annotations

from seriatim.core.text_checks import check_name
from seriatim.core.validation import MAX_INTEGER, require_whole
from seriatim.engine.broker import ReaderInfo
from seriatim.engine.seeking import Move
from seriatim.engine.topic import TopicState
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from seriatim.store.base import Catalog, ReaderRow, StoreReader, Transaction


def put(name: str, topic: TopicState, position: int) -> Move[None]:
    check_name("Reader", name)
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
    check_name("Reader", name)
    require_whole("start", start, 0, MAX_INTEGER)
    require_whole("end", end, 0, MAX_INTEGER)
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
        if end > (following := work.topic(found.topic_id).next_offset):
            raise InvalidArgument(
                f"reader {name!r} can't move to {end}, which was not given to any message yet: the next one is {following}"
            )
        work.put_reader(found._replace(position=end))

    return move


def readers_in(catalog: Catalog) -> list[ReaderInfo]:
    topics = {row.id: row.name for row in catalog.topics}
    return [ReaderInfo(row.name, topics[row.topic_id], row.position) for row in catalog.readers]
