"""Random traces for Spark: many small ones as the keys of one frame, so that one job checks them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from seriatim.spark.frames.tie_breaking import payload_digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAYLOADS = ("x", "x", "y", None)

SCHEMA = (
    "key string NOT NULL, epoch int NOT NULL, seq bigint NOT NULL, arrived bigint NOT NULL, payload string, "
    "id bigint NOT NULL"
)
TIED = 0.3
"""How many of the rows arrived at the same time as the one before."""


class Message(NamedTuple):
    """A row. ``id`` is unique; ``arrived`` is not."""

    key: str
    epoch: int
    seq: int
    arrived: int
    payload: str | None
    id: int


def by_rule(message: Message, digests: Mapping[str | None, int] | None = None) -> tuple[int, ...]:
    """What messages of a key are sorted by (``tie_breaking.py``); ``digests`` are of payloads, where they are compared."""
    digest = 0 if digests is None else digests[message.payload]
    return message.arrived, message.epoch, message.seq, digest, message.id


def digests_of_payloads(spark: SparkSession) -> dict[str | None, int]:
    frame = spark.createDataFrame([(payload,) for payload in PAYLOADS], "payload string")
    return {row[0]: row[1] for row in frame.select("payload", payload_digest(frame, ["payload"])).collect()}


def random_messages(seed: int, keys: int = 200, *, epochs: int = 1, increment: int = 1) -> list[Message]:
    """For each key what a source sent, shuffled a little or a lot, with copies and losses; all keys mixed."""
    random = Random(seed)
    drawn = [message for key in range(keys) for message in _of_one_key(random, f"key-{key}", epochs, increment)]
    places = sorted(random.sample(range(10 * len(drawn)), len(drawn)))
    for number in range(1, len(places)):
        if random.random() < TIED:
            places[number] = places[number - 1]
    rows = [
        Message(key, epoch, seq, place, payload, 0)
        for (key, epoch, seq, payload), place in zip(drawn, places, strict=True)
    ]
    return [row._replace(id=number) for number, row in enumerate(random.sample(rows, len(rows)))]


def _of_one_key(random: Random, key: str, epochs: int, increment: int) -> Iterator[tuple[str, int, int, str | None]]:
    reach = random.choice((0, 1, 3, 30))
    for epoch in range(epochs):
        sent = [increment * number for number in range(random.randrange(4), random.randrange(4, 20))]
        received = [number for number in sent for _ in range(random.choice((0, 1, 1, 1, 1, 2, 3)))]
        if random.random() < 0.2:
            received = sent
        moved = sorted(enumerate(received), key=lambda item: item[0] + random.uniform(0, reach))
        yield from ((key, epoch, number, random.choice(PAYLOADS)) for _, number in moved)
