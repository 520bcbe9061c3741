"""What steps do. To add a verb, write a function with ``@verb``: it says how its arguments are drawn, and what is done."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from seriatim import Batching, FlowControl, PublishOptions, RetryPolicy, SeriatimError
from seriatim.client.consumer import MessageStream
from seriatim.errors import AlreadyExists, NotFound, OutcomeUnknown, StoreError
from tests.simulation.disk import FAULTS
from tests.simulation.handlers import NASTY_TEXTS, Delivery, handler_of
from tests.simulation.program import FREE, GRAVES, KEYS, LIMITED, PROCESSES, STRICT, SUBSCRIPTIONS, Plan
from tests.simulation.world import Actor, World
from tests.simulation.wrong import WRONG

Draw = Callable[[Random, Plan], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Verb:
    """``weight`` says how often it is drawn. One of the world is not done by a process."""

    name: str
    weight: float
    draw: Draw
    act: Callable[..., Coroutine[Any, Any, object]]
    is_worldly: bool


VERBS: dict[str, Verb] = {}

Act = Callable[..., Coroutine[Any, Any, object]]


def verb(
    weight: float, *draws: Callable[[Random], Any], is_worldly: bool = False, is_about_a_process: bool = False
) -> Callable[[Act], Act]:
    """Register a verb whose arguments are drawn one by one."""

    def register(act: Act) -> Act:
        def draw(random: Random, plan: Plan) -> tuple[Any, ...]:
            process = [random.choice(PROCESSES[: plan.processes])] if is_about_a_process else []
            return (*process, *(one(random) for one in draws))

        VERBS[act.__name__] = Verb(act.__name__, weight, draw, act, is_worldly)
        return act

    return register


def one_of(*choices: Any) -> Callable[[Random], Any]:
    return lambda random: random.choice(choices)


any_key = one_of(*range(KEYS), None)
main_sub = one_of(STRICT, STRICT, LIMITED, LIMITED, FREE)
any_sub = one_of(*SUBSCRIPTIONS)


def key_of(actor: Actor, index: int | None) -> str | None:
    return None if index is None else f"{actor.name}/{index}"


# -- publishing ---------------------------------------------------------------------------------------------------------


@verb(30, one_of("events", "events", "loose"), any_key, one_of(1, 1, 2, 4), one_of(0.0, 0.0, 0.0, 0.0, 0.05, 3.0))
async def publish(actor: Actor, topic: str, index: int | None, count: int, delay: float) -> None:
    await asyncio.gather(*(publish_one(actor, topic, key_of(actor, index), delay) for _ in range(count)))


async def publish_one(actor: Actor, topic: str, key: str | None, delay: float) -> None:
    await confirm(actor, *begin_to_publish(actor, topic, key, delay))


def begin_to_publish(
    actor: Actor, topic: str, key: str | None, delay: float = 0.0
) -> tuple[asyncio.Future[str], dict[str, Any]]:
    """Publish the next message. The caller's attributes change afterwards, and its own must not."""
    number = actor.world.next_number()
    seen: dict[str, Any] = {"key": key or f"-{number}", "number": number}
    actor.world.topics[number] = topic
    attributes = {"parity": "even" if number % 2 == 0 else "odd"}
    data = str(number).encode()
    actor.record("publish", **seen)
    try:
        future: asyncio.Future[str] = actor.topic(topic).publish(
            data, ordering_key=key, attributes=attributes, delay=delay
        )
    except SeriatimError as error:
        future = actor.world.loop.create_future()
        future.set_exception(error)
        future.exception()  # nobody may wait for it
    attributes["parity"] = "changed"
    return future, seen


async def confirm(actor: Actor, future: asyncio.Future[str], seen: dict[str, Any]) -> None:
    """Wait for a publish, and record what became of it."""
    try:
        id_ = await future
    except SeriatimError as error:
        if not isinstance(error, OutcomeUnknown | StoreError):
            actor.record("refused", **seen)
    else:
        actor.record("published", id=id_, **seen)


@verb(3, one_of("events", "loose"))
async def flush(actor: Actor, topic: str) -> None:
    await actor.topic(topic).flush()


@verb(4, any_key, one_of(0, 1))
async def publish_and_flush(actor: Actor, index: int | None, given_up: int) -> None:
    """What was published is durable after a flush, also when nobody waits for it."""
    world, topic, key, numbers = actor.world, actor.topic("loose"), key_of(actor, index), list[int]()
    topic.set_publish_options(PublishOptions())
    was_healthy = world.is_healthy and key not in topic.paused_keys()
    for place in range(2):
        future, seen = begin_to_publish(actor, "loose", key)
        numbers.append(seen["number"])
        if place == given_up:
            future.cancel()
    await topic.flush()
    durable = world.disk.numbers("loose") | {event.number for event in world.events if event.what == "delivered"}
    if was_healthy and world.is_healthy and (missing := set(numbers) - durable):
        world.find("flushed too early", f"messages {missing} are not on the disk")


