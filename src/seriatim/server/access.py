"""Who may do what: bearer tokens with rights to publish and to subscribe, per topic.

Rules
    - A call carries ``authorization: Bearer TOKEN``. Without a token that is known it is UNAUTHENTICATED; with one that has not
      the right it is PERMISSION_DENIED, whether the thing exists or not.
    - ``publish`` and ``subscribe`` are lists of topics, in which ``*`` stands for anything. To subscribe is to take and settle
      messages of the subscriptions of a topic, not to make them: everything else is for those with ``admin``. A topic that is
      deleted keeps its name here, as long as it has subscriptions.
    - ``metrics`` is the right to see the server's figures, where it answers Prometheus.
    - Tokens are kept as digests, and looked up by them, so that the time it takes says nothing about a token.
    - A file of tokens that others can read is refused.
"""

from __future__ import annotations

import hashlib
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from seriatim.engine.broker import Broker, former_name
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from seriatim.server.resources import Resources

MAX_NAME_LENGTH = 512

_PUBLISHING = {"Publish": "topic", "GetTopic": "topic"}
_SUBSCRIBING = dict.fromkeys(
    ("Pull", "StreamingPull", "Acknowledge", "ModifyAckDeadline", "GetSubscription"), "subscription"
)


@dataclass(frozen=True, slots=True)
class Rights:
    """What the holder of a token may do."""

    name: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: bool = False
    metrics: bool = False


class Access:
    """The tokens that a server knows."""

    def __init__(self, rights: Mapping[bytes, Rights]) -> None:
        self._rights = rights

    @classmethod
    def load(cls, path: Path) -> Access:
        """Read a TOML file with a table for each token."""
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise FailedPrecondition(f"others can read the tokens in '{path}': chmod 600 '{path}'")
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidArgument(f"the tokens can't be read: {error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"'{path}' is not valid TOML: {error}") from error
        rights: dict[bytes, Rights] = {}
        for name, table in tables.items():
            digest, found = _entry(path, name, table)
            if digest in rights:
                raise InvalidArgument(
                    f"'{path}': [{name}] has the same token as [{rights[digest].name}]: give each its own"
                )
            rights[digest] = found
        return cls(rights)

    def who(self, metadata: Any) -> Rights:
        """Whose call it is."""
        for key, value in metadata or ():
            scheme, _, token = str(value).partition(" ")
            if key == "authorization" and scheme.lower() == "bearer" and (found := self._rights.get(_digest(token))):
                return found
        raise Unauthenticated("this server wants a bearer token that it knows: authorization: Bearer TOKEN")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


_KNOWN = {field.name for field in fields(Rights)} - {"name"} | {"token"}


def _entry(path: Path, name: str, table: Any) -> tuple[bytes, Rights]:
    token = table.get("token") if isinstance(table, dict) else None
    if not isinstance(token, str) or not token:
        raise InvalidArgument(f"'{path}': [{name}] needs a token: token = \"…\"")
    if unknown := table.keys() - _KNOWN:
        raise InvalidArgument(
            f"'{path}': [{name}] has {', '.join(sorted(unknown))}; known are {', '.join(sorted(_KNOWN))}"
        )
    topics = {right: table.get(right, []) for right in ("publish", "subscribe")}
    for right, listed in topics.items():
        if not isinstance(listed, list) or not all(isinstance(topic, str) for topic in listed):
            raise InvalidArgument(f"'{path}': {right} of [{name}] is a list of topics: [\"projects/PROJECT/topics/*\"]")
    flags = {right: table.get(right, False) for right in ("admin", "metrics")}
    for right, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidArgument(f"'{path}': {right} of [{name}] is true or false")
    return _digest(token), Rights(name, tuple(topics["publish"]), tuple(topics["subscribe"]), **flags)


class Gate:
    """Lets calls through, or not."""

    def __init__(self, access: Access, broker: Broker, resources: Resources) -> None:
        self._access = access
        self._broker = broker
        self._resources = resources

    def who(self, metadata: Any) -> Rights:
        """Whose call it is, by its headers alone."""
        return self._access.who(metadata)

    async def check(self, rights: Rights, method: str, request: Any) -> None:
        """Raise unless a call is allowed."""
        if not rights.admin and not await self._may(rights, method, request):
            raise PermissionDenied(f"the token of {rights.name!r} does not allow {method} there")

    async def _may(self, rights: Rights, method: str, request: Any) -> bool:
        if (field := _PUBLISHING.get(method)) is not None:
            return _matches(getattr(request, field), rights.publish)
        if (field := _SUBSCRIBING.get(method)) is not None:
            return _matches(await self._topic_of(getattr(request, field)), rights.subscribe)
        return False

    async def _topic_of(self, subscription: str) -> str:
        """The topic of a subscription, by the name that it had if it is deleted; nothing when there is no such subscription, so
        that nobody learns that, and when the name is not known any more."""
        try:
            name = self._resources.subscriptions.in_store(subscription)
            topic = former_name((await self._broker.describe_subscription(name)).topic)
        except (InvalidArgument, NotFound):
            return ""
        return "" if topic is None else self._resources.topics.of(topic)


def _matches(topic: str, patterns: tuple[str, ...]) -> bool:
    """A name that is too long for a topic matches nothing, and costs nothing."""
    return len(topic) <= MAX_NAME_LENGTH and any(fnmatchcase(topic, pattern) for pattern in patterns)
