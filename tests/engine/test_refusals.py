"""What comes in is checked before anything changes: what can never be stored is refused, and stops nobody else."""

from __future__ import annotations

import asyncio
import logging
from math import inf, nan

import pytest

from seriatim.core.lanes.types import Keep, RetryPolicy
from seriatim.core.text_checks import MAX_REASON_BYTES
from seriatim.engine.broker import Document, Outgoing, WriterMove
from seriatim.engine.consumer import Consumer
from seriatim.engine.link.frames import Extend, Nack
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import InvalidArgument, NotFound
from seriatim.store.base import TroubleRow
from tests.engine.conftest import ORDERED, Collector, ids, prepare, publish, settle_down, work_off

SURROGATE = "\ud800"
NOT_NAMES = [None, 5, "", SURROGATE, "x" * 1025, ["t"]]
NOT_DURATIONS = ["5", nan, inf, -1, True, 1e300]


async def leased(engine, options=ORDERED):
    """A subscription whose messages 1 to 3 wait, the first one with a consumer."""
    await prepare(engine, options)
    await publish(engine, "1", "2", "3")
    got = Collector()
    attachment = engine.attach("s", got.consumer)
    await got.wait(1)
    return got, attachment


# -- names --------------------------------------------------------------------------------------------------------------


def verbs_with_a_name(engine, name):
    return [
        engine.create_topic(name),
        engine.create_subscription("t", name),
        engine.create_snapshot("s", name),
        engine.register_reader(name, "t", 0),
        engine.move_reader(name, 0, 0),
        engine.delete_reader(name),
        engine.delete_snapshot(name),
        engine.position_of(name),
        engine.publish_once("t", [WriterMove(name, 0, 1)], []),
        engine.append_batch("t", name, 0, []),
        engine.put_document(Document("kind", name, "text")),
        engine.put_document(Document(name, "name", "text")),
        engine.delete_document("kind", name),
        engine.list_documents(name),
    ]


def test_a_name_that_can_not_be_stored_is_refused_and_others_are_written(run):
    async def scenario(engine):
        await prepare(engine)
        asked = [verb for name in NOT_NAMES for verb in verbs_with_a_name(engine, name)]
        published = publish(engine, "good")
        for refusal in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(refusal, InvalidArgument)
        assert await published == ids(1)
        assert await work_off(engine, 1) == [b"good"]

    run(scenario)


@pytest.mark.parametrize("name", NOT_NAMES)
def test_nothing_has_a_name_that_can_not_be_stored(run_memory, name):
    async def scenario(engine):
        await prepare(engine)
        with pytest.raises(NotFound):
            engine.publish(name, [])
        with pytest.raises(NotFound):
            await engine.describe_subscription(name)

    run_memory(scenario)


def test_texts_beside_a_resource_are_checked_too(run_memory):
    async def scenario(engine):
        await prepare(engine)
        with pytest.raises(InvalidArgument, match="Document text must be valid UTF-8"):
            await engine.put_document(Document("kind", "name", SURROGATE))
        with pytest.raises(InvalidArgument, match="resource must be valid UTF-8"):
            await engine.create_snapshot("s", "snap", resource=SURROGATE)
        await engine.create_snapshot("s", "snap")
        with pytest.raises(InvalidArgument, match="resource must be valid UTF-8"):
            await engine.update_snapshot("snap", expires=4e9, resource=SURROGATE)
        with pytest.raises(InvalidArgument, match="expires must be"):
            await engine.update_snapshot("snap", expires=2**63 - 1, resource=None)
        assert [known.name for known in await engine.list_snapshots()] == ["snap"]

    run_memory(scenario)


@pytest.mark.parametrize("number", [-1, "1", 1.0, True, 2**257])
def test_a_number_that_can_not_be_stored_is_refused(run_memory, number):
    async def scenario(engine):
        await prepare(engine)
        await engine.register_reader("r", "t", 0)
        for asked in (
            engine.append_batch("t", "w", number, []),
            engine.publish_once("t", [WriterMove("w", 0, number)], []),
            engine.publish_once("t", [WriterMove("w", number, number)], []),
            engine.move_reader("r", 0, number),
        ):
            with pytest.raises(InvalidArgument, match="must be a whole number"):
                await asked

    run_memory(scenario)


# -- messages -----------------------------------------------------------------------------------------------------------


NOT_MESSAGES = [
    Outgoing("k", "text"),  # type: ignore[arg-type]
    Outgoing(SURROGATE, b""),
    Outgoing("k" * 1025, b""),
    Outgoing("k", b"", {"a": SURROGATE}),
    Outgoing("k", b"", {"a": 1}),  # type: ignore[dict-item]
    *(Outgoing("k", b"", None, delay) for delay in NOT_DURATIONS),  # type: ignore[arg-type]
]


