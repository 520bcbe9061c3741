"""Authentication and authorization: bearer tokens with rights to publish and to subscribe, per topic.

Rules
    - A call carries ``authorization: Bearer TOKEN``. Without a known token it is UNAUTHENTICATED; without the necessary right
      it is PERMISSION_DENIED, whether the resource exists or not.
    - ``publish`` and ``subscribe`` are lists of topics, in which ``*`` matches anything. To subscribe is to pull and settle
      messages of a topic's subscriptions, not to create them: everything else requires ``admin``. A deleted topic keeps its
      name here as long as it has subscriptions.
    - What tokens are, and what else they allow, is in ``engine.access_tokens``.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from seriatim.engine.access_tokens import Access, Rights
from seriatim.engine.broker import Broker, former_name
from seriatim.errors import InvalidArgument, NotFound, PermissionDenied
from seriatim.server.resources import Resources

MAX_NAME_LENGTH = 512

_PUBLISHING = frozenset({"Publish", "GetTopic"})
_SUBSCRIBING = frozenset({"Pull", "StreamingPull", "Acknowledge", "ModifyAckDeadline", "GetSubscription"})


class Authorizer:
    """Decides which calls are allowed."""

    def __init__(self, access: Access, broker: Broker, resources: Resources) -> None:
        self.authenticate = access.authenticate
        self._broker = broker
        self._resources = resources

    async def check(self, rights: Rights, method: str, request: Any) -> None:
        """Raise unless a call is allowed."""
        if rights.admin:
            return
        is_allowed = method == "GetAdminAddress" and rights.may_view
        if method in _PUBLISHING:
            is_allowed = _matches(request.topic, rights.publish)
        elif method in _SUBSCRIBING:
            is_allowed = _matches(await self._topic_of(request.subscription), rights.subscribe)
        if not is_allowed:
            raise PermissionDenied(f"the token of {rights.name!r} does not allow {method} on that resource")

    async def _topic_of(self, subscription: str) -> str:
        """The topic of a subscription, under its former name if it was deleted. Empty if the name is not known any more, or if
        there is no such subscription, which callers without the right must not learn."""
        try:
            name = self._resources.subscriptions.in_store(subscription)
            topic = former_name((await self._broker.describe_subscription(name)).topic)
        except (InvalidArgument, NotFound):
            return ""
        return "" if topic is None else self._resources.topics.of(topic)


def _matches(topic: str, patterns: tuple[str, ...]) -> bool:
    """A name that is too long for a topic matches nothing, at no cost."""
    return len(topic) <= MAX_NAME_LENGTH and any(fnmatchcase(topic, pattern) for pattern in patterns)
