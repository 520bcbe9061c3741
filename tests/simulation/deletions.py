"""Topics and subscriptions that are deleted while they are in use: with a backlog, with leases that are out, with consumers in
several processes.

A step of ``delete_in_use`` has a topic and a subscription of its own, so it knows what has to follow: whoever consumes is told,
nothing of what was deleted comes back under the same names, and what is published to them afterwards is delivered. Others share
the topics that ``churn`` creates and deletes: these race.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from seriatim import SeriatimError
from seriatim.errors import NotFound, StoreError
from tests.simulation.handlers import Delivery, handler_of
from tests.simulation.program import KEYS, LIMITED, STRICT
from tests.simulation.verbs import (
    any_key,
    begin_to_publish,
    close_handlers,
    confirm,
    handle_taken,
    key_of,
    one_of,
    publish_one,
    unless_there,
    verb,
)
from tests.simulation.world import Actor

HANDLED_BY_S = 60.0
"""By then handlers that run when their subscription is deleted have returned, and a few messages are delivered."""

MOST_PULLS = 20

CONSUMERS = (("run",), ("pull", "run"), ("read", "pull"), ("run", "wait"), ("run", "pull", "read"), ())


@verb(
    10,
    one_of("topic", "subscription", "subscription", "graves"),
    one_of(STRICT, LIMITED, LIMITED),
    one_of((0,), (0, 0, 1), (0, 1, 2, None), (0,) * 5),
    one_of(*CONSUMERS),
    one_of(*range(12)),
    one_of(0.0, 0.0, 0.0, 0.01, 0.3, 2.0),
    one_of(False, True, True),
)
async def delete_in_use(
    actor: Actor,
    what: str,
    like: str,
    indexes: tuple[int | None, ...],
    consumers: tuple[str, ...],
    turns: int,
    seconds: float,
    again: bool,
) -> None:
    """Delete a topic, a subscription or its dead-letter topic while messages are published, wait and are being handled."""
    name = f"doomed-{actor.world.next_stamp()}"
    options = {**actor.world.plan.options[like], "dead_letter_topic": f"{name}-graves"}
    await create(actor, name, options)
    publishing = asyncio.gather(*(publish_one(actor, name, key_of(actor, index), 0.0) for index in indexes))
    consuming = [consume(one, name, kind) for one, kind in zip(consumers_near(actor), consumers, strict=False)]
    try:
        await asyncio.sleep(seconds)
        for _ in range(turns):
            await asyncio.sleep(0)
        await delete(actor, name, what)
        await publishing
        if what == "graves":  # what dies stays where it is, and the others go on
            await asyncio.sleep(1.0)
            await delete(actor, name, "subscription")
        await expect_ends(actor, name, consuming)
        await expect_nothing(actor, name, what)
        if again:
            await use_again(actor, name, options)
    finally:
        publishing.cancel()
        await asyncio.wait([publishing])
        if not publishing.cancelled():
            publishing.exception()


async def create(actor: Actor, name: str, options: dict[str, Any]) -> None:
    for topic in (name, f"{name}-graves"):
        await unless_there(actor.topic(topic).create())
    await actor.topic(name).subscription(name).create(**options)


async def delete(actor: Actor, name: str, what: str) -> None:
    if what == "subscription":
        await actor.subscription(name).delete()
    else:
        await actor.topic(name if what == "topic" else f"{name}-graves").delete()


# -- consuming ----------------------------------------------------------------------------------------------------------


def consumers_near(actor: Actor) -> list[Actor]:
    """Who consumes: this process first, then the others that are there."""
    others = [other for other in actor.world.actors.values() if other.is_open and other is not actor]
    return [actor, *others, actor]


def consume(actor: Actor, sub: str, kind: str) -> asyncio.Task[Any]:
    return actor.world.begin(actor, partial(consume_in_time, actor, sub, kind), f"{kind} {sub}")


async def consume_in_time(actor: Actor, sub: str, kind: str) -> None:
    """Consume until the subscription is deleted, which may never happen: somebody may have been killed before that."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HANDLED_BY_S + 30):
            await CONSUME[kind](actor, sub)


async def consume_by_running(actor: Actor, sub: str) -> None:
    is_async = actor.world.chance(sub, actor.name).random() < 0.75
    await actor.subscription(sub).run(handler_of(actor, sub, is_async=is_async), concurrency=3)


