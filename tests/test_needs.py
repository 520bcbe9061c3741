from __future__ import annotations

import pytest

from tests.needs import needs_program

ABSENT = "no-such-program-anywhere"


def test_a_program_that_is_installed_is_found():
    assert needs_program("make", hint="install make").endswith("make")


def test_a_missing_program_skips_the_test_with_a_reason(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"'{ABSENT}' is not installed: apt install it"):
        needs_program(ABSENT, hint="apt install it")


def test_a_missing_program_fails_the_test_where_ci_is_true(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"'{ABSENT}' is not installed: apt install it"):
        needs_program(ABSENT, hint="apt install it")
