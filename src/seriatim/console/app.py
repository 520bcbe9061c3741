"""The app: the admin API, described by OpenAPI, and the pages of the console on top of it.

FastAPI generates the description from the types of the engine's own classes (``operations``). Everything here works on
a ``Broker``, whether it is the engine of this process or a link to the one that owns the store.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import Response

from seriatim.console.operations import (
    MAX_LIMIT,
    OPERATIONS,
    OWNER_HEADER,
    MessageList,
    MessageView,
    NewMessage,
    Operation,
    RedriveOutcome,
    checked,
)
from seriatim.console.pages import add_pages, problem_page
from seriatim.console.samples import Looks, Sampler
from seriatim.console.security import LOOPBACK_HOSTS, Gate, LoggedChange, Receive, Scope, Send, refusal
from seriatim.engine.access_tokens import Access
from seriatim.engine.broker import Broker
from seriatim.engine.reported_status import (
    AuditStatus,
    HostStatus,
    PipelineStatus,
    left_report,
    left_statuses,
    request_rebirth,
)
from seriatim.errors import InvalidArgument, NotFound, PermissionDenied, RedriveRefused, SeriatimError, StoreBusy

API = "/api/v1"
TICK_S = 2.0
"""How often an open page is told to look again."""

MAX_OPEN_PAGES, MAX_PAGES_OF_ONE = 50, 25
STANDING_BY = "this process stands by and does not own the store"
REDRIVEN_AT_ONCE = 100
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"


class Console:
    """The console and its API as an ASGI app. ``hosts`` are the host names that requests may use. Without a broker it
    answers 503 and names the owner of the store."""

    def __init__(self, broker: Broker | None, access: Access, *, hosts: frozenset[str] = LOOPBACK_HOSTS) -> None:
        self.broker = broker
        self.find_owner: Callable[[], str | None] = lambda: None  # asked in a thread while there is no broker
        self.sampler, self.looks = Sampler(self), Looks()
        self.open_pages = Counter[str]()  # by token name
        self._is_stopping = asyncio.Event()
        app = FastAPI(
            title="Seriatim admin API",
            description="Topics, subscriptions, keys and dead letters of a store, seen and steered.",
            version="1",
            docs_url=None,
            redoc_url=None,
            openapi_url=f"{API}/openapi.json",
            exception_handlers={
                SeriatimError: _on_error,
                RequestValidationError: _on_invalid,
                HTTPException: _on_http_error,
            },
        )
        app.state.console = self
        _add_api(app)
        add_pages(app)
        app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
        self.app = app
        self.gate = Gate(app, access, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gate(scope, receive, send)

    def require_broker(self) -> Broker:
        """The engine. Raises StoreBusy while this process is on standby."""
        if self.broker is None:
            raise StoreBusy(STANDING_BY)
        self.sampler.start()
        return self.broker

    def stop_pages(self) -> None:
        """End the event streams of open pages."""
        self._is_stopping.set()

    async def close(self) -> None:
        """Stop collecting samples."""
        await self.sampler.stop()

    async def ticks(self) -> AsyncIterator[None]:
        """Yields every two seconds until the console is stopped."""
        while not self._is_stopping.is_set():
            yield
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), TICK_S)


def mount(
    app: Starlette, broker: Broker, access: Access, path: str = "/seriatim", *, hosts: frozenset[str] = LOOPBACK_HOSTS
) -> Console:
    """Serve the console and its API below ``path`` of your own app. ``hosts``: the host names that requests may use."""
    console = Console(broker, access, hosts=hosts)
    app.mount(path, console)
    return console


def broker_of(request: Request) -> Broker:
    console: Console = request.app.state.console
    return console.require_broker()


def gate_of(request: Request) -> Gate:
    gate: Gate = request.state.gate
    return gate


# -- errors -----------------------------------------------------------------------------------------------------------


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SeriatimError)
    console: Console = request.app.state.console
    if console.broker is not None:
        return _told(request, error)
    owner = None
    with suppress(SeriatimError):  # the store can't be read either
        owner = await asyncio.to_thread(console.find_owner)
    answer = _told(request, StoreBusy(f"{STANDING_BY}; its owner is at {owner}" if owner else STANDING_BY))
    if owner:
        answer.headers[OWNER_HEADER] = owner
    return answer


def _told(request: Request, error: SeriatimError, status: int | None = None) -> Response:
    """The response for an error: JSON for programs, a page for browsers."""
    answer = refusal(error, status)
    is_page = API not in request.url.path and "text/html" in request.headers.get("accept", "")
    return problem_page(request, error.message, answer.status_code) if is_page else answer


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()[:5])
    return _told(request, InvalidArgument(said.encode(errors="replace").decode()), 422)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = NotFound if error.status_code == 404 else InvalidArgument
    return _told(request, kind(str(error.detail)), error.status_code)


# -- operations -------------------------------------------------------------------------------------------------------


def _add_api(app: FastAPI) -> None:
    """Add the operations to the app itself: FastAPI would prepare those of a router during the first request, for which
    delivery would wait."""
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": what, "content": {"application/json": {"schema": _ERROR}}}
        for status, what in _ERRORS.items()
    }
    for operation in OPERATIONS:
        app.add_api_route(
            f"{API}/{operation.path}",
            _endpoint(operation),
            methods=["POST" if operation.changes else "GET"],
            response_model=operation.hints()["return"],
            responses=errors,
            summary=operation.summary.partition(". ")[0],
            description=operation.summary,
            tags=[operation.path.partition("/")[0]],
            name=operation.path,
            operation_id=operation.verb,
        )
    for path, function, method in _OTHERS:
        app.add_api_route(
            f"{API}/{path}",
            function,
            methods=[method],
            responses=errors,
            tags=[path.partition("/")[0]],
            operation_id=function.__name__,
        )


_ERROR = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
}
_ERRORS = {
    400: "An argument can never work",
    401: "Missing or invalid credentials",
    403: "Not allowed with this token, or from this origin",
    404: "It does not exist",
    409: "Not possible as things are",
    413: "Too large",
    421: "This host name is not allowed",
    422: "An argument has the wrong form",
    429: "Too much at once",
    503: "This process does not own the store",
}


def _endpoint(operation: Operation) -> Any:
    """A function that has the parameters of a broker's method, for FastAPI."""

    async def call(request: Request, **given: Any) -> Any:
        arguments = {name: checked(value) for name, value in given.items()}
        verb = getattr(broker_of(request), operation.verb)
        if operation.changes:
            return await gate_of(request).carry_out(request, operation.path, arguments, verb(**arguments))
        looks: Looks = request.app.state.console.looks
        if operation.verb == "check":
            return await looks.share(operation.path, verb, who=operation.path)
        return await looks.take_turn(request.state.rights.name, lambda: verb(**arguments))

    request = Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request)
    place: Any = Body(embed=True) if operation.changes else Query()
    own = [one.replace(annotation=Annotated[one.annotation, place]) for one in operation.parameters()]
    call.__signature__ = Signature([request, *own])  # type: ignore[attr-defined]
    return call


