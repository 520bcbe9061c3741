"""What steps do. To add a verb, write a function with ``@verb``: it says how its arguments are drawn, and what is done."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from seriatim import Batching, FlowControl, Message, PublishOptions, PubSubMessage, RetryPolicy, SeriatimError
from seriatim.client.consumer import AckMode, MessageStream
from seriatim.engine.dead_letters import REDRIVEN
from seriatim.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    PublishFailed,
    StoreError,
    StoreLost,
)
from tests.simulation.disk import FAULTS, OUTAGE_S
from tests.simulation.handlers import NASTY_TEXTS, Delivery, handler_of
from tests.simulation.program import (
    FILTERED,
    FREE,
    GRAVES,
    KEEPING,
    KEYS,
    LIMITED,
    PROCESSES,
    STRICT,
    SUBSCRIPTIONS,
    Plan,
)
from tests.simulation.world import Actor, Published, World
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
    actor: Actor, topic: str, key: str | None, delay: float = 0.0, dedup_id: str | None = None
) -> tuple[asyncio.Future[str], dict[str, Any]]:
    """Publish the next message, in one of three ways. The caller's attributes change afterwards, and its own must not."""
    number = actor.world.next_number()
    seen: dict[str, Any] = {"key": key or f"-{number}", "number": number}
    attributes = {"parity": "even" if number % 2 == 0 else "odd"}
    world = actor.world
    world.published[number] = Published(
        topic, key, {**attributes}, delay, world.loop.now, world.next_stamp(), actor.life
    )
    data, where = str(number).encode(), actor.topic(topic)
    message = PubSubMessage(data, key, attributes, delay, dedup_id)
    actor.record("publish", **seen)
    future: asyncio.Future[str]
    try:
        if number % 3 == 0:
            future = where.publish_message(message)
        elif number % 3 == 1:
            future = where.publish_json(number, ordering_key=key, attributes=attributes, delay=delay, dedup_id=dedup_id)
        else:
            future = where.publish(data, ordering_key=key, attributes=attributes, delay=delay, dedup_id=dedup_id)
    except SeriatimError as error:
        future = actor.world.loop.create_future()
        future.set_exception(error)
        future.exception()  # nobody may wait for it
    else:
        future.add_done_callback(partial(note_fate, world, number))
    attributes["parity"] = "changed"
    return future, seen


def note_fate(world: World, number: int, future: asyncio.Future[str]) -> None:
    if not future.cancelled():
        world.fates[number] = world.next_stamp(), future._exception is None  # without looking at it, as a program would


async def confirm(actor: Actor, future: asyncio.Future[str], seen: dict[str, Any]) -> None:
    """Wait for a publish, and record what became of it."""
    try:
        id_ = await future
    except SeriatimError as error:
        if not isinstance(error, OutcomeUnknown | StoreError):
            actor.record("refused", **seen)
    else:
        note_published(actor, id_, seen)


def note_published(actor: Actor, id_: str, seen: dict[str, Any]) -> None:
    """A publish was confirmed: its message is in the log, under this id."""
    actor.record("published", id=id_, **seen)
    number = seen["number"]
    topic = actor.world.published[number].topic
    record = actor.world.disk.log.get((topic, int(id_)))
    if topic not in SUBSCRIPTIONS.values():  # it may be deleted by now, or be another one of this name
        return
    if record is None or int(record.data) != number:
        actor.world.find("wrong id", f"{number} was confirmed as {id_}, which is {record}")


