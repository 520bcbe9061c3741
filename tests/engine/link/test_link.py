"""The link: another process asks the owner of a store as if it owned the store itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from typing import Any, cast

import pytest

from seriatim.core.lanes.types import OnExhausted, RetryPolicy
from seriatim.engine.broker import Broker, Outgoing
from seriatim.engine.link import frames, server
from seriatim.engine.link.codec import Packed
from seriatim.engine.link.connection import MAX_UNSENT_BYTES
from seriatim.engine.link.remote import RemoteBroker
from seriatim.engine.link.takeover import SharedBroker
from seriatim.engine.link.verbs import VERBS
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    ResourceExhausted,
    SeriatimError,
    StaleLease,
    StoreFailed,
    StoreLost,
)
from tests.engine.conftest import Collector, WatchedStore, ids
from tests.engine.link.linked import outgoing, run_bounded

# -- verbs -------------------------------------------------------------------------------------------------------------


def test_every_coroutine_of_the_seam_can_be_asked_over_the_link():
    coroutines = {name for name, method in vars(Broker).items() if inspect.iscoroutinefunction(method)}
    assert coroutines - {"close"} == VERBS.keys() - {"publish"}
    assert {"list_keys", "backup", "create_topic"} <= coroutines


def test_ids_of_messages_are_known_to_the_owner_and_over_the_link(run_linked):
    async def scenario(link, client) -> None:
        await client.create_topic("u", TopicOptions(dedup_window=300.0, dedup_max_ids=9))
        message = Outgoing("k", b"paid", None, 0.0, "a")
        assert await client.publish("u", [message]) == await link.engine.publish("u", [message]) == ids(1)
        with pytest.raises(AlreadyExists, match="dedup_id 'a' belongs to another message"):
            await client.publish("u", [message._replace(data=b"unpaid")])
        assert (await client.describe_topic("u")).options == TopicOptions(dedup_window=300.0, dedup_max_ids=9)

    run_linked(scenario)


def test_a_broker_at_the_other_end_has_every_part_of_the_seam():
    asked = {name for name, part in vars(Broker).items() if callable(part) and not name.startswith("_")}

    async def scenario() -> None:
        for broker in (RemoteBroker(), SharedBroker(lambda _: asyncio.sleep(0, cast(Broker, None)))):
            assert [name for name in asked if not callable(getattr(broker, name))] == []
            assert not broker.joins_batches
            with pytest.raises(AttributeError):
                cast(Any, broker).no_such_verb  # noqa: B018

    run_bounded(scenario)


def test_questions_with_options_are_answered_with_the_same_values_as_at_home(run_linked):
    options = SubscriptionOptions(
        message_ordering=True, retry=RetryPolicy(1, 60, max_attempts=3, on_exhausted=OnExhausted.PAUSE)
    )

    async def scenario(link, client):
        info = await client.create_topic("other", TopicOptions(retention=None))
        assert info.options == TopicOptions(retention=None)
        await client.create_subscription("other", "others", options)
        assert await client.describe_subscription("others") == await link.engine.describe_subscription("others")
        assert (await client.describe_subscription("others")).options == options
        assert await client.list_topics() == await link.engine.list_topics()
        assert [one.name for one in await client.list_subscriptions()] == ["others", "s"]

    run_linked(scenario)


def test_an_operator_sees_over_the_link_what_the_owner_sees(run_linked):
    async def scenario(link, client):
        await client.publish("t", [*outgoing("1", "2"), *outgoing("x", key=None), *outgoing("z", key="other")])
        await client.pause_key("s", "k", "on purpose")
        assert await client.dead_letter("s", "other", "no good") == ["3"]
        keys = await client.list_keys("s")
        assert (keys[0].key, keys[0].depth) == ("k", 2)
        assert "on purpose" in keys[0].why
        assert [one.key for one in keys] == [one.key for one in await link.engine.list_keys("s")]
        assert [one.data for one in await client.peek("s", "k")] == [b"1", b"2"]
        assert await client.dead_letters("s") == await link.engine.dead_letters("s")
        assert (await client.stats("s")).dead_letters == 1
        assert (await client.metrics()).topics == (await link.engine.metrics()).topics

    run_linked(scenario)


def test_an_error_of_the_owner_is_raised_as_the_same_error_here(run_linked):
    async def scenario(link, client):
        with pytest.raises(AlreadyExists, match="'t' already exists"):
            await client.create_topic("t")
        with pytest.raises(NotFound, match="'nowhere' does not exist"):
            await client.publish("nowhere", outgoing("x"))

    run_linked(scenario)


@pytest.mark.parametrize("name", ["ZeroDivisionError", "Status", "annotations", "__doc__"])
def test_an_error_that_is_none_of_ours_becomes_the_root_of_the_tree(name):
    error = frames.error_of(name, "by zero")
    assert type(error) is SeriatimError
    assert str(error) == f"{name}: by zero"


def test_an_unforeseen_error_of_the_owner_is_an_error_here_and_is_logged_there(run_linked, monkeypatch, caplog):
    async def scenario(link, client):
        async def broken(*_):
            raise ZeroDivisionError("by zero")

        monkeypatch.setattr(link.engine, "list_topics", broken)
        with pytest.raises(SeriatimError, match="ZeroDivisionError: by zero"):
            await client.list_topics()
        assert "'list_topics' failed for a client" in caplog.text
        assert await client.list_subscriptions(), "the connection goes on"

    run_linked(scenario)


def test_arguments_of_the_wrong_type_are_refused_before_they_are_sent(run_linked):
    async def scenario(link, client):
        with pytest.raises(InvalidArgument, match="5 is not str"):
            await client.describe_subscription(5)
        with pytest.raises(TypeError, match="missing a required argument"):
            await client.describe_subscription()

    run_linked(scenario)


def test_arguments_that_are_missing_or_wrong_are_refused_by_the_owner_and_the_connection_goes_on(run_linked):
    async def scenario(link, client):
        wrong: list[Any] = [{}, {"name": 5}, []]
        for arguments in wrong:
            number = next(client._ids)
            future = asyncio.get_running_loop().create_future()
            client._pending[number] = VERBS["describe_subscription"], future
            client.send(frames.Call(number, "describe_subscription", Packed(arguments, [])))
            with pytest.raises(InvalidArgument):
                await future
        assert await client.list_subscriptions()

    run_linked(scenario)


def test_a_relative_path_of_a_backup_is_meant_where_it_was_asked(run_linked, monkeypatch, tmp_path):
    async def scenario(link, client):
        asked = []

        async def backup(path):
            asked.append(path)

        monkeypatch.setattr(link.engine, "backup", backup)
        monkeypatch.chdir(tmp_path)
        await client.backup("copy.db")
        assert asked == [str(tmp_path / "copy.db")]

    run_linked(scenario)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_publish_over_the_link_wakes_the_subscriber_of_the_owner(run_linked):
    async def scenario(link, client):
        got = Collector()
        link.engine.attach("s", got.consumer)
        assert await client.publish("t", outgoing("first", "second")) == ids(2)
        await got.wait(1)
        assert got.data == [b"first"]

    run_linked(scenario)


def test_data_keys_and_attributes_arrive_as_they_were_sent(run_linked):
    messages = [
        Outgoing("clé", bytes(range(256)), {"größe": "∞"}),
        Outgoing(None, b"", None),
        Outgoing("k", b"x" * (10 * 1024 * 1024), {}),
    ]

    async def scenario(link, client):
        got = Collector()
        client.attach("s", got.consumer)
        await client.publish("t", messages)
        records = sorted((one.record for one in await got.wait(3)), key=lambda record: record.offset)
        assert [(one.key, one.data, one.attributes or None) for one in records] == [
            (one.key, one.data, one.attributes or None) for one in messages
        ]

    run_linked(scenario)


def test_publishes_that_nobody_awaits_in_between_keep_their_order(run_linked):
    async def scenario(link, client):
        written = await asyncio.gather(*(client.publish("t", outgoing(str(number))) for number in range(50)))
        assert [id_ for (id_,) in written] == ids(50)

    run_linked(scenario)


def test_a_publish_too_large_for_a_frame_is_refused_and_nothing_is_sent(run_linked, monkeypatch):
    async def scenario(link, client):
        monkeypatch.setattr(frames, "MAX_FRAME", 1000)
        with pytest.raises(ResourceExhausted, match="ask for less at once"):
            client.publish("t", outgoing("x" * 1000))
        assert await client.publish("t", outgoing("small")) == ids(1)

    run_linked(scenario)


def test_acks_over_the_link_let_the_next_message_of_the_key_go(run_linked):
    async def scenario(link, client):
        got = Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1", "2", "3"))
        for count in (1, 2, 3):
            attachment.ack((await got.wait(count))[-1].lease)
        assert got.data == [b"1", b"2", b"3"]

    run_linked(scenario)


def test_an_ack_is_confirmed_when_it_is_durable_and_not_before(run_linked):
    async def scenario(link, client):
        store, got = link.engine._store, Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1"))
        (first,) = await got.wait(1)
        store.gate.clear()
        told: asyncio.Queue[BaseException | None] = asyncio.Queue()
        attachment.ack(first.lease, told.put_nowait)
        store.watch()
        await store.until_writing()
        await client.list_subscriptions()  # whatever was said before has been heard
        assert told.empty()
        store.gate.set()
        assert await told.get() is None

    run_linked(scenario, store=WatchedStore)


def test_a_nack_brings_the_message_back_and_its_error_is_known_to_the_owner(run_linked):
    async def scenario(link, client):
        got = Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1"))
        attachment.nack((await got.wait(1))[0].lease, 0.0, "no luck")
        assert [one.lease.attempt for one in await got.wait(2)] == [1, 2]

    run_linked(scenario)


def test_a_lease_is_extended_over_the_link(run_linked):
    async def scenario(link, client):
        got = Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1"))
        (first,) = await got.wait(1)
        before = link.engine.get_subscription("s").lanes.next_deadline()
        attachment.extend(first.lease, 3600)
        await client.list_subscriptions()
        assert link.engine.get_subscription("s").lanes.next_deadline() > before + 3000

    run_linked(scenario)


def test_the_ack_deadline_is_known_with_the_first_delivery(run_linked):
    async def scenario(link, client):
        got = Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1"))
        await got.wait(1)
        assert attachment.ack_deadline == 42

    run_linked(scenario, SubscriptionOptions(ack_deadline=42))


def test_what_is_said_twice_about_a_lease_is_refused_at_once(run_linked):
    async def scenario(link, client):
        got = Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1"))
        (first,) = await got.wait(1)
        attachment.ack(first.lease)
        for again in (attachment.ack, attachment.nack, lambda lease: attachment.extend(lease, 1)):
            with pytest.raises(StaleLease, match="message 0 is not leased any more"):
                again(first.lease)

    run_linked(scenario)


def test_a_lease_that_expires_is_reported_and_its_ack_refused(run_linked):
    async def scenario(link, client):
        got = Collector(max_messages=1)
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1"))
        (first,) = await got.wait(1)
        state = link.engine.get_subscription("s")
        state.outcomes.apply(state.lanes.advance(first.lease.deadline + 1))
        state.deliveries.wake()
        _, second = await got.wait(2)
        assert got.fenced == [0]
        assert (first.lease.attempt, second.lease.attempt) == (1, 2)
        with pytest.raises(StaleLease):
            attachment.ack(first.lease)
        told: asyncio.Queue[BaseException | None] = asyncio.Queue()
        client.ack(attachment, first.lease, told.put_nowait)  # as if it had not heard of that yet
        assert isinstance(await told.get(), StaleLease)
        attachment.ack(second.lease, told.put_nowait)
        assert await told.get() is None

    run_linked(scenario, SubscriptionOptions(message_ordering=True, ack_deadline=3600))


def test_an_ack_that_crosses_the_loss_of_its_lease_is_reported_or_logged(run_linked, caplog):
    async def scenario(link, client):
        got = Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1", key=None))
        await client.publish("t", outgoing("2", key=None))
        first, second = await got.wait(2)
        subscription = link.engine.get_subscription("s")
        for one in (first, second):
            subscription.outcomes.ack(one.lease)
        told: asyncio.Queue[BaseException | None] = asyncio.Queue()
        with caplog.at_level(logging.WARNING):
            attachment.ack(first.lease, told.put_nowait)
            attachment.ack(second.lease)
            assert isinstance(await told.get(), StaleLease)
            await client.list_subscriptions()
        (refused,) = [record for record in caplog.records if "an ack was refused" in record.getMessage()]
        fields = {name: refused.__dict__[name] for name in ("subscription", "ordering_key", "message_id")}
        assert fields == {"subscription": "s", "ordering_key": None, "message_id": "1"}

    run_linked(scenario)


def test_a_subscription_that_does_not_exist_is_reported_to_the_consumer(run_linked):
    async def scenario(link, client):
        got = Collector()
        client.attach("nowhere", got.consumer)
        await client.list_subscriptions()
        assert [type(error) for error in got.failures] == [NotFound]

    run_linked(scenario)


def test_a_failure_of_the_store_is_reported_to_consumers_over_the_link(run_linked):
    async def scenario(link, client):
        got = Collector()
        client.attach("s", got.consumer)
        await client.list_subscriptions()
        link.engine.recovery.failed(StoreFailed("the disk is gone"))
        await client.list_subscriptions()
        assert [(type(error), str(error)) for error in got.failures] == [(StoreFailed, "the disk is gone")]

    run_linked(scenario)


def test_a_stopped_consumer_gets_nothing_more_and_may_finish_what_it_has(run_linked):
    async def scenario(link, client):
        got, other = Collector(), Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1", "2"))
        (first,) = await got.wait(1)
        attachment.stop()
        client.attach("s", other.consumer)
        attachment.ack(first.lease)
        await other.wait(1)
        assert other.data == [b"2"]
        assert got.data == [b"1"]

    run_linked(scenario)


# -- two clients -------------------------------------------------------------------------------------------------------


def test_what_a_connection_had_is_given_out_again_at_once_when_it_ends_and_counts_as_not_tried(run_linked):
    async def scenario(link, client):
        gone, there = Collector(), Collector()
        other = await link.client()
        other.attach("s", gone.consumer)
        await client.publish("t", outgoing("1"))
        await gone.wait(1)
        client.attach("s", there.consumer)
        other._connection.abort()
        (again,) = await there.wait(1)
        assert again.lease.attempt == 1

    run_linked(scenario, SubscriptionOptions(message_ordering=True, ack_deadline=3600))


def test_detaching_gives_back_at_once_what_was_not_settled(run_linked):
    async def scenario(link, client):
        former, there = Collector(), Collector()
        attachment = client.attach("s", former.consumer)
        await client.publish("t", outgoing("1"))
        (first,) = await former.wait(1)
        attachment.detach()
        with pytest.raises(StaleLease):
            attachment.ack(first.lease)
        client.attach("s", there.consumer)
        assert (await there.wait(1))[0].lease.attempt == 1

    run_linked(scenario)


def test_an_ack_right_before_the_consumer_leaves_or_the_connection_ends_counts(run_linked):
    async def scenario(link, client):
        for number, leave in enumerate(("detach", "close")):
            other, former, there = await link.client(), Collector(), Collector()
            attachment = other.attach("s", former.consumer)
            await client.publish("t", outgoing("done", "next", key=f"{number}"))
            (first,) = await former.wait(1)
            attachment.ack(first.lease)
            if leave == "detach":
                attachment.detach()
            await other.close()
            next_one = client.attach("s", there.consumer)
            await there.wait(1)
            assert there.data == [b"next"]
            next_one.ack(there.got[0].lease)
            next_one.detach()

    run_linked(scenario)


def test_a_client_that_does_not_read_stalls_nobody_and_holds_no_more_than_its_connection_may(run_linked):
    size, many = 100_000, 200

    async def scenario(link, client):
        silent, busy = await link.client(), Collector()
        silent._connection.read(False)
        silent.attach("s", Collector(max_messages=1000).consumer)
        await asyncio.gather(*(client.publish("t", outgoing("x" * size, key=f"{n}")) for n in range(many)))
        (other,) = (one for one in link.server._clients if one._channels)
        (channel,) = other._channels.values()
        assert other.connection._transport.get_write_buffer_size() < MAX_UNSENT_BYTES + 65 * size
        channel.stop()  # as long as its connection takes them, it might get some more
        held = channel.outstanding
        assert 0 < held < many / 2
        client.attach("s", busy.consumer)
        await busy.wait(many - held)
        silent._connection.abort()

    run_linked(scenario)


def test_a_client_that_reads_again_gets_what_waited_for_room(run_linked):
    size, many = 100_000, 100

    async def scenario(link, client):
        slow, got = await link.client(), Collector()
        slow._connection.read(False)
        slow.attach("s", got.consumer)
        await asyncio.gather(*(client.publish("t", outgoing("x" * size, key=f"{n}")) for n in range(many)))
        slow._connection.read(True)
        await got.wait(many)
        await slow.close()

    run_linked(scenario)


def test_a_client_with_too_much_unanswered_is_not_read_from_until_it_is_answered(run_linked, monkeypatch):
    monkeypatch.setattr(server, "MAX_PENDING_BYTES", 1000)

    async def scenario(link, client):
        store = link.engine._store
        store.watch()
        store.gate.clear()
        written = [client.publish("t", outgoing("x" * 600, key=None)) for _ in range(5)]
        await store.until_writing()
        (other,) = link.server._clients
        assert not other.connection._reading
        store.gate.set()
        assert [id_ for (id_,) in await asyncio.gather(*written)] == ids(5)
        assert other.connection._reading

    run_linked(scenario, store=WatchedStore)


# -- the end of a connection -------------------------------------------------------------------------------------------


def test_what_was_not_answered_when_the_owner_went_away_has_an_unknown_outcome(run_linked):
    async def scenario(link, client):
        store, got = link.engine._store, Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1", key="other"))
        (first,) = await got.wait(1)
        store.gate.clear()
        published = client.publish("t", outgoing("2"))
        told: asyncio.Queue[BaseException | None] = asyncio.Queue()
        attachment.ack(first.lease, told.put_nowait)
        client.publish("t", outgoing("3", key="third"))
        await asyncio.sleep(0)
        (other,) = link.server._clients
        other.connection.abort()
        with pytest.raises(OutcomeUnknown, match=f"process {os.getpid()}.*went away before it answered"):
            await published
        assert isinstance(await told.get(), OutcomeUnknown)
        assert [type(error) for error in got.failures] == [StoreLost]
        with pytest.raises(StoreLost, match="the link to the store is over"):
            await client.list_topics()
        store.gate.set()

    run_linked(scenario, store=WatchedStore)


def test_leases_are_lost_with_the_connection(run_linked):
    async def scenario(link, client):
        got = Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", outgoing("1"))
        (first,) = await got.wait(1)
        await link.server.close()
        assert got.fenced == [0]
        with pytest.raises(StaleLease):
            attachment.ack(first.lease)

    run_linked(scenario)


def test_an_owner_that_ends_answers_what_it_was_asked_before(run_linked):
    async def scenario(link, client):
        store, got = link.engine._store, Collector()
        attachment = client.attach("s", got.consumer)
        await client.publish("t", [*outgoing("1"), *outgoing("held", key="other")])
        first, _ = await got.wait(2)
        store.watch()
        store.gate.clear()
        told: asyncio.Queue[BaseException | None] = asyncio.Queue()
        attachment.ack(first.lease, told.put_nowait)
        published = client.publish("t", outgoing("2"))
        there = Collector()
        link.engine.attach("s", there.consumer)
        closing = asyncio.create_task(link.server.close())
        await there.wait(1)  # both have said goodbye: what the client held was given back
        await store.until_writing()
        store.gate.set()
        assert await published == ids(2, 3)
        assert await told.get() is None
        await closing
        with pytest.raises(StoreLost):
            await client.list_topics()

    run_linked(scenario, store=WatchedStore)


def test_an_owner_that_ends_does_not_wait_for_ever_for_a_client_that_says_nothing(run_linked, monkeypatch):
    monkeypatch.setattr(server, "CLOSE_TIMEOUT_S", 0.05)

    async def scenario(link, client):
        client._connection.read(False)
        async with asyncio.timeout(5):
            await link.server.close()
        client._connection.read(True)

    run_linked(scenario)
