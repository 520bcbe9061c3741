"""What the contract of a store is tested with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import contextmanager
from itertools import chain
from typing import Protocol

import pytest

from seriatim.store.base import (
    Cursor,
    DeadLetterRow,
    Record,
    Store,
    StoreReader,
    SubscriptionRow,
    TopicRow,
    TroubleRow,
    UpkeepReport,
)
from seriatim.store.settled_set import SettledSet
from seriatim.store.sql.cleanup import REWRITING_AGE

NOW = 1_000_000_000.0
DAY = 24 * 3600.0


class StoreKit(Protocol):
    """A store under test, and how to open it again."""

    store: Store

    def reopen(self) -> None:
        """Close the store and open it again, where it can survive that."""


def records(offsets: Iterable[int], key: str | None = "k", size: int = 5, published: float = NOW) -> list[Record]:
    return [Record(offset, key, f"{offset}".encode().ljust(size, b"."), None, published) for offset in offsets]


def trouble(offset: int, failures: int = 1) -> TroubleRow:
    return TroubleRow(offset, failures, NOW + 5, "it broke", steps_aside=False)


def letter(offset: int) -> DeadLetterRow:
    return DeadLetterRow(offset, "k", 5, NOW, "it broke for good")


def topic_with_subscription(store: Store, messages: int = 0, **options) -> tuple[TopicRow, SubscriptionRow]:
    with store.transaction() as work:
        topic = work.create_topic("orders", options)
        subscription = work.create_subscription(topic.id, "billing", {}, Cursor(0))
        work.append(topic.id, records(range(messages)))
    return topic, subscription


def settle(store: Store, subscription: SubscriptionRow, offsets: Iterable[int]) -> None:
    with store.transaction() as work:
        work.settle(subscription.id, list(offsets))


def upkeep_until_done(store: Store, now: float = NOW + REWRITING_AGE) -> UpkeepReport:
    """Everything that a round of clean-up did."""
    reports = [store.upkeep(now)]
    while reports[-1].more_to_do:
        reports.append(store.upkeep(now))
    messages, removed, rewritten, _ = (sum(column) for column in zip(*reports, strict=True))
    return UpkeepReport(messages, removed, rewritten, more_to_do=False)


def kept(store: StoreReader, topic: TopicRow) -> list[int]:
    return [position.offset for position in chain.from_iterable(store.headers(topic.id))]


def settled(store: Store, subscription: SubscriptionRow, offsets: Iterable[int]) -> list[int]:
    found = SettledSet.of(store.cursor(subscription.id))
    return [offset for offset in offsets if offset in found]


@contextmanager
def nothing_masked():
    """The mode of a new file is what it was made with."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def broken_off(store: Store, change) -> None:
    """Do something in a transaction that raises at its end."""

    def break_off() -> None:
        with store.transaction() as work:
            change(work)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()


class StoreContract:
    @pytest.fixture
    def kit(self) -> StoreKit:
        raise NotImplementedError

    @pytest.fixture
    def store(self, kit: StoreKit) -> Store:
        return kit.store