@verb(8, one_of("events", "loose"), one_of((0,), (0, 0, 1), (1, None, 1), (2, 2, 2, 2)), one_of(None, None, None, 1))
async def publish_many(actor: Actor, topic: str, indexes: tuple[int | None, ...], wrong: int | None) -> None:
    """Publish several messages in one call: each has its own outcome, and when one can never work none is published."""
    world, messages, all_seen = actor.world, list[PubSubMessage](), list[dict[str, Any]]()
    for place, index in enumerate(indexes):
        number, key = world.next_number(), key_of(actor, index)
        seen: dict[str, Any] = {"key": key or f"-{number}", "number": number}
        attributes = {"parity": "even" if number % 2 == 0 else "odd"}
        world.published[number] = Published(topic, key, attributes, 0.0, world.loop.now, world.next_stamp(), actor.life)
        actor.record("publish", **seen)
        delay = -1.0 if place == wrong else 0.0
        messages.append(PubSubMessage(str(number).encode(), key, attributes, delay))
        all_seen.append(seen)
    results: Sequence[str | BaseException]
    try:
        results = await actor.topic(topic).publish_many(messages)
    except PublishFailed as error:
        results = error.results
    except SeriatimError as error:  # nothing was published, and no key is paused
        results = [error] * len(messages)
    if wrong in range(len(messages)) and any(isinstance(result, str) for result in results):
        world.find("wrong value accepted", "publish_many with a delay of -1")
    for seen, result in zip(all_seen, results, strict=True):
        if not isinstance(result, InvalidArgument):
            world.fates[seen["number"]] = world.next_stamp(), isinstance(result, str)
        if isinstance(result, str):
            note_published(actor, result, seen)
        elif not isinstance(result, OutcomeUnknown | StoreError):
            actor.record("refused", **seen)


@verb(6, one_of("events", "loose"), any_key, one_of(*range(8)))
async def publish_twice(actor: Actor, topic: str, index: int | None, turns: int) -> None:
    """Publish a message with an id, and once more while nobody may know what became of it: it is stored once."""
    world, key, id_ = actor.world, key_of(actor, index), f"twice-{actor.world.next_stamp()}"
    first, seen = begin_to_publish(actor, topic, key, dedup_id=id_)
    for _ in range(turns):
        await asyncio.sleep(0)
    number, data = seen["number"], str(seen["number"]).encode()
    if first.done() and (first.cancelled() or first.exception() is not None):
        return  # another message may have taken its place in the key
    attributes = world.published[number].attributes
    again = actor.topic(topic).publish(data, ordering_key=key, attributes=attributes, dedup_id=id_)
    ended = await asyncio.gather(first, again, return_exceptions=True)
    ids = {one for one in ended if isinstance(one, str)}
    for stored_as in ids:
        note_published(actor, stored_as, seen)
    stored = [
        offset
        for (log, offset), record in world.disk.log.items()
        if (log, record.data) == (topic, data) and REDRIVEN not in (record.attributes or {})
    ]
    if len(ids) > 1 or len(stored) > 1:
        world.find("stored twice", f"{number} of {key}: answered with {sorted(ids)}, stored at {stored}")


@verb(3, one_of("events", "loose"), one_of(None, 0, 1, 2))
async def flush(actor: Actor, topic: str, turns: int | None) -> None:
    """Flush, perhaps beside somebody who stops waiting for it."""
    if turns is None:
        await actor.topic(topic).flush()
        return
    other, mine = (asyncio.ensure_future(actor.topic(topic).flush()) for _ in range(2))
    try:
        for _ in range(turns):
            await asyncio.sleep(0)
        other.cancel()
        await mine
    finally:
        mine.cancel()
        await asyncio.wait([other, mine])
        for flushing in (other, mine):
            if not flushing.cancelled():
                flushing.exception()


@verb(4, one_of("events", "loose"), any_key, one_of(1, 3), one_of(None, 1))
async def close_topic(actor: Actor, topic: str, index: int | None, count: int, outstanding: int | None) -> None:
    """Closing a topic waits until everything that was published is durable or has failed. Publishing again opens it again."""
    world, options = actor.world, PublishOptions(flow_control=FlowControl(max_outstanding_messages=outstanding))
    actor.topic(topic).set_publish_options(options)
    begun = [begin_to_publish(actor, topic, key_of(actor, index)) for _ in range(count)]
    await actor.topic(topic).close()
    if unfinished := [seen["number"] for future, seen in begun if not future.done()]:
        world.find("closed too early", f"messages {unfinished} of topic {topic} may still be published")
    for one in [*begun, begin_to_publish(actor, topic, key_of(actor, index))]:
        await confirm(actor, *one)


@verb(4, any_key, one_of(0, 1), one_of(None, 1))
async def publish_and_flush(actor: Actor, index: int | None, given_up: int, outstanding: int | None) -> None:
    """What was published is durable after a flush, also when nobody waits for it."""
    world, topic, key, numbers = actor.world, actor.topic("loose"), key_of(actor, index), list[int]()
    topic.set_publish_options(PublishOptions(flow_control=FlowControl(max_outstanding_messages=outstanding)))
    was_healthy = world.is_healthy and key not in topic.paused_keys()
    for place in range(2):
        future, seen = begin_to_publish(actor, "loose", key)
        if place == given_up and outstanding is None:  # otherwise it may still wait for admission, and is taken back
            future.cancel()
        numbers.append(seen["number"])
    await topic.flush()
    durable = {int(record.data) for (log, _), record in world.disk.log.items() if log == "loose"}
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
        with actor.world.operations.begun("resume_publishing", topic, key):
            actor.topic(topic).resume_publishing(key)


