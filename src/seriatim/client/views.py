"""What an operator sees through the API: ids are text and times are datetimes here, as everywhere in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from seriatim.client.message import attributes_of, time_of
from seriatim.engine import broker
from seriatim.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class KeyView:
    """One key of a subscription as it stands. ``why`` says in words what it waits for; None: nothing blocks it."""

    key: str | None
    state: str
    depth: int
    in_flight: int
    head: str | None
    head_age: float | None
    attempts: int
    not_before: datetime | None
    error: str | None
    why: str | None

    @classmethod
    def of(cls, info: broker.KeyInfo) -> KeyView:
        return cls(
            key=info.key,
            state=info.state,
            depth=info.depth,
            in_flight=info.in_flight,
            head=_id(info.head),
            head_age=info.head_age,
            attempts=info.attempts,
            not_before=None if info.not_before is None else time_of(info.not_before),
            error=info.error,
            why=info.why,
        )


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message that was looked at and not delivered."""

    id: str
    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str | None
    publish_time: datetime

    @classmethod
    def of(cls, stored: broker.StoredMessage) -> PeekedMessage:
        attributes, published = attributes_of(stored.attributes), time_of(stored.published)
        return cls(str(stored.offset), stored.data, attributes, stored.key, published)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that left its key undelivered. ``returnable`` says whether it can still go back to its place.

    ``copy_topic`` and ``copy_id`` say where its copy in a dead-letter topic is, if it has one.
    """

    id: str
    ordering_key: str | None
    attempts: int
    time: datetime
    error: str | None
    copy_topic: str | None
    copy_id: str | None
    returnable: bool

    @classmethod
    def of(cls, letter: broker.DeadLetter) -> DeadLetter:
        return cls(
            id=str(letter.offset),
            ordering_key=letter.key,
            attempts=letter.attempts,
            time=time_of(letter.time),
            error=letter.error,
            copy_topic=letter.copy_topic,
            copy_id=_id(letter.copy_offset),
            returnable=letter.returnable,
        )


def offset_of(message_id: object) -> int:
    """The offset that an id stands for."""
    if not isinstance(message_id, str) or not message_id.isascii() or not message_id.isdigit():
        raise InvalidArgument(f"{message_id!r} is not the id of a message: ids are whole numbers as text, such as '17'")
    return int(message_id)


def _id(offset: int | None) -> str | None:
    return None if offset is None else str(offset)
