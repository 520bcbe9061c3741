"""Topics, subscriptions and how deleting asks first."""

from __future__ import annotations

import os
import pty
import signal

import click
import pytest
from click.testing import CliRunner

from seriatim.cli.common.command import with_output
from seriatim.errors import NotSupported
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
            "dedup_window": None,
            "dedup_max_ids": None,
            "problem": None,
        }
    ]
    assert told("topics", "delete", "orders", "--yes") == {"topic": "orders", "deleted": True}
    assert seriatim("topics", "list").stdout == "there are no topics\n"


def test_a_table_shows_the_same_for_people(seriatim, orders):
    lines = [line.split() for line in seriatim("topics", "list").stdout.splitlines()]
    assert lines == [
        ["topic", "earliest", "next", "offset", "retention", "retain", "settled"],
        ["orders", "0", "0", "7d", "0s"],
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
    assert (found["message_ordering"], found["ack_deadline"], found["window"], found["release"]) == (
        True,
        90.0,
        4,
        "receipt",
    )
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
    seriatim("snapshots", "create", "billing", "x")
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
    assert b"Delete subscription 'billing' and its position?" in errors
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
        (
            ("topics", "create", "orders"),
            "topic 'orders' already exists: to change its options, use 'seriatim topics up",
        ),
        (
            ("subscriptions", "create", "orders", "billing"),
            "subscription 'billing' already exists: choose another name, or use 'seriatim subscriptions update billing'",
        ),
        (("topics", "delete", "nope", "--yes"), "topic 'nope' does not exist"),
        (("subscriptions", "create", "nope", "s"), "topic 'nope' does not exist"),
        (("messages", "pull", "nope"), "subscription 'nope' does not exist"),
        (("store", "stats", "nope"), "subscription 'nope' does not exist"),
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
    "command",
    [
        "topics list",
        "messages pull s",
        "messages read t",
        "store stats",
        "store backup b.db",
        "store check",
        "keys list s",
    ],
)
def test_a_look_at_a_store_that_does_not_exist_makes_none(seriatim, tmp_path, command):
    result = seriatim(*command.split(), "--store", "sqlite:///typo.db")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no store at 'typo.db': create one with 'seriatim topics create'")
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_leads_to_no_store_is_a_usage_error(seriatim):
    result = seriatim("topics", "list", "--store", "mysql://x")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: no address begins with 'mysql://': write sqlite:///FILE, postgresql://USER@HOST/DATABASE, "
        "pubsub://HOST:PORT/PROJECT, kafka://HOST:9092, http://HOST:PORT (the admin API)\n"
    )


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("htp://h", "http://"),
        ("HTTPS://h", "https://"),
        ("postgress://u:secret@h/d", "postgres://"),
        ("kafak://h:9092", "kafka://"),
        ("pupsub://h:1/p", "pubsub://"),
        ("sqlite://file", "sqlite:///"),
    ],
)
@pytest.mark.parametrize("command", ["topics list", "store check", "store doctor", "serve", "console"])
def test_a_mistyped_kind_of_address_gets_a_suggestion_and_tells_no_password(seriatim, command, address, meant):
    result = seriatim(*command.split(), "--store", address)
    assert result.exit_code == 2
    assert result.stderr.endswith(f"; did you mean {meant}?\n")
    assert "secret" not in result.stderr


def test_a_store_in_memory_is_refused_because_it_ends_with_the_command(seriatim):
    for command in ("topics list", "store check", "messages publish t x"):
        result = seriatim(*command.split(), "--store", "memory://")
        assert result.exit_code == 2
        assert result.stderr.startswith(
            "error: a store in memory is gone when the command ends: name a file with --store"
        )


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("subscriptions create orders s --window 99999999999999999999", "--window"),
        ("subscriptions create orders s --max-attempts 99999999999999999999", "--max-attempts"),
        ("topics create t --dedup-max-ids 0", "--dedup-max-ids"),
        ("messages publish orders x --delay 99999999d", "--delay"),
        ("snapshots create billing s --lasts 99999999d", "--lasts"),
    ],
)
def test_a_wrong_value_is_told_with_the_name_of_its_option(seriatim, orders, command, option):
    result = seriatim(*command.split())
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {option} must be ")


