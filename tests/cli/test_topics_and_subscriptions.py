"""Topics, subscriptions and how deleting asks first."""

from __future__ import annotations

import os
import pty
import signal

import pytest

from tests.cli.conftest import signal_while_reading


def test_a_topic_is_created_listed_and_deleted(told, seriatim):
    told("topics", "create", "orders", "--retention", "2h", "--retain-settled", "forever")
    assert told("topics", "list") == [
        {
            "topic": "orders",
            "earliest": 0,
            "next_offset": 0,
            "retention": 7200.0,
            "retain_settled": None,
            "problem": None,
        }
    ]
    assert told("topics", "delete", "orders", "--yes") == {"topic": "orders", "deleted": True}
    assert seriatim("topics", "list").stdout == "there are no topics\n"


def test_a_table_shows_the_same_for_people(seriatim, orders):
    lines = [line.split() for line in seriatim("topics", "list").stdout.splitlines()]
    assert lines == [
        ["topic", "earliest", "next", "offset", "retention", "retain", "settled"],
        ["orders", "0", "0", "7d", "0h", "0.0s"],
    ]


def test_a_subscription_keeps_the_options_that_it_was_given(told, orders):
    told("topics", "create", "dead")
    told(
        *("subscriptions", "create", "orders", "s", "--ordered", "--ack-deadline", "1.5m", "--min-backoff", "100ms"),
        *("--max-backoff", "1h", "--retry-mode", "overtake", "--max-attempts", "3", "--on-exhausted", "pause"),
        *("--window", "4", "--release", "receipt", "--dead-letter-topic", "dead"),
    )
    (found,) = [row for row in told("subscriptions", "list") if row["subscription"] == "s"]
    assert found["retry"] == {
        "min_backoff": 0.1,
        "max_backoff": 3600.0,
        "mode": "overtake",
        "max_attempts": 3,
        "on_exhausted": "pause",
    }
    assert (found["ordering"], found["ack_deadline"], found["window"], found["release"]) == (True, 90.0, 4, "receipt")
    assert (found["topic"], found["dead_letter_topic"]) == ("orders", "dead")


def test_subscriptions_are_listed_by_topic(told, orders):
    told("topics", "create", "other")
    told("subscriptions", "create", "other", "s")
    assert [row["subscription"] for row in told("subscriptions", "list", "--topic", "other")] == ["s"]


def test_the_store_is_the_configured_one_or_that_of_the_option(told, monkeypatch, tmp_path):
    monkeypatch.setenv("SERIATIM_STORE", "sqlite:///configured.db")
    told("topics", "create", "a")
    told("topics", "create", "b", "--store", "sqlite:///other.db")
    assert [row["topic"] for row in told("topics", "list")] == ["a"]
    assert [row["topic"] for row in told("topics", "list", "--store", "sqlite:///other.db")] == ["b"]


@pytest.mark.parametrize(
    "command", [("topics", "delete", "orders"), ("subscriptions", "delete", "billing"), ("snapshots", "delete", "x")]
)
def test_deleting_without_a_terminal_and_without_yes_is_refused(seriatim, told, orders, command):
    result = seriatim(*command)
    assert result.exit_code == 2
    assert result.stderr.endswith("There is no terminal to ask at: add --yes\n")
    assert len(told("subscriptions", "list")) == 1


@pytest.mark.parametrize(("answer", "status", "left"), [(b"y\n", 0, 0), (b"n\n", 1, 1)])
def test_deleting_asks_at_a_terminal(start, told, orders, answer, status, left):
    terminal, child = pty.openpty()
    process = start("subscriptions", "delete", "billing", stdin=child)
    os.close(child)
    os.write(terminal, answer)
    _, errors = process.communicate(timeout=30)
    os.close(terminal)
    assert b"Delete subscription 'billing' and its place in the log for good?" in errors
    assert (process.returncode, len(told("subscriptions", "list"))) == (status, left)


def test_an_interrupt_at_the_question_is_an_interrupt(start, told, orders):
    terminal, child = pty.openpty()
    process = start("subscriptions", "delete", "billing", stdin=child)
    assert process.stderr is not None
    assert process.stderr.read(20) == b"Delete subscription "
    assert signal_while_reading(process, signal.SIGINT) == 130
    os.close(terminal)
    os.close(child)
    assert len(told("subscriptions", "list")) == 1


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("topics", "create", "orders"), "topic 'orders' exists already"),
        (("topics", "delete", "nope", "--yes"), "topic 'nope' does not exist"),
        (("subscriptions", "create", "nope", "s"), "topic 'nope' does not exist"),
        (("pull", "nope"), "subscription 'nope' does not exist"),
        (("stats", "nope"), "subscription 'nope' does not exist"),
        (("keys", "list", "nope"), "subscription 'nope' does not exist"),
        (("dead-letters", "list", "nope"), "subscription 'nope' does not exist"),
    ],
)
def test_what_can_not_be_done_is_said_in_one_line(seriatim, orders, command, error):
    result = seriatim(*command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {error}")
    assert result.stderr.count("\n") == 1


def test_a_duration_that_is_none_is_a_usage_error(seriatim):
    result = seriatim("topics", "create", "t", "--retention", "soon")
    assert result.exit_code == 2
    assert "'soon' is not a duration: write 90, 1.5s, 10m, 2h or 7d, or 'forever'." in result.stderr


@pytest.mark.parametrize(
    "command", [("topics", "list"), ("pull", "s"), ("stats",), ("backup", "b.db"), ("keys", "list", "s")]
)
def test_a_look_at_a_store_that_does_not_exist_makes_none(seriatim, tmp_path, command):
    result = seriatim(*command, "--store", "sqlite:///typo.db")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no store at 'typo.db': make one with 'seriatim topics create'")
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_leads_to_no_store_is_a_usage_error(seriatim):
    result = seriatim("topics", "list", "--store", "mysql://x")
    assert result.exit_code == 2
    assert "'mysql://x' is not a store that can be opened" in result.stderr