@verb(3, one_of(*range(KEYS)))
async def publish_and_withdraw(actor: Actor, index: int) -> None:
    """Where one message may be outstanding, a second one that is given up at once is never sent."""
    topic, key = actor.topic("loose"), f"{actor.name}/{index}"
    flow = FlowControl(max_outstanding_messages=1)
    topic.set_publish_options(PublishOptions(Batching(max_messages=1), flow_control=flow))
    (first, seen), (second, given_up) = (begin_to_publish(actor, "loose", key) for _ in range(2))
    if not first.done() and not second.done():
        second.cancel()
        actor.record("refused", **given_up)
    await confirm(actor, first, seen)


@verb(4, one_of("events", "loose"))
async def resume_publishing(actor: Actor, topic: str) -> None:
    for key in actor.topic(topic).paused_keys():
        actor.topic(topic).resume_publishing(key)


@verb(
    2, one_of("events", "loose"), one_of(1, 3, 100), one_of(0.0, 10.0), one_of(None, None, 1, 2), one_of(None, 0.0, 0.5)
)
async def set_publish_options(
    actor: Actor, topic: str, batch: int, milliseconds: float, outstanding: int | None, patience: float | None
) -> None:
    options = PublishOptions(
        Batching(max_messages=batch, max_milliseconds=milliseconds),
        flow_control=FlowControl(max_outstanding_messages=outstanding, timeout=patience),
    )
    actor.topic(topic).set_publish_options(options)


# -- consuming ----------------------------------------------------------------------------------------------------------


@verb(5, any_sub, one_of(1, 3, 50))
async def open_handlers(actor: Actor, sub: str, most: int) -> None:
    actor.openings[sub] += 1
    actor.subscription(sub).open(max_messages=most)


@verb(4, any_sub)
async def close_handlers(actor: Actor, sub: str) -> None:
    opening = actor.openings[sub]
    await actor.subscription(sub).close()
    if actor.openings[sub] == opening and actor.running[sub]:
        actor.world.find("closed too early", f"{actor.running[sub]} handlers of {sub} still run")


@verb(3, any_sub, one_of(0.0, 0.01, 0.5))
async def read_together(actor: Actor, sub: str, seconds: float) -> None:
    """Several readers of one stream all end with it."""
    stream = actor.subscription(sub).messages(max_messages=1)
    readers = [asyncio.ensure_future(read_on(actor, sub, stream)) for _ in range(2)]
    try:
        await asyncio.sleep(seconds)
    finally:
        stream.close()
    await asyncio.wait(readers)
    await read_on(actor, sub, stream)


async def read_on(actor: Actor, sub: str, stream: MessageStream) -> None:
    with suppress(SeriatimError):
        async for message in stream:
            await handle_taken(Delivery(actor, sub, message))


@verb(8, any_sub, one_of(1, 2, 5), one_of(0.1, 2.0), one_of(1, 16))
async def take(actor: Actor, sub: str, count: int, patience: float, most: int) -> None:
    """Read from a stream, and handle what comes."""
    stream = actor.subscription(sub).messages(max_messages=most)
    try:
        async with asyncio.timeout(patience):
            for _ in range(count):
                await handle_taken(Delivery(actor, sub, await anext(stream)))
    except (TimeoutError, StopAsyncIteration):
        pass
    finally:
        stream.close()


async def handle_taken(delivery: Delivery) -> None:
    try:
        await delivery.handle()
    except (Exception, SystemExit, KeyboardInterrupt):  # noqa: BLE001 - what this handler raises is its own affair
        pass
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


def subscribe(actor: Actor) -> None:
    """Register handlers, and open some of them, by chance."""
    chance = actor.world.chance("consume", actor.name, actor.world.counts["lives"])
    for sub in SUBSCRIPTIONS:
        subscription = actor.subscription(sub)
        subscription.on("message", handler_of(actor, sub, is_async=chance.random() < 0.75))
        subscription.on("error", lambda _: None)
        if chance.random() < 0.7:
            with suppress(SeriatimError):
                subscription.open(max_messages=chance.choice([1, 4, 50]))


# -- looking ------------------------------------------------------------------------------------------------------------


