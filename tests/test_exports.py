"""The public door is exactly this wide."""

from __future__ import annotations

import ast
import importlib
import inspect
import types

import pytest

import seriatim

PUBLIC = {
    "Batching",
    "ConsumeOptions",
    "FlowControl",
    "Message",
    "PubSub",
    "PubSubMessage",
    "PublishOptions",
    "Queue",
    "RetryPolicy",
    "SeriatimError",
    "Subscription",
    "Topic",
    "__version__",
}


def test_all_lists_exactly_the_public_names():
    assert sorted(seriatim.__all__) == sorted(PUBLIC)


def test_every_public_name_can_be_imported():
    assert all(hasattr(seriatim, name) for name in PUBLIC)


@pytest.mark.parametrize("package", ["seriatim", "seriatim.spark", "seriatim.testing"])
def test_each_name_is_loaded_from_where_type_checkers_see_it(package):
    module = importlib.import_module(package)
    (checking,) = (
        statement
        for statement in ast.parse(inspect.getsource(module)).body
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "typing.TYPE_CHECKING"
    )
    seen = {
        name.name: statement.module
        for statement in checking.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert seen == {name: home for home, names in module._HOMES.items() for name in names}


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'seriatim' has no attribute 'Pubsub'"):
        seriatim.Pubsub  # type: ignore[attr-defined]  # noqa: B018


def test_no_other_public_name_leaks():
    # Submodules appear as attributes once somebody imports them; they are reached by their own path.
    leaked = {
        name
        for name, value in vars(seriatim).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "lazy_exports"
    }
    assert leaked - PUBLIC == set()
