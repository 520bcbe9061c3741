"""The error tree in the docstring is the tree in the code."""

from __future__ import annotations

import re

import pytest

from seriatim import errors
from seriatim.errors import SeriatimError, Status

LINE = re.compile(r"^ {4}(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+) +(?P<code>\d+) {2}(?P<what>\S.*)$", re.MULTILINE)
DRAWN = list(LINE.finditer(errors.__doc__ or ""))


def in_code() -> list[type[SeriatimError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SeriatimError)]


def drawn_parents() -> dict[str, str]:
    """Each drawn error with the one that it hangs on: the last one drawn that is indented by four less."""
    parents: dict[str, str] = {}
    last: dict[int, str] = {-1: "Exception"}
    for line in DRAWN:
        depth = len(line["indent"]) // 4
        parents[line["name"]] = last[depth - 1]
        last[depth] = line["name"]
    return parents


def test_every_error_is_drawn_under_its_base_and_nothing_else_is() -> None:
    assert drawn_parents() == {kind.__name__: kind.__base__.__name__ for kind in in_code() if kind.__base__}


def test_every_error_is_drawn_with_its_code() -> None:
    assert {line["name"]: int(line["code"]) for line in DRAWN} == {kind.__name__: kind.code for kind in in_code()}


def test_the_codes_are_those_of_grpc() -> None:
    assert {status.name: status.value for status in Status} == {
        "UNKNOWN": 2,
        "INVALID_ARGUMENT": 3,
        "DEADLINE_EXCEEDED": 4,
        "NOT_FOUND": 5,
        "ALREADY_EXISTS": 6,
        "PERMISSION_DENIED": 7,
        "RESOURCE_EXHAUSTED": 8,
        "FAILED_PRECONDITION": 9,
        "ABORTED": 10,
        "UNIMPLEMENTED": 12,
        "INTERNAL": 13,
        "UNAVAILABLE": 14,
        "DATA_LOSS": 15,
        "UNAUTHENTICATED": 16,
    }


@pytest.mark.parametrize("kind", in_code(), ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_means_and_carries_its_message(kind: type[SeriatimError]) -> None:
    assert kind.__doc__
    assert kind("do this").message == "do this"
    assert kind.code is Status(kind.code)
