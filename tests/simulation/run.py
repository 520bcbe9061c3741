"""Runs one program from its first step to its judgement."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import tests.simulation.deletions  # noqa: F401 - it adds verbs
from tests.simulation.disk import OUTAGE_S
from tests.simulation.judge import Letters, Sight, compare, judge, look_around
from tests.simulation.loop import State, Stuck
from tests.simulation.program import PROCESSES, SUBSCRIPTIONS, Cancel, Program, Step, add_options, draw_plan
from tests.simulation.verbs import VERBS, open_actor, subscribe
from tests.simulation.world import Actor, World

PATIENCE_S = 300.0
"""By then every call must have ended after the world was healed. A stopped disk and a lost owner take about a minute."""

QUIET_S = 30.0
"""By then whatever was begun and cancelled has ended inside the engine."""

DRAIN_S = 900.0

DRAIN_PATIENCE_S = 60.0
"""How long a subscription is worked off before it is looked whether keys were paused meanwhile."""

LIKINGS = (0.0, 0.0, 1.0, 1.0, 4.0)
"""How much more or less often than others a program takes a verb."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a program."""

    digest: str
    findings: list[str]
    counts: Counter[str]
    seconds: float
    trace: list[str]


def draw(seed: int) -> Program:
    """The program of a seed. Each likes some verbs and has none of others: so those that it has meet more often."""
    random = Random(f"{seed} program")
    plan = add_options(draw_plan(random), Random(f"{seed} options"))
    verbs = list(VERBS.values())
    weights = [verb.weight * random.choice([1] if verb.name == "publish" else LIKINGS) for verb in verbs]
    steps = []
    for number in range(random.randint(12, 36)):
        chosen = random.choices(verbs, weights)[0]
        steps.append(
            Step(
                number,
                random.choice([0.0, 0.0, 0.0, 0.001, 0.01, 0.3, 2.0]),
                "-" if chosen.is_worldly else random.choice(PROCESSES[: plan.processes]),
                chosen.name,
                chosen.draw(random, plan),
                _draw_cancel(random) if not chosen.is_worldly else None,
            )
        )
    return Program(seed, plan, tuple(steps))


def _draw_cancel(random: Random) -> Cancel | None:
    if random.random() < 0.65:
        return None
    if random.random() < 0.6:
        return Cancel(random.randint(0, 8), "turns")
    return Cancel(random.choice([0.0005, 0.005, 0.05, 1.0]), "s")


def run(program: Program) -> Result:
    with _nothing_is_destroyed_by_chance():
        return _run(program)


def _run(program: Program) -> Result:
    world = World(program)
    try:
        with world.entered():
            _run_in_loop(world)
            gc.collect()
        world.counts["disk faults"] = world.disk.hits
        return Result(world.digest, world.findings[:], world.counts, world.loop.now, world.trace)
    finally:
        _bury(world)


Outcome = tuple[int, list[str], Counter[str], float]
"""A seed, its findings and counts, and how long it took in virtual time."""


def run_seed(seed: int) -> Outcome:
    result = run(draw(seed))
    return seed, result.findings, result.counts, result.seconds


@contextmanager
def _nothing_is_destroyed_by_chance() -> Iterator[None]:
    """When something is destroyed must not depend on what was run before; and what was there before is not looked through."""
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        with _silence():
            pass
        gc.unfreeze()
        gc.enable()


def _run_in_loop(world: World) -> None:
    driver = _Driver(world)
    try:
        world.loop.run_until_complete(world.loop.create_task(driver.drive(), context=Context()))
    except Stuck as error:
        world.find("stuck", str(error))
    except (SystemExit, KeyboardInterrupt) as error:
        if not error.args:  # somebody is tired of waiting
            raise
        world.find("a handler ended the program", repr(error))


def _bury(world: World) -> None:
    """Let go of processes that were killed, without letting anybody hear of it: their ``finally`` clauses never ran."""
    world.loop.set_exception_handler(lambda *_: None)
    with _silence():
        world.let_go()


@contextmanager
def _silence() -> Iterator[None]:
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
            while gc.collect():  # what is destroyed may make something new
                pass
    finally:
        sys.unraisablehook = hook