def test_an_error_names_options_as_they_are_typed():
    @click.command()
    @click.option("--start")
    @click.option("--increment")
    @click.option("--dedup-window")
    @with_output
    def command(output, **_: object) -> None:
        raise NotSupported("with increment=2 set start=NUMBER; leave dedup_window out of 'start'")

    result = CliRunner().invoke(command, [])
    assert isinstance(result.exception, NotSupported)
    assert str(result.exception) == "with --increment 2 set --start NUMBER; leave --dedup-window out of 'start'"


def test_the_name_of_a_file_alone_is_not_an_address_but_shows_what_is(seriatim):
    result = seriatim("topics", "list", "--store", "orders.db")
    assert result.exit_code == 2
    assert result.stderr == "error: 'orders.db' is not the address of a store: for a file write sqlite:///orders.db\n"


@pytest.mark.parametrize(
    ("command", "meant"),
    [(["messages", "publish", "oders", "x"], "orders"), (["keys", "list", "biling"], "billing")],
)
def test_a_mistyped_name_gets_the_nearest_as_a_suggestion(seriatim, orders, command, meant):
    result = seriatim(*command)
    assert result.exit_code == 1
    assert result.stderr.endswith(f"does not exist: create it first; did you mean '{meant}'?\n")
    assert "did you mean" not in seriatim("keys", "list", "something-else").stderr


def test_a_short_name_gets_the_full_name_of_another_project_as_a_suggestion(seriatim, told, orders):
    told("subscriptions", "create", "orders", "projects/shop/subscriptions/work")
    assert "did you mean 'projects/shop/subscriptions/work'?" in seriatim("keys", "list", "work").stderr


def test_the_name_of_a_subscription_is_noticed_where_a_topic_belongs(seriatim, orders):
    result = seriatim("messages", "publish", "billing", "x")
    assert result.stderr.endswith("does not exist: create it first; 'billing' is a subscription of topic 'orders'\n")


def test_a_subscription_is_ordered_unless_told_otherwise(told, orders):
    told("subscriptions", "create", "orders", "any", "--unordered")
    assert {row["subscription"]: row["message_ordering"] for row in told("subscriptions", "list")} == {
        "any": False,
        "billing": True,
    }


def test_the_options_that_are_given_are_updated_and_no_others(told, seriatim, orders):
    told("topics", "create", "dead")
    before = told("subscriptions", "show", "billing")
    told("subscriptions", "update", "billing", "--max-attempts", "5", "--dead-letter-topic", "dead", "--unordered")
    after = told("subscriptions", "show", "billing")
    assert after["retry"] == {**before["retry"], "max_attempts": 5}
    assert (after["dead_letter_topic"], after["message_ordering"]) == ("dead", False)
    assert after["ack_deadline"] == before["ack_deadline"]
    result = seriatim(
        "subscriptions", "update", "billing", "--max-attempts", "0", "--dead-letter-topic", "", "--ordered"
    )
    assert result.stdout == "updated subscription 'billing': --max-attempts 0, --dead-letter-topic '', --ordered\n"
    assert told("subscriptions", "show", "billing") == before


def test_a_long_first_delay_needs_no_second_option(told, orders):
    told("subscriptions", "create", "orders", "patient", "--min-backoff", "1h")
    assert told("subscriptions", "show", "patient")["retry"]["max_backoff"] == 3600.0


@pytest.mark.parametrize("command", [("topics", "update", "orders"), ("subscriptions", "update", "billing")])
def test_an_update_of_nothing_is_a_usage_error(seriatim, orders, command):
    result = seriatim(*command)
    assert result.exit_code == 2
    assert "Name at least one option to change." in result.stderr


def test_a_topic_is_updated(told, seriatim, orders):
    assert told("topics", "update", "orders", "--retention", "forever")["retention"] is None
    assert seriatim("topics", "update", "orders", "--retain-settled", "1h").stdout == (
        "updated topic 'orders': --retain-settled 1h\n"
    )
    (row,) = told("topics", "list")
    assert (row["retention"], row["retain_settled"]) == (None, 3600.0)


