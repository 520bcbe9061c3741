"""Packages whose public names are imported on first use, so that importing the package stays cheap.

::

    __getattr__, __dir__ = lazy_exports(__name__, {"seriatim.client.pubsub": ("PubSub",)})

Type checkers need the same imports under ``TYPE_CHECKING``; tests/test_exports.py holds the two equal.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, names_by_module: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The module-level ``__getattr__`` and ``__dir__`` of a package with these names."""
    homes = {name: module for module, names in names_by_module.items() for name in names}
    attributes = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = attributes[name] = getattr(importlib.import_module(homes[name]), name)
        return value

    def names() -> list[str]:
        return sorted({*attributes, *homes})

    return get, names
