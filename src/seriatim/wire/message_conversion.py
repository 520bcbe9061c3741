"""Converts messages of the log to messages of the Pub/Sub API. A dead letter also gets the attributes that Google adds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

from seriatim.wire.names import Names
from seriatim.wire.services import PubsubMessage

# The tags of a PubsubMessage's fields that are written here: number << 3 | 2, for fields with a length.
_DATA, _MESSAGE_ID, _ORDERING_KEY = b"\x0a", b"\x1a", b"\x2a"

_SOURCE = "CloudPubSubDeadLetterSource"
_DEAD_FROM = "seriatim-dead-letter-subscription"
_ATTEMPTS, _PUBLISHED = "seriatim-dead-letter-attempts", "seriatim-dead-letter-published"


class LoggedMessage(Protocol):
    """A message of the log."""

    @property
    def key(self) -> str | None: ...
    @property
    def data(self) -> bytes: ...
    @property
    def attributes(self) -> Mapping[str, str] | None: ...
    @property
    def published(self) -> float: ...


def encode_message(message_id: str, kept: LoggedMessage, subscriptions: Names) -> bytes:
    """A message of the log as a serialized PubsubMessage.

    Serialized fields can simply be joined, which takes half the time of filling a message object and serializing that.
    Only attributes, which few messages have, go through one.
    """
    id_, data = message_id.encode(), kept.data
    fields = [_DATA, length_prefix(len(data)), data, _MESSAGE_ID, length_prefix(len(id_)), id_]
    fields.append(_publish_time(kept.published))
    if kept.key:
        key = kept.key.encode()
        fields += (_ORDERING_KEY, length_prefix(len(key)), key)
    if kept.attributes:
        attributes = dict(kept.attributes)
        if _DEAD_FROM in attributes:
            attributes |= _google_dead_letter_attributes(attributes, subscriptions)
        fields.append(PubsubMessage(attributes=attributes).SerializeToString())
    return b"".join(fields)


def encode_received(ack_id: str, message: bytes, attempt: int) -> bytes:
    """A serialized message as a received one: the field of a PullResponse or of a StreamingPullResponse. 0: no attempt."""
    id_ = ack_id.encode()
    before = b"\x0a%b%b\x12%b" % (length_prefix(len(id_)), id_, length_prefix(len(message)))
    after = b"\x18" + length_prefix(attempt) if attempt else b""
    return b"\x0a%b%b%b%b" % (length_prefix(len(before) + len(message) + len(after)), before, message, after)


@lru_cache(maxsize=4096)
def length_prefix(length: int) -> bytes:
    """A length (or another number) as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while length > 127:
        encoded.append(length & 127 | 128)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


@lru_cache(maxsize=256)  # the messages of a batch have the same
def _publish_time(published: float) -> bytes:
    whole = int(published)
    time = {"seconds": whole, "nanos": int((published - whole) * 1_000_000) * 1000}
    return bytes(PubsubMessage(publish_time=time).SerializeToString())


def _google_dead_letter_attributes(attributes: Mapping[str, str], subscriptions: Names) -> dict[str, str]:
    """The attributes that Google adds to a dead letter. Anybody can publish such attributes: nothing here relies on them."""
    parts = subscriptions.of(attributes[_DEAD_FROM]).split("/", 3)
    _, project, _, name = (*parts, "", "", "")[:4]
    said = {
        f"{_SOURCE}Subscription": name,
        f"{_SOURCE}SubscriptionProject": project,
        f"{_SOURCE}DeliveryCount": attributes.get(_ATTEMPTS, "0"),
    }
    with suppress(ValueError, OverflowError, OSError):
        published = datetime.fromtimestamp(float(attributes.get(_PUBLISHED, "")), UTC)
        said[f"{_SOURCE}TopicPublishTime"] = published.isoformat(timespec="milliseconds")
    return said