@verb(6, main_sub, one_of("stats", "keys", "options", "dead_letters"))
async def look(actor: Actor, sub: str, what: str) -> None:
    await getattr(actor.subscription(sub), what)()


@verb(3, one_of("topics", "subscriptions", "metrics", "snapshots"))
async def look_at_all(actor: Actor, what: str) -> None:
    try:
        await getattr(actor.pubsub, what)()
    except NotFound as error:
        actor.world.find("what is deleted meanwhile is not left out", f"{what}: {error}")


@verb(2, main_sub, any_key)
async def peek(actor: Actor, sub: str, index: int | None) -> None:
    await actor.subscription(sub).peek(key_of(actor, index))


@verb(2, main_sub)
async def wait_until_empty(actor: Actor, sub: str) -> None:
    try:
        async with asyncio.timeout(5):
            await actor.subscription(sub).wait_until_empty()
    except TimeoutError:
        pass


# -- operating ----------------------------------------------------------------------------------------------------------


@verb(4, main_sub)
async def pause(actor: Actor, sub: str) -> None:
    actor.world.count_change(sub)
    await actor.subscription(sub).pause()


@verb(5, main_sub)
async def resume(actor: Actor, sub: str) -> None:
    actor.world.count_change(sub)
    await actor.subscription(sub).resume()


@verb(5, main_sub, any_key, one_of(None, *NASTY_TEXTS))
async def pause_key(actor: Actor, sub: str, index: int | None, reason: str | None) -> None:
    await actor.subscription(sub).pause_key(key_of(actor, index), reason)


@verb(6, main_sub, any_key)
async def resume_key(actor: Actor, sub: str, index: int | None) -> None:
    await actor.subscription(sub).resume_key(key_of(actor, index))


@verb(4, main_sub, any_key)
async def retry(actor: Actor, sub: str, index: int | None) -> None:
    await actor.subscription(sub).retry(key_of(actor, index))


@verb(3, main_sub, one_of(*range(KEYS)))
async def skip(actor: Actor, sub: str, index: int) -> None:
    key = f"{actor.name}/{index}"
    who = f"{actor.name}#{actor.world.next_lease()}"
    actor.world.record(who, "take-out", sub=sub, key=key)
    id_ = await actor.subscription(sub).skip(key)
    actor.world.record(who, "taken-out", sub=sub, key=key, id=id_)


@verb(4, main_sub, any_key, one_of(None, *NASTY_TEXTS), one_of(False, False, True))
async def dead_letter(actor: Actor, sub: str, index: int | None, error: str | None, rest: bool) -> None:
    await actor.subscription(sub).dead_letter(key_of(actor, index), error, rest=rest)


@verb(4, one_of(False, False, True))
async def redrive(actor: Actor, append: bool) -> None:
    subscription = actor.subscription(FREE)
    for letter in await subscription.dead_letters(limit=2):
        await subscription.redrive(letter.id, append=append)


@verb(2)
async def purge(actor: Actor) -> None:
    subscription = actor.subscription(FREE)
    await subscription.purge(*[letter.id for letter in await subscription.dead_letters(limit=2)])


SAFE_OPTIONS: tuple[dict[str, Any], ...] = (
    {"ack_deadline": 0.3},
    {"ack_deadline": 3.0},
    {"release": "durable"},
    {"release": "receipt"},
    {"message_ordering": True, "ack_deadline": 1.0},
)
LOOSE_OPTIONS: tuple[dict[str, Any], ...] = (
    {"window": 1},
    {"window": 4},
    {"message_ordering": False},
    {"message_ordering": True},
    {"retry": RetryPolicy(mode="overtake", min_backoff=0.1)},  # type: ignore[arg-type]
    {"retry": RetryPolicy(max_attempts=2)},
    {"dead_letter_topic": None},
    {"dead_letter_topic": "dead"},
)


@verb(5, one_of(STRICT, LIMITED), one_of(*SAFE_OPTIONS))
async def set_options(actor: Actor, sub: str, options: dict[str, Any]) -> None:
    actor.world.count_change(sub)
    await actor.subscription(sub).set_options(**options)


@verb(5, one_of(*LOOSE_OPTIONS, *SAFE_OPTIONS))
async def set_loose_options(actor: Actor, options: dict[str, Any]) -> None:
    await actor.subscription(FREE).set_options(**options)


@verb(3, one_of(0.0, -1.0, -5.0, 10.0))
async def seek(actor: Actor, seconds: float) -> None:
    await actor.subscription(FREE).seek(time=actor.world.wall + actor.world.loop.now + seconds)


