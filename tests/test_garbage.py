"""Tests are not blamed for what others left open."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from tests.conftest import collect_in_silence


@pytest.fixture
def complaints(monkeypatch) -> list[Any]:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    return complaints


class Holder:
    """Refers to itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.myself = self
        self.socket = socket.socket()


def test_what_was_left_open_is_collected_in_silence(complaints):
    descriptor = Holder().socket.fileno()
    collect_in_silence()
    with pytest.raises(OSError, match="Bad file descriptor"):
        socket.socket(fileno=descriptor)
    assert complaints == []


def test_what_hangs_on_the_last_error_is_collected_too(complaints):
    def fail() -> None:
        holder = Holder()
        raise ValueError(holder.socket.fileno())

    with pytest.raises(ValueError, match=r"\d") as caught:
        fail()
    descriptor = caught.value.args[0]
    sys.last_value = caught.value
    del caught
    collect_in_silence()
    assert not hasattr(sys, "last_value")
    with pytest.raises(OSError, match="Bad file descriptor"):
        socket.socket(fileno=descriptor)
    assert complaints == []
