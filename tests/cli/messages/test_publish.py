"""Publishing: one message, or the lines of an input of any length."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest


def messages(told, count: int = 100) -> list[dict]:
    found = told("messages", "pull", "billing", "--ack", "--limit", str(count), "--wait", "0.2")
    return found if isinstance(found, list) else [found]


def test_a_message_is_published_with_key_and_attributes_and_its_id_is_printed(seriatim, told, orders):
    result = seriatim(
        *("messages", "publish", "orders", "hello", "--key", "a", "--attribute", "x=1", "--attribute", "y=")
    )
    assert result.stdout == "0\n"
    assert told("messages", "publish", "orders", "again") == {"id": "1", "key": None, "topic": "orders"}
    first, second = messages(told)
    assert (first["data"], first["key"], first["attributes"]) == ("hello", "a", {"x": "1", "y": ""})
    assert (second["data"], second["key"], second["attributes"]) == ("again", None, {})


def test_data_comes_from_standard_input_or_a_file_as_it_is(told, orders, tmp_path):
    told("messages", "publish", "orders", stdin=b"two\nlines\n")
    (tmp_path / "data").write_bytes(b"\xff\x00")
    told("messages", "publish", "orders", "--file", "data")
    first, second = messages(told)
    assert (first["data"], first["encoding"]) == ("two\nlines\n", "text")
    assert (base64.b64decode(second["data"]), second["encoding"]) == (b"\xff\x00", "base64")


def test_a_dash_is_data_and_a_note_says_how_to_publish_standard_input(seriatim, told, orders):
    result = seriatim("messages", "publish", "orders", "-", stdin="text")
    assert result.stderr == "publishing '-' itself: to publish standard input, leave out DATA\n"
    assert [message["data"] for message in messages(told)] == ["-"]


def test_a_delayed_message_waits(told, orders):
    told("messages", "publish", "orders", "later", "--delay", "1h")
    assert messages(told) == []
    assert told("store", "stats", "billing")[0]["delayed"] == 1


def test_the_same_id_is_published_once_by_option_and_by_line(seriatim, told, orders):
    for _ in range(2):
        assert told("messages", "publish", "orders", "paid", "--dedup-id", "a")["id"] == "0"
    lines = '{"data": "paid", "dedup_id": "a"}\n{"data": "new", "dedup_id": "b"}\n{"data": "new", "dedup_id": "b"}\n'
    first, new, again = told("messages", "publish", "orders", "--json-lines", stdin=lines)
    assert first["id"] == "0"
    assert new["id"] == again["id"] != "0"
    assert [message["data"] for message in messages(told)] == ["paid", "new"]
    result = seriatim("messages", "publish", "orders", "unpaid", "--dedup-id", "a")
    assert "--dedup-id 'a' belongs to another message" in result.stderr
    result = seriatim("messages", "publish", "orders", "--lines", "--dedup-id", "a")
    assert "--dedup-id is the id of one message" in result.stderr


def test_each_line_is_a_message_in_order(told, orders):
    published = told("messages", "publish", "orders", "--lines", "--key", "k", stdin="a\r\n\nb")
    assert [row["id"] for row in published] == ["0", "1", "2"]
    assert [message["data"] for message in messages(told)] == ["a", "", "b"]


def test_many_lines_in_many_reads_keep_their_order(told, orders, tmp_path):
    lines = [str(number) * 20 for number in range(40_000)]  # several chunks, lines across their borders
    (tmp_path / "lines").write_text("\n".join(lines))
    told("messages", "publish", "orders", "--lines", "--file", "lines", "--quiet")
    (row,) = told("topics", "list")
    assert row["next_offset"] == 40_000
    peeked = told("keys", "peek", "billing", "--keyless", "--limit", "40000")
    assert [message["data"] for message in peeked] == lines


def test_a_field_of_each_line_is_its_key(told, orders):
    told("messages", "publish", "orders", "--key-field", "user", stdin='{"user": "ann"}\n{"user": 7}\n')
    assert [(row["key"], row["data"]) for row in messages(told)] == [
        ("ann", '{"user": "ann"}'),
        ("7", '{"user": 7}'),
    ]


def test_what_pull_prints_can_be_published_again(told, seriatim, orders):
    told("messages", "publish", "orders", "text", "--key", "a", "--attribute", "x=1")
    told("messages", "publish", "orders", stdin=b"\xff")
    pulled = messages(told)
    told("messages", "publish", "orders", "--json-lines", stdin="".join(f"{json.dumps(row)}\n" for row in pulled))
    same = ("key", "data", "encoding", "attributes")
    assert [[row[field] for field in same] for row in messages(told)] == [
        [row[field] for field in same] for row in pulled
    ]


def test_data_of_a_json_line_may_be_any_json(told, orders):
    told("messages", "publish", "orders", "--json-lines", "--attribute", "from=cli", stdin='{"data": {"n": [1, 2]}}\n')
    (message,) = messages(told)
    assert (json.loads(message["data"]), message["attributes"]) == ({"n": [1, 2]}, {"from": "cli"})


@pytest.mark.parametrize(
    ("options", "line", "error"),
    [
        (["--json-lines"], "{", "it is not JSON"),
        (["--json-lines"], "[]", "it is not a JSON object"),
        (["--json-lines"], '{"key": "a"}', "it has no data"),
        (["--json-lines"], '{"data": "x", "key": ""}', "Ordering key cannot be empty"),
        (["--json-lines"], '{"data": "x", "delay": "1h"}', "its delay is not a number of seconds"),
        (["--json-lines"], '{"data": "*", "encoding": "base64"}', "its data is not base64"),
        (["--json-lines"], '{"data": "x", "attributes": [1]}', "its attributes are not a JSON object"),
        (["--json-lines"], '{"data": "x", "delay": NaN}', "its delay is not a number of seconds"),
        (["--json-lines"], '{"data": "\\ud800"}', "its data is not Unicode text"),
        (["--json-lines"], "[" * 100_000, "it is not JSON"),
        (
            ["--json-lines"],
            '{"data": "x", "ordering_key": "ann"}',
            "its field 'ordering_key' is unknown: there are key, ",
        ),
        (["--json-lines"], '{"data": "eA==", "encoding": "Base64"}', "its encoding is neither 'text' nor 'base64'"),
        (["--json-lines"], '{"data": "eA==", "encoding": ["base64"]}', "its encoding is neither 'text' nor 'base64'"),
        (["--key-field", "user"], '{"name": "ann"}', "its field 'user' can't be a key"),
        (["--key-field", "user"], '{"user": ""}', "Ordering key cannot be empty"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_those_before_it_are_published(seriatim, told, orders, options, line, error):
    good = '{"data": "x"}\n' if "--json-lines" in options else '{"user": "ann", "data": "x"}\n'
    result = seriatim("messages", "publish", "orders", *options, "--quiet", stdin=good * 2 + line + "\n" + good)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: line 3: {error}")
    assert result.stderr.endswith("; the lines before it are published\n")
    assert told("topics", "list")[0]["next_offset"] == 2


def test_a_message_that_is_too_large_is_refused(seriatim, orders, tmp_path):
    (tmp_path / "large").write_bytes(b"x" * (10 * 1024 * 1024 + 1))
    result = seriatim("messages", "publish", "orders", "--file", "large")
    assert (result.exit_code, result.stderr) == (2, "error: Message size exceeds maximum of 10MB\n")


def test_a_topic_that_does_not_exist_is_named_or_created(seriatim, told):
    seriatim("topics", "create", "other")
    result = seriatim("messages", "publish", "new", "x")
    assert (result.exit_code, result.stderr) == (1, "error: topic 'new' does not exist: create it first\n")
    assert told("messages", "publish", "new", "x", "--create")["id"] == "0"
    assert told("messages", "publish", "new", "x", "--create")["id"] == "1"


@pytest.mark.parametrize("options", [["--lines"], ["--file", "seriatim.db"], ["--json-lines"]])
def test_data_and_an_input_are_too_much(seriatim, orders, options):
    result = seriatim("messages", "publish", "orders", "x", *options)
    assert result.exit_code == 2
    assert "Give DATA, or a file or lines, not both." in result.stderr


def test_lines_are_published_as_they_come(start, told, orders):
    process = start("messages", "publish", "orders", "--lines", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"0\n", "while the input is still open"
    process.stdin.close()
    assert process.wait(30) == 0


def test_a_failure_half_way_names_the_first_line_that_is_not_confirmed(start, told, orders):
    process = start("messages", "publish", "orders", "--lines", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"0\n"
    told("topics", "delete", "orders", "--yes")
    process.stdin.write(b"second\n")
    process.stdin.close()
    assert process.wait(30) == 1
    assert b"error: topic 'orders' does not exist" in (errors := process.stderr.read())
    assert errors.endswith(b" (line 2 and what follows is not confirmed)\n")


def test_data_that_is_not_text_is_published_as_it_was_typed(start, told, orders):
    process = start("messages", "publish", "orders", os.fsdecode(b"\xff\n"))
    assert process.wait(30) == 0
    (message,) = messages(told)
    assert base64.b64decode(message["data"]) == b"\xff\n"


def test_a_mistyped_store_is_not_created(seriatim):
    result = seriatim("messages", "publish", "orders", "x", "--store", "sqlite:///typo.db")
    assert (result.exit_code, list(Path().glob("typo*"))) == (1, [])
    assert "there is no store at 'typo.db'" in result.stderr
    assert seriatim("messages", "publish", "orders", "x", "--create", "--store", "sqlite:///new.db").exit_code == 0
