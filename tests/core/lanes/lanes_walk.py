"""A seeded random caller of a map of lanes: every command, time, commits and crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from random import Random

from seriatim.core.delivery import (
    DeadLettered,
    Delivery,
    Effect,
    Fenced,
    KeyPaused,
    Lease,
    OnExhausted,
    Release,
    RetryMode,
    RetryPolicy,
    Returned,
)
from seriatim.core.lanes import Lanes
from seriatim.errors import SeriatimError

KEYS = ("a", "a", "b", None)


def deliveries(windows: Sequence[int] = (1, 2, 4)) -> Iterator[Delivery]:
    """Every combination of options that makes a difference."""
    for window, release, mode, policy in product(windows, Release, RetryMode, OnExhausted):
        yield Delivery(RetryPolicy(max_attempts=2, mode=mode, on_exhausted=policy), window, release)


class LanesWalk:
    """Says something legal or illegal at each step; what is refused is left at that."""

    def __init__(self, seed: int, delivery: Delivery, keys: Sequence[str | None] = KEYS) -> None:
        self.random = Random(seed)
        self.delivery = delivery
        self.keys = keys
        self.lanes = Lanes(delivery)
        self.now = 0.0
        self.offset = 0
        self.held: list[Lease] = []
        self.dead: list[tuple[str | None, int]] = []
        self.unwritten: list[int] = []
        self.commands: dict[Callable[[], object], int] = {
            self.push: 8,
            self.take: 8,
            self.settle: 6,
            self.give_back: 4,
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
        self.lanes.push(self.key(), self.offset, self.now, self.random.choice((0, 0, 1, 3)))

    def take(self) -> None:
        lease_time, limit, consumer = self.random.choice((1, 5)), self.random.choice((1, 4)), self.random.choice("xy")
        self.held += self.lanes.take(self.now, lease_time, limit, consumer)

    def a_lease(self) -> Lease:
        del self.held[:-6]
        return self.held.pop(self.random.randrange(len(self.held))) if self.held else Lease(0, None, 0, 0, 0)

    def settle(self) -> None:
        self.note(self.lanes.settle(self.a_lease().token))

    def give_back(self) -> None:
        token, delay = self.a_lease().token, self.random.choice((0, 0, 2))
        self.note(self.lanes.give_back(token, self.now, delay, count=self.random.random() < 0.8))

    def advance(self) -> None:
        self.now += self.random.choice((0, 1, 2))
        self.note(self.lanes.advance(self.now))

    def note(self, effects: Sequence[Effect]) -> None:
        """Remember what must be written down; a commit that nobody waits for has happened already."""
        for effect in effects:
            if not isinstance(effect, Returned | Fenced | KeyPaused):
                self.unwritten.append(effect.offset)
            if isinstance(effect, DeadLettered):
                self.dead.append((effect.key, effect.offset))

    def confirm(self) -> None:
        if self.unwritten:
            self.lanes.confirm(self.unwritten.pop(self.random.randrange(len(self.unwritten))))

    def pause(self) -> None:
        self.lanes.pause(self.key())

    def resume(self) -> None:
        self.lanes.resume(self.key())

    def dead_letter(self) -> None:
        self.note(self.lanes.dead_letter(self.key(), rest=self.random.random() < 0.3))

    def remove(self) -> None:
        key = self.key()
        view = self.lanes.view(key)
        head = view.head if view and view.head else self.offset
        self.note([self.lanes.remove(key, head + self.random.choice((0, 0, 1, 2)))])

    def skip(self) -> None:
        self.note(self.lanes.skip(self.key()))

    def retry(self) -> None:
        self.note(self.lanes.retry(self.key(), self.now))

    def redrive(self) -> None:
        self.note([self.lanes.redrive(*self.random.choice(self.dead[-4:] or [("a", 0)]))])

    def crash(self) -> None:
        self.lanes = Lanes.restore(self.lanes.save(count_leases=self.random.random() < 0.5), self.delivery)
        self.unwritten.clear()
