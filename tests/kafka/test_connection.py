"""Kafka that is away, or that lets nobody in, is told of soon, with its address and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, Producer

from seriatim.cli.main import cli
from seriatim.errors import StoreFailed, Unauthenticated
from seriatim.kafka import catalog
from seriatim.kafka.broker import KafkaBroker, open_kafka
from tests.ports import free_port


@pytest.fixture
def away(monkeypatch) -> str:
    """Where no broker listens. Nobody waits for it as long as usual."""
    monkeypatch.setattr(catalog, "CONNECT_TIMEOUT_S", 1.0)
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def there() -> Iterator[str]:
    """A broker that librdkafka imitates."""
    cluster = Producer({"test.mock.num.brokers": 1})
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del cluster


async def asked(servers: str, trouble: KafkaError | None = None) -> KafkaBroker:
    broker = open_kafka(f"kafka://{servers}")
    assert isinstance(broker, KafkaBroker)
    try:
        if trouble is not None:
            broker._producer._on_error(trouble)
        await broker.list_topics()
    finally:
        await broker.close()
    return broker


def test_a_broker_that_is_away_is_named_and_logged_once(away, caplog):
    with pytest.raises(StoreFailed, match=rf"no connection to Kafka at {away}: .*; start it, or correct the address"):
        asyncio.run(asked(away))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert away in caplog.text


def test_refused_credentials_are_told_as_such_although_connections_fail_in_other_ways_too(away):
    refused = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error")
    with pytest.raises(
        Unauthenticated, match=r"SASL authentication error; correct the username, the password \(SERIATIM_"
    ):
        asyncio.run(asked(away, refused))


def test_a_broker_that_answers_is_asked_once(there):
    broker = asyncio.run(asked(there))
    assert broker._has_connected
    assert broker._producer.trouble is None


@pytest.mark.parametrize("command", ["console --listen 127.0.0.1:0", "topics list", "messages pull s"])
def test_a_command_ends_when_no_broker_answers(away, logger_as_it_was, command):
    result = CliRunner().invoke(cli, [*command.split(), "--store", f"kafka://{away}"])
    assert result.exit_code == 1
    assert f"error: no connection to Kafka at {away}: " in result.stderr


def test_whoever_waits_for_a_broker_that_is_away_waits_for_less_than_ten_seconds():
    assert catalog.CONNECT_TIMEOUT_S < 10
