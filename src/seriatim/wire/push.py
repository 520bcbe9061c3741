"""How a message is pushed: one HTTP POST, whose status is the ack.

Rules
    - The body is JSON with the message, base64 inside, or the bare data where the subscription wants no wrapper.
    - 200, 201, 202 and 204 ack. Anything else, and no answer at all, nacks. Redirections are not followed. Interim answers
      (100, 102, 103) are passed over: what follows them counts.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from seriatim.errors import InvalidArgument

ACKS = frozenset({200, 201, 202, 204})

MAX_ENDPOINT_LENGTH = 2048


def check_endpoint(url: str) -> None:
    """Raise InvalidArgument unless it is an address that can be posted to."""
    if len(url) > MAX_ENDPOINT_LENGTH:
        raise InvalidArgument(f"push_endpoint has {len(url)} characters: {MAX_ENDPOINT_LENGTH} are allowed")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(f"push_endpoint {url!r} is no address: {error}") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in {"http", "https"} or not host or port == 0 or not is_plain:
        raise InvalidArgument(f"push_endpoint {url!r} is no address: write http://HOST:PORT/PATH, or https://")
    if parts.fragment:
        raise InvalidArgument(
            f"push_endpoint {url!r} has a fragment, which can't be posted to: leave out what follows #"
        )


def wrapped(message: Any, subscription: str, attempt: int | None) -> bytes:
    """The body of a push: a PubsubMessage as JSON, each name in both of the ways that receivers read."""
    published = datetime.fromtimestamp(message.publish_time.seconds, UTC).replace(
        microsecond=message.publish_time.nanos // 1000
    )
    stamp = published.isoformat(timespec="microseconds").replace("+00:00", "Z")
    content: dict[str, Any] = {"data": b64encode(message.data).decode("ascii")}
    content |= {"messageId": message.message_id, "message_id": message.message_id}
    content |= {"publishTime": stamp, "publish_time": stamp}
    if message.attributes:
        content["attributes"] = dict(message.attributes)
    if message.ordering_key:
        content |= {"orderingKey": message.ordering_key, "ordering_key": message.ordering_key}
    body: dict[str, Any] = {"message": content, "subscription": subscription}
    if attempt is not None:
        body["deliveryAttempt"] = attempt
    return json.dumps(body).encode()