async def consume_by_pulling(actor: Actor, sub: str) -> None:
    for _ in range(MOST_PULLS):  # some handlers give back what they got: that would never end
        pulled = await actor.subscription(sub).pull(2)
        for delivery in [Delivery(actor, sub, message) for message in pulled]:
            await handle_taken(delivery)


async def consume_by_reading(actor: Actor, sub: str) -> None:
    async for message in actor.subscription(sub).messages(max_messages=2):
        await handle_taken(Delivery(actor, sub, message))


async def wait_until_all_is_done(actor: Actor, sub: str) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(HANDLED_BY_S / 2):
            await actor.subscription(sub).wait_until_empty()


CONSUME = {
    "run": consume_by_running,
    "pull": consume_by_pulling,
    "read": consume_by_reading,
    "wait": wait_until_all_is_done,
}


# -- what has to follow -------------------------------------------------------------------------------------------------


async def expect_ends(actor: Actor, sub: str, consuming: list[asyncio.Task[Any]]) -> None:
    """Whoever consumes what was deleted is told, and comes to an end."""
    if not consuming:
        return
    _, waiting = await asyncio.wait(consuming, timeout=HANDLED_BY_S)
    if waiting and actor.world.is_healthy:
        names = [actor.world.acts[task][1] for task in waiting if task in actor.world.acts]
        actor.world.find("not told of a deletion", f"{sub}: {names}")


async def expect_nothing(actor: Actor, name: str, what: str) -> None:
    """What was deleted can't be used."""
    if what == "topic":
        future, seen = begin_to_publish(actor, name, key_of(actor, 0))
        await confirm(actor, future, seen)
        if future.exception() is None:
            actor.world.find("published to nobody", f"{seen['number']} to {name}, which was deleted")
    try:
        await actor.subscription(name).stats()
    except NotFound:
        return
    actor.world.find("still there", f"{name}, which was deleted")


async def use_again(actor: Actor, name: str, options: dict[str, Any]) -> None:
    """Under the names of what was deleted something new begins: nothing comes back, and all that is published is delivered."""
    world = actor.world
    await create(actor, name, options)
    subscription = actor.subscription(name)
    if (waiting := (await subscription.stats()).total) != 0:
        world.find("back after its deletion", f"{waiting} messages of {name}")
    for key in actor.topic(name).paused_keys():
        with world.operations.begun("resume_publishing", name, key):
            actor.topic(name).resume_publishing(key)
    begun = [begin_to_publish(actor, name, key_of(actor, 0)) for _ in range(3)]
    for one in begun:
        await confirm(actor, *one)
    got: list[int] = []
    while len(got) < len(begun) and (pulled := await subscription.pull(1, HANDLED_BY_S)):
        delivery = Delivery(actor, name, pulled[0])
        got.append(delivery.seen["number"])
        delivery.expect_ack_on_return()
        with suppress(StoreError):
            await pulled[0].ack_durable()
    expected = [seen["number"] for _, seen in begun]
    if got != expected and world.is_healthy:
        world.find("wrong after its deletion", f"{name} delivered {got} instead of {expected}")
    if set(got) - set(expected):
        world.find("back after its deletion", f"{name} delivered {got} instead of {expected}")


# -- races --------------------------------------------------------------------------------------------------------------


@verb(6, one_of(0, 1), any_key, one_of(1, 3))
async def publish_to_churn(actor: Actor, number: int, index: int | None, count: int) -> None:
    await asyncio.gather(*(publish_one(actor, f"churn-{number}", key_of(actor, index), 0.0) for _ in range(count)))


@verb(6, one_of(0, 1), one_of(None, 0, 1), one_of("run", "pull", "read"), one_of(0.0, 0.01, 1.0))
async def consume_churn(actor: Actor, number: int, sub: int | None, kind: str, seconds: float) -> None:
    """Take messages for a while from what others may delete, and create again, at any moment."""
    name = f"churn-{number}-{sub or 0}"
    await asyncio.gather(*(publish_one(actor, f"churn-{number}", key_of(actor, index), 0.0) for index in range(KEYS)))
    consuming = asyncio.ensure_future(CONSUME[kind](actor, name))
    try:
        await asyncio.wait([consuming], timeout=seconds)
    finally:
        consuming.cancel()
        await asyncio.wait([consuming])
    await close_handlers(actor, name)
    if not consuming.cancelled():
        with suppress(SeriatimError):
            consuming.result()
