"""Take one guard after the other out of the machines, and look for the shortest script that shows it.

    python -m tests.exhaustive.breakages --only lanes

Each breakage is a single edit of a copy of the source. Worlds are explored one after the other, the small ones first, until
something does not hold. Exits with 1 when a breakage goes unnoticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.exhaustive.explorer import NotExhausted, Violation, explore
from tests.exhaustive.scopes import SCOPES

SOURCE = Path(__file__).parent.parent.parent / "src"
MOST_STATES = 6_000
"""Larger worlds are left after this many states."""


class Breakage(NamedTuple):
    """What no longer holds, and the edit: a text that a module contains once, and what takes its place."""

    machine: str
    what: str
    module: str
    before: str
    after: str


BREAKAGES = [
    Breakage(
        "lanes", "a paused lane may be ready", "lanes", "        if lane.paused:\n            return _PAUSED\n", ""
    ),
    Breakage(
        "lanes",
        "a change that is not durable takes no place",
        "lanes",
        "busy = lane.in_flight + lane.pending\n        if busy",
        "busy = lane.in_flight\n        if busy",
    ),
    Breakage(
        "lanes", "one lease more than the window", "lanes", "if busy < lane.window and", "if busy <= lane.window and"
    ),
    Breakage(
        "lanes",
        "a stale lease is extended",
        "lanes",
        "        if token not in self._leased:\n            raise self._stale(token)\n",
        "",
    ),
    Breakage(
        "lanes",
        "a dead letter goes back behind a settled message",
        "lanes",
        "if not self._is_dead(key, offset) or (lane and lane.last_settled > offset):\n            raise",
        "if not self._is_dead(key, offset):\n            raise",
    ),
    Breakage(
        "lanes",
        "a dead letter goes back behind a message in flight",
        "lanes",
        "        if later:\n",
        "        if not lane and later:\n",
    ),
    Breakage(
        "lanes",
        "a fenced lease expires as well",
        "lanes",
        "            if token in self._leased:\n",
        "            if token:\n",
    ),
    Breakage(
        "lanes",
        "later leases are not fenced",
        "lanes",
        "lane.take_back(token, alone=passes)",
        "lane.take_back(token, alone=True)",
    ),
    Breakage(
        "lanes",
        "the delay of a removed message is kept",
        "lanes",
        "            return False\n        self._delays.discard(offset)\n",
        "            return False\n",
    ),
    Breakage(
        "lanes",
        "earlier dead letters are remembered when a later message is settled",
        "lanes",
        "                self._forget_dead_letters_before(lane.key, offset)\n",
        "                pass\n",
    ),
    Breakage(
        "lanes",
        "a message that is just changing is removed",
        "lanes",
        "        self._check_confirmed(offset)\n        lane = self._lanes.get(key)\n",
        "        lane = self._lanes.get(key)\n",
    ),
    Breakage(
        "lanes",
        "a message with no attempts left goes out after a crash",
        "lanes",
        "if retry.is_exhausted(message.failures) and not is_known:",
        "if retry.is_exhausted(message.failures) and is_known is None:",
    ),
    Breakage(
        "lanes",
        "nothing more is granted when a key is resumed",
        "lanes",
        "granted = self._grant_attempts(lane)\n",
        "granted: list[Returned] = []\n",
    ),
    Breakage("lanes", "a key keeps its holder", "lanes", "            lane.holder = None\n", "            pass\n"),
    Breakage(
        "lanes",
        "acks behind a message that failed are forgotten",
        "lanes",
        "        settled = lane.settle_acked_front()\n",
        "        settled: list[int] = []\n",
    ),
    Breakage(
        "lanes",
        "the clock may go back",
        "lanes",
        "        self._now = now = max(now, self._now)\n        effects",
        "        self._now = now\n        effects",
    ),
    Breakage(
        "lanes",
        "a drained lane is kept",
        "lanes",
        "        del self._lanes[lane.key]\n        if lane.in_ring",
        "        if lane.in_ring",
    ),
    Breakage(
        "lanes",
        "a message goes out before its redrive is durable",
        "lanes",
        "        if head in self._unconfirmed:\n            return False\n",
        "",
    ),
    Breakage(
        "lanes",
        "all dead letters can go back",
        "lanes",
        "        if lane.key is None or offset > lane.last_settled:\n            self.remember",
        "        if True:\n            self.remember",
    ),
    Breakage(
        "lanes",
        "tokens repeat",
        "lanes",
        "        self._next_token = token + 1\n",
        "        self._next_token = token + len(self._leased) % 2\n",
    ),
    Breakage(
        "resequencer",
        "a message of an epoch that ended is taken",
        "resequencer",
        "            if self._epoch is not None and epoch < self._epoch:\n",
        "            if self._epoch is not None and epoch < self._epoch - 1:\n",
    ),
    Breakage(
        "resequencer",
        "a second copy is held as well",
        "resequencer",
        "        if self._backlog is not None and position in self._backlog.held:\n",
        "        if self._backlog is None and position < 0:\n",
    ),
    Breakage(
        "resequencer",
        "capacity is not looked at",
        "resequencer",
        "return not room or self.held_count >= self._options.held_limit",
        "return not room",
    ),
    Breakage(
        "resequencer",
        "a session ends for a message that is refused",
        "resequencer",
        "            self._check_new_session(sequence, epoch, room)\n",
        "",
    ),
    Breakage(
        "resequencer",
        "what lies before the start is a duplicate",
        "resequencer",
        "        if given_up or position < self._horizon:\n",
        "        if given_up:\n",
    ),
    Breakage(
        "resequencer",
        "a number that was given up is late twice",
        "resequencer",
        "            self._given_up.discard(position, position + self._options.space.increment - 1)\n",
        "",
    ),
    Breakage(
        "resequencer",
        "the clock may go back",
        "resequencer",
        "(now, self._now)\n        effects: list[Effect[M]] = []\n        if self._start_deadline is not None and",
        "(now, now)\n        effects: list[Effect[M]] = []\n        if self._start_deadline is not None and",
    ),
    Breakage(
        "resequencer",
        "one request too many",
        "resequencer",
        "gap.requests < self._options.max_requests",
        "gap.requests <= self._options.max_requests",
    ),
    Breakage(
        "resequencer",
        "half of a split gap is reported again",
        "backlog",
        "upper = Gap(position + step, gap.last, gap.deadline, gap.requests, gap.reported)",
        "upper = Gap(position + step, gap.last, gap.deadline, gap.requests)",
    ),
    Breakage(
        "resequencer",
        "a gap opens with the message above it, and not with the first",
        "resequencer",
        "opened = min(opened, gathered[position].arrival)",
        "opened = gathered[position].arrival",
    ),
    Breakage(
        "resequencer",
        "an operator may skip where there is no gap",
        "resequencer",
        "        TABLE.targets(self._state, Event.SKIP)\n",
        "",
    ),
    Breakage(
        "resequencer",
        "a message in order leaves the count of those behind",
        "resequencer",
        "        self._now, self._sync = item.arrival, None\n        self._expected = position",
        "        self._now = item.arrival\n        self._expected = position",
    ),
    Breakage(
        "resequencer",
        "all given-up numbers are remembered",
        "resequencer",
        "        self._bound_memory(self._given_up)\n\n    def",
        "\n    def",
    ),
    Breakage(
        "resequencer",
        "the old session's room is not counted",
        "resequencer",
        "            room = room or self.held_count > 0  # the end of the old session frees what it holds\n",
        "",
    ),
    Breakage(
        "resequencer",
        "a resend extends the wait",
        "resequencer",
        "Held(item.message, held.arrival, item.digest)",
        "Held(item.message, item.arrival, item.digest)",
    ),
    Breakage(
        "resequencer",
        "a deadline moves with the traffic",
        "backlog",
        "self.gaps.append(Gap(self.end, position - step, deadline))\n",
        "self.gaps.append(Gap(self.end, position - step, deadline))\n            self.gaps[0].deadline = deadline\n",
    ),
]


def broken_text(breakage: Breakage) -> str:
    """The module with the one edit."""
    text = (SOURCE / "seriatim" / "core" / f"{breakage.module}.py").read_text()
    if text.count(breakage.before) != 1:
        raise ValueError(f"{breakage.module} contains {text.count(breakage.before)} times: {breakage.before!r}")
    return text.replace(breakage.before, breakage.after)


def witness(breakage: Breakage) -> str | None:
    """The shortest script that shows the breakage, and what it shows; None when nothing notices."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source)
        (source / "seriatim" / "core" / f"{breakage.module}.py").write_text(broken_text(breakage))
        command = [sys.executable, "-m", "tests.exhaustive.breakages", "--find", breakage.machine]
        environment = {**os.environ, "PYTHONPATH": f"{source}:{SOURCE.parent}"}
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=SOURCE.parent)
    return found.stdout.strip() or None


def find(machine: str) -> str | None:
    scope = SCOPES[machine]
    for world in [*scope.small, *scope.large]:
        try:
            explore(world, most_states=MOST_STATES)
        except NotExhausted:
            continue
        except Violation as violation:
            cause = " ".join(violation.cause.split())[:120]
            return f"{len(violation.script)}: {' → '.join(map(str, violation.script))} [{cause}]"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(SCOPES), help="a machine")
    parser.add_argument("--find", choices=sorted(SCOPES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.find:
        print(find(options.find) or "")
        return 0
    unnoticed = 0
    for breakage in BREAKAGES:
        if options.only in (None, breakage.machine):
            script = witness(breakage)
            unnoticed += script is None
            print(f"{breakage.machine}: {breakage.what}\n    {script or 'NOT NOTICED'}", flush=True)
    print(f"{unnoticed} breakages went unnoticed" if unnoticed else "every breakage is noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