@verb(5, one_of("events", "loose"), one_of(*range(KEYS)), one_of(0.0, 0.0, 0.001, 0.01, 0.2), one_of(0.5, 0.95))
async def publish_beyond(actor: Actor, topic: str, index: int, patience: float, later: float) -> None:
    """Publish more than flow control admits, and go on at once when something times out: what was behind it has to fail."""
    key, flow = f"{actor.name}/{index}", FlowControl(max_outstanding_messages=1, timeout=patience)
    actor.topic(topic).set_publish_options(PublishOptions(Batching(max_messages=1), flow_control=flow))
    first, second = (begin_to_publish(actor, topic, key) for _ in range(2))
    await asyncio.sleep(patience * later)
    third = begin_to_publish(actor, topic, key)
    await confirm(actor, *second)
    fourth = begin_to_publish(actor, topic, key)
    await resume_publishing(actor, topic)
    for one in (first, third, fourth):
        await confirm(actor, *one)


@verb(4, one_of("events", "loose"), one_of(*range(KEYS)), one_of("full", "failed"))
async def publish_behind_a_failure(actor: Actor, topic: str, index: int, fault: str) -> None:
    """What waits for admission behind a message that the disk refuses, and behind one of another key, has to fail as well."""
    keys = [f"{actor.name}/{number % KEYS}" for number in (index, index + 1, index)]
    flow = FlowControl(max_outstanding_messages=1, timeout=None)
    actor.topic(topic).set_publish_options(PublishOptions(Batching(max_messages=1), flow_control=flow))
    if not actor.world.is_over:
        actor.world.disk.faults.append(fault)
    first, *others = [begin_to_publish(actor, topic, key) for key in keys]
    await confirm(actor, *first)
    await resume_publishing(actor, topic)
    for one in others:
        await confirm(actor, *one)


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
    open_for(actor, sub, max_messages=most)


@verb(5, any_sub, one_of(2, 3, 10), one_of(False, False, True), one_of("manual", "manual", "on-return"))
async def open_batches(actor: Actor, sub: str, batch: int, across_keys: bool, ack: str) -> None:
    """Handle several messages at once from now on. Where no batches of a key are possible, that is said."""
    await close_handlers(actor, sub)
    open_for(actor, sub, max_messages=20, batch=batch, across_keys=across_keys, ack=ack)


def open_for(actor: Actor, sub: str, **limits: Any) -> None:
    actor.openings[sub] += 1
    actor.subscription(sub).open(**limits)
    actor.acks_on_return[sub] = limits.get("ack") == "on-return"


@verb(
    8,
    one_of(STRICT, LIMITED, FREE, FILTERED),
    one_of((0, 0), (1, 1, 1), (2, 2, 2, 2, 2), (0, 1, 2, 0, 1), (0, None, 1)),
    one_of(2, 4),
    one_of(False, False, True),
    one_of("manual", "manual", "on-return"),
)
async def publish_for_batches(
    actor: Actor, sub: str, indexes: tuple[int | None, ...], batch: int, across_keys: bool, ack: str
) -> None:
    """Let messages wait until somebody takes them together."""
    await close_handlers(actor, sub)
    await asyncio.gather(*(publish_one(actor, SUBSCRIPTIONS[sub], key_of(actor, index), 0.0) for index in indexes))
    open_for(actor, sub, max_messages=20, batch=batch, across_keys=across_keys, ack=ack)


@verb(4, any_sub)
async def close_handlers(actor: Actor, sub: str) -> None:
    opening = actor.closing[sub] = actor.openings[sub]
    await actor.subscription(sub).close()
    if actor.openings[sub] == opening and actor.running[sub]:
        actor.world.find("closed too early", f"{actor.running[sub]} handlers of {sub} still run")


