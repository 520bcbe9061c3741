"""Dead letters: where they came from, and their way back."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def letters(told, orders) -> None:
    """Two dead letters of key ``a``; a third message waits behind them."""
    for data in ("a1", "a2", "a3"):
        told("messages", "publish", "orders", data, "--key", "a")
    for _ in range(2):
        told("keys", "dead-letter", "billing", "a", "--reason", "poison")


def test_they_are_listed_page_by_page(told, letters):
    first, second = told("dead-letters", "list", "billing")
    assert (first["id"], first["key"], first["error"], first["returnable"]) == ("0", "a", "poison", True)
    assert first["time"].endswith("Z")
    assert [row["id"] for row in told("dead-letters", "list", "billing", "--limit", "1")] == ["0"]
    assert [row["id"] for row in told("dead-letters", "list", "billing", "--after", "0")] == ["1"]
    assert second["id"] == "1"


def test_one_is_shown_with_its_data(seriatim, told, letters):
    shown = told("dead-letters", "show", "billing", "1")
    assert (shown["id"], shown["key"], shown["data"], shown["error"]) == ("1", "a", "a2", "poison")
    lines = dict(
        line.split(maxsplit=1) for line in seriatim("dead-letters", "show", "billing", "1").stdout.splitlines()
    )
    assert (lines["data"], lines["attempts"], lines["error"]) == ("a2", "0", "poison")


def test_one_that_waits_in_its_key_is_no_dead_letter(seriatim, letters):
    result = seriatim("dead-letters", "show", "billing", "2")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: subscription 'billing' has no dead letter 2: see 'seriatim dead-letters list billing'\n"
    )


def test_all_of_them_go_back_to_their_places(told, letters):
    outcome = told("dead-letters", "redrive", "billing", "--all")
    assert [(row["id"], row["redriven"], row["new_id"]) for row in outcome] == [("0", True, "0"), ("1", True, "1")]
    pulled = told("messages", "pull", "billing", "--ack", "--wait", "0.2")
    assert [row["data"] for row in pulled] == ["a1", "a2", "a3"]


def test_one_that_was_overtaken_is_refused_with_the_reason_and_can_be_appended(seriatim, told, letters):
    told("messages", "pull", "billing", "--ack", "--wait", "0.2")  # a3 overtakes both
    result = seriatim("dead-letters", "redrive", "billing", "0", "1", "--json")
    assert result.exit_code == 1
    outcome = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["redriven"] for row in outcome] == [False, False]
    assert all("settled" in row["reason"] for row in outcome)
    result = seriatim("dead-letters", "redrive", "billing", "0")
    assert result.stderr == "to put them at the end of their keys instead, add --append\n"
    result = seriatim("dead-letters", "redrive", "billing", "0", "--append")
    assert (result.exit_code, result.stdout) == (0, "0: put back as 3\n")
    assert told("messages", "pull", "billing", "--ack", "--wait", "0.2")["data"] == "a1"


def test_a_refusal_does_not_keep_the_others_from_going_back(seriatim, told, letters):
    result = seriatim("dead-letters", "redrive", "billing", "0", "7", "1")
    assert result.exit_code == 1
    assert [line.split(":")[1] for line in result.stdout.splitlines()] == [" put back", " refused", " put back"]
    assert told("dead-letters", "list", "billing") == []


def test_without_any_a_redrive_of_all_says_so(seriatim, orders):
    result = seriatim("dead-letters", "redrive", "billing", "--all")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "there are no dead letters\n")


def test_they_are_given_up_for_good_only_on_demand(seriatim, told, letters):
    assert seriatim("dead-letters", "purge", "billing", "--all").exit_code == 2
    assert len(told("dead-letters", "list", "billing")) == 2
    assert told("dead-letters", "purge", "billing", "0", "--yes")["purged"] == ["0"]
    assert told("dead-letters", "purge", "billing", "--all", "--yes")["purged"] == ["1"]
    assert told("dead-letters", "list", "billing") == []


@pytest.mark.parametrize("verb", [("redrive",), ("purge", "--yes")])
@pytest.mark.parametrize("which", [(), ("0", "--all")])
def test_either_ids_or_all_are_needed(seriatim, letters, verb, which):
    result = seriatim("dead-letters", *verb, "billing", *which)
    assert result.exit_code == 2
    assert "Give either the ids of dead letters or --all." in result.stderr
