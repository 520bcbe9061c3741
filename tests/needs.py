"""What some tests need and PyPI does not bring.

Without it a test is skipped and says why. Where CI=true it fails instead: a test that silently stopped running there would
never be missed.
"""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def needs_program(name: str, hint: str) -> str:
    """The path of a program; ``hint`` says how to get it."""
    found = shutil.which(name)
    if found is None:
        lacking(f"the program '{name}' is not installed: {hint}")
    return found


def lacking(reason: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
