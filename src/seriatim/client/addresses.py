"""Where programs can connect to: a store, a Pub/Sub server, Kafka."""

from __future__ import annotations

from seriatim.engine.broker import Broker
from seriatim.engine.connect import open_broker
from seriatim.errors import InvalidArgument
from seriatim.extras import require_extra

SERVER_SCHEME, KAFKA_SCHEME = "pubsub://", "kafka://"


async def open_address(url: str, *, standby: bool = False) -> Broker:
    """The broker at an address. What its kind needs is imported only now."""
    if not url.startswith((SERVER_SCHEME, KAFKA_SCHEME)):
        return await open_broker(url, standby=standby)
    if standby:
        raise InvalidArgument("only a store in PostgreSQL has standbys: give postgresql://host/database")
    if url.startswith(KAFKA_SCHEME):
        require_extra("kafka", "confluent_kafka", what=f"an address that begins with {KAFKA_SCHEME}")
        from seriatim.kafka.broker import open_kafka

        return open_kafka(url)
    require_extra("server", "grpc", "google.cloud.pubsub", what=f"an address that begins with {SERVER_SCHEME}")
    from seriatim.client.server_broker import open_server

    return open_server(url)
