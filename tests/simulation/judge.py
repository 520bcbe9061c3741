"""What must hold, whatever a program did."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from seriatim.engine.broker import DeadLetter
from seriatim.errors import StoreLost
from seriatim.options import OnExhausted, RetryMode
from tests.nemesis.checker import Promises, check
from tests.nemesis.history import Event
from tests.simulation.letters import judge_copies, judge_letters, judge_redrives
from tests.simulation.program import FILTERED, FREE, GRAVES, SUBSCRIPTIONS
from tests.simulation.rules import is_steady, judge_leases, policy_of
from tests.simulation.world import Actor, World

ALWAYS = frozenset({"ghost"})
"""What is judged of subscriptions that were moved about."""
UNORDERED = ALWAYS | {"repeated", "stale accepted", "lost"}
"""What is judged where the order of a key is not promised, or where only the latest message of a key is kept."""
ORDERED = UNORDERED | {"duplicated", "reordered", "two in flight", "attempts"}


LONG_TROUBLES = frozenset({"stop", "freeze", "break_disk", "close_in_an_outage", "publish_while_another_stands_still"})
"""After these there may be no owner of the store for longer than others wait for one."""

Letters = dict[str, list[DeadLetter]]
"""The dead letters of each subscription that was drained."""


def judge(world: World, letters: Letters) -> list[str]:
    """Everything that the histories say."""
    return [
        *(finding for sub in SUBSCRIPTIONS for finding in judge_leases(world, sub)),
        *(finding for sub in letters for finding in _judge_history(world, sub, letters[sub])),
        *(finding for sub in letters for finding in judge_letters(world, sub, letters[sub])),
        *judge_publishes(world),
        *judge_redrives(world, letters.get(FREE, [])),
        *judge_copies(world),
    ]


def judge_publishes(world: World) -> Iterator[str]:
    """After a publish that failed, its key accepts nothing until it is resumed: not even what was waiting behind it."""
    reopened = {step.who for step in world.program.steps if step.verb == "close_and_reopen"}
    failed: dict[tuple[int, str, str], int] = {}  # by process, topic and key: the number of the last one
    for number, published in sorted(world.published.items()):
        if published.key is None or published.key[0] in reopened or number not in world.fates:
            continue
        name = published.life, published.topic, published.key
        _, is_published = world.fates[number]
        before = failed.get(name)
        if not is_published:
            failed[name] = number
        elif before is not None:
            since, resumed = (
                world.published[before].stamp,
                world.operations.on_key(name[1], name[2], "resume_publishing"),
            )
            if not any(operation.overlaps(since, published.stamp) for operation in resumed):
                yield f"passed a failed publish: {number} of {published.key} after {before}"


def _judge_history(world: World, sub: str, letters: Sequence[DeadLetter]) -> Iterator[str]:
    """What handlers saw, read by the checker of the nemesis."""
    events = [event for event in world.events if event.number < 0 or _concerns(world, sub, event.number)]
    if sub == FILTERED:
        events = _by_offset(world, events)
    ids = {event.id: (event.key, event.number) for event in events if event.id and event.sub in ("", sub)}
    dead = [ids[letter.id] for letter in letters if letter.id in ids]
    anomalies = check(events, Promises(sub, _max_attempts(world, sub)), [*dead, *_superseded(world, sub)])
    judged = _judged(world, sub)
    for anomaly in anomalies:
        is_excused = anomaly.kind == "reordered" and _was_undone(world, sub, anomaly.key)
        if anomaly.kind in judged and not is_excused:
            yield f"{anomaly.kind}: {sub} {anomaly.key} {anomaly.number}: {anomaly.detail}"
    if judged > ALWAYS:
        acked = {(event.key, event.number) for event in events if event.what == "acked" and event.sub == sub}
        for key, number in sorted(acked & set(dead)):
            yield f"acked and dead-lettered: {sub} {key} {number}"


def _superseded(world: World, sub: str) -> Iterator[tuple[str, int]]:
    """The messages that were left behind by newer ones of their keys. Whether they had to be, ``rules.py`` says."""
    for name, offset in world.leases.superseded:
        if name == sub:
            record = world.disk.log[SUBSCRIPTIONS[sub], offset]
            yield str(record.key), int(record.data)


def _was_undone(world: World, sub: str, key: str) -> bool:
    """Whether a message may have left its key for a while: when an owner ends, what it released on receipt is undone."""
    is_on_receipt = world.plan.options[sub].get("release") == "receipt" or bool(world.operations.of(sub, "options"))
    in_doubt = [
        taking for taking in world.operations.on_key(sub, key, "skip", "remove", "dead_letter") if taking.ended == inf
    ]
    most = policy_of(world, sub).max_attempts or inf
    of_key = [lease for lease in world.leases.given.values() if (lease.sub, lease.key) == (sub, key)]
    used_up = [
        lease for lease in of_key if lease.ended_by == "given up" or (lease.has_failed and lease.attempt >= most)
    ]
    return is_on_receipt and bool(in_doubt or used_up)


def _judged(world: World, sub: str) -> frozenset[str]:
    """Which anomalies count."""
    if sub == GRAVES or not is_steady(world, sub):
        return ALWAYS
    options = world.plan.options[sub]
    is_ordered = options.get("window", 1) == 1 and policy_of(world, sub).mode is RetryMode.BLOCK
    is_ordered = is_ordered and options.get("keep") != "latest"
    return ORDERED if is_ordered else UNORDERED


def _by_offset(world: World, events: Sequence[Event]) -> list[Event]:
    """Name messages by their offsets, because one that is redriven to the end of its topic is a message of its own.

    What never came into the log is left out.
    """
    offsets: dict[int, list[int]] = defaultdict(list)
    for (topic, offset), record in sorted(world.disk.log.items()):
        if topic == SUBSCRIPTIONS[FILTERED] and int(record.data) in world.published:
            offsets[int(record.data)].append(offset)
    named = []
    for event in events:
        if event.number < 0:
            named.append(event)
        elif event.id:
            named.append(replace(event, number=int(event.id)))
        else:  # a publish that begins, or that is refused
            named += [replace(event, number=offset) for offset in offsets[event.number]]
    return named


def _concerns(world: World, sub: str, number: int) -> bool:
    """Whether a message is for a subscription."""
    if sub == GRAVES:
        return True
    return world.published[number].topic == SUBSCRIPTIONS[sub] and (sub != FILTERED or number % 2 == 0)


def _max_attempts(world: World, sub: str) -> int | None:
    retry = policy_of(world, sub)
    return None if retry.on_exhausted is OnExhausted.PAUSE else retry.max_attempts


Sight = dict[str, Any]


async def look_around(actor: Actor) -> Sight:
    """All that an operator can see."""
    sight: Sight = {}
    task = actor.process.run(_look_around(actor, sight))
    try:
        await task
    except StoreLost as error:  # another process took the store over from this one, or there was no owner for too long
        if "there is no next one" in str(error) and not LONG_TROUBLES & {
            step.verb for step in actor.world.program.steps
        }:
            actor.world.find("gave up", f"{actor.name}: {error}")
        return {}
    except Exception as error:  # noqa: BLE001 - whatever it is, looking must be possible
        actor.world.find("can't look", f"{actor.name}: {error!r}")
    return sight


async def _look_around(actor: Actor, sight: Sight) -> None:
    sight["topics"] = {info.name: info.options for info in await actor.pubsub.topics()}
    for info in await actor.pubsub.subscriptions():
        sub = actor.subscription(info.name)
        letters = await sub.dead_letters(limit=10_000)
        stats, keys = await sub.stats(), await sub.keys(limit=10_000)
        sight[info.name] = {
            "options": info.options,
            "letters": letters,
            "total": stats.total,
            "paused": stats.paused,
            "keys": {str(view.key): _key(view) for view in keys},
        }


def _key(view: Any) -> dict[str, Any]:
    """Without what changes with time alone."""
    return {
        "is paused": view.state == "paused",
        "depth": view.depth,
        "head": view.head,
        "attempts": view.attempts,
        "error": view.error,
        # The reason is durable; since when the key is paused is not known after a restart.
        "why": re.sub(r", since [-0-9]+ [:0-9]+ UTC; ", "; ", view.why)
        if view.state == "paused" and view.why
        else None,
    }


def compare(who: str, before: Sight, after: Sight) -> list[str]:
    """What an engine says must be what the next one reads from the disk."""
    if not before or not after:
        return []
    return [
        f"engine and disk disagree: {who} saw {name}: {before.get(name)} became {after.get(name)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