def test_a_message_that_can_not_be_stored_fails_alone_and_takes_no_offset(run):
    async def scenario(engine):
        await prepare(engine)
        await engine.create_topic("beside")
        first = publish(engine, "1")
        for message in NOT_MESSAGES:
            with pytest.raises(InvalidArgument):
                engine.publish("t", [Outgoing("k", b"good"), message])
            for asked in (
                engine.publish_once("t", [WriterMove("w", 0, 1)], [message]),
                engine.publish_once("t", [WriterMove("w", 0, 1)], [], {"beside": [message]}),
            ):
                with pytest.raises(InvalidArgument):
                    await asked
        assert (await first, await publish(engine, "2")) == (ids(1), ids(1, 2))
        assert await work_off(engine, 2) == [b"1", b"2"]

    run(scenario)


def test_attributes_that_change_after_the_publish_are_stored_as_they_were(run):
    async def scenario(engine):
        await prepare(engine)
        attributes = {"n": "1"}
        published = engine.publish("t", [Outgoing("k", b"", attributes)])
        attributes["n"] = SURROGATE
        await published
        assert [message.attributes for message in await engine.peek("s", "k")] == [{"n": "1"}]

    run(scenario)


# -- deliveries ---------------------------------------------------------------------------------------------------------


def test_a_nack_with_a_delay_that_is_none_changes_nothing(run):
    async def scenario(engine):
        got, attachment = await leased(engine)
        for delay in NOT_DURATIONS:
            with pytest.raises(InvalidArgument, match=r"^delay must be"):
                attachment.nack(got.got[0].lease, delay)
        await settle_down(engine)
        assert got.data == [b"1"]
        attachment.ack(got.got[0].lease)
        assert (await got.wait(2))[1].record.data == b"2"

    run(scenario)


@pytest.mark.parametrize("seconds", NOT_DURATIONS)
def test_an_extension_by_what_is_no_duration_changes_nothing(run_memory, seconds):
    async def scenario(engine):
        got, attachment = await leased(engine)
        with pytest.raises(InvalidArgument, match=r"^seconds must be"):
            attachment.extend(got.got[0].lease, seconds)
        await asyncio.sleep(11)  # the lease expires as if nothing had been said
        assert [one.lease.attempt for one in got.got] == [1, 2]

    run_memory(scenario)


@pytest.mark.parametrize("ack_deadline", [0, 0.001, *NOT_DURATIONS])
def test_a_lease_that_lasts_no_time_is_refused(ack_deadline):
    with pytest.raises(InvalidArgument, match=r"^ack_deadline must be"):
        SubscriptionOptions(ack_deadline=ack_deadline)
    with pytest.raises(InvalidArgument, match=r"^ack_deadline must be"):
        Consumer(print, ack_deadline=ack_deadline)


@pytest.mark.parametrize(
    "limits", [{"max_messages": "5"}, {"max_messages": -1}, {"max_bytes": nan}, {"max_bytes": 0}, {"max_bytes": "1"}]
)
def test_a_consumer_with_limits_that_are_none_is_refused(limits):
    with pytest.raises(InvalidArgument, match=f"^{next(iter(limits))} must be"):
        Consumer(print, **limits)


@pytest.mark.parametrize("target", [None, "graveyard"])
def test_an_error_text_that_can_not_be_stored_is_made_to_fit(run, target):
    error = f"it broke {SURROGATE} \0 {'x' * 100_000}"

    async def scenario(engine):
        await engine.create_topic("graveyard")
        retry = RetryPolicy.immediate(max_attempts=2)
        got, attachment = await leased(engine, SubscriptionOptions(True, retry=retry, dead_letter_topic=target))
        attachment.nack(got.got[0].lease, 0, error)
        await settle_down(engine)
        kept = (await engine.list_keys("s"))[0].error
        assert kept is not None
        assert len(kept.encode()) <= MAX_REASON_BYTES
        attachment.nack((await got.wait(2))[1].lease, 0, error)
        assert (await got.wait(3))[2].record.data == b"2"  # the key goes on
        assert [letter.error for letter in await engine.dead_letters("s")] == [kept]
        assert await publish(engine, "4") == ids(3, 4)

    run(scenario)


def test_a_reason_that_can_not_be_stored_is_made_to_fit(run):
    reason = f"\udce9 \0 {'x' * 100_000}"

    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1", "2")
        await engine.pause_key("s", "k", reason)
        assert (await engine.list_keys("s"))[0].why.startswith("paused: ")
        await engine.resume_key("s", "k")
        assert await engine.dead_letter("s", "k", reason) == ["0"]
        assert await publish(engine, "3") == ids(2, 3)
        assert await work_off(engine, 2) == [b"2", b"3"]

    run(scenario)


