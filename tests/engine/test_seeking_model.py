"""Random publishing, acks, seeks, snapshots, clean-up and restarts against a model that is made of sets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import AlreadyExists, FailedPrecondition, NotFound
from seriatim.store import open_store
from seriatim.store.base import Store
from seriatim.store.memory import MemoryStore
from tests.core.lanes.crashes import saved
from tests.engine.conftest import Collector

NAMES = st.sampled_from(["x", "y"])
KEYS = st.sampled_from(["a", "b", None])
PLACE = st.floats(0, 1)


class KeptStore(MemoryStore):
    """A store in memory that another engine may have when this one is closed."""

    def close(self) -> None:
        pass


class SeekMachine(RuleBasedStateMachine):
    """One subscription of one topic. What is in its lanes must be what is kept and not settled."""

    def open(self) -> Store:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.log: dict[int, tuple[str | None, float]] = {}  # kept messages: key and time
        self.settled: set[int] = set()
        self.snapshots: dict[str, set[int]] = {}
        self.next_offset = 0

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @initialize(keeps=st.booleans())
    def begin(self, keeps: bool) -> None:
        async def begin() -> None:
            await self.start()
            await self.engine.create_topic("t", TopicOptions(retain_settled=None if keeps else 0))
            await self.engine.create_subscription("t", "s", SubscriptionOptions(message_ordering=True))
            self.attach()

        self.do(begin())

    async def start(self) -> None:
        self.engine = Engine(self.open())
        await self.engine.start()

    def attach(self) -> None:
        self.got = Collector(max_messages=4)
        self.attachment = self.engine.attach("s", self.got.consumer)

    async def rest(self) -> None:
        """Let everything happen that is due."""
        for _ in range(3):
            await self.engine.drain()
            await asyncio.sleep(0)

    def place(self, where: float) -> int:
        return round(where * self.next_offset)

    # -- what is done -----------------------------------------------------------------------------------------------------

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5))
    def publish(self, keys: list[str | None]) -> None:
        async def publish() -> None:
            await self.engine.publish("t", [Outgoing(key, b"") for key in keys])
            await self.rest()

        self.do(publish())
        store, topic = self.engine._store, self.engine.get_topic("t")
        for record in store.read(topic.id, self.next_offset, 99):
            self.log[record.offset] = (record.key, record.published)
        self.next_offset += len(keys)

    @precondition(lambda self: self.got.consumer.outstanding)
    @rule(choice=st.integers(0, 3), wait=st.booleans())
    def ack(self, choice: int, wait: bool) -> None:
        async def ack() -> None:
            leases = self.engine.get_subscription("s").lanes.leases()
            lease = leases[choice % len(leases)]
            self.attachment.ack(lease)
            self.settled.add(lease.offset)
            if wait:
                await self.rest()

        self.do(ack())

    @rule(where=PLACE, keys=st.lists(KEYS, max_size=2))
    def seek_to_offset(self, where: float, keys: list[str | None]) -> None:
        """A seek, and a publish while it is under way."""
        offset = self.place(where)
        earliest = min(self.log, default=self.next_offset)

        async def seek() -> None:
            published = self.engine.publish("t", [Outgoing(key, b"") for key in keys]) if keys else None
            if offset < earliest:
                with pytest.raises(FailedPrecondition, match=f"the earliest offset is {earliest}$"):
                    await self.engine.seek_to_message("s", str(offset))
            else:
                await self.engine.seek_to_message("s", str(offset))
                self.settled = set(range(offset))
            if published is not None:
                await published
            await self.rest()

        self.do(seek())
        self.look_at_the_log()

    @precondition(lambda self: self.log)
    @rule(where=PLACE)
    def seek_to_time(self, where: float) -> None:
        times = sorted(time for _, time in self.log.values())
        time = times[round(where * (len(times) - 1))]

        async def seek() -> None:
            await self.engine.seek_to_time("s", time)
            await self.rest()

        self.do(seek())
        first = min(offset for offset, (_, published) in self.log.items() if published >= time)
        self.settled = set(range(first))

    @rule(name=NAMES)
    def create_snapshot(self, name: str) -> None:
        async def create() -> None:
            try:
                await self.engine.create_snapshot("s", name)
                self.snapshots[name] = set(self.settled)
            except AlreadyExists:
                assert name in self.snapshots

        self.do(create())

    @rule(name=NAMES)
    def delete_snapshot(self, name: str) -> None:
        async def delete() -> None:
            try:
                await self.engine.delete_snapshot(name)
                del self.snapshots[name]
            except NotFound:
                assert name not in self.snapshots

        self.do(delete())

    @rule(name=NAMES)
    def seek_to_snapshot(self, name: str) -> None:
        async def seek() -> None:
            try:
                await self.engine.seek_to_snapshot("s", name)
                self.settled = set(self.snapshots[name])
            except NotFound:
                assert name not in self.snapshots
            await self.rest()

        self.do(seek())

    @rule()
    def clean_up(self) -> None:
        async def clean_up() -> None:
            await self.rest()
            await self.engine.clean_up()

        self.do(clean_up())
        before = set(self.log)
        self.look_at_the_log()
        pins = [self.settled, *self.snapshots.values()]
        assert {offset for offset in before if any(offset not in pin for pin in pins)} <= set(self.log)

    @rule()
    def restart(self) -> None:
        async def restart() -> None:
            await self.engine.close()
            await self.start()
            self.attach()
            await self.rest()

        self.do(restart())

    # -- what must hold ---------------------------------------------------------------------------------------------------

    def look_at_the_log(self) -> None:
        records = self.engine._store.read(self.engine.get_topic("t").id, 0, 9999)
        self.log = {record.offset: (record.key, record.published) for record in records}
        self.next_offset = self.engine.get_topic("t").next_offset

    @invariant()
    def the_lanes_hold_what_is_kept_and_not_settled(self) -> None:
        lanes = self.engine.get_subscription("s").lanes
        assert [message.offset for message in saved(lanes).messages if message.offset not in self.settled] == sorted(
            set(self.log) - self.settled
        )

    @invariant()
    def what_is_out_is_the_first_of_its_key(self) -> None:
        for lease in self.engine.get_subscription("s").lanes.leases():
            if lease.key is not None:
                waiting = [at for at, (key, _) in self.log.items() if key == lease.key and at not in self.settled]
                assert lease.offset == min(waiting)

    def teardown(self) -> None:
        self.do(self.engine.close())
        self.runner.close()


class MemorySeeks(SeekMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = KeptStore()

    def open(self) -> Store:
        return self.store


class SqliteSeeks(SeekMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    def open(self) -> Store:
        return open_store(f"sqlite:///{Path(self.folder.name)}/store.db")

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


SqliteSeeks.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
MemorySeeks.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSqliteSeeks = SqliteSeeks.TestCase
TestMemorySeeks = MemorySeeks.TestCase
