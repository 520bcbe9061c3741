"""A subscription in this process, when its event loop learns late what happened to its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seriatim.core.lanes.types import Lease
from seriatim.engine.broker import SubscriptionInfo
from seriatim.engine.consumer import Record
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import StaleLease, StoreLost
from seriatim.kafka import group as groups
from seriatim.kafka.broker import open_kafka
from seriatim.kafka.catalog import Catalog
from seriatim.kafka.group import Group
from seriatim.kafka.member import Assigned
from seriatim.kafka.partition import Commit, Flow
from seriatim.kafka.progress import MAX_METADATA_BYTES
from seriatim.kafka.state import Command, PartitionMemory, StateRecord, command_record

NOW = 1000.0


class Member:
    """A member whose events the test tells, and that commits everything."""

    is_busy = False
    metadata_bytes = MAX_METADATA_BYTES

    def __init__(self, *_: object) -> None: ...

    def start(self) -> None: ...

    async def close(self) -> None: ...

    async def commit(self, commits: list[Commit]) -> set[int]:
        return {commit.serial for commit in commits}


class Producer:
    """Keeps what is written, and acknowledges it when it is told to."""

    def __init__(self) -> None:
        self.written: list[StateRecord] = []
        self.acknowledges = asyncio.Event()
        self.acknowledges.set()

    def write(self, _: str, value: bytes | None, key: bytes | None, **__: Any) -> asyncio.Future[tuple[int, int]]:
        async def acknowledge() -> tuple[int, int]:
            await self.acknowledges.wait()
            return 0, len(self.written)

        record = StateRecord.decoded(key, value)
        assert record is not None
        self.written.append(record)
        return asyncio.ensure_future(acknowledge())


class Consumer:
    """Holds leases, and is told which of them it has lost."""

    def __init__(self) -> None:
        self.lost: list[Lease] = []

    def let_go(self, _: Lease) -> None: ...

    def fenced(self, lease: Lease) -> None:
        self.lost.append(lease)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Group, Producer], Awaitable[None]]], None]:
    monkeypatch.setattr(groups, "Member", Member)

    async def run(scenario: Callable[[Group, Producer], Awaitable[None]]) -> None:
        producer = Producer()
        info = SubscriptionInfo("s", "t", SubscriptionOptions())
        group = Group(None, info, producer, lambda: NOW)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(10):
                await scenario(group, producer)
        finally:
            await group.close()

    return lambda scenario: asyncio.run(run(scenario))


def assignment(serial: int) -> Assigned:
    return Assigned(0, Flow(serial), serial, 0, frozenset())


def deliver(group: Group, consumer: Consumer) -> Lease:
    """Deliver the first message of partition 0."""
    known = group.partitions[0]
    known.begin(PartitionMemory(), NOW)
    known.is_claimed = True
    group.fetched({0: [(Record(0, "k", b"1", None, NOW), None)]}, {})
    (lease,) = known.lanes.take(NOW, 600, 1, consumer)
    return lease


def test_an_assignment_that_ends_late_takes_nothing_from_the_one_after_it(play):
    """The polling thread waits only so long for an event loop that is blocked: a partition may be back by then."""

    async def scenario(group: Group, _: Producer) -> None:
        consumer = Consumer()
        group.assigned([assignment(1)])
        lease = deliver(group, consumer)
        revoking = asyncio.create_task(group.revoked([1], 60))
        await asyncio.sleep(0)
        group.assigned([assignment(2)])
        await revoking
        group.lost([1])
        assert {number: known.serial for number, known in group.partitions.items()} == {0: 2}
        assert list(group._turn) == list(group.partitions.values())
        assert consumer.lost == [lease], "two of a key could be in flight"
        with pytest.raises(StaleLease):
            group.ack(lease)

    play(scenario)


def test_a_command_that_comes_while_a_partition_begins_is_carried_out_after_those_before_it(play):
    async def scenario(group: Group, producer: Producer) -> None:
        producer.acknowledges.clear()
        group.assigned([assignment(1)])
        memory = PartitionMemory()
        memory.take(command_record("a", Command("pause", "k", "because")))
        group.remembered(1, memory)
        group.commanded(1, command_record("b", Command("resume", "k")))
        producer.acknowledges.set()
        while sum(record.key.startswith("command/") for record in producer.written) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        view = group.partitions[0].lanes.view("k")
        assert view is None or view.state != "paused"
        pauses = [record for record in producer.written if record.key.startswith("pause/")]
        assert pauses[-1].value is None

    play(scenario)


def test_a_subscription_is_deleted_when_its_group_has_been_left(monkeypatch: pytest.MonkeyPatch):
    """Closing a subscription does not wait for that, and Kafka deletes no group that has members."""
    left: list[bool] = []

    async def scenario() -> None:
        broker: Any = open_kafka("kafka://127.0.0.1:1")
        leaving = broker._leaving["s"] = asyncio.create_task(asyncio.sleep(0.05))

        async def delete(*_: object) -> None:
            left.append(leaving.done())

        monkeypatch.setattr(Catalog, "delete_subscription", delete)
        await broker.delete_subscription("s")
        await broker.close()

    asyncio.run(scenario())
    assert left == [True]


def test_log_records_name_the_subscription_in_a_field(play, caplog):
    async def scenario(group: Group, _: Producer) -> None:
        group.failed(StoreLost("Kafka is away"))

    play(scenario)
    (record,) = caplog.records
    assert (record.getMessage(), record.__dict__["subscription"]) == ("subscription 's': Kafka is away", "s")
