"""A world: a disk, a network and processes that use the public API, on one simulated loop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from seriatim import PubSub, SeriatimError
from seriatim.client import subscription as client_subscription
from seriatim.client.message import Message
from seriatim.client.publisher import PublishFuture
from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic
from seriatim.engine import committer, engine, topic
from seriatim.engine.link import remote, server
from seriatim.log import logger
from seriatim.store import open_store
from tests.nemesis.history import Event
from tests.simulation.disk import Disk, Writer
from tests.simulation.loop import Process, SimulatedLoop, State
from tests.simulation.network import Network
from tests.simulation.operations import Operations
from tests.simulation.program import Program
from tests.simulation.truth import Leases

URL = "sqlite:////simulated/store.db"
START = 1_700_000_000.0
"""What clocks on walls show when a world begins."""

STALL_S = 20.0

INTERNAL = (
    "handing out messages failed",
    "a consumer failed",
    "clean-up failed",
    "failed for a client",
    "could not be let in",
    "because it received an invalid frame",
)
"""Lines of the log that nobody may ever see, whatever users and disks do."""


class Published(NamedTuple):
    """What a program asked for when it published a message, and when."""

    topic: str
    key: str | None
    attributes: dict[str, str]
    delay: float
    at: float
    stamp: int
    life: int = 0
    """Of the process that published it."""


class World:
    """Everything that happens, and what was seen of it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.plan = program.plan
        self.is_calm = False
        self.is_over = False
        self.events: list[Event] = []
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self.actors: dict[str, Actor] = {}
        self.all_actors: list[Actor] = []
        self.wall = START
        self._delays = Random(f"{program.seed} delays")
        self._digest = hashlib.sha256()
        self.trace: list[str] = []
        self.published: dict[int, Published] = {}  # by the number of a message
        self.fates: dict[
            int, tuple[int, bool]
        ] = {}  # by the number of a message: since when it is published, or failed
        self.copies: dict[int, Message] = {}  # of dead letters, by their offsets
        self.acts: dict[asyncio.Task[Any], tuple[Actor, str]] = {}  # what was begun, by whom
        self._numbers = 0
        self._leases = 0
        self._stamps = 0
        self.loop = SimulatedLoop(lambda: self._delay(self.plan.thread_s))
        self.network = Network(self.loop, lambda: self._delay(self.plan.link_s), self.plan.high)
        self.disk = Disk()
        self.operations = Operations(self.next_stamp)
        self.leases = Leases(
            self.loop.time,
            self.next_stamp,
            lambda: self.wall + self.loop.now,
            max(self.plan.link_s),
            self.find,
            self.disk.owners.get,
        )

    # -- time and chance --------------------------------------------------------------------------------------------------

    def _delay(self, choices: Any) -> float:
        return 0.0 if self.is_calm else float(self._delays.choice(choices))

    def write_latency(self) -> float:
        if self.disk.faults and self.disk.faults[0] == "stall":
            self.disk.faults.popleft()
            self.disk.hits += 1
            return STALL_S
        return self._delay(self.plan.write_s)

    def chance(self, *what: object) -> Random:
        """Chance that depends on what it is for, and on nothing else that happens."""
        return Random(" ".join(map(str, (self.program.seed, *what))))

    @property
    def is_healthy(self) -> bool:
        """Whether nothing has been broken so far."""
        broken = self.disk.hits + len(self.disk.faults) + self.disk.read_faults + self.disk.open_faults
        return not (broken or self.counts["kills"] or self.counts["cuts"] or self.counts["stops"])

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def next_lease(self) -> int:
        self._leases += 1
        return self._leases

    def next_stamp(self) -> int:
        """Orders everything that happens, also at one time."""
        self._stamps += 1
        return self._stamps

    # -- what is seen -----------------------------------------------------------------------------------------------------

    def note(self, *what: object) -> None:
        line = f"{self.loop.now:.6f} {' '.join(map(str, what))}"
        self.trace.append(line)
        self._digest.update(line.encode(errors="backslashreplace") + b"\n")

    def record(self, who: str, what: str, **fields: Any) -> None:
        self.note(who, what, *fields.values())
        self.counts[what] += 1
        self.events.append(Event(at=self.loop.now, who=who, what=what, **fields))

    def find(self, kind: str, detail: str) -> None:
        self.note("FOUND", kind)
        self.findings.append(f"{kind}: {detail}")

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # -- processes ----------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> Actor:
        """A new life of a process."""
        actor = self.actors[name] = Actor(self, name)
        self.all_actors.append(actor)
        self.counts["lives"] += 1
        return actor

    def end(self, actor: Actor) -> None:
        """A process is no more, because it was killed or ended by itself."""
        if self.disk.is_owned_by(actor.process):
            self.leases.owner_died(self.disk.epoch)
        actor.process.die()
        self.network.process_died(actor.process)
        if self.actors.get(actor.name) is actor:
            del self.actors[actor.name]

    def is_alive(self, name: str) -> bool:
        return name in self.actors

    def stop(self, name: str, seconds: float) -> None:
        """Stop a process as SIGSTOP does, and continue it after a while."""
        actor = self.actors.get(name)
        if actor is not None and actor.process.state is State.RUNNING:
            actor.process.stop()
            self.counts["stops"] += 1
            self.loop.call_in_world(self.loop.now + seconds, self.go_on, actor)

    def go_on(self, actor: Actor) -> None:
        if actor.process.state is State.STOPPED:
            self.record(actor.name, "continued")
            actor.process.go_on()

    def begin(self, actor: Actor, work: Callable[[], Coroutine[Any, Any, object]], what: str) -> asyncio.Task[Any]:
        """Let a process do something; it must end once the world is healed."""
        task = actor.process.run(self.supervise(work, actor, what))
        self.acts[task] = actor, what
        return task

    async def supervise(
        self, work: Callable[[], Coroutine[Any, Any, object]], actor: Actor | None, what: object
    ) -> None:
        """Do something and note how it ended. What users may see is cancelled, or an error of our tree."""
        who = "-" if actor is None else actor.name
        self.note(who, what)
        try:
            await work()
        except asyncio.CancelledError:
            self.note(who, what, "cancelled")
            self.counts["cancelled"] += 1
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                self.find("cancelled by somebody else", str(what))
            raise
        except SeriatimError as error:
            self.note(who, what, type(error).__name__)
            self.counts[type(error).__name__] += 1
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            self.find("odd error", f"{what}: {error!r}")
        else:
            self.note(who, what, "done")

    def let_go(self) -> None:
        """Forget all processes."""
        for actor in self.all_actors:
            actor.process.forget()
        self.all_actors.clear()
        self.actors.clear()
        self.acts.clear()
        self.network.links.clear()
        self.leases.forget()
        self.loop.close()

    # -- real modules in this world -----------------------------------------------------------------------------------------

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What the engine takes from the operating system comes from this world."""
        with ExitStack() as stack:
            for module, name, stand_in in (
                (engine, "open_store", self._open_store),
                (engine, "time", SimpleNamespace(time=lambda: self.wall + self.loop.now)),
                (committer, "Writer", Writer),
                (Writer, "latency", staticmethod(self.write_latency)),
                (Writer, "stamp", staticmethod(self.next_stamp)),
                (Writer, "disk", self.disk),
                (server, "Listener", self.network.listen),
                (server, "is_allowed", lambda _: True),
                (server, "close_in_children", lambda _: None),
                (remote, "connect", self.network.connect),
                (client_subscription, "stop_on_signal", nullcontext),
                (topic, "CACHED_BYTES", self.plan.cached_bytes),
            ):
                stack.enter_context(patch.object(module, name, stand_in))
            stack.enter_context(self.leases.observed())
            stack.enter_context(_logged_to(self))
            self.loop.set_exception_handler(self._loop_failed)
            yield

    def _open_store(self, url: str, **options: Any) -> Any:
        return self.disk.open() if url == URL else open_store(url, **options)

    def _loop_failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("future"), PublishFuture):
            return  # it was published, nobody waited for it, and it failed
        error = context.get("exception")
        self.findings.append(f"loop: {context['message']}: {error!r}")


class _Listening(logging.Handler):
    """Lines that only a mistake of ours can cause."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if any(known in line for known in INTERNAL):
            self._world.find("internal error", line)


