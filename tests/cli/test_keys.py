"""What keys wait for, and an operator's hand on them."""

from __future__ import annotations

import pytest


@pytest.fixture
def blocked(told, orders) -> None:
    """Key ``a`` waits for the delay of its first message, key ``b`` for nothing."""
    told("messages", "publish", "orders", "a1", "--key", "a", "--delay", "1h")
    for key, data in (("a", "a2"), ("a", "a3"), ("b", "b1")):
        told("messages", "publish", "orders", data, "--key", key)


def test_keys_in_trouble_come_first_and_say_why(told, blocked):
    first, second = told("keys", "list", "billing")
    assert (first["key"], first["state"], first["depth"], first["head"]) == ("a", "delayed", 3, "0")
    assert first["why"].startswith("delayed until ")
    assert first["not_before"].endswith("Z")
    assert (second["key"], second["state"], second["why"]) == ("b", "ready", None)


def test_only_blocked_keys_are_listed_if_wanted_and_no_more_than_the_limit(told, seriatim, blocked):
    assert [row["key"] for row in told("keys", "list", "billing", "--blocked")] == ["a"]
    assert [row["key"] for row in told("keys", "list", "billing", "--limit", "1")] == ["a"]
    table = seriatim("keys", "list", "billing").stdout.splitlines()
    assert table[0].split() == ["key", "state", "depth", "in", "flight", "head", "head", "age", "attempts", "why"]


def test_peek_shows_the_first_messages_of_a_key_without_delivering_them(told, blocked):
    assert [row["data"] for row in told("keys", "peek", "billing", "a", "--limit", "2")] == ["a1", "a2"]
    assert told("keys", "list", "billing", "--limit", "1")[0]["attempts"] == 0


def test_retry_lets_the_head_go_now(told, blocked):
    assert told("keys", "retry", "billing", "a") == {"subscription": "billing", "key": "a", "retried": True}
    assert [row["data"] for row in told("messages", "pull", "billing", "--wait", "0.2")] == ["a1", "b1"]


def test_retrying_a_key_that_is_paused_says_that_resuming_delivers_it(told, seriatim, blocked):
    told("keys", "pause", "billing", "a", "--reason", "looking into it")
    said = seriatim("keys", "retry", "billing", "a").stdout
    assert said.startswith("key a: no longer waits for its time, but paused: looking into it; ")
    assert said.endswith("resume the key to continue (see 'keys resume' and 'subscriptions resume')\n")
    told("messages", "publish", "orders", "c1", "--key", "c", "--delay", "1h")
    told("subscriptions", "pause", "billing")
    assert "but the subscription is paused" in seriatim("keys", "retry", "billing", "c").stdout


def test_skip_settles_the_head_unseen(told, blocked):
    assert told("keys", "skip", "billing", "a", "--yes")["id"] == "0"
    assert [row["data"] for row in told("keys", "peek", "billing", "a")] == ["a2", "a3"]


def test_a_key_is_paused_with_a_reason_and_resumed(told, seriatim, blocked):
    told("keys", "pause", "billing", "b", "--reason", "looking into it")
    (row,) = [row for row in told("keys", "list", "billing") if row["key"] == "b"]
    assert row["state"] == "paused"
    assert row["why"].startswith("paused: looking into it")
    assert seriatim("keys", "resume", "billing", "b").stdout == "key b: resumed\n"
    assert told("keys", "list", "billing", "--limit", "2")[1]["state"] == "ready"


def test_the_head_or_the_whole_key_is_dead_lettered_with_a_reason(told, blocked):
    assert told("keys", "dead-letter", "billing", "a", "--reason", "poison")["ids"] == ["0"]
    assert told("keys", "dead-letter", "billing", "a", "--rest")["ids"] == ["1", "2"]
    letters = told("dead-letters", "list", "billing")
    assert (letters[0]["id"], letters[0]["key"], letters[0]["error"]) == ("0", "a", "poison")
    assert len(letters) == 3


def test_messages_without_a_key_are_chosen_with_keyless(told, seriatim, orders):
    told("messages", "publish", "orders", "x")
    assert [row["data"] for row in told("keys", "peek", "billing", "--keyless")] == ["x"]
    assert seriatim("keys", "list", "billing").stdout.splitlines()[1].split()[:2] == ["-", "ready"]


@pytest.mark.parametrize("which", [[], ["a", "--keyless"]])
def test_either_a_key_or_keyless_is_needed(seriatim, orders, which):
    result = seriatim("keys", "peek", "billing", *which)
    assert result.exit_code == 2
    assert "Give either KEY or --keyless." in result.stderr


def test_a_subscription_is_paused_and_resumed(told, blocked):
    told("subscriptions", "pause", "billing")
    assert told("store", "stats", "billing")[0]["paused"] is True
    assert told("messages", "pull", "billing", "--wait", "0.2") == []
    told("subscriptions", "resume", "billing")
    assert told("messages", "pull", "billing", "--wait", "0.2")["data"] == "b1"


def test_stats_count_what_waits_for_what(told, seriatim, blocked):
    (row,) = told("store", "stats")
    assert (row["total"], row["ready"], row["delayed"], row["blocked"]) == (4, 1, 1, 2)
    assert (row["keys"], row["blocked_keys"], row["paused_keys"], row["dead_letters"]) == (2, 1, 0, 0)
    heading, line = seriatim("store", "stats", "billing").stdout.splitlines()
    assert heading.split()[:3] == ["subscription", "total", "ready"]
    assert line.split()[:3] == ["billing", "4", "1"]


def test_why_prints_the_sentence_of_the_list(told, seriatim, blocked):
    said = seriatim("keys", "why", "billing", "b").stdout
    assert said == "key b: message 3 is ready, but the subscription has no consumer; it needs a consumer\n"
    row = told("keys", "list", "billing", "--limit", "1")[0]
    why = told("keys", "why", "billing", "a")
    assert (why["waits_for"], why["until"], why["sentence"]) == ("time", row["not_before"], row["why"])


def test_keys_are_listed_by_state_and_by_a_part_of_their_name(told, orders):
    for key in ("alice", "bob", "bobby"):
        told("messages", "publish", "orders", "x", "--key", key)
    told("keys", "pause", "billing", "bobby")
    assert [row["key"] for row in told("keys", "list", "billing", "--state", "paused")] == ["bobby"]
    assert {row["key"] for row in told("keys", "list", "billing", "--search", "bob")} == {"bob", "bobby"}


def test_a_topic_where_a_subscription_is_wanted_gets_the_names_of_its_subscriptions(seriatim, orders):
    result = seriatim("keys", "list", "orders")
    assert result.exit_code == 1
    assert "subscription 'orders' does not exist" in result.stderr
    assert "topic 'orders' has the subscriptions " in result.stderr