def _require_payloads(request: Request) -> None:
    rights = request.state.rights
    if not rights.may_see_payloads:
        raise PermissionDenied(f"the token of {rights.name!r} does not allow to see payloads")


async def peek(
    request: Request,
    subscription: str,
    key: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 10,
) -> MessageList:
    """The first messages of a key, in order, without delivering them; without a key, those that have none."""
    found = await broker_of(request).peek(subscription, key, limit)
    payload = request.state.rights.may_see_payloads
    return MessageList([MessageView.of(message, payload=payload) for message in found])


async def read_messages(
    request: Request,
    topic: str,
    start: str = "0",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    key: str | None = None,
) -> MessageList:
    """Messages of a topic starting at an id, of one key or of all, whether delivered or not."""
    page = await broker_of(request).read_messages(topic, start=start, limit=limit, key=key)
    payload = request.state.rights.may_see_payloads
    return MessageList([MessageView.of(message, payload=payload) for message in page.messages], page.next)


async def publish(
    request: Request,
    topic: Annotated[str, Body()],
    messages: Annotated[list[NewMessage], Body(max_length=1000)],
) -> list[str]:
    """Publish messages, all or none of them, and return their ids."""
    outgoing = [message.outgoing for message in messages]
    broker = broker_of(request)

    async def work() -> list[str]:
        return list(await broker.publish(topic, outgoing))

    said = {"topic": topic, "messages": len(messages)}
    ids: list[str] = await gate_of(request).carry_out(request, "messages/publish", said, work())
    return ids


async def redrive_all(
    request: Request,
    subscription: Annotated[str, Body()],
    message_ids: Annotated[list[str] | None, Body(max_length=MAX_LIMIT)] = None,
    error: Annotated[str | None, Body()] = None,
    append: Annotated[bool, Body()] = False,
) -> RedriveOutcome:
    """Redrive dead letters: these, those of a group, or all (at most 10,000 at a time)."""
    broker = broker_of(request)

    async def work() -> RedriveOutcome:
        ids = message_ids
        if ids is None:
            ids = [one.id for one in await broker.dead_letters(subscription, limit=MAX_LIMIT, error=error)]
        redriven, refused = 0, dict[str, int]()
        for first in range(0, len(ids), REDRIVEN_AT_ONCE):
            tries = [broker.redrive(subscription, one, append=append) for one in ids[first : first + REDRIVEN_AT_ONCE]]
            for outcome in await asyncio.gather(*tries, return_exceptions=True):
                if isinstance(outcome, RedriveRefused | NotFound):
                    refused[outcome.message] = refused.get(outcome.message, 0) + 1
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    redriven += 1
        return RedriveOutcome(redriven, dict(list(refused.items())[:100]))

    said = {"subscription": subscription, "message_ids": message_ids, "error": error, "append": append}
    outcome: RedriveOutcome = await gate_of(request).carry_out(request, "dead-letters/redrive-all", said, work())
    return outcome


