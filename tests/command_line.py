"""What the commands of the long runs (``make simulate``, ``make exhaustive``, ``make nemesis``) have in common."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130
"""What shells call a program that was ended with Ctrl-C."""


def at_least_one(text: str) -> int:
    """A whole number above zero. A run of nothing would report that nothing was found."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more: {text!r}")
    return int(text)


def above_zero(text: str) -> float:
    """A number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"must be a number above 0: {text!r}")
    return number


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Run a command. Ctrl-C ends it without a trace."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
