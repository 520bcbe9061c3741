"""A broker behind the admin API: ``http://HOST:PORT``, for the command line.

Rules
    - It supports the operations of ``operations``; every other method raises NotSupported.
    - A call without an answer may have taken effect: no call is repeated automatically. Redirects and proxies are
      ignored.
    - A token is sent to the address that was given. To an address that was only advertised (``advertised=True``) it is
      sent only over TLS, after the certificate was verified.
    - A standby has done nothing, and names the owner of the store: the owner is asked instead, if it uses TLS.
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import os
import shutil
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any
from urllib.parse import unquote, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError

from seriatim.console.operations import MAX_LIMIT, OPERATIONS, OWNER_HEADER, MessageList, NewMessage
from seriatim.engine.broker import Broker, MessagePage, Outgoing, PeekedMessage, SubscriptionInfo, TopicInfo
from seriatim.engine.link.frames import error_of
from seriatim.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotSupported,
    OutcomeUnknown,
    Unauthenticated,
)

TIMEOUT_S, LONG_TIMEOUT_S = 60.0, 3600.0
LONG = {"store/backup", "store/check", "store/clean-up"}
"""What takes the longer the larger the store is."""

_PATHS = {operation.verb: operation for operation in OPERATIONS}


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """The address of an admin API: ``http://HOST:PORT/PATH?token=…&ca=FILE``. Errors never repeat it, because of the
    token."""

    host: str
    port: int
    path: str
    is_secure: bool
    token: str | None = field(default=None, repr=False)
    ca: str | None = None

    @classmethod
    def parse(cls, url: str) -> ApiAddress:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or "@" in parts.netloc or parts.fragment:
            raise InvalidArgument("this is not the address of an admin API: write http://HOST:PORT")
        given = dict(one.partition("=")[::2] for one in parts.query.split("&")) if parts.query else {}
        if unknown := given.keys() - {"token", "ca"}:
            raise InvalidArgument(f"the address of an admin API knows token and ca, not {sorted(unknown)[0][:20]!r}")
        secure = parts.scheme == "https"
        token, ca = (unquote(given[name]) if name in given else None for name in ("token", "ca"))
        path = parts.path.rstrip("/").removesuffix("/login")  # the console prints this URL to open
        return cls(host, port or (443 if secure else 80), path, secure, token, ca)


class ApiBroker(Broker):
    """The ``Broker`` of an admin API."""

    def __init__(
        self, address: ApiAddress, token: str | None = None, ca: str | None = None, *, advertised: bool = False
    ) -> None:
        self._address = address
        token = address.token or token
        if token is None:
            raise Unauthenticated(
                "the admin API needs a token: set SERIATIM_CONSOLE_TOKEN, or add ?token=… to its address"
            )
        if advertised and not address.is_secure:
            raise FailedPrecondition(
                f"the store's owner says that its admin API is at {self._authority()}, without TLS to prove it: your token was "
                "not sent there. If you trust that address, name it yourself with --store"
            )
        if not (token.isascii() and token.isprintable()):
            raise InvalidArgument("the token has characters that can't be sent: use printable ASCII")
        self._token = token
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._ca = address.ca or ca
        self._context = _context(self._ca) if address.is_secure else None
        self._is_advertised = advertised

    def _authority(self) -> str:
        return f"{'https' if self._address.is_secure else 'http'}://{self._address.host}:{self._address.port}"

    def unsupported(self, verb: str) -> NotSupported:
        what = "deliver messages" if verb == "attach" else verb.replace("_", " ")
        look = "; 'keys peek' and 'messages read' work here" if verb == "attach" else ""
        return NotSupported(
            f"the admin API can't {what}: use the server's pubsub://HOST:PORT/PROJECT, or the store itself{look}"
        )

    async def close(self) -> None:
        """No connection stays open."""

    # -- methods that need translation ----------------------------------------------------------------------------------

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[Sequence[str]]:
        sent = {"topic": topic, "messages": [_plain(NewMessage.of(message)) for message in messages]}
        return asyncio.ensure_future(self._ask("messages/publish", list[str], sent))

    async def peek(self, subscription: str, key: str | None, limit: int = 10) -> list[PeekedMessage]:
        asked = {"subscription": subscription, "key": key, "limit": limit}
        found: MessageList = await self._ask("keys/peek", MessageList, query=asked)
        return [view.message() for view in found.messages]

    async def read_messages(
        self, topic: str, *, start: str = "0", limit: int = 100, key: str | None = None
    ) -> MessagePage:
        asked = {"topic": topic, "start": start, "limit": limit, "key": key}
        found: MessageList = await self._ask("messages/read", MessageList, query=asked)
        return MessagePage([view.message() for view in found.messages], found.next)

    async def list_topics(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[TopicInfo]:
        found: list[TopicInfo] = await self._all_pages("topics/list", limit, prefix=prefix, after=after)
        return found

    async def list_subscriptions(
        self, *, topic: str | None = None, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[SubscriptionInfo]:
        found: list[SubscriptionInfo] = await self._all_pages(
            "subscriptions/list", limit, topic=topic, prefix=prefix, after=after
        )
        return found

    async def _all_pages(self, path: str, limit: int | None, **asked: Any) -> list[Any]:
        kind = next(operation.hints()["return"] for operation in OPERATIONS if operation.path == path)
        found: list[Any] = []
        while limit is None or len(found) < limit:
            size = MAX_LIMIT if limit is None else min(limit - len(found), MAX_LIMIT)
            page = await self._ask(path, kind, query={**asked, "limit": size})
            found += page
            if len(page) < size:
                break
            asked["after"] = page[-1].name
        return found

    async def backup(self, path: str) -> None:
        """Download a copy of the store, in chunks."""
        await asyncio.to_thread(self._download, path)

    def _download(self, path: str) -> None:
        """Download to a temporary file that only this user can read, and rename it when it is complete."""
        goal = Path(path).absolute()
        try:
            if goal.exists():
                raise FileExistsError
            with NamedTemporaryFile(prefix=".seriatim-", suffix=".partial", dir=goal.parent) as file:
                self._request("POST", "store/backup", b"{}", file)
                file.flush()
                os.fsync(file.fileno())
                os.link(file.name, goal)
            folder = os.open(goal.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # makes the name as durable as the content
            finally:
                os.close(folder)
        except FileExistsError:
            raise AlreadyExists(f"'{path}' already exists: choose another name for the backup") from None
        except OSError as error:
            raise FailedPrecondition(f"the backup '{path}' can't be written: {error.strerror}") from error

    # -- requests -------------------------------------------------------------------------------------------------------

    async def _call(self, verb: str, arguments: Mapping[str, Any]) -> Any:
        operation = _PATHS[verb]
        kind = operation.hints()["return"]
        if operation.changes:
            return await self._ask(operation.path, kind, {name: _plain(value) for name, value in arguments.items()})
        return await self._ask(operation.path, kind, query=arguments)

    async def _ask(self, path: str, kind: Any, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        asked = {name: _query(value) for name, value in (query or {}).items() if value is not None}
        where = f"{path}?{urlencode(asked, doseq=True)}" if asked else path
        data = None if body is None else json.dumps(body).encode()
        text = await asyncio.to_thread(self._request, "GET" if body is None else "POST", where, data)
        try:
            return _adapter(kind).validate_json(text)
        except ValidationError as error:
            raise OutcomeUnknown(
                "what answered is no admin API, or one of another version: its answer is not in the form that was expected"
            ) from error

    def _request(self, method: str, where: str, body: bytes | None, into: IO[bytes] | None = None) -> bytes:
        """Return the answer. The body of a large one is written ``into`` a file instead."""
        address, timeout = self._address, LONG_TIMEOUT_S if where in LONG else TIMEOUT_S
        if self._context is None:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(address.host, address.port, timeout=timeout, context=self._context)
        try:
            connection.request(method, f"{address.path}/api/v1/{where}", body, self._headers)
            answer = connection.getresponse()
            if into is not None and answer.status == 200:
                shutil.copyfileobj(answer, into)
                if answer.length:  # http.client does not report a truncated body
                    raise http.client.IncompleteRead(b"", answer.length)
            text = answer.read()
        except ssl.SSLCertVerificationError as error:
            raise FailedPrecondition(
                f"{self._authority()} did not prove who it is, and your token was not sent: {error.verify_message}; name the "
                "certificate's authority with ?ca=FILE"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise OutcomeUnknown(f"no answer from the admin API at {self._authority()}: {error}") from error
        finally:
            connection.close()
        if answer.status == 200:
            return text
        owner = answer.getheader(OWNER_HEADER, "")
        if answer.status == 503 and owner.startswith("https://") and not self._is_advertised:
            followed = ApiBroker(ApiAddress.parse(owner), self._token, self._ca, advertised=True)
            return followed._request(method, where, body, into)
        try:
            told = json.loads(text)
            raise error_of(told["error"], told["message"])
        except (ValueError, KeyError, TypeError):
            raise OutcomeUnknown(f"{self._authority()} is no admin API: it answered {answer.status}") from None


def _calling(verb: str) -> Any:
    signature = inspect.signature(getattr(Broker, verb))

    async def call(self: ApiBroker, *given: Any, **named: Any) -> Any:
        bound = signature.bind(self, *given, **named).arguments
        del bound["self"]
        return await self._call(verb, bound)

    return call


for _verb in _PATHS.keys() - vars(ApiBroker).keys():
    setattr(ApiBroker, _verb, _calling(_verb))


def open_api(url: str, token: str | None = None, ca: str | None = None, *, advertised: bool = False) -> Broker:
    """The broker at an ``http://`` or ``https://`` address. It connects on the first call."""
    return ApiBroker(ApiAddress.parse(url), token, ca, advertised=advertised)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return TypeAdapter(type(value)).dump_python(value, mode="json")
    return list(value) if isinstance(value, tuple) else value


def _query(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _context(ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the certificates in '{ca}' can't be used: {error}") from error
