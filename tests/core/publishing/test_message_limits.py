"""What a message may be, to the byte."""

from __future__ import annotations

import pytest

from seriatim.core.publishing.message_limits import check_key, check_message, copy_attributes
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


def test_data_of_another_type_is_named_in_a_note():
    with pytest.raises(InvalidArgument) as refusal:
        check_message({"a": 1}, None, None)
    assert refusal.value.__notes__ == ["It is of type dict: encode it first, or publish JSON with 'publish_json'."]


def test_any_utf8_text_is_a_key():
    for key in ("user-123", "客户", "a b\n\0", "🙂" * 256):
        check_key(key)


def test_attributes_are_copied_from_a_mapping_only():
    given = {"a": "b"}
    copied = copy_attributes(given)
    given["a"] = "c"
    assert copied == {"a": "b"}
    with pytest.raises(InvalidArgument, match=r"^Attributes must be a mapping of str to str, not list$"):
        copy_attributes([("a", "b")])  # type: ignore[arg-type]
