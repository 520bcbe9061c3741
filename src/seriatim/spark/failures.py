"""What Spark reports, in our words again.

An error that a task raises reaches the driver as text: the traceback of the worker, within the message of a job, within that of
the query. The line that says what happened and what to do is in there.
"""

from __future__ import annotations

import re

from seriatim import errors
from seriatim.errors import FailedPrecondition, SeriatimError

_TOLD = re.compile(r"^\s*seriatim\.errors\.(\w+): (.+?)\s*$", re.MULTILINE)


def unwrapped(error: BaseException) -> SeriatimError:
    """The error of ours that made Spark fail; if it was none, one with the first line of what Spark says."""
    if isinstance(error, SeriatimError):
        return error
    text = str(error)
    for name, message in _TOLD.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, SeriatimError):
            return kind(message)
    return FailedPrecondition(f"Spark: {next(iter(text.splitlines()), type(error).__name__)}")