@verb(4, any_sub, one_of(0.0, 0.001, 0.3, 2.0))
async def stop_handlers(actor: Actor, sub: str, seconds: float) -> None:
    """From the moment of a stop no handler begins; those that run go on, and are waited for when it is closed."""
    actor.closing[sub] = actor.openings[sub]
    actor.subscription(sub).stop()
    await asyncio.sleep(seconds)
    await close_handlers(actor, sub)
    open_for(actor, sub, max_messages=5)


@verb(
    5,
    any_sub,
    one_of(1, 20),
    one_of((None, "manual"), (3, "manual"), (3, "on-return")),
    one_of("cancel", "close", "stop"),
    one_of(0.0, 0.01, 1.0),
)
async def run(
    actor: Actor, sub: str, concurrency: int, batches: tuple[int | None, AckMode], how: str, seconds: float
) -> None:
    """Handle messages until somebody ends that; then none of these handlers runs any more."""
    batch, ack = batches
    await close_handlers(actor, sub)
    actor.openings[sub] += 1
    actor.acks_on_return[sub] = ack == "on-return"
    opening, subscription = actor.openings[sub], actor.subscription(sub)
    running = asyncio.ensure_future(subscription.run(concurrency=concurrency, batch=batch, ack=ack))
    try:
        await asyncio.wait([running], timeout=seconds)
        if how == "close":
            await close_handlers(actor, sub)
        elif how == "stop":
            subscription.stop()
    finally:
        running.cancel()  # which it may have to be told while it still waits for its handlers
        await asyncio.wait([running])
    if not running.cancelled():
        running.result()
    if actor.openings[sub] == opening and actor.running[sub]:
        actor.world.find("closed too early", f"{actor.running[sub]} handlers of {sub} still run after run() has ended")


@verb(4, one_of(STRICT, LIMITED, FREE), one_of(*range(KEYS)), one_of(*range(6)))
async def publish_and_close(actor: Actor, sub: str, index: int, turns: int) -> None:
    """Close handlers while a message is just being given out to them, and open them again."""
    await publish_one(actor, SUBSCRIPTIONS[sub], key_of(actor, index), 0.0)
    for _ in range(turns):
        await asyncio.sleep(0)
    await close_handlers(actor, sub)
    await open_handlers(actor, sub, 3)


@verb(2, one_of(0, 1))
async def name_in_two_ways(actor: Actor, number: int) -> None:
    """A subscription is one and the same, whether it is asked for by its name alone or through its topic."""
    alone = actor.subscription(f"either-{number}")
    if actor.topic("loose").subscription(alone.name) is not alone:
        actor.world.find("two of one subscription", alone.name)


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
        await take_some(actor, sub, stream, count, patience)
    finally:
        stream.close()


@verb(4, any_sub, one_of(1, 2, 5), one_of(0.1, 2.0))
async def iterate(actor: Actor, sub: str, count: int, patience: float) -> None:
    """The same with the subscription itself."""
    messages = aiter(actor.subscription(sub))
    assert isinstance(messages, AsyncGenerator)
    try:
        await take_some(actor, sub, messages, count, patience)
    finally:
        await messages.aclose()


async def take_some(actor: Actor, sub: str, messages: AsyncIterator[Message], count: int, patience: float) -> None:
    with suppress(TimeoutError, StopAsyncIteration):
        async with asyncio.timeout(patience):
            for _ in range(count):
                await handle_taken(Delivery(actor, sub, await anext(messages)))


@verb(4, any_sub, one_of(1, 3), one_of(0.0, 0.1, 2.0))
async def pull(actor: Actor, sub: str, most: int, patience: float) -> None:
    """Ask for a few messages, and handle them."""
    pulled = [Delivery(actor, sub, message) for message in await actor.subscription(sub).pull(most, patience)]
    for delivery in pulled:
        await handle_taken(delivery)


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
        subscription.handler(handler_of(actor, sub, is_async=chance.random() < 0.75))
        subscription.on("error", lambda _: None)
        if chance.random() < 0.7:
            batch = chance.choice([None, None, None, 3])
            with suppress(SeriatimError):
                open_for(actor, sub, max_messages=chance.choice([4, 50] if batch else [1, 4, 50]), batch=batch)


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


@verb(3, main_sub, any_key, one_of("peek", "explain"))
async def look_at_key(actor: Actor, sub: str, index: int | None, what: str) -> None:
    await getattr(actor.subscription(sub), what)(key_of(actor, index))


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
    with actor.world.operations.begun("pause", sub):
        await actor.subscription(sub).pause()


