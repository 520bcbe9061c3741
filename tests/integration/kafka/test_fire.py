"""Members of a group under fire: killed, stopped and continued, joining and leaving, while the broker is restarted.

Nothing is lost, nothing of a key is out of order, and never are two of a key in flight, but for a handler of a member that was
stopped until it lost its partition: what it says then must be refused. Repeats are counted.

``RECORD=1 DISTURBANCES=1000 make soak`` writes a record for docs/proof.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from seriatim import PubSub, RetryPolicy, Topic
from seriatim.errors import OutcomeUnknown, PublishingPaused, StoreError
from tests.kafka_broker import KafkaBroker
from tests.proof import write_record

DISTURBANCES = int(os.environ.get("DISTURBANCES", "30"))
"""In ``make soak`` 1,000."""
KEYS = 40
MEMBERS = 3
FINISH_S = 120.0
WORKER = Path(__file__).parent / "worker.py"


Numbered = tuple[str, int]
"""A message, by its key and number."""


class Event(NamedTuple):
    time: float
    what: str
    key: str
    number: int
    member: str


class Members:
    """The programs that consume."""

    def __init__(self, url: str, folder: Path, *options: str) -> None:
        self._url = url
        self._options = options
        self._folder = folder
        self._count = 0
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def start(self) -> None:
        name = f"member-{self._count}"
        self._count += 1
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, str(WORKER), self._url, str(self._folder / f"{name}.jsonl"), *self._options]
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, chance: random.Random) -> None:
        process = self.running.pop(chance.choice(sorted(self.running)))
        process.kill()
        process.wait()
        self.start()

    def leave(self, chance: random.Random) -> None:
        name = chance.choice(sorted(self.running))
        process = self.running.pop(name)
        is_at_work = (self._folder / f"{name}.jsonl").exists()  # before, it can't know how to end
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 or not is_at_work
        self.start()

    def stop(self, chance: random.Random, seconds: float) -> None:
        name = chance.choice(sorted(self.running))
        self.running[name].send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        time.sleep(seconds)
        self.running[name].send_signal(signal.SIGCONT)
        self.stopped[name].append((begun, time.monotonic()))

    def end(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def events(self) -> list[Event]:
        found = []
        for file in self._folder.glob("*.jsonl"):
            lines = file.read_bytes().split(b"\n")[:-1]  # what is behind the last end of a line was cut off by a kill
            found += [Event._make([*json.loads(line), file.stem]) for line in lines]
        return sorted(found)


@pytest.fixture
def broker(tmp_path: Path):
    with KafkaBroker(tmp_path / "kafka", "group.min.session.timeout.ms=1000") as broker:
        yield broker


@pytest.mark.soak
@pytest.mark.timeout(300 + 10 * DISTURBANCES)
def test_nothing_is_lost_or_out_of_order_whatever_happens_to_members_and_broker(broker: KafkaBroker, tmp_path: Path):
    begun = time.monotonic()
    found, summary = under_fire(broker, tmp_path, DISTURBANCES, disturb)
    sys.stdout.write(f"{summary}\n")  # shown by pytest -rP
    if os.environ.get("RECORD"):
        command = f"DISTURBANCES={DISTURBANCES} pytest tests/integration/kafka/test_fire.py"
        figures = {"disturbances": DISTURBANCES, "anomalies": len(found), **summary.figures}
        write_record("kafka", command=command, seconds=time.monotonic() - begun, figures=figures, found=found[:10])
    assert not found, f"{summary}; {found[:5]} of {len(found)}"


@pytest.mark.timeout(300)
def test_without_fencing_it_is_noticed(broker: KafkaBroker, tmp_path: Path):
    """Members that go on with partitions that were taken from them, and say that everything was committed."""
    found, summary = under_fire(broker, tmp_path, 12, stop_or_kill, "unfenced")
    assert found, summary


Disturb = Callable[[KafkaBroker, Members, random.Random], None]


class Summary(NamedTuple):
    """What happened."""

    seed: int
    figures: dict[str, int]
    folder: Path


def under_fire(
    broker: KafkaBroker, folder: Path, disturbances: int, disturb: Disturb, *options: str
) -> tuple[list[str], Summary]:
    """What must not have happened, in words, and what did."""
    url = f"kafka://{broker.bootstrap}?partitions=4&session_timeout=2&max_poll_interval=10"
    seed = int(os.environ.get("SEED", str(int(time.time()))))
    chance, folder = random.Random(seed), folder / "members"
    folder.mkdir()
    members = Members(url, folder, *options)
    try:
        work = torment(url, broker, members, chance, disturbances, disturb, is_patient=not options)
        published, doubtful = asyncio.run(work)
    finally:
        members.end()
    events = members.events()
    begun = sum(event.what == "begin" for event in events)
    figures = {"messages": sum(published.values()), "deliveries": begun, **repeats(events)}
    figures["messages that were published again after an unknown outcome"] = len(doubtful)
    return anomalies(events, published, members.stopped, doubtful), Summary(seed, figures, folder)


async def torment(
    url: str,
    broker: KafkaBroker,
    members: Members,
    chance: random.Random,
    disturbances: int,
    disturb: Disturb,
    *,
    is_patient: bool,
) -> tuple[dict[str, int], set[Numbered]]:
    published: dict[str, int] = defaultdict(int)
    doubtful: set[Numbered] = set()
    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("work").ensure()
        subscription = await topic.subscription("work").ensure(retry=RetryPolicy(min_backoff=0.05), ack_deadline=5)
        for _ in range(MEMBERS):
            members.start()
        is_over = asyncio.Event()

        async def publish() -> None:
            while not is_over.is_set():
                messages = []
                for _ in range(20):
                    key = f"key-{chance.randrange(KEYS)}"
                    published[key] += 1
                    messages.append((key, published[key]))
                doubtful.update(await publish_all(topic, messages))
                await asyncio.sleep(0.05)

        publishing = asyncio.create_task(publish())
        for _ in range(disturbances):
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            await asyncio.to_thread(disturb, broker, members, chance)
        is_over.set()
        await publishing
        with suppress(*() if is_patient else (TimeoutError,)):
            async with asyncio.timeout(FINISH_S if is_patient else 10):
                await subscription.wait_until_empty()
    return published, doubtful


async def publish_all(topic: Topic, messages: list[Numbered]) -> set[Numbered]:
    """Publish messages, again those that failed; and which of them may be in the topic more than once."""
    doubtful: set[Numbered] = set()
    while messages:
        futures = [topic.publish(b"%d" % number, ordering_key=key) for key, number in messages]
        results = await asyncio.gather(*futures, return_exceptions=True)
        failed = [
            (message, result) for message, result in zip(messages, results, strict=True) if not isinstance(result, str)
        ]
        for message, error in failed:
            if isinstance(error, OutcomeUnknown):
                doubtful.add(message)
            elif not isinstance(error, PublishingPaused | StoreError):
                raise error
        messages = [message for message, _ in failed]
        for key in {key for key, _ in messages}:
            topic.resume_publishing(key)
    return doubtful


def stop_or_kill(_: KafkaBroker, members: Members, chance: random.Random) -> None:
    members.stop(chance, chance.uniform(2.5, 4.0)) if chance.randrange(3) else members.kill(chance)


def disturb(broker: KafkaBroker, members: Members, chance: random.Random) -> None:
    match chance.randrange(10):
        case 0 | 1 | 2:
            members.kill(chance)
        case 3 | 4:
            members.leave(chance)
        case 5 | 6:
            members.stop(chance, chance.uniform(0.1, 1.0))
        case 7 | 8:
            members.stop(chance, chance.uniform(2.5, 4.0))  # longer than its session
        case _:
            broker.kill()
            broker.start()


def anomalies(
    events: list[Event],
    published: dict[str, int],
    stopped: dict[str, list[tuple[float, float]]],
    doubtful: Collection[Numbered] = (),
) -> list[str]:
    """What must not have happened, in words. Doubtful messages may have been published, and so delivered, twice.

    What a member begins that has lost its partition, and does not know it yet, does not count if it was refused.
    """
    outcomes = outcomes_of(events)
    found: list[str] = [*overlaps(events, stopped, outcomes)]
    acked: dict[str, int] = defaultdict(int)  # the highest that is durably done
    begun: dict[str, int] = defaultdict(int)  # the highest that was begun
    for event in events:
        was_stopped = any(begin <= event.time <= end + 1 for begin, end in stopped.get(event.member, ()))
        if event.what == "begin":
            if event.number > begun[event.key] + 1:
                found.append(f"{event.key}: {event.number} was delivered, and {begun[event.key] + 1} never before it")
            is_repeat = event.number <= acked[event.key] and (event.key, event.number) not in doubtful
            if is_repeat and not was_stopped and outcomes.get(event) != "refused":
                found.append(f"{event.key}: {event.number} was delivered again after {acked[event.key]} was acked")
            begun[event.key] = max(begun[event.key], event.number)
        elif event.what == "acked":
            acked[event.key] = max(acked[event.key], event.number)
    missing = {key for key, last in published.items() if begun[key] < last}
    return [*found, *(f"{key}: {published[key]} was never delivered, the last one is {begun[key]}" for key in missing)]


def outcomes_of(events: list[Event]) -> dict[Event, str]:
    """What became of each delivery, by its beginning, as far as its member came to write it down."""
    begun: dict[tuple[str, int, str], Event] = {}
    outcomes: dict[Event, str] = {}
    for event in events:
        mine = event.key, event.number, event.member
        if event.what == "begin":
            begun[mine] = event
        elif mine in begun:
            outcomes[begun.pop(mine)] = event.what
    return outcomes


def overlaps(
    events: list[Event], stopped: dict[str, list[tuple[float, float]]], outcomes: dict[Event, str]
) -> Iterator[str]:
    """Messages that were begun while another one of their key was out with a member that held its partition.

    That it held it is known when its ack was accepted. A member that was stopped may have written late what was long so, and
    one that has lost the partition may begin what it has in memory, if that is then refused.
    """
    out: dict[tuple[str, int, str], Event] = {}  # by key, number and member
    overlapped: dict[tuple[str, int, str], list[Event]] = defaultdict(list)
    for event in events:
        mine = event.key, event.number, event.member
        if event.what == "begin":
            for other in out:
                if other[0] == event.key and other != mine and outcomes.get(event) != "refused":
                    overlapped[other].append(event)
            out[mine] = event
            continue
        begun, others = out.pop(mine, None), overlapped.pop(mine, ())
        if begun is None or not others or event.what != "acked":
            continue
        if not any(begin <= event.time and begun.time <= end + 1 for begin, end in stopped.get(event.member, ())):
            yield f"{event.key}: {others[0].number} was begun while {begun.number} was out"


def repeats(events: list[Event]) -> dict[str, int]:
    """Deliveries that were not the first, by what became of the one before."""
    last: dict[tuple[str, int], str] = {}
    counted: dict[str, int] = defaultdict(int)
    for event in events:
        message = event.key, event.number
        if event.what == "begin" and message in last:
            was = {"begin": "died or lost it", "acked": "had acked it"}.get(last[message], f"{last[message]} it")
            counted[f"deliveries again because a member {was}"] += 1
        last[message] = event.what
    return dict(counted)


EVENTS = [("begin", 1), ("acked", 1), ("begin", 2), ("acked", 2)]


def complete(event: tuple[Any, ...]) -> tuple[Any, ...]:
    return event if len(event) == 3 else (*event, "m")


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (EVENTS, None),
        ([("begin", 1), *EVENTS], None),
        (EVENTS[:2], "2 was never delivered"),
        ([*EVENTS, ("begin", 1)], "delivered again"),
        (EVENTS[2:], "never before it"),
        ([("begin", 1), ("begin", 2), ("acked", 1), ("acked", 2)], "2 was begun while 1 was out"),
        ([("begin", 1, "other"), ("begin", 1), ("acked", 1, "other"), *EVENTS], "1 was begun while 1 was out"),
        ([("begin", 1, "other"), ("begin", 1), ("refused", 1, "other"), ("acked", 1), *EVENTS[2:]], None),
        ([("begin", 1, "stopped"), *EVENTS, ("acked", 1, "stopped")], None),
        ([("begin", 1), ("begin", 1, "other"), ("acked", 1), ("refused", 1, "other"), *EVENTS[2:]], None),
        ([("begin", 1), ("begin", 1, "other"), ("acked", 1), ("acked", 1, "other"), *EVENTS[2:]], "while 1 was out"),
        ([*EVENTS, ("begin", 1, "other"), ("refused", 1, "other")], None),
        ([*EVENTS, ("begin", 1, "other"), ("acked", 1, "other")], "delivered again"),
    ],
)
def test_the_checker_notices_what_must_not_happen(events, problem):
    history = [Event(float(time), what, "k", *rest) for time, (what, *rest) in enumerate(map(complete, events))]
    found = anomalies(history, {"k": 2}, {"stopped": [(1.0, 2.0)]})
    assert (found == []) if problem is None else any(problem in one for one in found)