@verb(3, one_of("x", "y"), one_of(1.0, 1000.0))
async def snapshot(actor: Actor, name: str, lasts: float) -> None:
    await actor.subscription(FREE).snapshot(name, lasts=lasts)


@verb(3, one_of("x", "y"))
async def seek_to_snapshot(actor: Actor, name: str) -> None:
    await actor.subscription(FREE).seek(snapshot=name)


@verb(14, one_of("create", "create", "delete"), one_of(0, 1), one_of(None, 0, 1))
async def churn(actor: Actor, what: str, number: int, sub: int | None) -> None:
    """Topics and subscriptions that come and go."""
    topic = actor.topic(f"churn-{number}")
    await getattr(topic if sub is None else topic.subscription(f"{topic.name}-{sub}"), what)()


@verb(12, one_of(*WRONG))
async def call_wrongly(actor: Actor, name: str) -> None:
    result = WRONG[name](actor)
    if inspect.isawaitable(result):
        await result
    actor.world.find("wrong value accepted", name)


@verb(3, one_of(STRICT, LIMITED), one_of("pause", "resume"), one_of(0.4, 2.5))
async def change_together(actor: Actor, sub: str, what: str, seconds: float) -> None:
    """Two changes at the same time: both must take effect."""
    subscription = actor.subscription(sub)
    number = actor.world.count_change(sub)
    await asyncio.gather(getattr(subscription, what)(), subscription.set_options(ack_deadline=seconds))
    options = await subscription.options()
    if actor.world.changes[sub] == number == 1 and (options.paused, options.ack_deadline) != (what == "pause", seconds):
        actor.world.find("a change was lost", f"{sub}: {what} and ack_deadline={seconds} became {options}")


# -- life and death -----------------------------------------------------------------------------------------------------


async def open_actor(actor: Actor) -> None:
    """Open the store, make what is missing, and consume."""
    await actor.pubsub.__aenter__()
    for topic in ("events", "loose", "dead"):
        await unless_there(actor.topic(topic).create())
    for sub, topic in reversed(SUBSCRIPTIONS.items()):
        await unless_there(actor.topic(topic).subscription(sub).create(**actor.world.plan.options[sub]))
    subscribe(actor)


async def unless_there(creating: Coroutine[Any, Any, object]) -> None:
    with suppress(AlreadyExists):
        await creating


@verb(2)
async def close_and_reopen(actor: Actor) -> None:
    await actor.pubsub.close()
    await actor.pubsub.__aenter__()
    for sub in (STRICT, LIMITED, GRAVES):
        actor.openings[sub] += 1
        actor.subscription(sub).open(max_messages=5)


@verb(2)
async def end(actor: Actor) -> None:
    """End politely; the next start is another life."""
    await actor.pubsub.close()
    actor.world.end(actor)


@verb(3, one_of(0.0, 0.01, 1.0), is_worldly=True, is_about_a_process=True)
async def crash(world: World, name: str, pause: float) -> None:
    """Kill a process, and start it again after a while."""
    if world.is_alive(name):
        world.end(world.actors[name])
        world.counts["kills"] += 1
        world.loop.call_in_world(world.loop.now + pause, start_again, world, name)


@verb(2, is_worldly=True, is_about_a_process=True)
async def start(world: World, name: str) -> None:
    start_again(world, name)


def start_again(world: World, name: str) -> None:
    if not world.is_alive(name) and not world.is_over:
        actor = world.start(name)
        world.begin(actor, partial(open_actor, actor), f"start {name}")


@verb(4, one_of(0.1, 1.0, 8.0), is_worldly=True, is_about_a_process=True)
async def stop(world: World, name: str, seconds: float) -> None:
    world.stop(name, seconds)


@verb(4, one_of(0, 1, 2), one_of(0.0, 0.01, 3.0), one_of(0.0, 0.01, 3.0), is_worldly=True)
async def cut(world: World, number: int, first: float, second: float) -> None:
    links = [link for link in world.network.links if link.is_open]
    if links:
        links[number % len(links)].cut((first, second))
        world.counts["cuts"] += 1


@verb(6, one_of(*FAULTS), one_of(1, 1, 3), is_worldly=True)
async def break_disk(world: World, fault: str, commits: int) -> None:
    # What is refused as a whole is taken in pieces: no store refuses a piece that the engine has checked.
    world.disk.faults.extend([fault] * (1 if fault == "refused" else commits))


@verb(2, one_of(1, 4), is_worldly=True)
async def break_reads(world: World, reads: int) -> None:
    world.disk.read_faults = reads


@verb(1, one_of(1, 3), is_worldly=True)
async def break_opening(world: World, openings: int) -> None:
    world.disk.open_faults = openings