@verb(5, main_sub)
async def resume(actor: Actor, sub: str) -> None:
    with actor.world.operations.begun("resume", sub):
        await actor.subscription(sub).resume()


@verb(5, main_sub, any_key, one_of(None, *NASTY_TEXTS))
async def pause_key(actor: Actor, sub: str, index: int | None, reason: str | None) -> None:
    with actor.world.operations.begun("pause_key", sub, key_of(actor, index)) as operation:
        await actor.subscription(sub).pause_key(operation.key, reason)


@verb(6, main_sub, any_key)
async def resume_key(actor: Actor, sub: str, index: int | None) -> None:
    with actor.world.operations.begun("resume_key", sub, key_of(actor, index)) as operation:
        await actor.subscription(sub).resume_key(operation.key)


@verb(4, main_sub, any_key)
async def retry(actor: Actor, sub: str, index: int | None) -> None:
    with actor.world.operations.begun("retry", sub, key_of(actor, index)) as operation:
        await actor.subscription(sub).retry(operation.key)


@verb(3, main_sub, one_of(*range(KEYS)))
async def skip(actor: Actor, sub: str, index: int) -> None:
    key = f"{actor.name}/{index}"
    who = f"{actor.name}#{actor.world.next_lease()}"
    actor.world.record(who, "take-out", sub=sub, key=key)
    with actor.world.operations.begun("skip", sub, key) as operation:
        id_ = await actor.subscription(sub).skip(key)
        operation.result = [id_]
    actor.world.record(who, "taken-out", sub=sub, key=key, id=id_)


@verb(4, main_sub, any_key, one_of(0, 0, 1, 2))
async def remove(actor: Actor, sub: str, index: int | None, place: int) -> None:
    """Take a message out wherever it stands in its key, as an operator does who has looked at it."""
    key, who = key_of(actor, index), f"{actor.name}#{actor.world.next_lease()}"
    waiting = await actor.subscription(sub).peek(key, 10)
    if place >= len(waiting):
        return
    id_ = waiting[place].id
    seen_as = key or f"-{int(waiting[place].data)}"
    actor.world.record(who, "take-out", sub=sub, key=seen_as)
    with actor.world.operations.begun("remove", sub, key) as operation:
        await actor.subscription(sub).remove(id_)
        operation.result = [id_]
    actor.world.record(who, "taken-out", sub=sub, key=seen_as, id=id_)


@verb(4, main_sub, any_key, one_of(None, *NASTY_TEXTS), one_of(False, False, True))
async def dead_letter(actor: Actor, sub: str, index: int | None, error: str | None, rest: bool) -> None:
    with actor.world.operations.begun("dead_letter", sub, key_of(actor, index), error) as operation:
        operation.result = await actor.subscription(sub).dead_letter(operation.key, error, rest=rest)


@verb(3, one_of(LIMITED, LIMITED, FREE), any_key, one_of(2, 4))
async def dead_letter_one_by_one(actor: Actor, sub: str, index: int | None, count: int) -> None:
    """Take several messages out of a key at the same time; some of them may have to be read first."""
    await pause_key(actor, sub, index, None)
    await publish(actor, SUBSCRIPTIONS[sub], index, count, 0.0)
    await asyncio.gather(*(dead_letter(actor, sub, index, None, False) for _ in range(count)))


@verb(4, one_of(*range(KEYS)), one_of(0, 1))
async def dead_letter_and_change(actor: Actor, index: int, faults: int) -> None:
    """Replace the lanes while a message is being taken out that may have to be read first."""
    await change_options(actor, LIMITED, {"release": "receipt"})
    await pause_key(actor, LIMITED, index, None)
    await publish(actor, SUBSCRIPTIONS[LIMITED], index, 1, 0.0)
    if not actor.world.is_over:
        actor.world.disk.read_faults += faults
    await asyncio.gather(
        dead_letter(actor, LIMITED, index, "plain", False), change_options(actor, LIMITED, {"release": "durable"})
    )


@verb(4, one_of(STRICT, LIMITED, FREE, FREE), one_of(*range(KEYS)), one_of(2, 3))
async def publish_while_paused(actor: Actor, sub: str, index: int, count: int) -> None:
    """What came meanwhile is given out together; with a window, several messages of a key."""
    await pause(actor, sub)
    await publish(actor, SUBSCRIPTIONS[sub], index, count, 0.0)
    await resume(actor, sub)