async def download_dead_letters(request: Request, subscription: str, error: str | None = None) -> StreamingResponse:
    """Dead letters with their data, one JSON object per line (at most 10,000)."""
    _require_payloads(request)
    broker = broker_of(request)
    topic = (await broker.describe_subscription(subscription)).topic
    letters = await broker.dead_letters(subscription, limit=MAX_LIMIT, error=error)

    async def lines() -> AsyncIterator[str]:
        for letter in letters:
            page = await broker.read_messages(topic, start=letter.id, limit=1)
            held = [message for message in page.messages if message.id == letter.id]
            view = MessageView.of(held[0], payload=True) if held else None
            yield (
                json.dumps(
                    {
                        "id": letter.id,
                        "key": letter.ordering_key,
                        "error": letter.error,
                        "attempts": letter.attempts,
                        "time": letter.time.isoformat(),
                        "data": view and view.data,
                        "encoding": view and view.encoding,
                        "attributes": view and dict(view.attributes),
                    },
                    ensure_ascii=False,
                )
                + "\n"
            )

    headers = {"Content-Disposition": 'attachment; filename="dead-letters.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


async def backup(request: Request) -> FileResponse:
    """A consistent copy of the store, made while it is in use."""
    _require_payloads(request)
    broker = broker_of(request)
    folder = tempfile.TemporaryDirectory(prefix="seriatim-backup-")
    path = Path(folder.name) / "backup"
    try:
        await gate_of(request).carry_out(request, "store/backup", {}, broker.backup(str(path)))
    except BaseException:
        folder.cleanup()
        raise
    return FileResponse(path, filename="seriatim-backup", background=BackgroundTask(folder.cleanup))


async def list_pipelines(request: Request) -> list[PipelineStatus]:
    """Pipelines on Spark, with the status that each saved in this store after its last batch."""
    return await left_statuses(broker_of(request), PipelineStatus)


async def list_sparkplug_hosts(request: Request) -> list[HostStatus]:
    """Sparkplug hosts and their edge nodes, with the status that each host saved in this store in the last seconds."""
    return await left_statuses(broker_of(request), HostStatus)


async def list_audits(request: Request) -> list[AuditStatus]:
    """Audits saved in this store (``seriatim trace audit --leave NAME``), with their verdicts before and after."""
    return await left_statuses(broker_of(request), AuditStatus)


async def audit_report(request: Request, name: str) -> HTMLResponse:
    """The report of an audit, as a page of its own. It may contain styles, and is isolated from everything else."""
    return HTMLResponse(await left_report(broker_of(request), name), headers={"Content-Security-Policy": REPORT_POLICY})


async def rebirth(request: Request, host: Annotated[str, Body()], node: Annotated[str, Body()]) -> None:
    """Have a Sparkplug host request a rebirth from an edge node, within a second or two."""
    work = request_rebirth(broker_of(request), host, node)
    await gate_of(request).carry_out(request, "sparkplug/rebirth", {"host": host, "node": node}, work)


async def changes(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[LoggedChange]:
    """What operators changed since this process started, newest first."""
    return list(gate_of(request).changes)[::-1][:limit]


async def events(request: Request) -> StreamingResponse:
    """Server-sent events: the figures of the overview, every two seconds."""
    console: Console = request.app.state.console
    console.require_broker()

    async def stream() -> AsyncIterator[str]:
        async for _ in console.ticks():
            with suppress(SeriatimError):  # an unavailable store may come back
                yield f"event: tick\ndata: {json.dumps(await console.sampler.figures())}\n\n"

    return _OpenPage(console, request.state.rights.name, stream())


class _OpenPage(StreamingResponse):
    """Counts an open page until its response ends, in whatever way."""

    def __init__(self, console: Console, who: str, stream: AsyncIterator[str]) -> None:
        super().__init__(stream, media_type="text/event-stream")
        self._pages, self._who = console.open_pages, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pages, who = self._pages, self._who
        if pages[who] >= MAX_PAGES_OF_ONE or pages.total() >= MAX_OPEN_PAGES:
            await refusal(StoreBusy("too many pages are open: close some"), 429)(scope, receive, send)
            return
        pages[who] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            pages[who] -= 1


_OTHERS: list[tuple[str, Any, Literal["GET", "POST"]]] = [
    ("keys/peek", peek, "GET"),
    ("messages/read", read_messages, "GET"),
    ("messages/publish", publish, "POST"),
    ("dead-letters/redrive-all", redrive_all, "POST"),
    ("dead-letters/download", download_dead_letters, "GET"),
    ("store/backup", backup, "POST"),
    ("pipelines/list", list_pipelines, "GET"),
    ("pipelines/audits", list_audits, "GET"),
    ("pipelines/audit-report", audit_report, "GET"),
    ("sparkplug/list", list_sparkplug_hosts, "GET"),
    ("sparkplug/rebirth", rebirth, "POST"),
    ("changes", changes, "GET"),
    ("events", events, "GET"),
]
