"""Random traces for Spark: many small ones as the keys of one frame, so that one job checks them all."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

SCHEMA = "key string, epoch int, seq bigint, arrived bigint, payload string, id bigint"


class Message(NamedTuple):
    """A row. ``arrived`` is unique, and so is ``id``."""

    key: str
    epoch: int
    seq: int
    arrived: int
    payload: str
    id: int


def random_messages(seed: int, keys: int = 200, *, epochs: int = 1, increment: int = 1) -> list[Message]:
    """For each key what a source sent, shuffled a little or a lot, with copies and losses; all keys mixed."""
    random = Random(seed)
    drawn = [message for key in range(keys) for message in _of_one_key(random, f"key-{key}", epochs, increment)]
    places = random.sample(range(10 * len(drawn)), len(drawn))
    rows = [Message(key, epoch, seq, place, payload, 0) for (key, epoch, seq, payload), place in _placed(drawn, places)]
    return [row._replace(id=number) for number, row in enumerate(random.sample(rows, len(rows)))]


def _of_one_key(random: Random, key: str, epochs: int, increment: int) -> Iterator[tuple[str, int, int, str]]:
    reach = random.choice((0, 1, 3, 30))
    for epoch in range(epochs):
        sent = [increment * number for number in range(random.randrange(4), random.randrange(4, 20))]
        received = [number for number in sent for _ in range(random.choice((0, 1, 1, 1, 1, 2, 3)))]
        if random.random() < 0.2:
            received = sent
        moved = sorted(enumerate(received), key=lambda item: item[0] + random.uniform(0, reach))
        yield from ((key, epoch, number, random.choice("xxy")) for _, number in moved)


def _placed(drawn: list, places: list[int]) -> Iterator[tuple]:
    """Each message with its place, in which the messages of a key keep their order."""
    yield from zip(drawn, sorted(places), strict=True)
