"""The public door is exactly this wide."""

from __future__ import annotations

import types

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


def test_no_other_public_name_leaks():
    # Submodules appear as attributes once somebody imports them; they are reached by their own path.
    leaked = {
        name
        for name, value in vars(seriatim).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert leaked - PUBLIC == set()
