r"""Selects a subscription's messages by their attributes: the filter language of Google Pub/Sub.

Rules
-----
1. ``attributes:name`` matches messages that have an attribute; ``attributes.name = "value"`` those where it has this
   value; ``attributes.name != "value"`` all others, including those without the attribute; ``hasPrefix(attributes.name,
   "value")`` those where it begins with this.
2. ``NOT``, or ``-``, negates the term after it; ``AND`` and ``OR`` join terms. Mixing both requires parentheses, so
   that their precedence does not matter. Operators are upper-case; names and values are case-sensitive.
3. A name of letters, digits, ``_`` and ``-`` needs no quotes; any other is quoted, like every value. Inside quotes ``\\``,
   ``\"``, ``\n``, ``\r``, ``\t``, ``\u1234``, ``\U00012345``, ``\x41`` and ``\101`` are escapes; the last two stand for
   *bytes* of UTF-8.
4. A filter has at most 256 bytes. An invalid one raises InvalidArgument with the position and what was expected there.

Grammar
-------
::

    filter      = term { "AND" term } | term { "OR" term }
    term        = [ "NOT" | "-" ] ( "(" filter ")" | comparison )
    comparison  = "attributes" ":" name
                | "attributes" "." name ( "=" | "!=" ) string
                | "hasPrefix" "(" "attributes" "." name "," string ")"

Theory of operation
-------------------
The text is parsed by recursive descent, one method per rule. Each method returns a function that tests the attributes
of a message, so no part of the text is parsed again for a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from seriatim.errors import InvalidArgument

MAX_FILTER_BYTES = 256
"""Bytes of UTF-8."""

Attributes: TypeAlias = Mapping[str, str]
Predicate: TypeAlias = Callable[[Attributes | None], bool]
_Test: TypeAlias = Callable[[Attributes], bool]


def compile_filter(text: str) -> Predicate:
    """A function that tells whether attributes (None: a message without any) match. An invalid filter raises."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_FILTER_BYTES:
        raise InvalidArgument(f"the filter has {size} bytes: use at most {MAX_FILTER_BYTES}")
    test = _Parser(text).parse()
    return lambda attributes: test(attributes or _NO_ATTRIBUTES)


_NO_ATTRIBUTES: Attributes = {}

_BARE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t\r\n]*")
_NEXT_WORD = re.compile(r"[A-Za-z0-9_]+|!=|.?", re.DOTALL)
_STRING_PART = re.compile(
    r"""(?P<plain> [^"\\]+ )
    | \\ (?: (?P<letter> [\\"nrt] ) | u (?P<short> [0-9A-Fa-f]{4} ) | U (?P<long> [0-9A-Fa-f]{8} )
           | x (?P<hex> [0-9A-Fa-f]{2} ) | (?P<octal> [0-3][0-7]{2} ) )""",
    re.VERBOSE,
)
_LAST_LETTER = 0x10FFFF
_LETTERS = {"\\": b"\\", '"': b'"', "n": b"\n", "r": b"\r", "t": b"\t"}


class _Parser:
    """One text, and the current position in it. Each rule returns the test of its part of the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> _Test:
        found = self._filter()
        if self._at < len(self._text):
            raise self._expected("AND, OR or the end")
        return found

    def _filter(self) -> _Test:
        terms, join = [self._term()], None
        while (word := self._word()) in ("AND", "OR"):
            if join not in (None, word):
                raise self._wrong("AND and OR can't be mixed without parentheses")
            join = word
            self._take(word)
            terms.append(self._term())
        if join is None:
            return terms[0]
        combine = all if join == "AND" else any
        return lambda attributes: combine(test(attributes) for test in terms)

    def _term(self) -> _Test:
        if self._word() in ("NOT", "-"):
            self._take(self._word())
            test = self._positive_term()
            return lambda attributes: not test(attributes)
        return self._positive_term()

    def _positive_term(self) -> _Test:
        if self._word() != "(":
            return self._comparison()
        self._take("(")
        found = self._filter()
        self._take(")")
        return found

    def _comparison(self) -> _Test:
        word = self._word()
        if word == "hasPrefix":
            return self._has_prefix()
        if word != "attributes":
            raise self._expected("'attributes', hasPrefix, NOT or '('")
        self._take("attributes")
        if self._word() == ":":
            self._take(":")
            name = self._name()
            return lambda attributes: name in attributes
        if self._word() == ".":
            return self._equality()
        raise self._expected("':' or '.' after 'attributes'")

    def _equality(self) -> _Test:
        self._take(".")
        name, sign = self._name(), self._word()
        if sign not in ("=", "!="):
            raise self._expected("= or != after the name of an attribute")
        self._take(sign)
        value = self._string()
        if sign == "=":
            return lambda attributes: attributes.get(name) == value
        return lambda attributes: attributes.get(name) != value

    def _has_prefix(self) -> _Test:
        for word in ("hasPrefix", "(", "attributes", "."):
            self._take(word)
        name = self._name()
        self._take(",")
        prefix = self._string()
        self._take(")")
        return lambda attributes: name in attributes and attributes[name].startswith(prefix)

    def _name(self) -> str:
        if self._word() == '"':
            return self._string()
        found = _BARE_NAME.match(self._text, self._at)
        if found is None:
            raise self._expected("the name of an attribute")
        self._move(found.end())
        return found[0]

    def _string(self) -> str:
        if self._word() != '"':
            raise self._expected("a value in double quotes")
        start, self._at, parts = self._at, self._at + 1, []
        while part := _STRING_PART.match(self._text, self._at):
            parts.append(_unescape(part))
            self._at = part.end()
        if self._at == len(self._text):
            raise self._wrong("the closing quote is missing", start)
        if self._text[self._at] != '"':
            raise self._wrong(r"unknown escape: use \\, \", \n, \r, \t, \u1234, \U00012345, \x41 or \101")
        self._move(self._at + 1)
        try:
            return b"".join(parts).decode("utf-8")
        except UnicodeDecodeError:
            raise self._wrong("the escaped bytes are not valid UTF-8", start) from None

    # -- tokens ---------------------------------------------------------------------------------------------------------

    def _word(self) -> str:
        """The next word or symbol, without consuming it; empty at the end."""
        self._move(self._at)
        found = _NEXT_WORD.match(self._text, self._at)
        return found[0] if found else ""

    def _take(self, word: str) -> None:
        if self._word() != word:
            raise self._expected(repr(word))
        self._move(self._at + len(word))

    def _move(self, at: int) -> None:
        found = _SPACE.match(self._text, at)
        self._at = found.end() if found else at

    def _expected(self, what: str) -> InvalidArgument:
        return self._wrong(f"expected {what}, found {self._word()!r}" if self._word() else f"expected {what}")

    def _wrong(self, what: str, at: int | None = None) -> InvalidArgument:
        at = self._at if at is None else at
        where = f"character {at + 1}" if at < len(self._text) else "the end"
        return InvalidArgument(f"the filter is wrong at {where}: {what}: {self._text}")


def _unescape(part: re.Match[str]) -> bytes:
    """Part of a string as bytes of UTF-8: hexadecimal and octal escapes are bytes, not characters."""
    if plain := part["plain"]:
        return plain.encode("utf-8", "surrogatepass")
    if letter := part["letter"]:
        return _LETTERS[letter]
    if code := part["short"] or part["long"]:
        # An invalid code point results in invalid UTF-8, which is detected when the string is complete.
        number = int(code, 16)
        return chr(number).encode("utf-8", "surrogatepass") if number <= _LAST_LETTER else b"\xff"
    return bytes([int(part["hex"], 16) if part["hex"] else int(part["octal"], 8)])
