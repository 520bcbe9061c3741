"""Authentication and authorization of the console and its API, and protection against forged browser requests.

Rules
    - Every request needs a token, except for the login page and static files: as ``Authorization: Bearer``, or as a
      session that the login page started, in a cookie that scripts can't read and other sites can't send.
    - A request must name an allowed host; otherwise a web page could reach a loopback address under a name of its own
      (DNS rebinding). Changes must not come from another origin; with a cookie they must name ours.
    - Viewers read, operators change: every method but GET and HEAD needs an operator.
    - Bodies are limited in size and time, before authentication nearly as much as after it; so are rates and failed
      logins. (``server`` limits connections, and how long headers may take.) Browsers load nothing from other hosts.
    - Every change is logged with user, operation and outcome; the newest are kept for the page that shows them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.access_tokens import Access, Rights
from seriatim.errors import (
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    SeriatimError,
    Status,
    Unauthenticated,
)
from seriatim.log import logger

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES, MAX_LOGIN_BYTES, BODY_TIMEOUT_S = 16 * 1024 * 1024, 8 * 1024, 30.0
"""The largest message, in base64, and a little; what a login may have; and how long it may take to send either."""

REQUESTS_PER_S, REQUESTS_AT_ONCE = 50.0, 200
"""How often the holder of a token may ask, in the long run and at once."""

LOGINS_AT_ONCE, LOGINS_PER_S = 10, 0.2
"""The same for failed logins, of all together."""

MAX_SESSIONS, SESSION_S = 1_000, 12 * 3600.0
REMEMBERED_CHANGES = 1_000

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
LOGIN, STATIC = "/login", "/static/"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
HTTP_STATUS = {
    Status.INVALID_ARGUMENT: 400,
    Status.UNAUTHENTICATED: 401,
    Status.PERMISSION_DENIED: 403,
    Status.NOT_FOUND: 404,
    Status.ALREADY_EXISTS: 409,
    Status.FAILED_PRECONDITION: 409,
    Status.ABORTED: 409,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.UNIMPLEMENTED: 501,
    Status.UNAVAILABLE: 503,
    Status.DEADLINE_EXCEEDED: 504,
}


def refusal(error: SeriatimError, status: int | None = None, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error as a response of the API."""
    content = {"error": type(error).__name__, "message": error.message}
    return JSONResponse(content, status or HTTP_STATUS.get(error.code, 500), headers)


class Bucket:
    """A token bucket: a burst, and a long-term rate per second."""

    def __init__(self, at_once: float, per_second: float) -> None:
        self._size, self._rate = at_once, per_second
        self._left, self._time = at_once, asyncio.get_running_loop().time()

    def take(self) -> bool:
        now = asyncio.get_running_loop().time()
        self._left = min(self._size, self._left + (now - self._time) * self._rate)
        self._time = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(frozen=True)
class LoggedChange:
    """A change that an operator made or attempted."""

    time: datetime
    who: str
    operation: str
    arguments: Mapping[str, Any]
    outcome: str


