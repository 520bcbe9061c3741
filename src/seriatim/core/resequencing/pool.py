"""The map of resequencers: many keys put back in order behind one ``push`` and one ``advance``.

Rules
-----
1. Each key has its own resequencer (see ``resequencer.py``); one key's gap never delays another key.
2. ``total_capacity`` limits the messages held for all keys together. The overflow policy applies to a message that
   would exceed it: with ``give-up`` the key that has been holding messages the longest gives up its head gap,
   repeatedly until there is room;
   with ``drop`` the message is dropped with a ledger entry; with ``raise`` CapacityExceeded is raised and nothing is changed.
3. As with a single resequencer, time passes only in ``advance(now)``, and each key has its own latest time: ``advance`` moves
   that of the keys in which something fell due.

Theory of operation
-------------------
Only keys with a deadline are in the schedule, and only keys that hold messages are in ``_holding``, oldest first, so
neither ``advance`` nor an overflow examines any other key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from seriatim.core.deadlines import Deadlines
from seriatim.core.resequencing.options import Effect, OnOverflow, ResequenceOptions
from seriatim.core.resequencing.resequencer import Resequencer, SavedResequencer
from seriatim.core.validation import require_whole
from seriatim.errors import NotFound

M = TypeVar("M")


class ResequencerPool(Generic[M]):
    """Puts the messages of many keys back in order, each key independently."""

    def __init__(self, options: ResequenceOptions | None = None, total_capacity: int | None = None) -> None:
        if total_capacity is not None:
            require_whole("total_capacity", total_capacity, 1)
        self._options = options or ResequenceOptions()
        self._total_capacity = total_capacity
        self._keys: dict[Hashable, Resequencer[M]] = {}
        self._deadlines: Deadlines[Hashable] = Deadlines()
        self._due: dict[Hashable, float] = {}
        self._holding: OrderedDict[Hashable, int] = OrderedDict()
        self._held = 0

    def __len__(self) -> int:
        """The number of known keys."""
        return len(self._keys)

    def __getitem__(self, key: Hashable) -> Resequencer[M]:
        try:
            return self._keys[key]
        except KeyError:
            raise NotFound(f"key {key!r} has not been seen") from None

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._keys)

    @property
    def held_count(self) -> int:
        """The number of messages that are held, over all keys."""
        return self._held

    def push(
        self, key: Hashable, sequence: int, message: M, now: float, *, epoch: int = 0, digest: Hashable = None
    ) -> list[Effect[M]]:
        """Take in one message."""
        resequencer = self._keys.get(key)
        if resequencer is None:
            # A key becomes known only when it accepts a message.
            resequencer = Resequencer(self._options, key)
        room = self._total_capacity is None or self._held < self._total_capacity
        effects = resequencer.push(sequence, message, now, epoch=epoch, digest=digest, room=room)
        self._keys[key] = resequencer
        self._note(key, resequencer)
        return effects if room else effects + self._make_room(now)

    def advance(self, now: float) -> list[Effect[M]]:
        """Let time pass: decide everything that is due by ``now``, key by key, earliest first."""
        effects: list[Effect[M]] = []
        for key in self._deadlines.pop_due(now):
            del self._due[key]
            resequencer = self._keys[key]
            effects += resequencer.advance(now)
            self._note(key, resequencer)
        return effects

    def next_deadline(self) -> float | None:
        """When ``advance`` has something to do; None: never."""
        return self._deadlines.next()

    def skip(self, key: Hashable, now: float) -> list[Effect[M]]:
        """An operator gives up the head gap of a key."""
        resequencer = self[key]
        effects = resequencer.skip(now)
        self._note(key, resequencer)
        return effects

    def flush(self, now: float) -> list[Effect[M]]:
        """The sources have ended: give up every gap and release what is held."""
        effects: list[Effect[M]] = []
        for key in list(self._holding):
            resequencer = self._keys[key]
            effects += resequencer.flush(now)
            self._note(key, resequencer)
        return effects

    def clear(self, key: Hashable, now: float) -> list[Effect[M]]:
        """Forget a key. What it holds is discarded, with ledger entries."""
        resequencer = self[key]
        effects = resequencer.clear(now)
        self._note(key, resequencer)
        del self._keys[key]
        return effects

    def save(self) -> dict[Hashable, SavedResequencer[M]]:
        """The state of every key; keys that hold messages come first, in the order in which they would give up gaps."""
        keys = dict.fromkeys([*self._holding, *self._keys])
        return {key: self._keys[key].save() for key in keys}

    @classmethod
    def restore(
        cls,
        saved: dict[Hashable, SavedResequencer[M]],
        options: ResequenceOptions | None = None,
        total_capacity: int | None = None,
    ) -> ResequencerPool[M]:
        """A map that continues the saved one, given the same options and the saved order."""
        self = cls(options, total_capacity)
        for key, state in saved.items():
            self._keys[key] = resequencer = Resequencer.restore(state, self._options, key)
            self._note(key, resequencer)
        return self

    def _note(self, key: Hashable, resequencer: Resequencer[M]) -> None:
        """Update the schedule and the count of held messages for one key."""
        deadline = resequencer.deadline
        if deadline != self._due.get(key):
            if deadline is None:
                del self._due[key]
                self._deadlines.discard(key)
            else:
                self._due[key] = deadline
                self._deadlines.set(key, deadline)
        held, before = resequencer.held_count, self._holding.get(key, 0)
        if held != before:
            self._held += held - before
            if held:
                self._holding[key] = held
            else:
                del self._holding[key]

    def _make_room(self, now: float) -> list[Effect[M]]:
        effects: list[Effect[M]] = []
        if self._options.overflow is not OnOverflow.GIVE_UP or self._total_capacity is None:
            return effects
        while self._held > self._total_capacity:
            key = next(iter(self._holding))
            resequencer = self._keys[key]
            effects += resequencer.make_room(now)
            self._note(key, resequencer)
        return effects
