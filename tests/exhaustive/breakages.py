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
MAX_STATES = 6_000
"""Larger worlds are left after this many states."""

MODULES = {
    "lanes": "lanes/lanes.py",
    "tenants": "lanes/tenants.py",
    "resequencer": "resequencing/resequencer.py",
    "gaps": "resequencing/gaps.py",
    "pipes": "pipes/protocol.py",
    "pipe_sender": "pipes/sender.py",
    "pipe_receiver": "pipes/receiver.py",
    "pipe_intake": "pipes/handover_order.py",
    "edge_node": "sparkplug/edge_node.py",
    "edge_nodes": "sparkplug/pool.py",
    "rebirth": "sparkplug/rebirth.py",
}
"""Where the modules are, below ``core``."""


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
        "        if token not in self._leased:\n            raise self.stale(token)\n",
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
        "if (lease := self._leased.get(token)) is not None:\n",
        "if lease := self._leased[token]:\n",
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
        "if retry.is_exhausted(failures) and not is_known:",
        "if retry.is_exhausted(failures) and is_known is None:",
    ),
    Breakage(
        "lanes",
        "nothing more is granted when a key is resumed",
        "lanes",
        "granted = self._grant_attempts(lane)\n",
        "granted: list[Returned] = []\n",
    ),
    Breakage(
        "lanes",
        "a key keeps its holder",
        "lanes",
        "        if not lane.in_flight:\n            lane.holder = None\n",
        "",
    ),
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
        "        if offset in self._unconfirmed:\n            return False\n        trouble",
        "        trouble",
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
        "            self._next_token = token\n",
        "            self._next_token = token - len(self._leased) % 2\n",
    ),
    Breakage(
        "lanes",
        "what waits before the newest message of a key is kept",
        "lanes",
        "            if keeps_latest:\n                self._supersede(lane, offset)\n            # Behind",
        "            # Behind",
    ),
    Breakage(
        "lanes",
        "what waits before the newest message of a key is kept after a crash",
        "lanes",
        "        if self._keeps_latest and self._is_due(offset):\n",
        "        if False:\n",
    ),
    Breakage(
        "lanes",
        "one message more than the limit of its tenant",
        "tenants",
        "not tenant.stands and len(tenant.out) < self._limit",
        "not tenant.stands and len(tenant.out) <= self._limit",
    ),
    Breakage(
        "lanes",
        "an ack gives its tenant no room",
        "tenants",
        "        if not lane.in_flight:\n            self._came_back(lane.key, now)\n",
        "",
    ),
    Breakage(
        "lanes",
        "a tenant that has room again gets no turn",
        "tenants",
        "            tenant.out.discard(key)\n            self._stand(tenant)\n",
        "            tenant.out.discard(key)\n",
    ),
    Breakage(
        "lanes",
        "a tenant that has nothing is kept",
        "tenants",
        "            self._stand(tenant)\n            self._forget(tenant)\n",
        "            self._stand(tenant)\n",
    ),
    Breakage(
        "lanes",
        "a batch that failed somewhere goes out as one again",
        "lanes",
        "        if suspect:\n            lane.alone_until = lease.behind[-1]\n",
        "",
    ),
    Breakage(
        "lanes",
        "an ack settles the whole batch",
        "lanes",
        "len(offsets) if through is None else offsets.index(through) + 1",
        "len(offsets)",
    ),
    Breakage(
        "lanes",
        "what has failed goes out in a batch",
        "lanes",
        "                and self._is_due(next_)\n                and not self.failures(next_)[0]\n",
        "                and self._is_due(next_)\n",
    ),
    Breakage(
        "lanes",
        "a failure somewhere in a batch counts",
        "lanes",
        "        elif at is None or not count:\n",
        "        elif not count:\n",
    ),
    Breakage(
        "lanes",
        "once a failure is found its batch still goes one at a time",
        "lanes",
        "        if count:\n            lane.alone_until = -1  # if there was a failure to be found, this is it\n",
        "",
    ),
    Breakage(
        "lanes",
        "the rest behind a message of a batch takes what is before it along",
        "lanes",
        "            earlier, later = lease.offsets[:place], lease.offsets[place + 1 :]\n",
        "            earlier, later = (), lease.offsets[:place] + lease.offsets[place + 1 :]\n",
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
        "gaps",
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
        "gaps",
        "self.gaps.append(Gap(self.end, position - step, deadline))\n",
        "self.gaps.append(Gap(self.end, position - step, deadline))\n            self.gaps[0].deadline = deadline\n",
    ),
    Breakage(
        "pipes",
        "the receiver listens to a former life of its sender",
        "pipe_receiver",
        "        elif frame.sender < self._sender:\n            return []\n",
        "",
    ),
    Breakage(
        "pipes",
        "the receiver takes data for its former life",
        "pipe_receiver",
        "if isinstance(frame, Hello) or frame.receiver != self.epoch:",
        "if isinstance(frame, Hello):",
    ),
    Breakage(
        "pipes",
        "the floor of the sender is ignored",
        "pipe_receiver",
        "effects = self._intake.give_up_below(frame.floor, now)",
        "effects: list[PipeEffect] = []",
    ),
    Breakage(
        "pipes",
        "the receiver takes more than it has room for",
        "pipe_receiver",
        "if frame.first + len(frame.messages) - self._intake.taken > self._options.capacity:",
        "if False:",
    ),
    Breakage(
        "pipes",
        "the receiver is silent about repeats",
        "pipe_receiver",
        "        if repeated:\n            self._confirm_at = now\n",
        "",
    ),
    Breakage(
        "pipes",
        "what has come is confirmed before the output has taken it",
        "pipe_receiver",
        "self._confirmed, self._confirm_at = self._intake.taken, inf",
        "self._confirmed, self._confirm_at = self._intake.wanted, inf",
    ),
    Breakage(
        "pipes",
        "a request names no missing number",
        "pipe_receiver",
        "missing = self._intake.missing()[: self._max_ranges]",
        "missing = ()",
    ),
    Breakage(
        "pipes",
        "the sender hears answers to its former life",
        "pipe_sender",
        "        if frame.sender != self.epoch:\n            return []\n",
        "",
    ),
    Breakage(
        "pipes",
        "the sender hears confirmations of a former life of its receiver",
        "pipe_sender",
        "        if frame.receiver != self._peer:\n            return []\n",
        "",
    ),
    Breakage(
        "pipes",
        "the sender goes back to a former life of its receiver",
        "pipe_sender",
        "frame.receiver <= self._peer:",
        "frame.receiver == self._peer:",
    ),
    Breakage(
        "pipes",
        "more is confirmed than was sent",
        "pipe_sender",
        "expected = min(frame.expected, self._sent)",
        "expected = frame.expected",
    ),
    Breakage(
        "pipes",
        "the sender ignores the room of the receiver",
        "pipe_sender",
        "self._window = min(self._options.window, frame.room)",
        "self._window = self._options.window",
    ),
    Breakage(
        "pipes",
        "a strict pipe sends again after a restart of the receiver",
        "pipe_sender",
        "if self._sent > self._floor and self._options.gap_policy is OnGap.SKIP:",
        "if False:",
    ),
    Breakage(
        "pipes",
        "the sender believes that everything was seen",
        "pipe_sender",
        "self._seen = max(self._seen, min(frame.seen, self._sent))",
        "self._seen = self._sent",
    ),
    Breakage(
        "pipes",
        "nothing is sent again",
        "pipe_sender",
        "if policy is OnGap.REQUEST and unseen < self._sent:",
        "if False:",
    ),
    Breakage(
        "pipes",
        "nobody waits for a confirmation",
        "pipe_sender",
        "        if is_first:\n            self._wait(now)\n",
        "",
    ),
    Breakage(
        "pipes",
        "a strict pipe hands repeats over",
        "pipe_intake",
        "if self._options.is_strict or self._repeat_waits or",
        "if self._repeat_waits or",
    ),
    Breakage(
        "pipes",
        "a resend pipe hands repeats over",
        "pipe_intake",
        "if index < self._start or index in self._arrived:",
        "if index < self._start:",
    ),
    Breakage(
        "pipes",
        "what was held below the floor is forgotten",
        "pipe_intake",
        "            if index < floor:\n                effects.append(self._hand_over(index, (item.message,)))\n",
        "            pass\n",
    ),
    Breakage(
        "pipes", "a sender without outbox uses its indexes again", "pipes", "return epoch << INDEX_BITS", "return 1"
    ),
    Breakage(
        "edge nodes",
        "the clock is not corrected at the first message after a birth",
        "edge_node",
        "            self._newest = message.timestamp  # the clock was wrong at birth",
        "            pass",
    ),
    Breakage(
        "edge nodes",
        "what a timeout released is said to be released for want of room",
        "edge_node",
        "self._queue.epoch != self._epoch or self._queue.expected == message.seq",
        "self._queue.expected in (None, message.seq)",
    ),
    Breakage(
        "edge nodes",
        "a death ends whatever session lives",
        "edge_node",
        "if message.bd_seq != living:",
        "if living is None:",
    ),
    Breakage(
        "edge nodes",
        "a death under the next number keeps that session out",
        "edge_node",
        "if living is not None and _is_ahead(ended, living):",
        "if False:",
    ),
    Breakage(
        "edge nodes",
        "a restart under the same number is kept out",
        "edge_node",
        "if death.bd_seq == birth.bd_seq and not is_restart:",
        "if death.bd_seq == birth.bd_seq:",
    ),
    Breakage(
        "edge nodes",
        "a copy of a birth is refused for ever",
        "edge_node",
        "if is_equal and now - self._born_at <= self._options.reorder_timeout:",
        "if is_equal:",
    ),
    Breakage(
        "edge nodes",
        "deaths are remembered for ever",
        "edge_node",
        "[death for death in self._deaths if now - death.arrival <= self._options.reorder_timeout]",
        "list(self._deaths)",
    ),
    Breakage(
        "edge nodes",
        "devices stay online after a birth of their node",
        "edge_node",
        "            if status is Status.ONLINE:\n                self._mark(device, Status.STALE, message.timestamp, out)\n",
        "            pass\n",
    ),
    Breakage(
        "edge nodes",
        "everything stays online after a death",
        "edge_node",
        "        out += self._mark_all(Status.OFFLINE)\n        self._given += 1",
        "        self._given += 1",
    ),
    Breakage(
        "edge nodes",
        "a device's birth does not wait for its node's",
        "edge_node",
        "if release and not self._waiting and message.kind is not Kind.DBIRTH:",
        "if release and not self._waiting:",
    ),
    Breakage(
        "edge nodes",
        "data is released at once after a death",
        "edge_node",
        "self._options.before_birth is BeforeBirth.RELEASE and self._state is NodeState.UNBORN",
        "self._options.before_birth is BeforeBirth.RELEASE",
    ),
    Breakage(
        "edge nodes",
        "what is ahead of its birth is late",
        "edge_node",
        "return message.timestamp > self._newest",
        "return False",
    ),
    Breakage(
        "edge nodes",
        "what waits for a birth waits for ever",
        "edge_node",
        "            self._waiting_due = now + self._options.reorder_timeout\n",
        "            self._waiting_due = None\n",
    ),
    Breakage(
        "edge nodes",
        "a birth does not end the request for it",
        "edge_node",
        "        self._rebirth.end()\n        self._mark(None, Status.ONLINE",
        "        self._mark(None, Status.ONLINE",
    ),
    Breakage(
        "edge nodes",
        "a lost message is no reason for a rebirth",
        "edge_node",
        "out, ReleasedBy.TIMEOUT, ask=ask)",
        "out, ReleasedBy.TIMEOUT)",
    ),
    Breakage(
        "edge nodes",
        "a stamp decides for ever what is left over",
        "edge_node",
        "message.timestamp < self._began and arrival - self._born_at <= self._options.reorder_timeout",
        "message.timestamp < self._began",
    ),
    Breakage(
        "edge nodes",
        "a rebirth is asked for without a connection",
        "rebirth",
        "self._allowed if self._left and self.reachable else None",
        "self._allowed if self._left else None",
    ),
    Breakage(
        "edge nodes",
        "the backoff does not double",
        "rebirth",
        "        self._delay = min(2 * self._delay, self._options.rebirth_backoff_limit)\n",
        "",
    ),
    Breakage(
        "edge nodes",
        "a quiet time does not begin the backoff anew",
        "rebirth",
        "if now > self.begins_anew:",
        "if False:",
    ),
    Breakage("edge nodes", "there is no limit on requests", "rebirth", "        self._available -= 1\n", ""),
    Breakage(
        "edge nodes",
        "a node that has spoken since it was cleared is forgotten",
        "edge_nodes",
        "            if not self._nodes[key].is_blank:\n                continue\n",
        "",
    ),
    Breakage(
        "edge nodes",
        "a new request overtakes those that wait for their turn",
        "edge_nodes",
        "(self._postponed or not self._budget.take(now))",
        "(not self._budget.take(now))",
    ),
    Breakage(
        "edge nodes",
        "a request leaves that nobody wants any more",
        "edge_nodes",
        "            if self._nodes[key].rebirth_outstanding:\n",
        "            if True:\n",
    ),
    Breakage(
        "edge nodes",
        "nobody wakes up for a request that waits for its turn",
        "edge_nodes",
        "return self._budget.next if due is None else min(due, self._budget.next)",
        "return due",
    ),
]


def broken_text(breakage: Breakage) -> str:
    """The module with the one edit."""
    text = (SOURCE / "seriatim" / "core" / MODULES[breakage.module]).read_text()
    if text.count(breakage.before) != 1:
        raise ValueError(f"{breakage.module} contains {text.count(breakage.before)} times: {breakage.before!r}")
    return text.replace(breakage.before, breakage.after)


def witness(breakage: Breakage) -> str | None:
    """The shortest script that shows the breakage, and what it shows; None when nothing notices."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source)
        (source / "seriatim" / "core" / MODULES[breakage.module]).write_text(broken_text(breakage))
        command = [sys.executable, "-m", "tests.exhaustive.breakages", "--find", breakage.machine]
        environment = {**os.environ, "PYTHONPATH": f"{source}:{SOURCE.parent}"}
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=SOURCE.parent)
    return found.stdout.strip() or None


def find(machine: str) -> str | None:
    scope = SCOPES[machine]
    for world in [*scope.small, *scope.large]:
        try:
            explore(world, most_states=MAX_STATES)
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
