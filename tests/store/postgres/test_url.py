"""The address of a PostgreSQL store: what is ours in it, and what nobody may see."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from seriatim.errors import InvalidArgument
from seriatim.store.postgres.url import LEASE, STALL_TIMEOUT_S, PostgresUrl, without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://db/orders", "postgresql://db/orders"),
        ("postgresql://me@db:5432/orders?lease=2", "postgresql://me@db:5432/orders?lease=2"),
        ("postgresql://me:hunter2@db/orders", "postgresql://me:***@db/orders"),
        ("postgres://me:hunter2@a:1,b:2/orders", "postgres://me:***@a:1,b:2/orders"),
        ("postgresql://me:hunter2@hunter2@db/orders", "postgresql://me:***@db/orders"),
        ("postgresql://:hunter2@/orders?host=/run/pg", "postgresql://:***@/orders?host=/run/pg"),
        ("postgresql://db/o?password=hunter2&schema=s", "postgresql://db/o?password=***&schema=s"),
        ("postgresql://db/o?sslpassword=hunter2", "postgresql://db/o?sslpassword=***"),
        ("mysql://me:hunter2@db/orders", "mysql://me:***@db/orders"),
    ],
)
def test_no_secret_is_shown(url, shown):
    assert without_secrets(url) == shown
    assert PostgresUrl.parse(url).public == shown
    assert "hunter2" not in repr(PostgresUrl.parse(url))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hun?ter2@db/orders", "postgresql://***"),
        ("postgresql://me:hun?a=ter2@db/orders", "postgresql://***"),
        ("pubsub://host:8085/shop?token=hunter2&tls=1", "pubsub://host:8085/shop?token=***&tls=1"),
        ("kafka://host:9092?password=hunter2&key_password=hunter3", "kafka://host:9092?password=***&key_password=***"),
    ],
)
def test_no_secret_of_an_address_that_is_not_quite_one_is_shown(url, shown):
    assert without_secrets(url) == shown


def test_what_is_ours_is_taken_out_and_the_rest_goes_to_postgresql():
    address = PostgresUrl.parse(
        "postgresql://me:p%40ss@db:5433/orders?schema=calls&lease=2.5&stall_timeout=7&sslmode=require"
    )
    assert (address.schema, address.lease, address.stall_timeout) == ("calls", 2.5, 7.0)
    found = conninfo_to_dict(address.conninfo)
    assert found["user"] == "me"
    assert found["password"] == "p@ss"
    assert (found["host"], found["port"], found["dbname"], found["sslmode"]) == ("db", "5433", "orders", "require")
    assert found["application_name"] == "seriatim"


def test_what_is_not_given_has_a_default_and_what_is_given_counts():
    address = PostgresUrl.parse("postgresql://db/orders?application_name=billing&connect_timeout=3")
    assert (address.schema, address.lease, address.stall_timeout) == ("seriatim", LEASE, STALL_TIMEOUT_S)
    found = conninfo_to_dict(address.conninfo)
    assert (found["application_name"], found["connect_timeout"]) == ("billing", "3")


@pytest.mark.parametrize("name", ["lease", "stall_timeout"])
@pytest.mark.parametrize("value", ["", "soon", "0", "0.1", "-1", "nan", "inf"])
def test_times_are_numbers_of_seconds(name, value):
    with pytest.raises(InvalidArgument, match=f"{name} .* must be a number of seconds"):
        PostgresUrl.parse(f"postgresql://db/orders?{name}={value}")


@pytest.mark.parametrize("schema", ["", "Orders", "a-b", '"', "pg_catalog", "1st", "x" * 64])
def test_a_schema_is_a_plain_name(schema):
    with pytest.raises(InvalidArgument, match="must consist of lower-case letters"):
        PostgresUrl.parse(f"postgresql://db/orders?schema={schema}")


def test_a_commit_that_is_not_durable_can_not_be_asked_for():
    with pytest.raises(InvalidArgument, match="acknowledged means durable"):
        PostgresUrl.parse("postgresql://db/orders?options=-c%20synchronous_commit%3Doff")
