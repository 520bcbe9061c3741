"""What a name, a text and an address may be, and how reasons are made to fit."""

from __future__ import annotations

import pytest

from seriatim.core.text_checks import MAX_REASON_BYTES, check_address, check_name, check_text, reason_of
from seriatim.errors import InvalidArgument


class Mute(Exception):
    """An error that can't be shown."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("name", ["t", "projects/p/topics/t", "t" * 1024, "ü" * 512, "a\0b"])
def test_any_short_utf8_text_is_a_name(name):
    check_name("Topic name", name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (None, "Topic name must be a str, not NoneType"),
        (b"t", "Topic name must be a str, not bytes"),
        ("", "Topic name cannot be empty"),
        ("\ud800", "Topic name must be valid UTF-8 text"),
        ("t" * 1025, "Topic name exceeds maximum length of 1024 bytes"),
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
