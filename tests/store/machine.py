"""A store against the plainest model of one: dictionaries, sets, and no clean-up but what must stay."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seriatim.core.publishing.dedup import DEDUP_WINDOW_S
from seriatim.errors import AlreadyExists
from seriatim.store.base import (
    Cursor,
    DeadLetterRow,
    PausedRow,
    ReaderRow,
    Record,
    SnapshotRow,
    Transaction,
    TroubleRow,
)
from seriatim.store.settled_set import SettledSet
from seriatim.store.sql import cleanup
from tests.core.publishing.claims import claims
from tests.store.contract.kit import kept, upkeep_until_done

DAY = 24 * 3600.0


@dataclass
class ModelSubscription:
    topic: int
    settled: set[int]
    since: int
    troubles: dict[int, TroubleRow] = field(default_factory=dict)
    paused: dict[str | None, str | None] = field(default_factory=dict)
    buried: dict[int, DeadLetterRow] = field(default_factory=dict)


@dataclass
class Model:
    logs: dict[int, dict[int, Record]] = field(default_factory=dict)
    next_offsets: dict[int, int] = field(default_factory=dict)
    options: dict[int, dict[str, float]] = field(default_factory=dict)
    subscriptions: dict[int, ModelSubscription] = field(default_factory=dict)
    readers: dict[str, ReaderRow] = field(default_factory=dict)
    readers_since: dict[str, int] = field(default_factory=dict)
    snapshots: dict[str, tuple[int, set[int], float]] = field(default_factory=dict)
    claimed: set[tuple[str, int]] = field(default_factory=set)
    published_ids: list[tuple[int, str, int, int, float]] = field(default_factory=list)
    next_claim: int = 0

    def needed(self, topic: int, now: float) -> set[int]:
        """What clean-up must not remove."""
        followers = [each for each in self.subscriptions.values() if each.topic == topic]
        readers = {name: reader.position for name, reader in self.readers.items() if reader.topic_id == topic}
        since = min([*(each.since for each in followers), *(self.readers_since[name] for name in readers)], default=inf)
        pins = [settled for where, settled, expires in self.snapshots.values() if where == topic and expires > now]
        retained = self.options[topic].get("retain_settled", 0.0)
        return {
            offset
            for offset, record in self.logs[topic].items()
            if record.published + (retained if offset >= since else 7 * DAY) > now
            or any(offset not in each.settled or offset in each.buried for each in followers)
            or any(offset >= position for position in readers.values())
            or any(offset not in settled for settled in pins)
        }


def cursor_of(floor: int, settled: Sequence[int]) -> Cursor:
    found = SettledSet(floor)
    found.add(settled)
    return found.cursor()


# Messages are chosen by their place in the log, so that most choices hit one.
FEW = st.lists(st.integers(0, 60), max_size=8)
RUNS = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda run: list(range(run[0], run[0] + run[1])))
SOME = FEW | RUNS
KEYS = st.none() | st.sampled_from(["a", "b", ""])
INDEX = st.integers(0, 3)
NAMES = st.sampled_from(["x", "y", "z"])
STEPS = st.sampled_from([1, 1, 1, 1, 1, 2, 3000])
MESSAGES = st.lists(st.tuples(STEPS, KEYS, st.binary(max_size=4)), min_size=1, max_size=20)
CHANGES = st.one_of(
    st.tuples(st.just("create_topic"), NAMES, st.sampled_from([{}, {"retain_settled": 50.0}])),
    st.tuples(st.just("delete_topic"), INDEX),
    st.tuples(st.just("create_subscription"), INDEX, NAMES, st.integers(0, 60), SOME),
    st.tuples(st.just("delete_subscription"), INDEX),
    *(st.tuples(st.just("append"), INDEX, MESSAGES) for _ in range(3)),
    *(st.tuples(st.just("settle"), INDEX, SOME) for _ in range(3)),
    st.tuples(st.just("note_troubles"), INDEX, FEW),
    st.tuples(st.just("pause_key"), INDEX, KEYS),
    st.tuples(st.just("resume_key"), INDEX, KEYS),
    st.tuples(st.just("bury"), INDEX, FEW),
    st.tuples(st.just("overtake"), INDEX, FEW),
    st.tuples(st.just("unbury"), INDEX, FEW),
    st.tuples(st.just("purge"), INDEX, FEW),
    st.tuples(st.just("seek"), INDEX, st.integers(0, 60), SOME),
    st.tuples(st.just("put_reader"), INDEX, NAMES, st.integers(0, 60)),
    st.tuples(st.just("delete_reader"), NAMES),
    st.tuples(st.just("put_snapshot"), INDEX, NAMES, st.integers(0, 60), SOME, st.integers(0, 300)),
    st.tuples(st.just("delete_snapshot"), NAMES),
    st.tuples(st.just("claim_batch"), NAMES, st.integers(0, 5)),
    st.tuples(st.just("move_position"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("claim_ids"), INDEX, st.lists(st.tuples(NAMES, st.integers(0, 1)), min_size=1, max_size=4)),
)


class Both:
    """Does the same to a transaction and to a model."""

    def __init__(self, work: Transaction, model: Model, now: float) -> None:
        self.work, self.model, self.now = work, model, now

    def do(self, change: Sequence) -> None:
        getattr(self, change[0])(*change[1:])

    def _topic(self, index: int) -> int | None:
        return sorted(self.model.logs)[index % len(self.model.logs)] if self.model.logs else None

    def _subscription(self, index: int) -> tuple[int, ModelSubscription] | None:
        found = sorted(self.model.subscriptions.items(), key=lambda item: item[0])
        return found[index % len(found)] if found else None

    def _offsets(self, topic: int, places: Sequence[int]) -> list[int]:
        log = list(self.model.logs[topic])
        return sorted({log[place % len(log)] for place in places}) if log else []

    def _cursor(self, topic: int, place: int, places: Sequence[int]) -> tuple[Cursor, set[int]]:
        """A cursor, and what it has settled of the messages that there are."""
        log, settled = list(self.model.logs[topic]), self._offsets(topic, places)
        floor = log[place % len(log)] if log else self.model.next_offsets[topic]
        return cursor_of(floor, settled), {offset for offset in log if offset < floor} | set(settled)

    def create_topic(self, name, options) -> None:
        name = f"{name}{len(self.model.logs)}-{self.now}-{sorted(self.model.logs)}"
        topic = self.work.create_topic(name, options)
        self.model.logs[topic.id], self.model.next_offsets[topic.id] = {}, 0
        self.model.options[topic.id] = options

    def delete_topic(self, index) -> None:
        if (topic := self._topic(index)) is not None:
            self.work.delete_topic(topic)
            model = self.model
            del model.logs[topic], model.next_offsets[topic], model.options[topic]
            model.subscriptions = {id_: each for id_, each in model.subscriptions.items() if each.topic != topic}
            model.readers = {name: row for name, row in model.readers.items() if row.topic_id != topic}
            model.snapshots = {name: row for name, row in model.snapshots.items() if row[0] != topic}
            model.published_ids = [row for row in model.published_ids if row[0] != topic]

    def create_subscription(self, index, name, place, places) -> None:
        if (topic := self._topic(index)) is not None:
            name = f"{name}-{sorted(self.model.subscriptions)}"
            cursor, settled = self._cursor(topic, place, places)
            row = self.work.create_subscription(topic, name, {}, cursor)
            self.model.subscriptions[row.id] = ModelSubscription(topic, settled, self.model.next_offsets[topic])

    def delete_subscription(self, index) -> None:
        if found := self._subscription(index):
            self.work.delete_subscription(found[0])
            del self.model.subscriptions[found[0]]

    def append(self, index, messages) -> None:
        if (topic := self._topic(index)) is not None:
            offset, batch = self.model.next_offsets[topic] - 1, []
            for step, key, data in messages:
                offset += step
                batch.append(Record(offset, key, data, {"k": "v"} if step == 2 else None, self.now, float(step == 2)))
            self.work.append(topic, batch)
            self.model.logs[topic].update((record.offset, record) for record in batch)
            self.model.next_offsets[topic] = offset + 1

    def settle(self, index, places) -> None:
        if found := self._subscription(index):
            offsets = self._offsets(found[1].topic, places)
            self.work.settle(found[0], offsets)
            found[1].settled |= set(offsets)
            self._forget_troubles(found[1], offsets)

    def note_troubles(self, index, places) -> None:
        if found := self._subscription(index):
            offsets = self._offsets(found[1].topic, places)
            rows = [TroubleRow(offset, 1, self.now, "e", steps_aside=True) for offset in offsets]
            rows = [row for row in rows if row.offset not in found[1].settled]
            self.work.note_troubles(found[0], rows)
            found[1].troubles.update((row.offset, row) for row in rows)

    def pause_key(self, index, key) -> None:
        if found := self._subscription(index):
            self.work.pause_key(found[0], key, "r")
            found[1].paused[key] = "r"

    def resume_key(self, index, key) -> None:
        if found := self._subscription(index):
            self.work.resume_key(found[0], key)
            found[1].paused.pop(key, None)

    def bury(self, index, places) -> None:
        if found := self._subscription(index):
            offsets = self._offsets(found[1].topic, places)
            letters = [DeadLetterRow(offset, "k", 1, self.now, None, 1, 2) for offset in offsets]
            self.work.bury(found[0], letters)
            found[1].buried.update((row.offset, row) for row in letters)
            self._forget_troubles(found[1], offsets)

    def overtake(self, index, places) -> None:
        if found := self._subscription(index):
            offsets = self._offsets(found[1].topic, places)
            self.work.overtake(found[0], offsets)
            for offset in found[1].buried.keys() & set(offsets):
                found[1].buried[offset] = found[1].buried[offset]._replace(overtaken=True)

    def unbury(self, index, places) -> None:
        if found := self._subscription(index):
            offsets = self._offsets(found[1].topic, places)
            self.work.unbury(found[0], offsets)
            found[1].settled -= set(offsets)
            self._forget_letters(found[1], offsets)

    def purge(self, index, places) -> None:
        if found := self._subscription(index):
            offsets = self._offsets(found[1].topic, places)
            self.work.purge(found[0], offsets)
            found[1].settled |= set(offsets)
            self._forget_troubles(found[1], offsets)
            self._forget_letters(found[1], offsets)

    def seek(self, index, place, places) -> None:
        if found := self._subscription(index):
            cursor, found[1].settled = self._cursor(found[1].topic, place, places)
            self.work.seek(found[0], cursor)
            found[1].troubles.clear()

    def put_reader(self, index, name, place) -> None:
        if (topic := self._topic(index)) is not None:
            position = max(self._offsets(topic, [place]), default=0)
            if name not in self.model.readers or self.model.readers[name].topic_id != topic:
                self.model.readers_since[name] = self.model.next_offsets[topic]
            self.model.readers[name] = ReaderRow(name, topic, position)
            self.work.put_reader(self.model.readers[name])

    def delete_reader(self, name) -> None:
        if self.model.readers.pop(name, None):
            self.work.delete_reader(name)

    def put_snapshot(self, index, name, place, places, seconds) -> None:
        if (topic := self._topic(index)) is not None:
            expires = self.now + seconds
            cursor, settled = self._cursor(topic, place, places)
            self.work.put_snapshot(SnapshotRow(name, topic, cursor, expires, {}))
            self.model.snapshots[name] = (topic, settled, expires)

    def delete_snapshot(self, name) -> None:
        if self.model.snapshots.pop(name, None):
            self.work.delete_snapshot(name)

    def claim_batch(self, writer, batch) -> None:
        assert self.work.claim_batch(writer, batch) is ((writer, batch) not in self.model.claimed)
        self.model.claimed.add((writer, batch))

    def move_position(self, writer, steps) -> None:
        start = max((batch + 1 for name, batch in self.model.claimed if name == writer), default=0)
        assert self.work.position(writer) == start
        self.work.move_positions([(writer, start, start + steps)])
        self.model.claimed |= {(writer, batch) for batch in range(start + steps)}

    def claim_ids(self, index, wanted) -> None:
        """The model keeps every id that was ever stored, with its time: what is known is found by looking at all of them."""
        if (topic := self._topic(index)) is None:
            return
        marked = [(name, (digest, at)) for at, (name, digest) in enumerate(wanted, self.model.next_claim)]
        self.model.next_claim += len(wanted)
        taken: dict[str, tuple[int, int]] = {
            name: (digest, offset)
            for owner, name, digest, offset, time in self.model.published_ids
            if owner == topic and time > self.now - DEDUP_WINDOW_S
        }
        before, expected = set(taken), dict[int, int]()
        for name, (digest, offset) in marked:
            first = taken.setdefault(name, (digest, offset))
            if first[0] != digest:
                with pytest.raises(AlreadyExists):
                    self.work.claim_ids(topic, claims(*marked), self.now)
                return
            if first[1] != offset:
                expected[offset] = first[1]
        assert self.work.claim_ids(topic, claims(*marked), self.now) == expected
        self.model.published_ids += [(topic, name, *taken[name], self.now) for name in taken if name not in before]

    @staticmethod
    def _forget_troubles(subscription, offsets) -> None:
        for offset in offsets:
            subscription.troubles.pop(offset, None)

    @staticmethod
    def _forget_letters(subscription, offsets) -> None:
        for offset in offsets:
            subscription.buried.pop(offset, None)


class Broken(Exception):
    """Ends a transaction that must leave nothing behind."""


def model_kept(model: Model, subscription: ModelSubscription) -> list[int]:
    """The kept offsets of the topic of a subscription."""
    return list(model.logs[subscription.topic])


class StoreMachine(RuleBasedStateMachine):
    """Transactions, some of them broken off, clean-up, time and reopening, in any order."""

    make_kit: Callable

    def __init__(self) -> None:
        super().__init__()
        self.kit = type(self).make_kit()
        self.model = Model()
        self.now = 1000.0

    @initialize(messages=MESSAGES)
    def begin(self, messages) -> None:
        changes = [("create_topic", "x", {}), ("append", 0, messages), ("create_subscription", 0, "x", 0, [])]
        self.transact(changes, broken=False)

    @rule(changes=st.lists(CHANGES, max_size=6), broken=st.sampled_from([False, False, False, True]))
    def transact(self, changes, broken) -> None:
        draft = copy.deepcopy(self.model)
        try:
            with self.kit.store.transaction() as work:
                for change in changes:
                    Both(work, draft, self.now).do(change)
                if broken:
                    raise Broken
        except Broken:
            return
        self.model = draft

    @rule()
    def reopen(self) -> None:
        self.kit.reopen()

    @rule(seconds=st.sampled_from([0.0, 10.0, 100.0, DEDUP_WINDOW_S, 8 * DAY]))
    def wait(self, seconds) -> None:
        self.now += seconds

    @rule(times=st.integers(1, 3))
    def upkeep(self, times) -> None:
        """What must stay stays; of the rest the store may have removed what it likes."""
        for _ in range(times):
            upkeep_until_done(self.kit.store, self.now)
        model = self.model
        for topic in self.kit.store.catalog().topics:
            left = set(kept(self.kit.store, topic))
            assert model.needed(topic.id, self.now) <= left <= model.logs[topic.id].keys()
            model.logs[topic.id] = {offset: model.logs[topic.id][offset] for offset in sorted(left)}
        model.snapshots = {name: row for name, row in model.snapshots.items() if row[2] > self.now}
        for subscription in model.subscriptions.values():  # what a floor has passed is forgotten
            self._forget_passed(subscription)

    def _forget_passed(self, subscription) -> None:
        unsettled = [o for o in model_kept(self.model, subscription) if o not in subscription.settled]
        floor = min(unsettled, default=self.model.next_offsets[subscription.topic])
        subscription.troubles = {o: row for o, row in subscription.troubles.items() if o >= floor}

    @invariant()
    def the_logs_agree(self) -> None:
        store = self.kit.store
        for topic in store.catalog().topics:
            log = self.model.logs[topic.id]
            assert store.read(topic.id, 0, 10_000) == list(log.values())
            assert kept(store, topic) == list(log)
            wanted = list(log)[::3]
            assert store.fetch(topic.id, wanted) == [log[offset] for offset in wanted]
            assert topic.next_offset == self.model.next_offsets[topic.id]
            assert store.earliest(topic.id) == min(log, default=topic.next_offset)

    @invariant()
    def the_catalogs_agree(self) -> None:
        catalog = self.kit.store.catalog()
        assert [topic.id for topic in catalog.topics] == sorted(self.model.logs)
        assert [row.id for row in catalog.subscriptions] == sorted(self.model.subscriptions)
        assert {row.name: row for row in catalog.readers} == self.model.readers
        assert {row.name for row in catalog.snapshots} == set(self.model.snapshots)

    @invariant()
    def the_subscriptions_agree(self) -> None:
        store = self.kit.store
        for id_, subscription in self.model.subscriptions.items():
            offsets = model_kept(self.model, subscription)
            cursor = SettledSet.of(store.cursor(id_))
            assert {o for o in offsets if o in cursor} == {o for o in offsets if o in subscription.settled}
            kept_troubles = {row.offset: row for row in store.troubles(id_) if row.offset in offsets}
            assert kept_troubles == {o: row for o, row in subscription.troubles.items() if o in offsets}
            assert {row.offset: row for row in store.dead_letters(id_)} == subscription.buried
            assert set(store.paused_keys(id_)) == {PausedRow(*item) for item in subscription.paused.items()}

    def teardown(self) -> None:
        assert list(self.kit.store.check()) == []
        self.kit.close()


def store_machine(kit: Callable, one_in: int = 2) -> type[StoreMachine]:
    """The machine for one kind of store, with one in so many of the usual number of examples."""

    class Machine(StoreMachine):
        make_kit = staticmethod(kit)

    Machine.TestCase.settings = settings(max_examples=settings().max_examples // one_in, stateful_step_count=25)
    return Machine


SMALL_PIECES = {
    "PACKS_A_PIECE": 2,
    "SETTLEMENTS_A_PIECE": 3,
    "OFFSETS_A_PIECE": 5,
    "BYTES_A_PIECE": 300,
    "LEFTOVER_MESSAGES": 6,
    "BLOCKS_A_RISE": 2,
}


def in_small_pieces(kit: type) -> type:
    """A kit whose clean-up is done in many small pieces, so that its seams are walked over."""

    class SmallPiecesKit(kit):
        def __init__(self) -> None:
            super().__init__()
            self._patch = pytest.MonkeyPatch()
            for name, value in SMALL_PIECES.items():
                self._patch.setattr(cleanup, name, value)

        def close(self) -> None:
            super().close()
            self._patch.undo()

    return SmallPiecesKit
