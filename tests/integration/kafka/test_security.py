"""A broker that wants TLS and a password: given in the address or by the environment, and never shown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from seriatim import Message, PubSub
from seriatim.errors import PermissionDenied, Unauthenticated
from seriatim.kafka.address import Address
from tests.certificates import new_certificate
from tests.integration.kafka.conftest import PATIENCE_S
from tests.kafka_broker import KafkaBroker

SECRET = "swordfish-7391"
LISTENER = """\
listeners=PLAINTEXT://{{host}}:{{port}},SASL_SSL://{{host}}:{{secure}},CONTROLLER://{{host}}:{{controller}}
advertised.listeners=PLAINTEXT://{{host}}:{{port}},SASL_SSL://{{host}}:{{secure}}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{secret}" user_bob="{secret}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:alice
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with one listener for which one needs TLS and a password, without the password."""
    folder = tmp_path_factory.mktemp("secured")
    pair = new_certificate()
    keystore, ca = folder / "keystore.pem", folder / "ca.pem"
    keystore.write_bytes(pair.key + pair.certificate)
    ca.write_bytes(pair.certificate)
    with KafkaBroker(folder / "kafka", LISTENER.format(secret=SECRET, keystore=keystore)) as broker:
        yield f"kafka://{broker.secured}?security=SASL_SSL&sasl=PLAIN&username=alice&ca={ca}"


async def handle_one(url: str) -> bytes:
    got: asyncio.Queue[Message] = asyncio.Queue()
    async with asyncio.timeout(PATIENCE_S), PubSub(url) as pubsub:
        topic = await pubsub.topic("orders").ensure()
        subscription = await topic.subscription("billing").ensure()
        await topic.publish(b"created", ordering_key="alice")
        subscription.on("message", got.put_nowait)
        subscription.open()
        message = await got.get()
        await message.ack_durable()
        return message.data


def test_a_password_in_the_environment_or_in_the_address_logs_in_and_is_never_shown(
    secured: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SERIATIM_KAFKA_PASSWORD", SECRET)
    assert asyncio.run(handle_one(secured)) == b"created"
    monkeypatch.setenv("SERIATIM_KAFKA_PASSWORD", "wrong, and the address wins")
    assert asyncio.run(handle_one(f"{secured}&password={SECRET}")) == b"created"
    assert SECRET not in caplog.text + "".join(capfd.readouterr())


def test_a_wrong_password_is_told_as_such_within_seconds_and_not_shown(
    secured: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SERIATIM_KAFKA_PASSWORD", "sardine-0815")

    async def ask() -> None:
        async with PubSub(secured) as pubsub, asyncio.timeout(20):
            await pubsub.topic("orders").ensure()

    with pytest.raises(
        Unauthenticated, match=r"no connection to Kafka at .*SASL authentication.*correct the username"
    ) as refused:
        asyncio.run(ask())
    assert "sardine" not in caplog.text + str(refused.value)


def test_who_may_not_join_the_group_hears_so(secured: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SERIATIM_KAFKA_PASSWORD", SECRET)

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), PubSub(secured) as pubsub:
            await (await pubsub.topic("private").ensure()).subscription("private").ensure()
            admin = AdminClient(Address.parse(secured).config())
            anybody = ("*", ResourcePatternType.LITERAL, "User:bob", "*", AclOperation.ALL, AclPermissionType.ALLOW)
            for granted in admin.create_acls([AclBinding(ResourceType.TOPIC, *anybody)]).values():
                await asyncio.wrap_future(granted)
            async with PubSub(secured.replace("alice", "bob")) as other:
                with pytest.raises(PermissionDenied, match="Group authorization failed"):
                    await other.subscription("private").run(Message.ack)

    asyncio.run(scenario())