@verb(4, main_sub, one_of(*range(KEYS)), one_of(*range(6)), one_of("skip", "dead-letter", "pause"))
async def publish_and_interfere(actor: Actor, sub: str, index: int, turns: int, how: str) -> None:
    """Take a message out, or pause its key, while it is just being given out."""
    await publish_one(actor, SUBSCRIPTIONS[sub], key_of(actor, index), 0.0)
    for _ in range(turns):
        await asyncio.sleep(0)
    if how == "skip":
        await skip(actor, sub, index)
    elif how == "dead-letter":
        await dead_letter(actor, sub, index, None, False)
    else:
        await pause_key(actor, sub, index, None)


@verb(4, one_of(False, False, True))
async def redrive(actor: Actor, append: bool) -> None:
    subscription = actor.subscription(FREE)
    for letter in await subscription.dead_letters(limit=2):
        with actor.world.operations.begun("redrive", FREE, letter.ordering_key, append) as operation:
            operation.result = letter.id, await subscription.redrive(letter.id, append=append)


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
    {"retry": RetryPolicy(mode="overtake", min_backoff=0.1)},
    {"retry": RetryPolicy.immediate(max_attempts=2)},
    {"dead_letter_topic": None},
    {"dead_letter_topic": "dead"},
)


@verb(5, one_of(STRICT, LIMITED), one_of(*SAFE_OPTIONS))
async def set_options(actor: Actor, sub: str, options: dict[str, Any]) -> None:
    await change_options(actor, sub, options)


async def change_options(actor: Actor, sub: str, options: dict[str, Any]) -> None:
    what = "ack_deadline" if "ack_deadline" in options else "options"
    with actor.world.operations.begun(what, sub, value=options.get("ack_deadline")):
        await actor.subscription(sub).set_options(**options)


@verb(5, one_of(*LOOSE_OPTIONS, *SAFE_OPTIONS))
async def set_loose_options(actor: Actor, options: dict[str, Any]) -> None:
    await change_options(actor, FREE, options)


@verb(3, one_of(0.0, -1.0, -5.0, 10.0))
async def seek(actor: Actor, seconds: float) -> None:
    with actor.world.operations.begun("seek", FREE):
        await actor.subscription(FREE).seek(time=actor.world.wall + actor.world.loop.now + seconds)


@verb(3, one_of(0.0, 0.3, 0.7, 1.0))
async def seek_to_message(actor: Actor, place: float) -> None:
    """Go to a message somewhere in the log, whether it is still kept or not."""
    offsets = [offset for (topic, offset) in actor.world.disk.log if topic == SUBSCRIPTIONS[FREE]]
    if offsets:
        with actor.world.operations.begun("seek", FREE):
            id_ = str(sorted(offsets)[int(place * (len(offsets) - 1))])
            await actor.subscription(FREE).seek(message_id=id_)


@verb(2, one_of("x", "y"))
async def delete_snapshot(actor: Actor, name: str) -> None:
    await actor.pubsub.delete_snapshot(name)


@verb(3, one_of("x", "y"), one_of(1.0, 1000.0))
async def snapshot(actor: Actor, name: str, lasts: float) -> None:
    await actor.subscription(FREE).snapshot(name, lasts=lasts)


@verb(3, one_of("x", "y"))
async def seek_to_snapshot(actor: Actor, name: str) -> None:
    with actor.world.operations.begun("seek", FREE):
        await actor.subscription(FREE).seek(snapshot=name)


@verb(14, one_of("create", "create", "ensure", "delete"), one_of(0, 1), one_of(None, 0, 1), one_of(*KEEPING))
async def churn(actor: Actor, what: str, number: int, sub: int | None, keeping: dict[str, Any]) -> None:
    """Topics and subscriptions that come and go."""
    topic = actor.topic(f"churn-{number}")
    options = keeping if sub is None and what == "create" else {}
    await getattr(topic if sub is None else topic.subscription(f"{topic.name}-{sub}"), what)(**options)


@verb(6, one_of(0, 1), one_of(None, 0), one_of(*range(12)))
async def give_up_deleting(actor: Actor, number: int, sub: int | None, turns: int) -> None:
    """Delete something, and stop waiting for it."""
    deleting = await begin_to_delete(actor, number, sub, turns)
    deleting.cancel()
    await asyncio.wait([deleting])
    if not deleting.cancelled():
        deleting.result()


