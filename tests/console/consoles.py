"""A console at work in a thread of its own, so that tests can look at it as browsers and programs do."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from seriatim.console import ConsoleServer
from seriatim.engine.access_tokens import Access
from seriatim.engine.broker import Outgoing
from seriatim.engine.connect import open_engine
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions, TopicOptions

T = TypeVar("T")
TOKENS = {
    "ops": 'token = "operator-token"\nconsole = "operator"\npayloads = true\n',
    "blind": 'token = "blind-token"\nconsole = "operator"\n',
    "eye": 'token = "viewer-token"\nconsole = "viewer"\n',
    "robot": 'token = "publisher-token"\npublish = ["*"]\n',
}
OPERATOR, BLIND, VIEWER, PUBLISHER = "operator-token", "blind-token", "viewer-token", "publisher-token"


class Answer(NamedTuple):
    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Running:
    """A console and its engine."""

    def __init__(self, engine: Engine, server: ConsoleServer, loop: asyncio.AbstractEventLoop) -> None:
        self.engine, self.server, self._loop = engine, server, loop
        self.address = server.address

    def run(self, work: Callable[[Engine], Awaitable[T]]) -> T:
        """Ask the engine for something, in its thread."""

        async def wait() -> T:
            return await work(self.engine)

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(30)

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        token: str | None = OPERATOR,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """Send a request: a GET, or with a body a POST."""
        url = f"{self.address}{path}" + (f"?{urlencode(query)}" if query else "")
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {**sent, "Content-Type": "application/json", **(headers or {})})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
        try:
            with opener.open(request, timeout=30) as answer:
                return Answer(answer.status, answer.headers, answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read().decode())

    def api(self, operation: str, body: Any = None, **how: Any) -> Answer:
        return self.ask(f"/api/v1/{operation}", body, **how)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def tokens_file(folder: Path) -> Path:
    path = folder / "tokens.toml"
    path.write_text("".join(f"[{name}]\n{table}\n" for name, table in TOKENS.items()))
    path.chmod(0o600)
    return path


async def orders(engine: Engine) -> None:
    """A topic with keys in every state: paused, delayed, waiting, dead-lettered."""
    await engine.create_topic("orders", TopicOptions(retain_settled=3600.0))
    await engine.create_subscription("orders", "shipping", SubscriptionOptions(message_ordering=True))
    await engine.publish(
        "orders",
        [Outgoing(f"order-{i % 7}", b"data of %d" % i, {"n": str(i)}, 3600 if i == 3 else 0) for i in range(49)],
    )
    await engine.pause_key("shipping", "order-2", "the customer complained")
    await engine.dead_letter("shipping", "order-1", "card 4711 was declined", rest=True)


async def handle_all(engine: Engine, failing: Callable[[str | None], str | None] = lambda _: None) -> None:
    """Ack whatever the subscription gives out, but for keys with an error."""

    def handle(delivered: Sequence[Delivered]) -> None:
        for lease, _ in delivered:
            error = failing(lease.key)
            if error is None:
                attachment.ack(lease)
            else:
                attachment.nack(lease, error=error)

    attachment = engine.attach("shipping", Consumer(handle))


@contextmanager
def running(
    folder: Path,
    prepare: Callable[[Engine], Awaitable[None]] = orders,
    url: str = "memory://",
    **options: Any,
) -> Iterator[Running]:
    """A console with the tokens above, on a store that ``prepare`` has filled."""
    started: Any = threading.Event()
    found: list[Running] = []
    failures: list[BaseException] = []

    async def work() -> None:
        stop = asyncio.Event()
        engine = await open_engine(url)
        try:
            await prepare(engine)
            server = ConsoleServer(engine, port=0, access=Access.load(tokens_file(folder)), **options)
            await server.start()
            one = Running(engine, server, asyncio.get_running_loop())
            one.stop = lambda: one._loop.call_soon_threadsafe(stop.set)  # type: ignore[attr-defined]
            found.append(one)
            started.set()
            await stop.wait()
            await server.stop()
        finally:
            await engine.close()

    def body() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:  # noqa: BLE001 - the test raises it
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=body, name="console")
    thread.start()
    started.wait(60)
    try:
        if failures:
            raise failures[0]
        yield found[0]
    finally:
        if found:
            found[0].stop()  # type: ignore[attr-defined]
        thread.join(30)
    if failures:
        raise failures[0]
