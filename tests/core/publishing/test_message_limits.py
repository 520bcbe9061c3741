"""What a message may be, to the byte."""

from __future__ import annotations

import pytest

from seriatim.core.limits import (
    MAX_REASON_BYTES,
    check_address,
    check_key,
    check_message,
    check_name,
    check_text,
    copy_attributes,
    reason_of,
)
from seriatim.errors import InvalidArgument, Status

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("data", "key", "attributes"),
    [
        (b"", None, None),
        (b"x" * 10 * MIB, None, None),
        (b"x" * (10 * MIB - 2), "k", {"a": "b"}),
        (b"", "x" * 1024, {}),
        (b"", "ü" * 512, {"k" * 256: "v" * 1024, "empty": ""}),
    ],
)
def test_what_is_within_the_limits_is_accepted(data, key, attributes):
    check_message(data, key, attributes)


@pytest.mark.parametrize(
    ("data", "key", "attributes", "text"),
    [
        ("text", None, None, "Message data must be bytes"),
        (bytearray(b"x"), None, None, "Message data must be bytes"),
        (b"x" * (10 * MIB + 1), None, None, "Message size exceeds maximum of 10MB"),
        (b"x" * (10 * MIB - 1), None, {"a": "b"}, "Message size exceeds maximum of 10MB"),
        (b"x" * (10 * MIB - 3), None, {"a": "b", "c": "d"}, "Message size exceeds maximum of 10MB"),
        (b"", "", None, "Ordering key cannot be empty"),
        (b"", 5, None, "Ordering key must be a str, not int"),
        (b"", b"k", None, "Ordering key must be a str, not bytes"),
        (b"", "x" * 1025, None, "Ordering key exceeds maximum length of 1024 bytes"),
        (b"", "ü" * 513, None, "Ordering key exceeds maximum length of 1024 bytes"),
        (b"", "\ud800", None, "Ordering key must be valid UTF-8 text"),
        (b"", None, {"a": 1}, "Attributes must be str to str, not 'a' to 1"),
        (b"", None, {1: "a"}, "Attributes must be str to str, not 1 to 'a'"),
        (b"", None, {"": "a"}, "Attribute key must have 1 to 256 bytes, not 0"),
        (b"", None, {"k" * 257: "a"}, "Attribute key must have 1 to 256 bytes, not 257"),
        (b"", None, {"k": "v" * 1025}, "Attribute value of 'k' exceeds maximum length of 1024 bytes"),
        (b"", None, {"k": "\ud800"}, "Attribute value must be valid UTF-8 text"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_with_its_reason(data, key, attributes, text):
    with pytest.raises(InvalidArgument) as refusal:
        check_message(data, key, attributes)
    assert refusal.value.message == text
    assert refusal.value.code is Status.INVALID_ARGUMENT


def test_any_utf8_text_is_a_key():
    for key in ("user-123", "客户", "a b\n\0", "🙂" * 256):
        check_key(key)


@pytest.mark.parametrize("name", ["t", "projects/p/topics/t", "ü" * 512, "a\0b"])
def test_any_short_utf8_text_is_a_name(name):
    check_name("Topic name", name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (None, "Topic name must be a str, not NoneType"),
        (b"t", "Topic name must be a str, not bytes"),
        ("", "Topic name cannot be empty"),
        ("\ud800", "Topic name must be valid UTF-8 text"),
        ("ü" * 513, "Topic name exceeds maximum length of 1024 bytes"),
    ],
)
def test_anything_else_is_no_name(name, text):
    with pytest.raises(InvalidArgument) as refusal:
        check_name("Topic name", name)
    assert refusal.value.message == text


def test_a_text_may_be_long_and_must_be_utf8():
    check_text("Text", "x" * 1_000_000)
    for text, problem in (("\udce9", "valid UTF-8 text"), (None, "a str, not NoneType"), (5, "a str, not int")):
        with pytest.raises(InvalidArgument, match=rf"^Text must be {problem}$"):
            check_text("Text", text)


def test_an_address_may_be_long_and_name_a_file_whose_name_is_not_utf8():
    for address in ("sqlite:///" + "x" * 5000, "/tmp/caf\udce9.db", ""):
        check_address("Address", address)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (None, "Address must be a str, not NoneType"),
        (b"/tmp", "Address must be a str, not bytes"),
        ("/tmp/a\0b", "Address can't contain the character 0"),
        ("/tmp/\ud800", "Address must be valid UTF-8 text"),
    ],
)
def test_anything_else_is_no_address(address, text):
    with pytest.raises(InvalidArgument) as refusal:
        check_address("Address", address)
    assert refusal.value.message == text


class Mute(Exception):
    """An error that can't be shown."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        (None, None),
        ("", ""),
        ("out of paper", "out of paper"),
        ("\ud800 ü", "\\ud800 ü"),
        ("a\0b", "a\\x00b"),
        (ValueError("\udce9"), "ValueError: \\udce9"),
        (Mute(), "Mute: (it can't be shown)"),
        ("x" * MAX_REASON_BYTES, "x" * MAX_REASON_BYTES),
        ("x" * (MAX_REASON_BYTES + 1), "x" * (MAX_REASON_BYTES - 3) + "…"),
        ("ü" * MAX_REASON_BYTES, "ü" * ((MAX_REASON_BYTES - 3) // 2) + "…"),
        ("\ud800" * MAX_REASON_BYTES, ("\\ud800" * MAX_REASON_BYTES)[: MAX_REASON_BYTES - 3] + "…"),
    ],
)
def test_a_reason_is_made_to_fit(reason, kept):
    assert reason_of(reason) == kept
    assert reason_of(kept) == kept


def test_a_reason_is_text_or_an_exception():
    with pytest.raises(InvalidArgument, match=r"^A reason must be a str or an exception, not int$"):
        reason_of(5)


def test_attributes_are_copied_from_a_mapping_only():
    given = {"a": "b"}
    copied = copy_attributes(given)
    given["a"] = "c"
    assert copied == {"a": "b"}
    with pytest.raises(InvalidArgument, match=r"^Attributes must be a mapping of str to str, not list$"):
        copy_attributes([("a", "b")])  # type: ignore[arg-type]