@contextmanager
def _logged_to(world: World) -> Iterator[None]:
    handler, before = _Listening(world), (logger.level, logger.propagate, logger.handlers[:])
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.level, logger.propagate = before[0], before[1]
        logger.handlers[:] = before[2]


class Actor:
    """One life of a process, and the program in it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process = Process(world.loop, name)
        self.pubsub = PubSub(URL)
        self.is_draining = False
        self.life = len(world.all_actors)
        self.openings: Counter[str] = Counter()  # how often handlers of a subscription were opened
        self.closing: dict[str, int] = {}  # which opening of them is being closed, or is closed
        self.acks_on_return: dict[str, bool] = {}  # whether what handlers of a subscription leave is acked for them
        self.running: Counter[str] = Counter()  # how many of them run
        self.leaving: Counter[str] = Counter()  # how many of them close, and are not waited for by others that do

    @property
    def is_open(self) -> bool:
        return self.pubsub._broker is not None and self.pubsub._closing is None

    def record(self, what: str, **fields: Any) -> None:
        self.world.record(self.name, what, **fields)

    def subscription(self, name: str) -> Subscription:
        return self.pubsub.subscription(name)

    def topic(self, name: str) -> Topic:
        return self.pubsub.topic(name)


Handler = Callable[[Message], Any]