class Gate:
    """Middleware around the whole app that rejects forbidden requests."""

    def __init__(self, app: App, access: Access, hosts: frozenset[str]) -> None:
        self._app = app
        self._access = access
        self._hosts = hosts
        self._sessions: OrderedDict[str, tuple[Rights, float]] = OrderedDict()
        self._buckets: dict[str, Bucket] = {}
        self._failures: Bucket | None = None
        self.changes: deque[LoggedChange] = deque(maxlen=REMEMBERED_CHANGES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        scope.setdefault("state", {})["gate"] = self

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                message["headers"] += [
                    (name.encode(), text.encode()) for name, text in HEADERS.items() if name.encode() not in known
                ]
            await send(message)

        try:
            found = self._refusal(request)
        except ValueError as error:  # a malformed host or origin
            found = refusal(InvalidArgument(f"malformed headers: {error}"))
        if found is not None:
            await found(scope, receive, send_with_headers)
        else:
            limit = MAX_LOGIN_BYTES if _path(request) == LOGIN else MAX_BODY_BYTES
            await self._app(scope, _bounded(receive, limit), send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The response that rejects a request, or None. Records the user of an accepted one."""
        named = urlsplit(f"//{request.headers.get('host', '')}")
        # Only a name and a port: anything else could be mistaken for a path when an address is built from it.
        if named.hostname not in self._hosts or named.netloc != request.headers["host"] or "@" in named.netloc:
            return refusal(PermissionDenied("this host name is not allowed: use the address that was printed"), 421)
        path = _path(request)
        limit = MAX_LOGIN_BYTES if path == LOGIN else MAX_BODY_BYTES
        if _size(request) > limit:
            return refusal(ResourceExhausted(f"a request has at most {limit} bytes"), 413)
        changes = request.method not in {"GET", "HEAD"}
        if changes and not self._is_own(request):
            return refusal(PermissionDenied("a change must come from the console itself: this is another origin"))
        if path == LOGIN or path.startswith(STATIC):
            return None
        try:
            rights = self._rights(request)
        except SeriatimError as error:
            if "text/html" in request.headers.get("accept", "") and not changes:
                return RedirectResponse(f"{request.scope.get('root_path', '')}/login?to={_quoted(request)}", 303)
            return refusal(error, headers={"WWW-Authenticate": "Bearer"})
        request.state.rights = rights
        if changes and not rights.may_operate:
            return refusal(PermissionDenied(f"{rights.name!r} may look, not change: this needs the role operator"))
        if not self._buckets.setdefault(rights.name, Bucket(REQUESTS_AT_ONCE, REQUESTS_PER_S)).take():
            return refusal(ResourceExhausted("too many requests: slow down"), headers={"Retry-After": "1"})
        return None

    def _rights(self, request: Request) -> Rights:
        if (authorization := request.headers.get("authorization")) is not None:
            rights = self._authenticate([("authorization", authorization)])
        else:
            session = self._sessions.get(_cookie(request))
            if session is None or _now() - session[1] > SESSION_S:
                raise Unauthenticated("missing or invalid credentials: send a token (authorization: Bearer TOKEN)")
            rights = session[0]
        if not rights.may_view:
            raise PermissionDenied(f'the token of {rights.name!r} has no role here: give it console = "viewer"')
        return rights

    def _authenticate(self, credentials: list[tuple[str, str]]) -> Rights:
        self._failures = self._failures or Bucket(LOGINS_AT_ONCE, LOGINS_PER_S)
        try:
            return self._access.authenticate(credentials)
        except Unauthenticated:
            if not self._failures.take():
                raise ResourceExhausted("too many failed attempts: wait a minute") from None
            raise

    def _is_own(self, request: Request) -> bool:
        origin = request.headers.get("origin")
        if origin is None:  # browsers always send it with a change
            return not _cookie(request)
        return urlsplit(origin).netloc == request.headers.get("host") and urlsplit(origin).scheme == request.url.scheme

    # -- sessions -------------------------------------------------------------------------------------------------------

    def log_in(self, request: Request, token: str, response: Response) -> None:
        """Start a session, or raise Unauthenticated."""
        rights = self._authenticate([("authorization", f"Bearer {token}")])
        if not rights.may_view:
            raise PermissionDenied(f'the token of {rights.name!r} has no role here: give it console = "viewer"')
        session = secrets.token_urlsafe(32)
        self._sessions[session] = (rights, _now())
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        response.set_cookie(
            cookie_name(request),
            session,
            max_age=int(SESSION_S),
            path=request.scope.get("root_path", "") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def log_out(self, request: Request, response: Response) -> None:
        self._sessions.pop(_cookie(request), None)
        response.delete_cookie(cookie_name(request), path=request.scope.get("root_path", "") or "/")

    # -- changes --------------------------------------------------------------------------------------------------------

    async def carry_out(
        self, request: Request, operation: str, arguments: Mapping[str, Any], work: Awaitable[Any]
    ) -> Any:
        """Carry out an operator's change, and log it with user, operation and outcome."""
        who, outcome = request.state.rights.name, "cancelled"
        try:
            answer = await work
            outcome = "done"
            return answer
        except SeriatimError as error:
            outcome = f"refused: {error.message}"
            raise
        finally:
            named = {name: _shown(value) for name, value in arguments.items() if value is not None}
            request.app.state.console.looks.clear()
            self.changes.append(LoggedChange(datetime.now(UTC), who, operation, named, outcome))
            fields = {"who": who, "operation": operation, "arguments": named, "outcome": outcome}
            logger.warning("console: %s: %s %s: %s", who, operation, named, outcome, extra=fields)


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, str | RetryPolicy) else str(value)
    text = text[:201].encode(errors="replace").decode()  # lone surrogates can't be encoded
    return text if len(text) <= 200 else f"{text[:200]}…"


def cookie_name(request: Request) -> str:
    """The cookie's name. A host's cookies are shared by its ports, so each console has its own name."""
    return f"seriatim-{request.url.port or 'console'}"


def _cookie(request: Request) -> str:
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(cookie_name(request))
    except CookieError:
        return ""
    return "" if found is None else found.value


def _quoted(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return quote(f"{request.url.path}{query}", safe="")


def _size(request: Request) -> int:
    length = request.headers.get("content-length", "0")
    return int(length) if length.isascii() and length.isdecimal() else 0


def _path(request: Request) -> str:
    """The path used for routing, below where the console is mounted."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def _bounded(receive: Receive, limit: int) -> Receive:
    """A body is cut off when it becomes too large or takes too long."""
    size, is_whole, deadline = 0, False, _now() + BODY_TIMEOUT_S

    async def receive_bounded() -> Message:
        nonlocal size, is_whole
        if is_whole:  # later messages only report a disconnect
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        size += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        return message if size <= limit else {"type": "http.disconnect"}

    return receive_bounded


def _now() -> float:
    return asyncio.get_running_loop().time()
