"""Which line of ours asked for a sync. The trace says so before each, and a trace without the syncs of one line shows
whether that line is needed."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import seriatim
from tests.power_loss.trace import Rename, Said, Sync, Trace

MARK = "fsync: "
SOURCE = str(Path(seriatim.__file__).parent)
MOST_CALLERS = 3
LINE = re.compile(r"([\w.<>]+):(\d+)")


@contextmanager
def announced(say: Callable[[str], None]) -> Iterator[None]:
    """Say who asks for each sync, in the block."""
    sync = os.fsync

    def fsync(file: int) -> None:
        if callers := _callers():
            kind = "folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file"
            say(f"{MARK}{kind} {callers}")
        sync(file)

    os.fsync = fsync  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = sync


def _callers() -> str:
    """The functions of ours that lead here, the innermost last, each with the line in the file that it is at."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(found) < MOST_CALLERS:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE):
            found.append(f"{Path(code.co_filename).stem}.{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return " > ".join(reversed(found))


def named(trace: Trace) -> dict[str, str]:
    """What was said before each sync, and the name of the place: without lines, but with a number where a function asks at
    several (``f#2``: the second of those in the trace). So a name outlives changes of other lines."""
    said = {event.text for event in trace if isinstance(event, Said) and event.text.startswith(MARK)}
    lines: dict[str, set[int]] = {}
    for function, line in LINE.findall("\n".join(said)):
        lines.setdefault(function, set()).add(int(line))

    def numbered(found: re.Match[str]) -> str:
        own = sorted(lines[found[1]])
        return found[1] if len(own) == 1 else f"{found[1]}#{own.index(int(found[2])) + 1}"

    return {text: LINE.sub(numbered, text).removeprefix(MARK) for text in said}


def sites(trace: Trace) -> list[str]:
    """The places that asked for syncs."""
    return sorted(set(named(trace).values()))


def without_syncs_of(trace: Trace, name: str) -> Trace:
    """The trace as it would be if nobody ever synced files of this name."""
    renames = [event for event in trace if isinstance(event, Rename)]
    nodes = {entry.node for rename in renames for entry in rename.entries if entry.name == name}
    return [event for event in trace if not (isinstance(event, Sync) and event.node in nodes)]


def without(trace: Trace, site: str) -> Trace:
    """The trace as it would be if this place did not ask for syncs."""
    names, kept = named(trace), Trace()
    is_due = False
    for event in trace:
        if is_due and isinstance(event, Sync):
            is_due = False
            continue
        is_due = is_due or (isinstance(event, Said) and names.get(event.text) == site)
        kept.append(event)
    return kept
