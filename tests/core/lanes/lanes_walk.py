"""A seeded random caller of a map of lanes: every command, time, commits and crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from random import Random

from seriatim.core.lanes.tenants import new_lanes
from seriatim.core.lanes.types import (
    DeadLettered,
    Delivery,
    Expired,
    Fenced,
    KeyPaused,
    LaneEffect,
    Lease,
    OnExhausted,
    ReleaseAfter,
    RetryMode,
    RetryPolicy,
    Returned,
)
from seriatim.errors import SeriatimError
from tests.core.lanes.crashes import crashed

KEYS = ("a", "a", "b", None)


def deliveries(windows: Sequence[int] = (1, 2, 4)) -> Iterator[Delivery]:
    """Every combination of options that makes a difference."""
    for window, release, mode, policy in product(windows, ReleaseAfter, RetryMode, OnExhausted):
        yield Delivery(RetryPolicy.immediate(max_attempts=2, mode=mode, on_exhausted=policy), window, release)


class LanesWalk:
    """Says something legal or illegal at each step; what is refused is left at that."""

    def __init__(self, seed: int, delivery: Delivery, keys: Sequence[str | None] = KEYS) -> None:
        self.random = Random(seed)
        self.delivery = delivery
        self.keys = keys
        self.lanes = new_lanes(delivery)
        self.now = 0.0
        self.offset = 0
        self.held: list[Lease] = []
        self.pushed_at: dict[int, float] = {}
        self.leased_at: dict[int, float] = {}  # when leases were, by token
        self.batched: set[int] = set()  # what went out in a batch, the last time that it did
        self.dead: list[tuple[str | None, int]] = []
        self.unwritten: list[int] = []
        self.commands: dict[Callable[[], object], int] = {
            self.push: 8,
            self.take: 8,
            self.settle: 6,
            self.give_back: 4,
            self.give_up: 1,
            self.advance: 3,
            self.confirm: 6,
            self.pause: 1,
            self.resume: 2,
            self.dead_letter: 2,
            self.remove: 2,
            self.skip: 1,
            self.retry: 2,
            self.redrive: 4,
            self.crash: 2,
        }

    def step(self) -> None:
        command = self.random.choices(list(self.commands), list(self.commands.values()))[0]
        with suppress(SeriatimError):
            command()

    def key(self) -> str | None:
        return self.random.choice(self.keys)

    def push(self) -> None:
        self.offset += 1
        self.pushed_at[self.offset] = self.now
        self.lanes.push(self.key(), self.offset, self.now, self.random.choice((0, 0, 1, 3)))

    def take(self) -> None:
        lease_time, limit, consumer = self.random.choice((1, 5)), self.random.choice((1, 4)), self.random.choice("xy")
        for lease in self.lanes.take(self.now, lease_time, limit, consumer, self.random.choice((1, 1, 3))):
            self.lease(lease)

    def lease(self, lease: Lease) -> None:
        self.held.append(lease)
        self.leased_at[lease.token] = self.now
        self.batched -= set(lease.offsets)
        self.batched |= set(lease.offsets) if lease.behind else set()

    def a_lease(self) -> Lease:
        del self.held[:-6]
        return self.held.pop(self.random.randrange(len(self.held))) if self.held else Lease(0, None, 0, 0, 0)

    def place(self, lease: Lease) -> int | None:
        """One of the messages of a lease, or nobody says which."""
        return self.random.choice((None, *lease.offsets))

    def settle(self) -> None:
        lease = self.a_lease()
        self.note(self.lanes.settle(lease.token, self.place(lease), self.now))
        if (left := self.lanes.lease(lease.token)) is not None:
            self.held.append(left)

    def give_back(self) -> None:
        lease, delay, count = self.a_lease(), self.random.choice((0, 0, 2)), self.random.random() < 0.8
        self.note(self.lanes.give_back(lease.token, self.now, delay, count=count, at=self.place(lease)))

    def give_up(self) -> None:
        lease, rest = self.a_lease(), self.random.random() < 0.3
        self.note(self.lanes.give_up(lease.token, self.now, rest=rest, at=self.place(lease)))

    def advance(self) -> None:
        self.now += self.random.choice((0, 1, 2))
        self.note(self.lanes.advance(self.now))

    def note(self, effects: Sequence[LaneEffect]) -> None:
        """Remember what must be written down; a commit that nobody waits for has happened already."""
        for effect in effects:
            if not isinstance(effect, Returned | Expired | Fenced | KeyPaused):
                self.unwritten.append(effect.offset)
            if isinstance(effect, DeadLettered):
                self.dead.append((effect.key, effect.offset))

    def confirm(self) -> None:
        if self.unwritten:
            self.lanes.confirm(self.unwritten.pop(self.random.randrange(len(self.unwritten))), self.now)

    def pause(self) -> None:
        self.lanes.pause(self.key(), self.now)

    def resume(self) -> None:
        self.lanes.resume(self.key(), self.now)

    def dead_letter(self) -> None:
        self.note(self.lanes.dead_letter(self.key(), rest=self.random.random() < 0.3, now=self.now))

    def remove(self) -> None:
        key = self.key()
        view = self.lanes.view(key)
        head = view.head if view and view.head else self.offset
        self.note([self.lanes.remove(key, head + self.random.choice((0, 0, 1, 2)), self.now)])

    def skip(self) -> None:
        self.note(self.lanes.skip(self.key(), self.now))

    def retry(self) -> None:
        self.note(self.lanes.retry(self.key(), self.now))

    def redrive(self) -> None:
        self.note([self.lanes.redrive(*self.random.choice(self.dead[-4:] or [("a", 0)]), self.now)])

    def crash(self) -> None:
        self.lanes = crashed(self.lanes, self.random.random() < 0.5, self.batched)
        self.unwritten.clear()
