"""Push subscriptions: the server posts messages to an endpoint, and takes the answer for the ack.

Rules
    - One message of a key is posted at a time, as always; up to ``AT_ONCE`` of different keys.
    - An endpoint has as long to answer as a lease of its subscription lasts.
    - A message that was not taken comes again after the backoff of the subscription's retry policy; without one after a tenth
      of a second, then twice that, up to a minute, so that an endpoint that is down is not hammered.
    - Whoever changes a subscription calls ``follow``: pushing begins, changes or ends with its options.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from seriatim.core.delivery import RetryPolicy
from seriatim.engine.broker import Broker
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import FailedPrecondition, NotFound, SeriatimError
from seriatim.server.consumers import Members
from seriatim.server.posting import Poster
from seriatim.wire.documents import from_document
from seriatim.wire.messages import fill
from seriatim.wire.names import Names
from seriatim.wire.push import ACKS, wrapped
from seriatim.wire.services import PubsubMessage, Subscription

AT_ONCE = 32
"""So many messages of a subscription are posted at the same time at most."""

BACKOFF = RetryPolicy(min_backoff=0.1, max_backoff=60.0)


def push_config(options: SubscriptionOptions) -> Any:
    """How a subscription is pushed; its ``push_endpoint`` is empty if it is not."""
    return from_document(Subscription, options.resource).push_config


async def require_pullable(broker: Broker, subscription: str) -> SubscriptionOptions:
    """The options of a subscription from which messages can be taken."""
    options = (await broker.describe_subscription(subscription)).options
    if options.detached:
        raise FailedPrecondition(f"subscription {subscription!r} is detached: it gets no messages any more")
    if push_config(options).push_endpoint:
        raise FailedPrecondition(f"subscription {subscription!r} is pushed: clear its push_config to pull from it")
    return options


class Pushers:
    """Everything that is pushed at this server."""

    def __init__(self, broker: Broker, members: Members, names: Names) -> None:
        self._broker = broker
        self._members = members
        self._names = names
        self._pushers: dict[str, Pusher] = {}
        self._poster = Poster()

    async def start(self) -> None:
        for info in await self._broker.list_subscriptions():
            await self.follow(info.name)

    async def follow(self, name: str) -> None:
        """Push as the options of a subscription say now."""
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
        """Give back the connections, after ``stop``."""
        await self._poster.close()


class Pusher:
    """Posts the messages of one subscription."""

    def __init__(self, poster: Poster, members: Members, name: str, names: Names, options: SubscriptionOptions) -> None:
        config = push_config(options)
        self._poster = poster
        self._endpoint = str(config.push_endpoint)
        self._is_wrapped = not config.HasField("no_wrapper")
        self._resource = names.of(name)
        self._names = names
        self._options = options
        self._tasks: set[asyncio.Task[None]] = set()
        self._members = members
        self._member = members.join(name, Consumer(self._deliver, max_messages=AT_ONCE))

    def stop(self) -> None:
        """Post nothing more; what is under way is broken off, and given out again."""
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
            self._settle(one, problem)

    def _settle(self, one: Delivered, problem: str | None) -> None:
        if problem is None:
            self._member.attachment.ack(one.lease)
        else:
            self._member.attachment.nack(one.lease, self._delay(one.lease.attempt), problem)

    def _delay(self, attempt: int) -> float | None:
        return None if self._options.retry.min_backoff else BACKOFF.backoff(attempt)

    def _content(self, one: Delivered) -> tuple[bytes, str]:
        if not self._is_wrapped:
            return one.record.data, "application/octet-stream"
        message = PubsubMessage()
        fill(message, one.record, self._names)
        attempt = one.lease.attempt if self._options.dead_letter_topic is not None else None
        return wrapped(message, self._resource, attempt), "application/json"
