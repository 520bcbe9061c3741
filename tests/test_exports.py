"""The public door is exactly this wide."""

from __future__ import annotations

import ast
import types
from pathlib import Path

import pytest

import seriatim

PUBLIC = {
    "Batching",
    "Consuming",
    "FlowControl",
    "Guarantee",
    "LedgerEntry",
    "Message",
    "OnExhausted",
    "PubSub",
    "PubSubMessage",
    "PublishOptions",
    "Queue",
    "QueueEmpty",
    "Release",
    "Released",
    "Resequencer",
    "Resequencers",
    "Resequencing",
    "RetryMode",
    "RetryPolicy",
    "SeriatimError",
    "Start",
    "__version__",
    "classify",
}


def test_all_lists_exactly_the_public_names():
    assert sorted(seriatim.__all__) == sorted(PUBLIC)


def test_every_public_name_can_be_imported():
    assert all(hasattr(seriatim, name) for name in PUBLIC)


def test_each_name_is_loaded_from_where_type_checkers_see_it():
    source = Path(seriatim.__file__).read_text(encoding="utf-8")
    seen = {
        name.name: statement.module
        for statement in ast.walk(ast.parse(source))
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert seen == seriatim._HOMES


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'seriatim' has no attribute 'Pubsub'"):
        seriatim.Pubsub  # type: ignore[attr-defined]  # noqa: B018


def test_no_other_public_name_leaks():
    # Submodules appear as attributes once somebody imports them; they are reached by their own path.
    leaked = {
        name
        for name, value in vars(seriatim).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert leaked - PUBLIC == set()