class _Driver:
    """Takes the steps, heals the world, drains it and has it judged."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def drive(self) -> None:
        world = self._world
        await self._begin()
        for step in world.program.steps:
            await asyncio.sleep(step.pause)
            await self._take(step)
        await self._heal()
        letters = await self._drain()
        world.findings += judge(world, letters)

    async def _begin(self) -> None:
        """One process makes everything that programs need, without haste; the others are still about to open the store."""
        world = self._world
        world.is_calm = True
        for name in PROCESSES[: world.plan.processes]:
            actor = world.start(name)
            task = world.begin(actor, partial(open_actor, actor), f"open {name}")
            if world.is_calm:
                await task
            world.is_calm = False
        await asyncio.sleep(0.5)

    # -- steps ------------------------------------------------------------------------------------------------------------

    async def _take(self, step: Step) -> None:
        world, verb = self._world, VERBS[step.verb]
        world.counts["steps"] += 1
        if verb.is_worldly:
            await world.supervise(partial(verb.act, world, *step.args), None, f"{step.number} {step.verb}")
            return
        actor = world.actors.get(step.who)
        if actor is None or not actor.is_open:
            world.note(step.who, step.number, step.verb, "nobody")
            return
        task = self._world.begin(actor, partial(verb.act, actor, *step.args), f"{step.number} {step.verb}")
        if step.cancel is not None:
            _cancel_later(task, actor, step.cancel)

    # -- the end ----------------------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """Nothing breaks any more; everything that was begun must come to an end. An outage ends by itself before."""
        world = self._world
        world.is_over = True
        if world.disk.outage:
            await asyncio.sleep(OUTAGE_S)
        for actor in world.actors.values():
            world.go_on(actor)
        world.disk.heal()
        await self._until_done(PATIENCE_S)
        for actor in world.actors.values():
            if actor.is_open:
                for sub in actor.pubsub._all_subscriptions():
                    self._world.begin(actor, sub.close, f"close {sub.name}")
        await self._until_done(PATIENCE_S)

    async def _until_done(self, seconds: float) -> None:
        """Wait for everything that living processes do."""
        world = self._world
        end = world.loop.now + seconds
        while waiting := [task for task, (actor, _) in world.acts.items() if not task.done() and _is_alive(actor)]:
            if world.loop.now >= end:
                break
            await asyncio.wait(waiting, timeout=end - world.loop.now, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            world.find("hangs", f"{world.acts[task][1]} {_stack(task)}")
            task.cancel()
        world.acts.clear()

    async def _drain(self) -> Letters:
        """Close everybody, open the store once more, compare, and work off what is left."""
        world = self._world
        world.is_calm = True
        seen = await self._look_when_quiet()
        while world.actors:
            await self._end(next(iter(world.actors.values())))
        last = world.start("z")
        last.is_draining = True
        self._world.begin(last, last.pubsub.__aenter__, "open at last")
        await self._until_done(PATIENCE_S)
        again = await look_around(last)
        for who, before in seen.items():
            world.findings += compare(who, before, again)
        letters: Letters = {}
        self._world.begin(last, partial(_work_off, last, letters), "drain")
        await self._until_done(DRAIN_S)
        await self._end(last)
        return letters

    async def _look_when_quiet(self) -> dict[str, Sight]:
        """What everybody sees once nothing is on its way any more."""
        actors = [actor for actor in self._world.actors.values() if actor.is_open]
        for actor in actors:
            for topic in ("events", "loose"):
                self._world.begin(actor, actor.topic(topic).flush, f"flush {topic}")
        await self._until_done(PATIENCE_S)
        await asyncio.sleep(QUIET_S)
        return {actor.name: await look_around(actor) for actor in actors}

    async def _end(self, actor: Actor) -> None:
        self._world.begin(actor, actor.pubsub.close, f"close {actor.name}")
        await self._until_done(PATIENCE_S)
        await asyncio.sleep(0)
        for task in actor.process.tasks:
            if not task.done():
                self._world.find("task left", f"{task.get_name()} {_stack(task)}")
        self._world.end(actor)


def _is_alive(actor: Actor) -> bool:
    return actor.process.state is not State.DEAD


async def _work_off(actor: Actor, letters: Letters) -> None:
    """Lift every pause and handle everything."""
    for topic in ("events", "loose", "dead"):
        await _create_missing(actor, topic)
    subscribe(actor)
    operations = actor.world.operations
    for sub in SUBSCRIPTIONS:
        subscription = actor.subscription(sub)
        await subscription.close()
        with operations.begun("resume", sub):
            await subscription.resume()
        subscription.open(max_messages=10)
    for sub in SUBSCRIPTIONS:
        await _work_off_one(actor, sub)
        letters[sub] = await actor.subscription(sub).dead_letters(limit=10_000)
    await _use_what_is_listed(actor)


async def _work_off_one(actor: Actor, sub: str) -> None:
    """Handle everything of a subscription. A key may be paused while this goes on: a crash may have used up its attempts."""
    subscription = actor.subscription(sub)
    for patience in (*[DRAIN_PATIENCE_S] * 5, None):
        for view in await subscription.keys(limit=10_000):
            if view.state == "paused":
                with actor.world.operations.begun("resume_key", sub, view.key):
                    await subscription.resume_key(view.key)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await subscription.wait_until_empty()
            return


async def _create_missing(actor: Actor, topic: str) -> None:
    """What was never created, because everybody was cancelled before."""
    if topic not in [info.name for info in await actor.pubsub.topics()]:
        await actor.topic(topic).create(**actor.world.plan.topics[topic])
    known = [info.name for info in await actor.pubsub.subscriptions()]
    for sub, its_topic in SUBSCRIPTIONS.items():
        if its_topic == topic and sub not in known:
            options = {**actor.world.plan.options[sub], "dead_letter_topic": None}
            await actor.topic(topic).subscription(sub).create(**options)


async def _use_what_is_listed(actor: Actor) -> None:
    """Engine and store agree on what exists: whatever is listed can be used, whatever is not can be created."""
    listed = [info.name for info in await actor.pubsub.topics()]
    for number in range(2):
        topic = actor.topic(f"churn-{number}")
        if topic.name not in listed:
            await topic.create()
        await topic.publish(b"0")
        await topic.delete()


def _stack(task: asyncio.Task[Any]) -> str:
    """Where a task stands, through everything that it awaits."""
    names: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None)
        names.append(f"{frame.f_code.co_name}:{frame.f_lineno}" if frame is not None else repr(awaited)[:80])
        awaited = getattr(awaited, "cr_await", None)
    return " > ".join(names)


def _cancel_later(task: asyncio.Task[Any], actor: Actor, cancel: Cancel) -> None:
    loop = actor.world.loop
    if cancel.unit == "s":
        loop.call_later(cancel.after, task.cancel, context=actor.process.context)
        return

    def count(turns: float) -> None:
        if turns <= 0:
            task.cancel()
        else:
            loop.call_soon(count, turns - 1, context=actor.process.context)

    loop.call_soon(count, cancel.after, context=actor.process.context)
