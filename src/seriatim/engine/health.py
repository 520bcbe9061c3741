"""The health of a store, as its owner knows it at once, and a full check of the store."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from seriatim.engine.broker import StoreCheck, StoreHealth, StoreProblem
from seriatim.engine.options import flaws_in, flaws_of
from seriatim.engine.registry import Registry
from seriatim.errors import StoreError
from seriatim.store.base import Problem, StoreReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seriatim.engine.engine import Engine


async def health_of(engine: Engine, registry: Registry) -> StoreHealth:
    """The health now. It does not wait for an unavailable store, because that is when people ask."""
    recovery, topics, subscriptions = engine.recovery, registry.topics.values(), registry.subscriptions.values()
    committer, problem = recovery.committer, recovery.last_problem

    def moment(time: float) -> datetime:  # of the loop's clock
        return datetime.fromtimestamp(time + engine.wall, UTC)

    return StoreHealth(
        kind=committer.store.url.partition(":")[0],
        epoch=engine.epoch,
        topics=len(topics),
        subscriptions=len(subscriptions),
        size=await _size(engine) if recovery.has_store else None,
        commits=replace(committer.times, buckets=list(committer.times.buckets)),
        failing_since=None if committer.failing_since is None else moment(committer.failing_since),
        down=None if recovery.down is None else str(recovery.down),
        last_problem=None if problem is None else problem[1],
        last_problem_time=None if problem is None else moment(problem[0]),
        options=_told(
            flaws_of([(one.name, one.flaws) for one in topics], [(one.name, one.flaws) for one in subscriptions])
        ),
    )


async def _size(engine: Engine) -> int | None:
    with suppress(StoreError):  # what is wrong is said elsewhere
        return await engine.load(lambda store: store.size())
    return None


def check_store(store: StoreReader) -> StoreCheck:
    """Check everything in a store. The contents of a damaged one are not counted."""
    if damage := _told(store.check()):
        return StoreCheck(damage, is_damaged=True)
    catalog = store.catalog()
    messages = sum(len(positions) for topic in catalog.topics for positions in store.headers(topic.id))
    return StoreCheck(
        _told(flaws_in(catalog)),
        topics=len(catalog.topics),
        subscriptions=len(catalog.subscriptions),
        messages=messages,
    )


def _told(problems: Iterable[Problem]) -> list[StoreProblem]:
    return [StoreProblem(*problem) for problem in problems]
