"""Messages on the wire and ours.

Rules
    - What Google Pub/Sub refuses is refused here with the same status: a message without data and attributes, attributes whose
      names begin with ``goog`` or of which there are too many, keys that are too long, requests that are too large.
    - One thing is allowed that Google refuses: messages of several keys in one publish request. They are stored in their order.
    - proto3 can't tell an empty ordering key from none, so it is none.
    - A dead letter also carries the attributes that Google's would have.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from seriatim.core.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES, check_message
from seriatim.errors import InvalidArgument
from seriatim.wire.names import Names

MOST_MESSAGES = 1000
"""So many a publish request may have."""

MOST_ATTRIBUTES = 100
SURELY_SHORT = MAX_KEY_BYTES // 4
"""A key of so many letters is never too long: a letter has four bytes of UTF-8 at most."""

RESERVED_PREFIX = "goog"

_SOURCE = "CloudPubSubDeadLetterSource"
_DEAD_FROM = "seriatim-dead-letter-subscription"
_ATTEMPTS, _PUBLISHED = "seriatim-dead-letter-attempts", "seriatim-dead-letter-published"


class Kept(Protocol):
    """A message as our log keeps it."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def data(self) -> bytes: ...
    @property
    def attributes(self) -> Mapping[str, str] | None: ...
    @property
    def published(self) -> float: ...


class Content(NamedTuple):
    """What a publisher said."""

    key: str | None
    data: bytes
    attributes: dict[str, str] | None


def contents(request: Any) -> list[Content]:
    """The messages of a publish request. Raises InvalidArgument unless all of them can be published."""
    if not 0 < len(request.messages) <= MOST_MESSAGES:
        raise InvalidArgument(f"a publish request has 1 to {MOST_MESSAGES} messages, not {len(request.messages)}")
    return list(map(_content, request.messages))


def _content(message: Any) -> Content:
    key, data = message.ordering_key, message.data
    if len(key) <= SURELY_SHORT and 0 < len(data) <= MAX_MESSAGE_BYTES and not message.attributes:
        return Content(key or None, data, None)  # the way of nearly every message
    return _checked(message)


def _checked(message: Any) -> Content:
    content = Content(message.ordering_key or None, message.data, dict(message.attributes) or None)
    check_message(content.data, content.key, content.attributes)
    if content.attributes is not None:
        _check_attributes(content.attributes)
    elif not content.data:
        raise InvalidArgument("a message needs data, or an attribute at least")
    return content


def _check_attributes(attributes: Mapping[str, str]) -> None:
    if len(attributes) > MOST_ATTRIBUTES:
        raise InvalidArgument(f"a message has at most {MOST_ATTRIBUTES} attributes, not {len(attributes)}")
    for name in attributes:
        if name.startswith(RESERVED_PREFIX):
            raise InvalidArgument(f"attribute {name!r} begins with {RESERVED_PREFIX!r}, which is reserved")


def fill(message: Any, kept: Kept, subscriptions: Names) -> None:
    """Let a PubsubMessage say what our log keeps."""
    message.data = kept.data
    message.message_id = str(kept.offset)
    if kept.key is not None:
        message.ordering_key = kept.key
    if kept.attributes:
        message.attributes.update(kept.attributes)
        if _DEAD_FROM in kept.attributes:
            message.attributes.update(_google_epitaph(kept.attributes, subscriptions))
    stamp, whole = message.publish_time, int(kept.published)
    stamp.seconds = whole
    stamp.nanos = int((kept.published - whole) * 1_000_000) * 1000


def _google_epitaph(attributes: Mapping[str, str], subscriptions: Names) -> dict[str, str]:
    """What Google's service says of a dead letter. Anybody can publish such attributes: nothing of them is relied on."""
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