def test_a_key_that_can_not_be_stored_is_not_paused(run):
    async def scenario(engine):
        await prepare(engine)
        for key in ("", SURROGATE, 5, "x" * 1025):
            with pytest.raises(InvalidArgument, match=r"^Ordering key"):
                await engine.pause_key("s", key)
        assert await engine.list_keys("s") == []
        await publish(engine, "1")

    run(scenario)


# -- options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [
        {"message_ordering": "yes"},
        {"message_ordering": None},
        {"ack_deadline": "10"},
        {"retry": None},
        {"retry": {"max_attempts": 5}},
        {"window": 1.5},
        {"window": 2**63},
        {"release": "sometimes"},
        {"dead_letter_topic": 5},
        {"dead_letter_topic": SURROGATE},
        {"paused": 1},
        {"detached": "no"},
        {"filter": 5},
        {"filter": f'attributes.a = "{SURROGATE}"'},
        {"resource": {}},
        {"resource": SURROGATE},
    ],
)
def test_every_option_of_a_subscription_has_its_type(option):
    with pytest.raises(InvalidArgument, match=next(iter(option))):
        SubscriptionOptions(**option)


@pytest.mark.parametrize(
    "option",
    [{"retention": "7d"}, {"retention": nan}, {"retain_settled": True}, {"resource": 5}, {"resource": SURROGATE}],
)
def test_every_option_of_a_topic_has_its_type(option):
    with pytest.raises(InvalidArgument, match=next(iter(option))):
        TopicOptions(**option)


@pytest.mark.parametrize("options", [{"retention": 5}, "ordered", 5])
def test_options_of_another_kind_are_refused_before_anything_is_written(run_memory, options):
    async def scenario(engine):
        await prepare(engine)
        for asked in (
            engine.update_topic("t", options),
            engine.update_subscription("s", options),
            engine.create_topic("u", options),
            engine.create_subscription("t", "u", options),
        ):
            with pytest.raises(InvalidArgument, match="options must be a"):
                await asked
        assert [known.name for known in await engine.list_subscriptions()] == ["s"]
        assert [known.name for known in await engine.list_topics()] == ["t"]

    run_memory(scenario)


# -- over the link ------------------------------------------------------------------------------------------------------


def test_a_linked_client_hears_at_once_what_can_never_work(run_linked):
    async def scenario(_, broker):
        await publish(broker, "1", "2")
        got = Collector()
        attachment = broker.attach("s", got.consumer)
        lease = (await got.wait(1))[0].lease
        for delay in NOT_DURATIONS:
            with pytest.raises(InvalidArgument):
                attachment.nack(lease, delay)
            with pytest.raises(InvalidArgument):
                attachment.extend(lease, delay)
        with pytest.raises(InvalidArgument):
            await publish(broker, "bad", delay=nan)
        with pytest.raises(InvalidArgument):
            await broker.create_topic(SURROGATE)
        attachment.nack(lease, None, SURROGATE)
        attachment.ack((await got.wait(2))[1].lease)
        assert (await got.wait(3))[2].record.data == b"2"
        assert await publish(broker, "3") == ids(2, 3)

    run_linked(scenario)


def test_frames_of_a_linked_client_are_checked_by_the_owner(run_linked):
    async def scenario(_, broker):
        await publish(broker, "1", "2")
        got = Collector()
        attachment = broker.attach("s", got.consumer)
        lease = (await got.wait(1))[0].lease
        broker.send(Extend(attachment.channel, lease.offset, lease.token, nan))
        broker.send(Nack(attachment.channel, lease.offset, lease.token, inf, SURROGATE))
        assert await publish(broker, "3") == ids(2, 3)
        assert [type(failure) for failure in got.failures] == [InvalidArgument, InvalidArgument]
        broker.send(Nack(attachment.channel, lease.offset, lease.token, 0.0, SURROGATE))
        await got.wait(2)
        assert [key.error for key in await broker.list_keys("s")] == ["\\ud800"]
        assert await publish(broker, "4") == ids(3, 4)

    run_linked(scenario)


# -- what slips through -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        TroubleRow(0, 1, 0.0, SURROGATE, False),
        TroubleRow(0, 2**70, 0.0, None, False),
        TroubleRow(0, 1, None, None, False),  # type: ignore[arg-type]
        TroubleRow(0, {}, 0.0, None, False),  # type: ignore[arg-type]
    ],
)
def test_what_nobody_checked_is_refused_by_the_database_and_harms_nothing_else(run, monkeypatch, row):
    monkeypatch.setattr("seriatim.store.sql.write_operations.checked_troubles", list)

    async def scenario(engine):
        subscription = await prepare(engine)
        await engine.create_topic("other")
        await publish(engine, "1")
        engine.commit().note_trouble(subscription.outcomes, row)
        elsewhere = engine.publish("other", [Outgoing(None, b"")])
        await engine.pause_key("s", "another key")
        assert await elsewhere == ids(1)
        assert await publish(engine, "2") == ids(1, 2)
        assert await work_off(engine, 2) == [b"1", b"2"]
        assert [key.key for key in await engine.list_keys("s")] == ["another key"]

    run(scenario)


