"""What keys wait for, and an operator's hand on them."""

from __future__ import annotations

import pytest


@pytest.fixture
def blocked(told, orders) -> None:
    """Key ``a`` waits for the delay of its first message, key ``b`` for nothing."""
    told("publish", "orders", "a1", "--key", "a", "--delay", "1h")
    for key, data in (("a", "a2"), ("a", "a3"), ("b", "b1")):
        told("publish", "orders", data, "--key", key)


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
    assert [row["data"] for row in told("pull", "billing", "--wait", "0.2")] == ["a1", "b1"]


def test_skip_settles_the_head_unseen(told, blocked):
    assert told("keys", "skip", "billing", "a")["id"] == "0"
    assert [row["data"] for row in told("keys", "peek", "billing", "a")] == ["a2", "a3"]


def test_a_key_is_paused_with_a_reason_and_resumed(told, seriatim, blocked):
    told("keys", "pause", "billing", "b", "--reason", "looking into it")
    (row,) = [row for row in told("keys", "list", "billing") if row["key"] == "b"]
    assert (row["state"], row["why"]) == ("paused", "paused: looking into it")
    assert seriatim("keys", "resume", "billing", "b").stdout == "key b: resumed\n"
    assert told("keys", "list", "billing", "--limit", "2")[1]["state"] == "ready"


def test_the_head_or_the_whole_key_is_dead_lettered_with_a_reason(told, blocked):
    assert told("keys", "dead-letter", "billing", "a", "--reason", "poison")["ids"] == ["0"]
    assert told("keys", "dead-letter", "billing", "a", "--rest")["ids"] == ["1", "2"]
    letters = told("dead-letters", "list", "billing")
    assert (letters[0]["id"], letters[0]["key"], letters[0]["error"]) == ("0", "a", "poison")
    assert len(letters) == 3


def test_messages_without_a_key_are_chosen_with_keyless(told, seriatim, orders):
    told("publish", "orders", "x")
    assert [row["data"] for row in told("keys", "peek", "billing", "--keyless")] == ["x"]
    assert seriatim("keys", "list", "billing").stdout.splitlines()[1].split()[:2] == ["-", "ready"]


@pytest.mark.parametrize("which", [[], ["a", "--keyless"]])
def test_either_a_key_or_keyless_is_needed(seriatim, orders, which):
    result = seriatim("keys", "peek", "billing", *which)
    assert result.exit_code == 2
    assert "Give either KEY or --keyless." in result.stderr


def test_a_subscription_is_paused_and_resumed(told, blocked):
    told("subscriptions", "pause", "billing")
    assert told("stats", "billing")[0]["paused"] is True
    assert told("pull", "billing", "--wait", "0.2") == []
    told("subscriptions", "resume", "billing")
    assert told("pull", "billing", "--wait", "0.2")["data"] == "b1"


def test_stats_count_what_waits_for_what(told, seriatim, blocked):
    (row,) = told("stats")
    assert (row["total"], row["ready"], row["delayed"], row["blocked"]) == (4, 1, 1, 2)
    assert (row["keys"], row["blocked_keys"], row["paused_keys"], row["dead_letters"]) == (2, 1, 0, 0)
    heading, line = seriatim("stats", "billing").stdout.splitlines()
    assert heading.split()[:3] == ["subscription", "total", "ready"]
    assert line.split()[:3] == ["billing", "4", "1"]