@verb(4, one_of(0, 1), one_of(None, 0), one_of(*range(12)), one_of("topics", "subscriptions", "metrics"))
async def look_while_deleting(actor: Actor, number: int, sub: int | None, turns: int, what: str) -> None:
    """Look at everything while some of it is just being deleted."""
    deleting = await begin_to_delete(actor, number, sub, turns)
    try:
        await look_at_all(actor, what)
    finally:
        await deleting


async def begin_to_delete(actor: Actor, number: int, sub: int | None, turns: int) -> asyncio.Future[None]:
    """Create a topic or a subscription, and begin to delete it."""
    topic = actor.topic(f"churn-{number}")
    await unless_there(topic.create())
    subscription = topic.subscription(f"{topic.name}-{sub or 0}")
    await unless_there(subscription.create())
    deleting = asyncio.ensure_future(topic.delete() if sub is None else subscription.delete())
    deleting.add_done_callback(lambda done: done.cancelled() or done.exception())  # also when this is cancelled
    for _ in range(turns):
        await asyncio.sleep(0)
    return deleting


@verb(12, *[one_of(*WRONG)] * 4)
async def call_wrongly(actor: Actor, *names: str) -> None:
    for name in names:
        try:
            result = WRONG[name](actor)
            if inspect.isawaitable(result):
                await result
        except SeriatimError as error:
            actor.world.counts[type(error).__name__] += 1
        else:
            actor.world.find("wrong value accepted", name)


@verb(3, one_of(STRICT, LIMITED), one_of("pause", "resume"), one_of(0.4, 2.5))
async def change_together(actor: Actor, sub: str, what: str, seconds: float) -> None:
    """Two changes at the same time: both must take effect."""
    subscription = actor.subscription(sub)
    operations = actor.world.operations
    with operations.begun(what, sub) as first, operations.begun("ack_deadline", sub, value=seconds) as second:
        await asyncio.gather(getattr(subscription, what)(), subscription.set_options(ack_deadline=seconds))
    options, now = await subscription.options(), actor.world.next_stamp()
    others = operations.of(sub, "pause", "resume", "ack_deadline", "options")
    is_alone = not any(other.overlaps(first.began, now) for other in others if other not in (first, second))
    if is_alone and (options.paused, options.ack_deadline) != (what == "pause", seconds):
        actor.world.find("a change was lost", f"{sub}: {what} and ack_deadline={seconds} became {options}")


# -- life and death -----------------------------------------------------------------------------------------------------


async def open_actor(actor: Actor) -> None:
    """Open the store, make what is missing, and consume."""
    await actor.pubsub.__aenter__()
    for topic in ("events", "loose", "dead"):
        await unless_there(actor.topic(topic).create(**actor.world.plan.topics[topic]))
    for sub, topic in reversed(SUBSCRIPTIONS.items()):
        await unless_there(actor.topic(topic).subscription(sub).create(**actor.world.plan.options[sub]))
    subscribe(actor)


async def unless_there(creating: Coroutine[Any, Any, object]) -> None:
    with suppress(AlreadyExists):
        await creating


@verb(2, one_of(1, 2))
async def close_and_reopen(actor: Actor, openers: int) -> None:
    """Close, and open again; when two do so at the same moment, one of them is refused."""
    await actor.pubsub.close()
    opened = await asyncio.gather(*(actor.pubsub.__aenter__() for _ in range(openers)), return_exceptions=True)
    if openers > 1 and not any(isinstance(result, BaseException) for result in opened):
        actor.world.find("opened twice", actor.name)
    for result in opened:
        if isinstance(result, BaseException) and not isinstance(result, FailedPrecondition):
            raise result
    for sub in (STRICT, LIMITED, GRAVES):
        open_for(actor, sub, max_messages=5)
    future, seen = begin_to_publish(actor, "events", None)
    await confirm(actor, future, seen)
    is_undisturbed = actor.world.is_healthy and actor.world.plan.processes == 1 and actor.is_open
    if is_undisturbed and isinstance(future.exception(), StoreLost):
        actor.world.find("can't publish after it was opened again", repr(future.exception()))


