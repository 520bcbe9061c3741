"""Which broker an address leads to, for commands: operators' verbs work whatever kind of address it is.

Rules
    - ``sqlite://``: this process owns the store, or asks its owner at the socket beside it.
    - ``http://``, ``https://``: the admin API at that address.
    - ``postgresql://``: this process owns the store; while another one does, its admin API is asked, if it has one.
    - ``pubsub://``: the admin API of the server, if it says that it has one and TLS proves it; the Pub/Sub API otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from seriatim.client.addresses import API_SCHEMES, KAFKA_SCHEME, SERVER_SCHEME, kafka_at, open_address, server_at
from seriatim.engine.broker import Attachment, Broker, StoreCheck
from seriatim.engine.consumer import Consumer
from seriatim.engine.health import check_store
from seriatim.engine.link.verbs import CallingBroker
from seriatim.engine.message_ids import offset_of
from seriatim.errors import FailedPrecondition, NotSupported, SeriatimError, StoreBusy, Unauthenticated
from seriatim.extras import EXTRAS, require_extra
from seriatim.store import open_store, store_file
from seriatim.store.base import Catalog, Record, StoreReader, TopicRow


async def open_any(url: str, token: str | None, ca: str | None) -> Broker:
    if url.startswith(API_SCHEMES):
        return _open_api(url, token, ca, advertised=False)
    if url.startswith(SERVER_SCHEME):
        return await _open_server(url, token, ca)
    if url.startswith(KAFKA_SCHEME):
        return await _open_kafka(url)
    try:
        return await open_address(url)
    except StoreBusy as error:
        address = await asyncio.to_thread(_advertised, url)
        if address is None:
            if store_file(url) is not None:  # commands reach its owner at the socket beside it
                raise
            owner = str(error).partition(": use it")[0]
            raise StoreBusy(
                f"{owner}, which has no admin API for commands: stop it, or let 'seriatim serve --console' own the store"
            ) from error
    return _open_api(address, token, ca, advertised=True)


def open_reader(url: str, token: str | None, ca: str | None) -> StoreReader | ApiReader:
    """The store at an address, only to be read: the store itself, or as far as the admin API shows it."""
    if url.startswith((*API_SCHEMES, SERVER_SCHEME)):
        return ApiReader(url, token, ca)
    if url.startswith(KAFKA_SCHEME):
        raise NotSupported(
            "reading a topic without a subscription is not available on Kafka: use kafka-console-consumer instead"
        )
    return open_store(url, read_only=True)


def check_any(reader: StoreReader | ApiReader) -> StoreCheck:
    """Check everything in a store: here, or by its owner where only its admin API is reached."""
    return reader.checked() if isinstance(reader, ApiReader) else check_store(reader)


class ApiReader:
    """The logs of a store, read through the admin API."""

    def __init__(self, url: str, token: str | None, ca: str | None) -> None:
        self._address = (url, token, ca)
        self._names: dict[int, str] = {}

    def catalog(self) -> Catalog:
        topics = asyncio.run(_asked(*self._address, lambda broker: broker.list_topics()))
        if any(topic.next_offset is None for topic in topics):
            raise NotSupported(
                "the Pub/Sub API shows no messages of a topic: give the server an admin API with 'seriatim serve --console', "
                "or use its store instead"
            )
        self._names = dict(enumerate(topic.name for topic in topics))
        return Catalog([TopicRow(n, topic.name, {}, topic.next_offset) for n, topic in enumerate(topics)], [], [], [])

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        topic = self._names[topic_id]
        page = asyncio.run(
            _asked(*self._address, lambda broker: broker.read_messages(topic, start=str(first), limit=limit))
        )
        return [
            Record(offset_of(one.id), one.ordering_key, one.data, one.attributes, one.publish_time.timestamp())
            for one in page.messages
        ]

    def checked(self) -> StoreCheck:
        found: StoreCheck = asyncio.run(_asked(*self._address, lambda broker: broker.check()))
        return found

    def writers(self, prefix: str) -> list[tuple[str, int]]:  # noqa: ARG002 - the name is that of stores
        raise NotSupported("the admin API has no positions of writers: run this where the store is")

    def close(self) -> None:
        """Nothing stays open."""


async def _asked(url: str, token: str | None, ca: str | None, work: Callable[[Broker], Awaitable[Any]]) -> Any:
    broker = await open_any(url, token, ca)
    try:
        return await work(broker)
    finally:
        await broker.close()


def _advertised(url: str) -> str | None:
    from seriatim.engine.admin_address import advertised_address

    with suppress(SeriatimError):  # why the store can't be owned is what matters
        return advertised_address(url)
    return None


def _open_api(url: str, token: str | None, ca: str | None, *, advertised: bool) -> Broker:
    require_extra("console", *EXTRAS["console"], what="the admin API")
    from seriatim.console.remote import open_api

    return open_api(url, token, ca, advertised=advertised)


async def _open_kafka(url: str) -> Broker:
    broker = kafka_at(url)
    try:
        await broker.require_connection()
    except BaseException:
        await broker.close()
        raise
    return broker


async def _open_server(url: str, token: str | None, ca: str | None) -> Broker:
    from seriatim.client.channel import Address

    given = Address.parse(url)
    server = server_at(url)
    try:
        await server.require_connection()
        address = await server.admin_address()
    except BaseException:
        await server.close()
        raise
    if address is None:
        return server
    try:
        return _Both(server, _open_api(address, token or given.token, ca or given.ca, advertised=True))
    except (FailedPrecondition, Unauthenticated) as error:
        return _Both(server, None, str(error))


class _Both(CallingBroker):
    """The admin API for what it offers, and the Pub/Sub API for the rest, or where there is no way to the former."""

    def __init__(self, server: Broker, api: Broker | None, why_not: str = "") -> None:
        self._server, self._api, self._why_not = server, api, why_not

    def _call(self, verb: str, *given: Any, **named: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._ask(verb, given, named))

    async def _ask(self, verb: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            if self._api is not None:
                with suppress(NotSupported):
                    return await getattr(self._api, verb)(*given, **named)
            return await getattr(self._server, verb)(*given, **named)
        except NotSupported as error:
            raise NotSupported(f"{error}; {self._why_not}" if self._why_not else str(error)) from error

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        return self._server.attach(subscription, consumer)

    def require_topic(self, name: str) -> None:
        self._server.require_topic(name)

    async def close(self) -> None:
        await self._server.close()
