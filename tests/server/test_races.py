"""Calls that race each other on a disk that takes its time: what was answered with OK holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from time import sleep
from typing import Any

import grpc
import pytest

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.options import SubscriptionOptions
from seriatim.store.base import Transaction
from seriatim.store.memory import MemoryStore
from tests.server.served import PROJECT, SUBSCRIPTION, TOPIC, ServerThread, server_in_thread
from tests.server.test_schemas import AVRO, NAME, make, record

Race = Callable[..., list[grpc.StatusCode]]
OK = grpc.StatusCode.OK
FSYNC = 0.01


class SlowStore(MemoryStore):
    """Every commit takes a while, so that calls overlap."""

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with super().transaction() as transaction:
            yield transaction
            sleep(FSYNC)


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with server_in_thread(store=SlowStore()) as server:
        yield server


@pytest.fixture
def race() -> Iterator[Race]:
    """Make calls at the same moment, and return their statuses."""
    with ThreadPoolExecutor(64) as pool:

        def at_once(*calls: Callable[[], Any]) -> list[grpc.StatusCode]:
            together = Barrier(len(calls))

            def make_one(call: Callable[[], Any]) -> grpc.StatusCode:
                together.wait()
                try:
                    call()
                except grpc.RpcError as error:
                    return error.code()
                return OK

            return list(pool.map(make_one, calls))

        yield at_once


def update(raw: Any, path: str, **fields: Any) -> Callable[[], Any]:
    wanted = {"name": SUBSCRIPTION, **fields}
    return lambda: raw.UpdateSubscription(subscription=wanted, update_mask={"paths": [path]})


def test_updates_of_a_subscription_with_different_masks_all_take_effect(ordered, race):
    for number in range(10):
        statuses = race(
            update(ordered, "labels", labels={"round": str(number)}),
            update(ordered, "ack_deadline_seconds", ack_deadline_seconds=20 + number),
            update(ordered, "expiration_policy", expiration_policy={"ttl": {"seconds": 90_000 + number}}),
            update(ordered, "retry_policy.minimum_backoff", retry_policy={"minimum_backoff": {"seconds": 1 + number}}),
            update(ordered, "retry_policy.maximum_backoff", retry_policy={"maximum_backoff": {"seconds": 99 + number}}),
        )
        assert statuses == [OK] * 5
        found = ordered.GetSubscription(subscription=SUBSCRIPTION)
        assert (found.labels["round"], found.ack_deadline_seconds) == (str(number), 20 + number)
        assert found.expiration_policy.ttl.seconds == 90_000 + number
        policy = found.retry_policy
        assert (policy.minimum_backoff.seconds, policy.maximum_backoff.seconds) == (1 + number, 99 + number)


def test_an_update_and_an_embedded_program_do_not_undo_each_other(server, ordered, race):
    for number in range(10):
        retry = RetryPolicy.immediate(max_attempts=5 + number)
        changed = SubscriptionOptions(retry=retry)
        change = server.engine.update_subscription(SUBSCRIPTION, changed, ["retry.max_attempts"])
        statuses = race(
            update(ordered, "ack_deadline_seconds", ack_deadline_seconds=20 + number),
            lambda change=change: server.run(change),
        )
        assert statuses == [OK] * 2
        options = server.run(server.engine.describe_subscription(SUBSCRIPTION)).options
        assert (options.ack_deadline, options.retry.max_attempts) == (20 + number, 5 + number)


def test_a_wider_window_and_exactly_once_delivery_never_hold_together(server, ordered, race):
    for number in range(10):
        ordered.UpdateSubscription(
            subscription={"name": SUBSCRIPTION}, update_mask={"paths": ["labels", "enable_exactly_once_delivery"]}
        )
        race(
            update(ordered, "labels", labels={"seriatim-window": str(2 + number)}),
            update(ordered, "enable_exactly_once_delivery", enable_exactly_once_delivery=True),
        )
        assert server.run(server.engine.describe_subscription(SUBSCRIPTION)).options.window == 1


def test_updates_of_a_topic_with_different_masks_all_take_effect(raw, race):
    raw.CreateTopic(name=TOPIC)
    for number in range(10):
        labels = {"name": TOPIC, "labels": {"round": str(number)}}
        kept = {"name": TOPIC, "message_retention_duration": {"seconds": 700 + number}}
        statuses = race(
            lambda labels=labels: raw.UpdateTopic(topic=labels, update_mask={"paths": ["labels"]}),
            lambda kept=kept: raw.UpdateTopic(topic=kept, update_mask={"paths": ["message_retention_duration"]}),
        )
        assert statuses == [OK] * 2
        found = raw.GetTopic(topic=TOPIC)
        assert (found.labels["round"], found.message_retention_duration.seconds) == (str(number), 700 + number)


def test_updates_of_a_snapshot_with_different_masks_both_take_effect(ordered, race):
    snapshot = ordered.CreateSnapshot(subscription=SUBSCRIPTION)
    until = snapshot.expire_time.seconds
    for number in range(10):
        labels = {"name": snapshot.name, "labels": {"round": str(number)}}
        expires = {"name": snapshot.name, "expire_time": {"seconds": until - number}}
        statuses = race(
            lambda labels=labels: ordered.UpdateSnapshot(snapshot=labels, update_mask={"paths": ["labels"]}),
            lambda expires=expires: ordered.UpdateSnapshot(snapshot=expires, update_mask={"paths": ["expire_time"]}),
        )
        assert statuses == [OK] * 2
        found = ordered.GetSnapshot(snapshot=snapshot.name)
        assert (found.labels["round"], found.expire_time.seconds) == (str(number), until - number)


def test_every_revision_that_was_taken_is_kept(raw, race):
    """A schema has 20 revisions at most, so of 50 the others hear that there is no room."""
    make(raw, "id")
    schema = {"type_": AVRO, "definition": record("id")}
    statuses = race(*[lambda: raw.CommitSchema(name=NAME, schema=schema)] * 50)
    assert statuses.count(OK) == 19
    assert statuses.count(grpc.StatusCode.FAILED_PRECONDITION) == 31
    assert len(raw.ListSchemaRevisions(name=NAME).schemas) == 20


def test_revisions_that_are_deleted_and_committed_at_once_lose_none(raw, race):
    old = [make(raw, "id").revision_id]
    schema = {"type_": AVRO, "definition": record("id")}
    old += [raw.CommitSchema(name=NAME, schema=schema).revision_id for _ in range(5)]
    new: list[str] = []
    statuses = race(
        *(lambda id_=id_: raw.DeleteSchemaRevision(name=f"{NAME}@{id_}") for id_ in old),
        *[lambda: new.append(raw.CommitSchema(name=NAME, schema=schema).revision_id)] * 6,
    )
    kept = [id_ for id_, status in zip(old, statuses, strict=False) if status is not OK]
    assert {one.revision_id for one in raw.ListSchemaRevisions(name=NAME).schemas} == {*kept, *new}
    assert statuses[len(old) :] == [OK] * 6


def test_of_many_schemas_under_one_name_one_is_created_and_the_others_hear_it(raw, race):
    statuses = race(*[lambda: make(raw, "id")] * 30)
    assert statuses.count(OK) == 1
    assert statuses.count(grpc.StatusCode.ALREADY_EXISTS) == 29
    assert len(raw.ListSchemaRevisions(name=NAME).schemas) == 1


def test_a_subscription_that_is_created_while_its_topic_is_deleted_exists_if_it_was_answered_so(raw, race):
    for number in range(10):
        raw.CreateTopic(name=TOPIC)
        name = f"{SUBSCRIPTION}-{number}"

        def delete(number=number):
            sleep(number * FSYNC / 10)  # before, during and after the creation
            raw.DeleteTopic(topic=TOPIC)

        created, deleted = race(lambda name=name: raw.CreateSubscription(name=name, topic=TOPIC), delete)
        assert deleted is OK
        assert created in {OK, grpc.StatusCode.NOT_FOUND}
        listed = [one.name for one in raw.ListSubscriptions(project=PROJECT).subscriptions]
        assert (name in listed) is (created is OK)
