"""What must hold, whatever a program did."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from seriatim import OnExhausted
from seriatim.errors import StoreLost
from tests.nemesis.checker import Promises, check
from tests.simulation.program import FILTERED, GRAVES, LIMITED, STRICT, SUBSCRIPTIONS
from tests.simulation.world import Actor, World

LOOSE = {"ghost"}
"""What is judged of subscriptions that were moved about, or whose order is not promised."""


def judge(world: World, letters: dict[str, list[str]]) -> list[str]:
    """Everything that the histories say."""
    return [
        *(finding for sub in SUBSCRIPTIONS for finding in _judge_one(world, sub, letters.get(sub))),
        *_judge_copies(world),
    ]


def _judge_copies(world: World) -> list[str]:
    """Dead letters of a key are copied in its order, where the order of a key is promised."""
    findings = []
    for (sub, key), copies in sorted(world.copies.items()):
        originals = [copies[copy] for copy in sorted(copies)]
        if sub in (STRICT, LIMITED) and originals != sorted(originals):
            findings.append(f"copies out of order: {sub} {key}: {originals}")
    return findings


def _judge_one(world: World, sub: str, letters: list[str] | None) -> list[str]:
    if letters is None:  # it was not drained, which was found already
        return []
    events = [event for event in world.events if event.number < 0 or _concerns(world, sub, event.number)]
    ids = {event.id: (event.key, event.number) for event in events if event.id and event.sub in ("", sub)}
    dead = [ids[letter] for letter in letters if letter in ids]
    anomalies = check(events, Promises(sub, _max_attempts(world, sub)), dead)
    is_strict = sub in (STRICT, LIMITED) or (sub == FILTERED and not _appends(world))
    return [
        f"{anomaly.kind}: {sub} {anomaly.key} {anomaly.number}: {anomaly.detail}"
        for anomaly in anomalies
        if is_strict or anomaly.kind in LOOSE
    ]


def _appends(world: World) -> bool:
    """Whether dead letters are published again: then all subscriptions of their topic get them a second time."""
    return any(step.verb == "redrive" and step.args == (True,) for step in world.program.steps)


def _concerns(world: World, sub: str, number: int) -> bool:
    """Whether a message is for a subscription."""
    if sub == GRAVES:
        return True
    return world.topics.get(number) == SUBSCRIPTIONS[sub] and (sub != FILTERED or number % 2 == 0)


def _max_attempts(world: World, sub: str) -> int | None:
    if sub != LIMITED:
        return None
    retry = world.plan.options[LIMITED]["retry"]
    return None if retry.on_exhausted is OnExhausted.PAUSE else int(retry.max_attempts)


Sight = dict[str, Any]


async def look_around(actor: Actor) -> Sight:
    """All that an operator can see."""
    sight: Sight = {}
    task = actor.process.run(_look_around(actor, sight))
    try:
        await task
    except StoreLost:
        return {}  # another process took the store over from this one
    except Exception as error:  # noqa: BLE001 - whatever it is, looking must be possible
        actor.world.find("can't look", f"{actor.name}: {error!r}")
    return sight


async def _look_around(actor: Actor, sight: Sight) -> None:
    sight["topics"] = {info.name: asdict(info.options) for info in await actor.pubsub.topics()}
    for info in await actor.pubsub.subscriptions():
        sub = actor.subscription(info.name)
        letters = [asdict(letter) for letter in await sub.dead_letters(limit=10_000)]
        stats, keys = await sub.stats(), await sub.keys(limit=10_000)
        sight[info.name] = {
            "options": asdict(info.options),
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
        "why": view.why if view.state == "paused" else None,
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
