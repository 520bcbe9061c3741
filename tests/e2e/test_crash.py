"""SIGKILL at random moments under publish, ack, nack and dead-letter load. The store is judged from outside."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from io import FileIO
from pathlib import Path
from random import Random
from subprocess import PIPE
from tempfile import TemporaryFile

import pytest

from seriatim.core.lanes.types import OnExhausted, RetryPolicy
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.store import open_store
from seriatim.store.base import TroubleRow
from tests.conftest import SOAK_KILLS
from tests.fire import MAX_DELIVERY_ATTEMPTS
from tests.witness import Witness, what_waits

NURSERY = Path(__file__).with_name("crash_child.py")
NUMBERS_A_LIFE = 1_000_000
LONGEST_LIFE = 0.2
LONGEST_END = 60.0

Said = tuple[str, str, int, int]


class Nursery:
    """Children that are born quickly, see ``crash_child.py``."""

    def __init__(self) -> None:
        self._complaints = TemporaryFile("w+")  # noqa: SIM115 - open as long as the nursery
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile()
        root = str(Path(__file__).parents[2])
        environ = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, str(NURSERY)]
        self._process = subprocess.Popen(command, stdin=theirs.fileno(), stderr=self._complaints, env=environ)
        theirs.close()

    def live(self, url: str, seed: int, first: int, seconds: float | None, at_work: bool = False) -> list[Said]:
        """Let a child live and return what it said. It is killed after so many seconds, counted from its birth or, ``at_work``,
        from its first word; None lets it finish."""
        reading, writing = os.pipe()
        socket.send_fds(self._socket, [json.dumps([url, seed, first]).encode()], [writing])
        os.close(writing)
        child = int(self._answers.readline())
        with FileIO(reading) as pipe:
            heard = pipe.read(65536) or b"" if at_work and seconds is not None else b""
            heard += listen(pipe, LONGEST_END if seconds is None else seconds)
            if seconds is not None:
                os.kill(child, signal.SIGKILL)
            heard += listen(pipe, LONGEST_END)
        status = int(self._answers.readline())
        self._complaints.seek(0)
        assert self._complaints.read() == ""
        assert status == (0 if seconds is None else -signal.SIGKILL)
        whole, _, _ = heard.rpartition(b"\n")
        lines = [line.split() for line in whole.decode().splitlines()]
        return [(what, key, int(number), int(attempt)) for what, key, number, attempt in lines]

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        assert self._process.wait(10) == 0
        self._complaints.close()


def listen(pipe: FileIO, seconds: float) -> bytes:
    """What is said within so many seconds, or until the other end is closed."""
    heard, until = b"", time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
        if not (more := pipe.read(65536)):
            break
        heard += more
    return heard


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


# Every store that survives a crash: how an address of a new one is made, and how often it is killed in `make test`.
STORES: dict[str, tuple[Callable[[pytest.FixtureRequest], str], int]] = {
    "sqlite": (lambda request: f"sqlite:///{request.getfixturevalue('tmp_path')}/store.db", 60),
    "postgres": (lambda request: request.getfixturevalue("postgres_url"), 45),
}


@pytest.mark.soak
@pytest.mark.parametrize("store", STORES)
def test_killed_at_random_moments_nothing_is_lost_repeated_after_its_ack_or_out_of_order(request, nursery, store):
    make_url, kills = STORES[store]
    url, random, witness = make_url(request), Random(), Witness(MAX_DELIVERY_ATTEMPTS)
    for life in range(SOAK_KILLS or kills):
        # Some are killed while they load what the ones before left, most in the middle of their work.
        at_work = life % 4 != 3
        seconds, first = random.uniform(0, LONGEST_LIFE), life * NUMBERS_A_LIFE
        for said in nursery.live(url, random.randrange(10**6), first, seconds, at_work):
            witness.hear(*said)
        witness.hear_kill()
        if life % 5 == 4:
            witness.judge_store(what_waits(url))
    for said in nursery.live(url, random.randrange(10**6), -1, None):
        witness.hear(*said)
    assert what_waits(url) == set()
    witness.judge_end()
    assert len(witness.published) > 10 * witness.kills, "hardly anything was going on"
    assert witness.buried, "there were no dead letters"


@pytest.mark.parametrize(
    ("story", "objection"),
    [
        ("D0.1 T0 A0 D0.2", "was settled and is delivered again"),
        ("D0.1 D1.1", "while 0 is in flight"),
        ("D1.1 T1 A1 D0.1", "is delivered after 1"),
        ("D0.1 N0.1 D1.1", "overtakes 0"),
        ("D0.1 K D1.1", "overtakes 0"),
        ("D0.1 T0 D1.1", "while 0 is in flight"),
        ("D0.1 N0.1 D0.1", "attempt 1 after 1"),
        ("D0.1 N0.1 D0.3", "attempt 3 after 1"),
        ("D0.1 N0.1 K D0.3", "only 1 were made"),
        ("D0.1 N0.1 D0.2 N0.2 D0.3 N0.3 D0.4", "for the 4th time"),
        ("D0.1 N0.1 G0.1", "did not use up its attempts"),
        ("D0.1 N0.1 D0.2 N0.2 D0.3 N0.3 G0.2", "tried 2 times"),
        ("D0.1 N0.1 D0.2 N0.2 D0.3 N0.3 G0.3 S0 B0 K G0.3", "dead letter of .* is delivered again"),
        ("D0.1 N0.1 D0.2 N0.2 D0.3 N0.3 G0.3 K D0.3", "was dead-lettered and is delivered again"),
        ("D0.1 N0.1 D0.2 N0.2 D0.3 K D0.3 T0 A0 G0.3", "was settled and is dead-lettered"),
    ],
)
def test_the_witness_objects_to_every_kind_of_disorder(story, objection):
    witness = Witness(3)
    *before, last = story.split()
    for said in before:
        tell(witness, said)
    with pytest.raises(AssertionError, match=objection):
        tell(witness, last)


def tell(witness: Witness, said: str) -> None:
    if said == "K":
        witness.hear_kill()
    else:
        number, _, attempt = said[1:].partition(".")
        witness.hear(said[0], "k", int(number), int(attempt or 0))


@pytest.mark.parametrize(
    ("waiting", "objection"),
    [({("k", 0)}, "what was settled waits"), (set(), "is not in the store")],
)
def test_the_witness_objects_to_a_store_that_has_too_much_or_too_little(waiting, objection):
    witness = Witness(3)
    for said in ("P0", "P1", "D0.1", "T0", "A0"):
        tell(witness, said)
    with pytest.raises(AssertionError, match=objection):
        witness.judge_store(waiting)


# -- what leaves together -----------------------------------------------------------------------------------------------

REST = SubscriptionOptions(
    message_ordering=True,
    retry=RetryPolicy.immediate(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER_REST),
    dead_letter_topic="dead",
)
MESSAGES = 400


async def prepare_rest(url: str, how: str) -> None:
    """A key with many messages; where the policy is to dead-letter it, its first message has used up its attempts."""
    engine = await Engine.open(url)
    await engine.create_topic("t")
    await engine.create_topic("dead")
    await engine.create_subscription("t", "s", REST)
    await engine.publish("t", [Outgoing("k", str(number).encode()) for number in range(MESSAGES)])
    if how == "by policy":
        subscription = engine.get_subscription("s")
        await engine.change(lambda work: work.note_troubles(subscription.id, [TroubleRow(0, 1, 0.0, "crash", False)]))
    await engine.close()


def dead_letters_in(url: str) -> tuple[list[int], list[int]]:
    """Which messages are dead letters, and which have copies, in their order."""
    with closing(open_store(url)) as store:
        catalog = store.catalog()
        dead = next(topic.id for topic in catalog.topics if topic.name == "dead")
        letters = [row.offset for row in store.dead_letters(catalog.subscriptions[0].id)]
        return letters, [int(record.data) for record in store.read(dead, 0, 2 * MESSAGES)]


@pytest.mark.parametrize("how", ["by hand", "by policy", "by the handler"])
def test_a_kill_while_the_rest_of_a_key_is_dead_lettered_leaves_all_of_it_or_none(tmp_path: Path, how: str) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    asyncio.run(prepare_rest(url, how))
    random, whole = Random(7), list(range(MESSAGES))
    for attempt in range(8):
        child = subprocess.Popen([sys.executable, str(NURSERY.with_name("rest_child.py")), url, how], stdout=PIPE)
        with child:
            assert child.stdout is not None
            assert child.stdout.read(1) == b"."
            if attempt < 7:
                time.sleep(random.random() * 0.15)
                child.kill()
        found = dead_letters_in(url)
        assert found in {True: [(whole, whole)], False: [([], []), (whole, whole)]}[attempt == 7]
        if found[0]:
            return
