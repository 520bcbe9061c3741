"""The operations of the admin API: which methods of ``Broker`` it offers, and under which names.

Rules
    - The names are those of the command line: ``seriatim keys why`` is ``GET keys/why``. Operations that only read are
      GETs with query parameters; others are POSTs with a JSON object, and need the role operator.
    - A check of the store may take minutes. Requests that arrive while one is running get its result.
    - Parameters and answers are derived from the signatures of ``Broker``, so the description, the server and
      ``remote`` can't disagree. Messages are formatted as on the command line (``MessageView``).
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from inspect import Parameter
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from pydantic import Field

from seriatim.engine.broker import Broker, Outgoing, PeekedMessage
from seriatim.engine.link.codec import NAMES
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import InvalidArgument, PermissionDenied

MAX_LIMIT = 10_000
"""The most rows in an answer."""

OWNER_HEADER = "Seriatim-Owner"
"""In the answer of a standby: where the owner of the store has its admin API."""


class Operation(NamedTuple):
    """A method of ``Broker`` as an operation of the API."""

    path: str
    verb: str
    changes: bool

    @property
    def summary(self) -> str:
        text = inspect.getdoc(getattr(Broker, self.verb)) or self.verb.replace("_", " ").capitalize() + "."
        return " ".join(text.split())

    def hints(self) -> dict[str, Any]:
        hints = get_type_hints(getattr(Broker, self.verb), localns=NAMES)
        if hints.get("limit"):
            hints["limit"] = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
        if hints.get("skip"):
            hints["skip"] = Annotated[int, Field(ge=0, le=MAX_LIMIT)]
        return hints

    def parameters(self) -> list[Parameter]:
        """The parameters of the method, with their types and defaults."""
        hints, found = self.hints(), inspect.signature(getattr(Broker, self.verb)).parameters
        return [
            parameter.replace(
                kind=Parameter.KEYWORD_ONLY,
                annotation=hints[name],
                default=self._default(parameter),
            )
            for name, parameter in found.items()
            if name != "self"
        ]

    def _default(self, parameter: Parameter) -> Any:
        if parameter.name == "limit" and parameter.default is None:
            return MAX_LIMIT
        # A query can't contain null: without a key it is about keyless messages. A change must name the key explicitly.
        return None if parameter.name == "key" and not self.changes else parameter.default


_LOOKING = {
    "overview": "overview",
    "topics/list": "list_topics",
    "topics/describe": "describe_topic",
    "subscriptions/list": "list_subscriptions",
    "subscriptions/describe": "describe_subscription",
    "subscriptions/stats": "stats",
    "keys/list": "list_keys",
    "keys/groups": "group_keys",
    "keys/describe": "describe_key",
    "keys/why": "explain",
    "keys/superseded": "superseded",
    "dead-letters/list": "dead_letters",
    "dead-letters/groups": "group_dead_letters",
    "dead-letters/preview": "preview_redrive",
    "snapshots/list": "list_snapshots",
    "readers/list": "list_readers",
    "store/metrics": "metrics",
    "store/health": "health",
    "store/check": "check",
}
_CHANGING = {
    "topics/create": "create_topic",
    "topics/update": "update_topic",
    "topics/delete": "delete_topic",
    "topics/retire": "retire_topic",
    "subscriptions/create": "create_subscription",
    "subscriptions/update": "update_subscription",
    "subscriptions/delete": "delete_subscription",
    "subscriptions/detach": "detach_subscription",
    "subscriptions/pause": "pause",
    "subscriptions/resume": "resume",
    "subscriptions/seek-to-message": "seek_to_message",
    "subscriptions/seek-to-time": "seek_to_time",
    "subscriptions/seek-to-snapshot": "seek_to_snapshot",
    "keys/retry": "retry_key",
    "keys/skip": "skip",
    "keys/pause": "pause_key",
    "keys/resume": "resume_key",
    "keys/dead-letter": "dead_letter",
    "messages/remove": "remove",
    "dead-letters/redrive": "redrive",
    "dead-letters/purge": "purge",
    "snapshots/create": "create_snapshot",
    "snapshots/update": "update_snapshot",
    "snapshots/delete": "delete_snapshot",
    "readers/delete": "delete_reader",
    "store/clean-up": "clean_up",
}
OPERATIONS = [
    *(Operation(path, verb, changes=False) for path, verb in _LOOKING.items()),
    *(Operation(path, verb, changes=True) for path, verb in _CHANGING.items()),
]


def checked(value: Any) -> Any:
    """An argument as its own class would have created it: options are validated there, not by the parser."""
    if not isinstance(value, TopicOptions | SubscriptionOptions):
        return value
    try:
        return type(value).from_json(value.to_json())
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"these are no options: {error}") from error


# -- messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MessageView:
    """A message. Its data is text if it is UTF-8, otherwise base64, as ``encoding`` says. Data and attributes are shown
    only to users who may see payloads."""

    id: str
    key: str | None
    data: str | None
    encoding: Literal["text", "base64"] | None
    attributes: Mapping[str, str]
    size: int
    published: datetime

    @classmethod
    def of(cls, message: PeekedMessage, *, payload: bool) -> MessageView:
        data: str | None
        encoding: Literal["text", "base64"] | None
        try:
            data, encoding = message.data.decode(), "text"
        except UnicodeDecodeError:
            data, encoding = base64.b64encode(message.data).decode(), "base64"
        if not payload:
            data, encoding = None, None
        attributes = dict(message.attributes) if payload else {}
        published = message.publish_time
        return cls(message.id, message.ordering_key, data, encoding, attributes, len(message.data), published)

    def message(self) -> PeekedMessage:
        if self.data is None:
            raise PermissionDenied("your token does not allow to see what is in messages (payloads = true)")
        data = _bytes(self.data, self.encoding or "text")
        return PeekedMessage(self.id, data, self.attributes, self.key, self.published)


@dataclass(frozen=True)
class MessageList:
    """Some messages of a topic; ``next`` is where to continue, None at the end."""

    messages: list[MessageView]
    next: str | None = None


@dataclass(frozen=True)
class NewMessage:
    """A message to publish."""

    data: str = ""
    encoding: Literal["text", "base64"] = "text"
    key: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    dedup_id: str | None = None

    @classmethod
    def of(cls, message: Outgoing) -> NewMessage:
        data = base64.b64encode(message.data).decode()
        return cls(data, "base64", message.key, dict(message.attributes or {}), message.delay, message.dedup_id)

    @cached_property
    def outgoing(self) -> Outgoing:
        return Outgoing(self.key, _bytes(self.data, self.encoding), self.attributes or None, self.delay, self.dedup_id)


def _bytes(text: str, encoding: str) -> bytes:
    try:
        return text.encode() if encoding == "text" else base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidArgument(f"the data is not {encoding}: {error}") from None


@dataclass(frozen=True)
class RedriveOutcome:
    """The result of a redrive: how many dead letters were put back, and why the others were not."""

    redriven: int
    refused: dict[str, int]
