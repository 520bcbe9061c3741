"""Batches of one key reach the producer in the order in which they were published, and nothing overtakes what was refused."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from seriatim.engine.broker import Outgoing
from seriatim.errors import InvalidArgument, OutcomeUnknown, PermissionDenied, PublishingPaused
from seriatim.kafka.address import Address
from seriatim.kafka.publishing import KafkaProducer, KafkaPublisher


class Producer:
    """Takes records, and refuses those that say so."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, _topic: str, value: bytes, *_: Any) -> asyncio.Future[tuple[int, int]]:
        done: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        if value == b"refused":
            done.set_exception(InvalidArgument("too large"))
        else:
            self.written.append(value)
            done.set_result((0, len(self.written)))
        return done


def publisher(producer: Producer, *delays: float) -> KafkaPublisher:
    """One whose topic is found after these delays, one for each batch."""
    waits = iter(delays)

    async def check_topic(_: str) -> None:
        await asyncio.sleep(next(waits, 0))

    return KafkaPublisher(producer, check_topic, lambda: 0.0)  # type: ignore[arg-type]


def messages(*data: bytes) -> list[Outgoing]:
    return [Outgoing("k", one, None) for one in data]


def test_a_batch_does_not_overtake_another_one_whose_topic_is_still_looked_up():
    async def scenario() -> list[bytes]:
        producer = Producer()
        made = publisher(producer, 0.05, 0.0)
        await asyncio.gather(made.publish("t", messages(b"1", b"2")), made.publish("t", messages(b"3")))
        return producer.written

    assert asyncio.run(scenario()) == [b"1", b"2", b"3"]


def test_nothing_of_a_key_is_written_behind_a_message_that_was_refused():
    async def scenario() -> list[bytes]:
        producer = Producer()
        made = publisher(producer)
        first, second = made.publish("t", messages(b"1", b"refused", b"2")), made.publish("t", messages(b"3"))
        with pytest.raises(InvalidArgument):
            await first
        with pytest.raises(PublishingPaused):
            await second
        return producer.written

    assert asyncio.run(scenario()) == [b"1"]


class FailingProducer:
    """Instead of the library's: says of each record that it failed, with the code that the record names."""

    def __init__(self, _: object) -> None:
        pass

    def produce(self, _topic: str, value: bytes, _key: bytes | None, on_delivery: Any) -> None:
        on_delivery(KafkaError(int(value)), SimpleNamespace(partition=lambda: 0, offset=lambda: 0))

    def poll(self, seconds: float) -> None:
        time.sleep(seconds)

    def flush(self, _: float) -> None: ...


def test_a_record_that_the_library_cannot_take_does_not_hold_up_those_behind_it(monkeypatch):
    class Picky(FailingProducer):
        def produce(self, _topic: str, value: bytes, _key: bytes | None, on_delivery: Any, partition: int = 0) -> None:
            if partition > 2**31:
                raise OverflowError("signed integer is greater than maximum")
            on_delivery(None, SimpleNamespace(partition=lambda: partition, offset=lambda: 7))

    monkeypatch.setattr("seriatim.kafka.publishing.Producer", Picky)

    async def scenario() -> tuple[int, int]:
        producer = KafkaProducer(Address.parse("kafka://127.0.0.1:1"))
        with pytest.raises(InvalidArgument, match="a message for topic 't' was refused: signed integer"):
            await producer.write("t", b"", partition=2**40)
        place = await producer.write("t", b"", partition=3)
        await producer.close()
        return place

    assert asyncio.run(scenario()) == (3, 7)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._TRANSPORT, OutcomeUnknown),
        (KafkaError._MSG_TIMED_OUT, OutcomeUnknown),
        (KafkaError.REQUEST_TIMED_OUT, OutcomeUnknown),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, OutcomeUnknown),
        (KafkaError.MSG_SIZE_TOO_LARGE, InvalidArgument),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, PermissionDenied),
    ],
)
def test_a_message_that_failed_may_be_stored_unless_it_was_refused(monkeypatch, code, error):
    monkeypatch.setattr("seriatim.kafka.publishing.Producer", FailingProducer)

    async def scenario() -> None:
        producer = KafkaProducer(Address.parse("kafka://127.0.0.1:1"))
        with pytest.raises(error):
            await producer.write("t", b"%d" % code)
        await producer.close()

    asyncio.run(scenario())


def test_a_program_that_closes_nothing_ends_without_a_stack_trace(monkeypatch):
    monkeypatch.setattr("seriatim.kafka.publishing.Producer", FailingProducer)

    async def scenario() -> KafkaProducer:
        return KafkaProducer(Address.parse("kafka://127.0.0.1:1"))

    producer = asyncio.run(scenario())
    producer._heard.append((None, None, 0, 0))  # type: ignore[arg-type]
    time.sleep(0.3)
    assert producer._thread.is_alive()
    producer._is_closing = True
    producer._thread.join()


def test_the_producer_is_idempotent_and_waits_for_all_replicas(monkeypatch):
    told: list[dict[str, Any]] = []

    class Told(FailingProducer):
        def __init__(self, config: dict[str, Any]) -> None:
            told.append(config)

    monkeypatch.setattr("seriatim.kafka.publishing.Producer", Told)

    async def scenario() -> None:
        await KafkaProducer(Address.parse("kafka://127.0.0.1:1")).close()

    asyncio.run(scenario())
    ((idempotent, acks),) = [(config["enable.idempotence"], config["acks"]) for config in told]
    assert (idempotent, acks) == (True, "all")
