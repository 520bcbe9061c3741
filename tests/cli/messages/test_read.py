"""Reading a topic without a subscription: what is kept, by range and key, now and as it comes."""

from __future__ import annotations

import json
import signal

import pytest

from seriatim.store import open_store


@pytest.fixture
def published(told, seriatim, orders) -> list[str]:
    """Four messages, of which the subscription has acked none; the times at which they were published."""
    for key, data in (("a", "a1"), ("b", "b1"), ("a", "a2")):
        told("messages", "publish", "orders", data, "--key", key)
    told("messages", "publish", "orders", "x", "--attribute", "kind=DDATA", "--attribute", "device=pump")
    return [row["published"] for row in told("messages", "read", "orders")]


def data(rows) -> list[str]:
    return [row["data"] for row in (rows if isinstance(rows, list) else [rows])]


def test_everything_that_is_kept_is_read_in_order_and_nothing_changes(told, published):
    for _ in range(2):
        rows = told("messages", "read", "orders")
        assert data(rows) == ["a1", "b1", "a2", "x"]
    assert rows[3] == {
        "id": "3",
        "key": None,
        "data": "x",
        "encoding": "text",
        "attributes": {"kind": "DDATA", "device": "pump"},
        "published": published[3],
    }
    assert told("store", "stats", "billing")[0]["total"] == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "1"], ["b1", "a2", "x"]),
        (["--to", "1"], ["a1", "b1"]),
        (["--from", "1", "--to", "2"], ["b1", "a2"]),
        (["--key", "a"], ["a1", "a2"]),
        (["--key", "a", "--limit", "1"], ["a1"]),
        (["--last", "2"], ["a2", "x"]),
        (["--last", "1", "--key", "a"], ["a2"]),
        (["--last", "9", "--to", "1"], ["a1", "b1"]),
        (["--last", "1", "--to", "1"], ["b1"]),
        (["--since", "2000-01-01", "--key", "b"], ["b1"]),
    ],
)
def test_a_range_and_a_key_choose_messages(told, published, options, expected):
    assert data(told("messages", "read", "orders", *options)) == expected


def test_times_choose_messages(told, published):
    assert data(told("messages", "read", "orders", "--since", published[2])) == ["a2", "x"]
    assert data(told("messages", "read", "orders", "--until", published[2])) == ["a1", "b1"]


def test_the_last_messages_are_found_far_behind_those_of_other_keys(told, seriatim, orders):
    told("messages", "publish", "orders", "rare", "--key", "rare")
    many = "".join(f"{number}\n" for number in range(1_500))
    told("messages", "publish", "orders", "--lines", "--key", "frequent", "--quiet", stdin=many)
    assert data(told("messages", "read", "orders", "--key", "rare", "--last", "1")) == ["rare"]
    assert data(told("messages", "read", "orders", "--last", "2")) == ["1498", "1499"]


def test_people_see_id_key_attributes_and_data(seriatim, published):
    lines = seriatim("messages", "read", "orders", "--from", "2").stdout.splitlines()
    assert lines == ["2  a  a2", "3  -  kind=DDATA device=pump  x"]


@pytest.mark.parametrize(
    ("options", "said"),
    [([], "no messages in topic 'orders'"), (["--key", "c"], "no messages in topic 'orders' match")],
)
def test_an_empty_answer_says_so(seriatim, told, orders, options, said):
    if options:
        told("messages", "publish", "orders", "x")
    result = seriatim("messages", "read", "orders", *options)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", said + "\n")
    assert seriatim("messages", "read", "orders", *options, "--json").output == ""


def test_a_topic_that_does_not_exist_is_named(seriatim, orders):
    result = seriatim("messages", "read", "nope")
    assert result.exit_code == 1
    assert result.stderr == "error: topic 'nope' does not exist: see 'seriatim topics list'\n"
    assert "did you mean 'orders'?" in seriatim("messages", "read", "oders").stderr


def test_it_reads_beside_an_owner(told, published):
    store = open_store("sqlite:///seriatim.db")
    try:
        assert len(told("messages", "read", "orders")) == 4
    finally:
        store.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_follower_sees_what_comes_until_it_is_stopped(start, told, published, number, status):
    process = start("messages", "read", "orders", "--last", "1", "--follow", "--limit", "1", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["data"] == "x"
    told("messages", "publish", "orders", "--lines", stdin="new\nnewer\n")
    assert [json.loads(process.stdout.readline())["data"] for _ in range(2)] == ["new", "newer"]
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (status, b"")


def test_what_is_read_can_be_published_again(told, published, seriatim):
    read = seriatim("messages", "read", "orders", "--json").stdout
    told("messages", "publish", "copy", "--create", "--json-lines", stdin=read)
    kept = ("key", "data", "attributes")
    original, copy = (
        [[row[name] for name in kept] for row in told("messages", "read", topic)] for topic in ("orders", "copy")
    )
    assert original == copy
