"""Going back: to a time, an offset, or a snapshot."""

from __future__ import annotations

import pytest


@pytest.fixture
def handled(told) -> list[str]:
    """Three messages that are handled and still kept; when each was published."""
    told("topics", "create", "orders", "--retain-settled", "forever")
    told("subscriptions", "create", "orders", "billing")
    for data in ("one", "two", "three"):
        told("messages", "publish", "orders", data, "--key", "a")
    return [row["published"] for row in told("messages", "pull", "billing", "--ack", "--wait", "0.2")]


def pulled(told) -> list[str]:
    found = told("messages", "pull", "billing", "--ack", "--wait", "0.2")
    return [row["data"] for row in (found if isinstance(found, list) else [found])]


def test_seek_to_a_message_delivers_what_follows_again(told, seriatim, handled):
    assert seriatim("subscriptions", "seek", "billing", "--message", "1", "--yes").stdout == (
        "moved subscription 'billing' to message 1\n"
    )
    assert pulled(told) == ["two", "three"]


def test_seek_to_a_time_delivers_what_was_published_since(told, handled):
    told("subscriptions", "seek", "billing", "--time", handled[0], "--yes")
    assert pulled(told) == ["one", "two", "three"]
    told("subscriptions", "seek", "billing", "--time", "2999-01-01", "--yes")
    assert pulled(told) == []


def test_seek_to_a_snapshot_goes_back_to_where_it_was_made(told, handled):
    told("messages", "publish", "orders", "four", "--key", "a")
    made = told("snapshots", "create", "billing", "before", "--lasts", "1h")
    assert (made["snapshot"], made["topic"]) == ("before", "orders")
    assert pulled(told) == ["four"]
    assert told("snapshots", "list") == [made]
    told("subscriptions", "seek", "billing", "--snapshot", "before", "--yes")
    assert pulled(told) == ["four"]
    told("snapshots", "delete", "before", "--yes")
    assert told("snapshots", "list") == []


@pytest.mark.parametrize("where", [[], ["--message", "1", "--snapshot", "s"]])
def test_one_place_is_needed(seriatim, told, handled, where):
    result = seriatim("subscriptions", "seek", "billing", *where, "--yes")
    assert result.exit_code == 2
    assert "Give one of --time, --message and --snapshot." in result.stderr


def test_a_time_that_is_none_is_a_usage_error(seriatim, handled):
    result = seriatim("subscriptions", "seek", "billing", "--time", "yesterday", "--yes")
    assert result.exit_code == 2
    assert "'yesterday' is not a time: write 2026-01-31T12:00:00Z, or 'now'." in result.stderr


def test_a_snapshot_that_does_not_exist_is_named(seriatim, handled):
    result = seriatim("subscriptions", "seek", "billing", "--snapshot", "nope", "--yes")
    assert result.exit_code == 1
    assert "'nope'" in result.stderr


def test_a_filter_says_which_messages_are_delivered(told, seriatim, handled):
    told("subscriptions", "create", "orders", "paid", "--filter", 'attributes.state = "paid"')
    for state in ("created", "paid"):
        told("messages", "publish", "orders", state, "--attribute", f"state={state}")
    assert told("messages", "pull", "paid", "--wait", "0.2")["data"] == "paid"
    result = seriatim("subscriptions", "create", "orders", "wrong", "--filter", "attributes.")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
