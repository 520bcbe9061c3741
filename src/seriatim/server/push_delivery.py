"""Push subscriptions: the server posts messages to an endpoint, and the response status is the ack.

Rules
    - One message of a key is posted at a time, and up to ``MAX_CONCURRENT_POSTS`` of different keys.
    - An endpoint must respond within the ack deadline of its subscription.
    - A message that was not accepted is posted again after the backoff of the subscription's retry policy; without one after a
      tenth of a second, doubling up to a minute, so that an endpoint that is down is not hammered.
    - Code that changes a subscription calls ``follow``, which starts, changes or stops pushing according to its options.
    - A message is one HTTP POST: JSON with the message, base64 inside, or bare data where the subscription wants no wrapper.
    - 200, 201, 202 and 204 ack; the body of a response is not read. Anything else, and no answer at all, nacks. Interim answers
      (100, 102, 103) are passed over: what follows them counts.
    - Redirects are not followed, cookies are not stored, and proxies from the environment are not used. User and password in a
      URL are sent as basic authentication.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.broker import Broker
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, SeriatimError
from seriatim.server.consumers import ConsumerRegistry
from seriatim.wire.message_conversion import encode_message
from seriatim.wire.names import Names
from seriatim.wire.resource_messages import from_document
from seriatim.wire.services import PubsubMessage, Subscription

MAX_CONCURRENT_POSTS = 32
"""How many messages of a subscription are posted at the same time."""

BACKOFF = RetryPolicy()


def push_config(options: SubscriptionOptions) -> Any:
    """The push configuration of a subscription; ``push_endpoint`` is empty if it has none."""
    return from_document(Subscription, options.resource).push_config


async def require_pullable(broker: Broker, subscription: str) -> SubscriptionOptions:
    """The options of a subscription. Raises FailedPrecondition if it can't be pulled from."""
    options = (await broker.describe_subscription(subscription)).options
    if options.detached:
        raise FailedPrecondition(f"subscription {subscription!r} is detached: it receives no more messages")
    if push_config(options).push_endpoint:
        raise FailedPrecondition(
            f"subscription {subscription!r} is a push subscription: clear its push_config to pull from it"
        )
    return options


class Pushers:
    """All push subscriptions of this server."""

    def __init__(self, broker: Broker, members: ConsumerRegistry, names: Names) -> None:
        self._broker = broker
        self._members = members
        self._names = names
        self._pushers: dict[str, Pusher] = {}
        self._poster = Poster()

    async def start(self) -> None:
        for info in await self._broker.list_subscriptions():
            await self.follow(info.name)

    async def follow(self, name: str) -> None:
        """Push according to the current options of a subscription."""
        if (former := self._pushers.pop(name, None)) is not None:
            former.stop()
        try:
            options = (await self._broker.describe_subscription(name)).options
        except NotFound:
            return
        if not options.detached and push_config(options).push_endpoint:
            self._pushers[name] = Pusher(self._poster, self._members, name, self._names, options)

    def stop(self) -> None:
        for pusher in self._pushers.values():
            pusher.stop()
        self._pushers.clear()

    async def close(self) -> None:
        """Close the connections, after ``stop``."""
        await self._poster.close()


class Pusher:
    """Posts the messages of one subscription."""

    def __init__(
        self, poster: Poster, members: ConsumerRegistry, name: str, names: Names, options: SubscriptionOptions
    ) -> None:
        config = push_config(options)
        self._poster = poster
        self._endpoint = str(config.push_endpoint)
        self._is_wrapped = not config.HasField("no_wrapper")
        self._resource = names.of(name)
        self._names = names
        self._options = options
        self._tasks: set[asyncio.Task[None]] = set()
        self._members = members
        self._member = members.join(name, Consumer(self._deliver, max_messages=MAX_CONCURRENT_POSTS))

    def stop(self) -> None:
        """Stop posting; posts in progress are cancelled, and their messages redelivered."""
        self._members.leave(self._member)
        for task in self._tasks:
            task.cancel()

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        for one in delivered:
            task = asyncio.create_task(self._push(one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _push(self, one: Delivered) -> None:
        try:
            async with asyncio.timeout(self._options.ack_deadline):
                status = await self._poster.post(self._endpoint, *self._content(one))
            problem = None if status in ACKS else f"the endpoint answered {status}"
        except TimeoutError:
            problem = f"the endpoint did not answer within {self._options.ack_deadline:g} seconds"
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the message is not delivered
            problem = f"the endpoint can't be reached: {str(error) or type(error).__name__}"
        with suppress(SeriatimError):  # the lease is lost, or all of the subscription: there is nothing left to settle
            if problem is None:
                self._member.attachment.ack(one.lease)
            else:
                delay = None if self._options.retry.min_backoff else BACKOFF.backoff(one.lease.attempt)
                self._member.attachment.nack(one.lease, delay, problem)

    def _content(self, one: Delivered) -> tuple[bytes, str]:
        if not self._is_wrapped:
            return one.record.data, "application/octet-stream"
        message = PubsubMessage.FromString(encode_message(one.id, one.record, self._names))
        attempt = one.lease.attempt if self._options.dead_letter_topic is not None else None
        return wrapped(message, self._resource, attempt), "application/json"


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
        raise InvalidArgument(f"push_endpoint {url!r} is not a valid address: {error}") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in {"http", "https"} or not host or port == 0 or not is_plain:
        raise InvalidArgument(f"push_endpoint {url!r} is not a valid address: write http://HOST:PORT/PATH, or https://")
    if parts.fragment:
        raise InvalidArgument(f"push_endpoint {url!r} has a fragment: remove everything from # on")


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


KEEP_CONNECTION_S = 15.0
"""How long an idle connection is kept."""


class Poster:
    """Posts to any number of endpoints."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, content_type: str) -> int:
        """Post a body, and return the status of the response. Raises what aiohttp raises if there is none."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # No limit here: a hanging endpoint must not use up the connections of others. The callers limit their posts.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_CONNECTION_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "Seriatim"},
                timeout=aiohttp.ClientTimeout(total=None),  # callers set their own timeouts
                auto_decompress=False,
            )
        headers = {"Content-Type": content_type}
        async with self._session.post(
            URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
        ) as response:
            return response.status

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
