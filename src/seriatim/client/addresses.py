"""Where programs can connect to: a store, a Pub/Sub server, Kafka."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from seriatim.engine.broker import Broker
from seriatim.engine.connect import open_broker
from seriatim.errors import InvalidArgument
from seriatim.extras import require_extra

if TYPE_CHECKING:
    from seriatim.client.server_broker import ServerBroker
    from seriatim.kafka.broker import KafkaBroker

SERVER_SCHEME, KAFKA_SCHEME = "pubsub://", "kafka://"
API_SCHEMES = ("http://", "https://")
KINDS = {
    "sqlite:///": "sqlite:///FILE",
    "postgresql://": "postgresql://USER@HOST/DATABASE",
    "postgres://": "",
    SERVER_SCHEME: "pubsub://HOST:PORT/PROJECT",
    KAFKA_SCHEME: "kafka://HOST:9092",
    "memory://": "memory://",
}
"""How addresses begin, and how they are written; nothing where another one says the same."""


async def open_address(url: str, *, standby: bool = False) -> Broker:
    """The broker at an address. What its kind needs is imported only now."""
    if not url.startswith((SERVER_SCHEME, KAFKA_SCHEME)):
        if url.startswith(API_SCHEMES):
            raise InvalidArgument(
                "the admin API at an http:// address is for commands: give a program the store, or pubsub://HOST:PORT/PROJECT"
            )
        refuse_unknown_scheme(url, KINDS)
        return await open_broker(url, standby=standby)
    if standby:
        raise InvalidArgument("only a store in PostgreSQL has standbys: give postgresql://host/database")
    return kafka_at(url) if url.startswith(KAFKA_SCHEME) else server_at(url)


def kafka_at(url: str) -> KafkaBroker:
    require_extra("kafka", "confluent_kafka", what=f"an address that begins with {KAFKA_SCHEME}")
    from seriatim.kafka.broker import open_kafka

    return open_kafka(url)


def server_at(url: str) -> ServerBroker:
    require_extra("server", "grpc", "google.cloud.pubsub", what=f"an address that begins with {SERVER_SCHEME}")
    from seriatim.client.server_broker import open_server

    return open_server(url)


def refuse_unknown_scheme(url: str, kinds: dict[str, str]) -> None:
    """Raise InvalidArgument for an address whose beginning is none of these, with the one that may have been meant. It is not
    repeated: a password may be in it."""
    scheme, separator, _ = url.partition("://")
    if not separator or url.startswith(tuple(kinds)):
        return
    nearest = get_close_matches(f"{scheme.lower()}://", kinds, n=1, cutoff=0.75)
    meant = f"; did you mean {nearest[0]}?" if nearest else ""
    known = ", ".join(dict.fromkeys(filter(None, kinds.values())))
    raise InvalidArgument(f"no address begins with '{scheme[:20]}://': write {known}{meant}")
