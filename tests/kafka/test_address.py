"""Addresses of Kafka."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.errors import InvalidArgument
from seriatim.kafka.address import Address
from seriatim.kafka.broker import open_kafka


def test_an_address_names_servers_and_options():
    address = Address.parse("kafka://one:9092,two:9093?partitions=8&replication=3&member=a&session_timeout=6", {})
    assert (address.servers, address.partitions, address.replication) == ("one:9092,two:9093", 8, 3)
    assert (address.member, address.session_timeout, address.isolation) == ("a", 6.0, "read_committed")
    assert address.config(x=1)["bootstrap.servers"] == "one:9092,two:9093"


def test_what_the_address_does_not_say_comes_from_the_environment_and_secrets_are_not_printed():
    environment = {
        "SERIATIM_KAFKA_PASSWORD": "hidden",
        "SERIATIM_KAFKA_USERNAME": "other",
        "SERIATIM_KAFKA_PARTITIONS": "3",
    }
    address = Address.parse("kafka://one:9092?security=SASL_SSL&sasl=PLAIN&username=me", environment)
    config = address.config()
    assert config["security.protocol"] == "SASL_SSL"
    assert (config["sasl.username"], config["sasl.password"], address.partitions) == ("me", "hidden", 3)
    assert "hidden" not in repr(address)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://", "not the address of Kafka"),
        ("kafka://one:9092,", "not the address of Kafka"),
        ("kafka://me:secret@one:9092", "not the address of Kafka"),
        ("kafka://one:9092/topic", "not the address of Kafka"),
        ("kafka://one:9092?partition=3", "has no option 'partition'"),
        ("kafka://one:9092?password=swordfish&secret", "no such option"),
        ("kafka://one:9092?key_password=swordfish&secret=1", "& is %26 in a password"),
        ("kafka://one:9092?partitions=0", "partitions of a kafka address is wrong: give a whole number above 0"),
        ("kafka://one:9092?partitions=100001", "at most 100000"),
        ("kafka://one:9092?replication=99999999999999999999", "at most 1000"),
        ("kafka://one:9092?session_timeout=soon", "session_timeout of a kafka address is wrong"),
        ("kafka://one:9092?session_timeout=nan", "session_timeout of a kafka address is wrong"),
        ("kafka://one:9092?session_timeout=4000", "at most 3600"),
        ("kafka://one:9092?max_poll_interval=1e-9", "max_poll_interval of a kafka address is wrong"),
        ("kafka://one:port", "not the address of Kafka"),
        ("kafka://one two:9092", "not the address of Kafka"),
        ("kafka://[::1", "not the address of Kafka"),
        ("kafka://one:9092?member=", "member of a kafka address is wrong"),
        ("kafka://one:9092?isolation=none", "give read_committed or read_uncommitted"),
    ],
)
def test_a_wrong_address_says_what_is_wrong_and_repeats_no_secret(url, problem):
    with pytest.raises(InvalidArgument, match=problem) as raised:
        Address.parse(url, {})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("option", ["security=none", "security=SASL_PLAINTEXT&sasl=none", "security=SSL&ca=/none"])
def test_an_option_that_the_library_refuses_is_a_wrong_argument(option):
    async def opened() -> None:
        open_kafka(f"kafka://127.0.0.1:1?{option}")

    with pytest.raises(InvalidArgument, match="an option of the kafka address is wrong"):
        asyncio.run(opened())