def test_a_dead_letter_whose_copy_is_refused_is_buried_without_one(run, caplog, monkeypatch):
    monkeypatch.setattr("seriatim.engine.dead_letters.DeadLetters._attributes", lambda *_: {"error": SURROGATE})

    async def scenario(engine):
        await engine.create_topic("graveyard")
        await prepare(engine, SubscriptionOptions(True, dead_letter_topic="graveyard"))
        await publish(engine, "1", "2")
        await engine.dead_letter("s", "k", "why")
        (letter,) = await engine.dead_letters("s")
        assert (letter.id, letter.copy_topic) == ("0", None)
        assert letter.error is not None
        assert "can't be stored" in letter.error
        (logged,) = [record for record in caplog.records if "can't be copied" in record.message]
        logged_why = logged.message.removeprefix("messages [0] can't be copied to topic 'graveyard': ")
        assert letter.error == f"its copy can't be stored: {logged_why}"
        assert (vars(logged)["subscription"], vars(logged)["message_ids"]) == ("s", ["0"])
        assert await work_off(engine, 1) == [b"2"]

    run(scenario)


def test_a_dead_letter_that_the_store_refuses_is_reported_to_whoever_asked_for_it_and_to_consumers(
    run, caplog, monkeypatch
):
    async def scenario(engine):
        got, _ = await leased(engine)
        with monkeypatch.context() as refusing:
            for store in ("sql.write_operations", "memory"):
                refusing.setattr(f"seriatim.store.{store}.checked_letters", raise_value_error)
            with pytest.raises(ValueError, match="not this"):
                await engine.dead_letter("s", "k", "why")
        assert [str(failure) for failure in got.failures] == ["not this"]
        assert "what became of the messages 0 can't be stored" in caplog.text
        assert await engine.dead_letters("s") == []

    run(scenario)


def test_an_ack_that_the_store_refuses_is_reported_and_others_are_taken(run, caplog, monkeypatch):
    async def scenario(engine):
        got, attachment = await leased(engine)
        told: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        with monkeypatch.context() as refusing:
            for store in ("sql.write_operations", "memory"):
                refusing.setattr(f"seriatim.store.{store}.encode_offsets", raise_value_error)
            attachment.ack(got.got[0].lease, told.set_result)
            assert str(await told) == "not this"
        assert [str(failure) for failure in got.failures] == ["not this"]
        assert "what became of the messages 0 can't be stored" in caplog.text
        await publish(engine, "other", key="another")
        attachment.ack((await got.wait(2))[1].lease)
        await settle_down(engine)
        assert (await engine.stats("s")).leased == 0

    run(scenario)


def test_an_operator_hears_that_what_he_asked_for_is_refused(run, monkeypatch):
    for store in ("sql.write_operations", "memory"):
        monkeypatch.setattr(f"seriatim.store.{store}.require_pause", raise_value_error)

    async def scenario(engine):
        await prepare(engine)
        with pytest.raises(ValueError, match="not this"):
            await engine.pause_key("s", "k")
        assert await publish(engine, "1") == ids(1)

    run(scenario)


def raise_value_error(*_: object) -> None:
    raise ValueError("not this")


def test_what_is_logged_of_messages_names_them_and_their_subscription_in_fields(run_memory, caplog) -> None:
    caplog.set_level(logging.DEBUG, "seriatim")

    async def scenario(engine) -> None:
        subscription = await prepare(engine, SubscriptionOptions(True, keep=Keep.LATEST))
        subscription.outcomes.forgotten([3, 4], ValueError("no room"))
        subscription.filter.refused([5], ValueError("no room"))
        await publish(engine, "1", "2")

    run_memory(scenario)
    fields = [(vars(record)["subscription"], record.__dict__) for record in caplog.records]
    assert [name for name, _ in fields] == ["s", "s", "s"]
    assert [found.get("message_ids") for _, found in fields] == [["3", "4"], ["5"], None]
    assert (fields[2][1]["ordering_key"], fields[2][1]["message_id"]) == ("k", "0")
    assert caplog.messages[2] == "subscription 's', key 'k': message 0 is superseded by message 1"
    assert caplog.messages[0].startswith(
        "subscription 's': what is to be known about the messages 3, 4 can't be stored"
    )
