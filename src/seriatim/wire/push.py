"""How a message is pushed: one HTTP POST, whose status is the ack.

Rules
    - The body is JSON with the message, base64 inside, or the bare data where the subscription wants no wrapper.
    - 102, 200, 201, 202 and 204 ack. Anything else, and no answer at all, nacks. Redirections are not followed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from seriatim.errors import InvalidArgument

ACKS = frozenset({102, 200, 201, 202, 204})


class Endpoint(NamedTuple):
    """Where to post to."""

    host: str
    port: int
    path: str
    is_secure: bool

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Raises InvalidArgument unless it is an address that can be posted to."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidArgument(f"push_endpoint {url!r} is no address: {error}") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isascii() or not url.isprintable():
            raise InvalidArgument(f"push_endpoint {url!r} is no address: write http://HOST:PORT/PATH, or https://")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        secure = parts.scheme == "https"
        if " " in path:
            raise InvalidArgument(f"push_endpoint {url!r} has a space in it")
        return cls(parts.hostname, port or (443 if secure else 80), path, secure)


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