@verb(3, any_sub, one_of(*range(4)))
async def end(actor: Actor, sub: str, turns: int) -> None:
    """End politely; the next start is another life. Meanwhile nobody can begin to consume."""
    closing = asyncio.ensure_future(actor.pubsub.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    if actor.pubsub._closing is not None and not closing.done():
        with suppress(SeriatimError):
            actor.subscription(sub).messages(max_messages=1)
            actor.world.find("consumed while closing", sub)
    await closing
    actor.world.end(actor)


@verb(3, one_of(None, STRICT, LIMITED), one_of("full", "broken"), one_of(0.0, 0.001, 0.02))
async def close_in_an_outage(actor: Actor, sub: str | None, fault: str, seconds: float) -> None:
    """Closing waits for a disk that is away, but not for ever: neither for handlers and their acks nor for publishes."""
    world, was_healthy = actor.world, actor.world.is_healthy
    await asyncio.gather(*(publish_one(actor, "events", key_of(actor, index), 0.0) for index in range(KEYS)))
    await asyncio.sleep(seconds)
    if world.is_over:
        return
    world.disk.outage = fault
    world.loop.call_in_world(world.loop.now + OUTAGE_S, world.disk.heal)
    for _ in range(2):
        begin_to_publish(actor, "events", None)
        await asyncio.sleep(0.05)
    closing = asyncio.ensure_future(actor.pubsub.close() if sub is None else close_handlers(actor, sub))
    await asyncio.wait([closing], timeout=OUTAGE_S - 1)
    if was_healthy and not closing.done() and not (world.counts["kills"] or world.counts["cuts"]):
        world.find("closing hangs in an outage", sub or "pubsub")
    world.disk.heal()
    await closing
    if sub is None:
        world.end(actor)


@verb(3, one_of(0.0, 0.01, 1.0), is_worldly=True, is_about_a_process=True)
async def crash(world: World, name: str, pause: float) -> None:
    """Kill a process, and start it again after a while."""
    if world.is_alive(name):
        world.end(world.actors[name])
        world.counts["kills"] += 1
        world.loop.call_in_world(world.loop.now + pause, start_again, world, name)


@verb(2, one_of(1, 2), is_worldly=True, is_about_a_process=True)
async def crash_while_openings_fail(world: World, name: str, openings: int) -> None:
    """Whoever takes the store over finds a disk that fails, and tries again."""
    world.disk.open_faults = openings
    await crash(world, name, 1.0)


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


@verb(3, one_of(0.7, 2.0, 8.0), one_of(0.0, 0.01, 1.0), is_worldly=True, is_about_a_process=True)
async def freeze(world: World, first: str, seconds: float, apart: float) -> None:
    """Stop every process at once, as a container is paused; one of them goes on first."""
    for name in list(world.actors):
        world.stop(name, seconds if name == first else seconds + apart)


@verb(4, one_of(1.0, 2.0, 8.0), one_of(0.0, 0.01), is_about_a_process=True)
async def publish_while_another_stands_still(actor: Actor, other: str, seconds: float, pause: float) -> None:
    """What is given out to a stopped process expires, and the process reads both at once when it goes on."""
    if other != actor.name and not actor.world.is_over:
        actor.world.stop(other, seconds)
    await asyncio.sleep(pause)
    await asyncio.gather(*(publish_one(actor, "events", key_of(actor, index), 0.0) for index in range(KEYS)))


@verb(4, one_of(0, 1, 2), one_of(0.0, 0.01, 3.0), one_of(0.0, 0.01, 3.0), is_worldly=True)
async def cut(world: World, number: int, first: float, second: float) -> None:
    links = [link for link in world.network.links if link.is_open]
    if links:
        links[number % len(links)].cut((first, second))
        world.counts["cuts"] += 1


@verb(6, one_of(*FAULTS), one_of(1, 1, 3), is_worldly=True)
async def break_disk(world: World, fault: str, commits: int) -> None:
    # What is refused as a whole is taken in pieces: no store refuses a piece that the engine has checked.
    if fault != "refused":
        world.disk.faults.extend([fault] * commits)
    elif fault not in world.disk.faults:
        world.disk.faults.append(fault)


@verb(2, one_of(1, 4), is_worldly=True)
async def break_reads(world: World, reads: int) -> None:
    world.disk.read_faults = reads


@verb(1, one_of(1, 3), is_worldly=True)
async def break_opening(world: World, openings: int) -> None:
    world.disk.open_faults = openings