def test_a_subscription_shows_its_options_and_its_backlog(told, seriatim, orders):
    told("messages", "publish", "orders", "one", "--key", "a", "--delay", "1h")
    told("messages", "publish", "orders", "two", "--key", "a")
    assert told("subscriptions", "show", "billing")["stats"]["delayed"] == 1
    lines = dict(line.split("  ", 1) for line in seriatim("subscriptions", "show", "billing").stdout.splitlines())
    shown = {name: text.strip() for name, text in lines.items()}
    assert (shown["subscription"], shown["topic"], shown["ordered"]) == ("billing", "orders", "yes")
    assert shown["messages"] == "2 (0 ready, 0 leased, 1 delayed, 1 blocked)"
    assert shown["max attempts"] == "no limit"
    assert "filter" not in shown


def test_what_can_not_be_undone_asks_with_what_is_about_to_happen(seriatim, told, orders):
    told("messages", "publish", "orders", "x", "--key", "a")
    for command, question in {
        ("keys", "skip", "billing", "a"): "Skip the first message of key a in subscription 'billing'?",
        (
            "keys",
            "skip",
            "billing",
            "--keyless",
        ): "Skip the first message of keyless messages in subscription 'billing'?",
        ("subscriptions", "seek", "billing", "--message", "1"): "Move subscription 'billing' to message 1?",
    }.items():
        result = seriatim(*command)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {question}")
        assert result.stderr.endswith("There is no terminal to ask at: add --yes\n")
    assert told("store", "stats", "billing")[0]["ready"] == 1


def test_whoever_swaps_topic_and_subscription_is_told_the_order(seriatim):
    seriatim("topics", "create", "orders")
    refused = seriatim("subscriptions", "create", "shipping", "orders")
    assert (refused.exit_code, refused.stderr) == (
        1,
        "error: topic 'shipping' does not exist; the topic comes first: orders shipping\n",
    )


def test_whoever_subscribes_late_is_told_how_to_get_what_is_kept(seriatim):
    seriatim("topics", "create", "orders")
    seriatim("messages", "publish", "orders", "early")
    created = seriatim("subscriptions", "create", "orders", "shipping")
    *_, command = created.stderr.strip().partition("seriatim ")
    assert command == "subscriptions seek shipping --message 0"
    assert seriatim(*command.split(), "--yes").exit_code == 0
    assert "early" in seriatim("messages", "pull", "shipping", "--ack").stdout
    seriatim("topics", "create", "empty")
    assert seriatim("subscriptions", "create", "empty", "second").stderr == ""


def test_a_topic_is_shown_with_what_it_keeps_and_who_reads_it(seriatim):
    seriatim("topics", "create", "orders", "--retention", "2d")
    assert "kept messages   none" in seriatim("topics", "show", "orders").stdout
    for _ in range(3):
        seriatim("messages", "publish", "orders", "x")
    seriatim("subscriptions", "create", "orders", "shipping")
    shown = seriatim("topics", "show", "orders").stdout
    assert "kept messages   from 0 to 2" in shown
    assert "retention       2d" in shown
    assert "subscriptions   shipping" in shown


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("topics delete nothing", "topic 'nothing'"),
        ("subscriptions delete nothing", "subscription 'nothing'"),
        ("subscriptions seek nothing --time now", "subscription 'nothing'"),
        ("snapshots delete nothing", "snapshot 'nothing'"),
        ("readers delete nothing", "reader 'nothing'"),
        ("keys skip nothing k", "subscription 'nothing'"),
        ("dead-letters purge nothing --all", "subscription 'nothing'"),
    ],
)
def test_nobody_is_asked_about_what_is_not_there(seriatim, command, missing):
    seriatim("topics", "create", "orders")
    refused = seriatim(*command.split())
    assert refused.exit_code == 1
    assert f"{missing} does not exist" in refused.stderr
    assert "?" not in refused.stderr


def test_changes_are_answered_with_what_was_changed(seriatim):
    seriatim("topics", "create", "t")
    seriatim("subscriptions", "create", "t", "s")
    updated = seriatim("subscriptions", "update", "s", "--ack-deadline", "30", "--unordered", "--keep", "latest")
    assert updated.stdout == "updated subscription 's': --ack-deadline 30s, --unordered, --keep latest\n"
    updated = seriatim("topics", "update", "t", "--retention", "forever", "--dedup-max-ids", "9")
    assert updated.stdout == "updated topic 't': --retention forever, --dedup-max-ids 9\n"
