"""The records of a group's state topic, and what a member makes of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seriatim.kafka.state import (
    Command,
    Failure,
    PartitionMemory,
    StateRecord,
    claim_record,
    command_record,
    failure_record,
    gone_record,
    pause_record,
    replay_record,
    state_topic,
    subscription_of,
)

FAILED = Failure("k", 2, 5.0, "no")


def memory_of(*records: StateRecord) -> PartitionMemory:
    memory = PartitionMemory()
    for record in records:
        decoded = StateRecord.decoded(*record.encoded())
        assert decoded is not None
        assert decoded.encoded() == record.encoded()
        memory.take(decoded)
    return memory


def test_a_failure_is_remembered_until_its_message_is_settled():
    noted = (claim_record(1), failure_record(7, 1, FAILED))
    assert memory_of(*noted).failures == {7: (1, FAILED)}
    assert memory_of(*noted, failure_record(7, 1, None)).failures == {}


def test_what_a_member_says_after_another_one_claimed_the_partition_is_ignored():
    late = Failure("k", 9, 0.0, "late")
    memory = memory_of(
        claim_record(1),
        failure_record(7, 1, FAILED),
        claim_record(2),
        failure_record(7, 1, late),
        failure_record(8, 1, late),
    )
    assert memory.failures == {7: (1, FAILED)}
    assert memory.epoch == 2
    assert memory.void == {"claim/1", "message/1/7", "message/1/8"}


def test_a_claim_that_comes_late_does_not_count_and_neither_does_what_follows_it():
    newer, late = Failure("k", 3, 6.0, "again"), Failure("k", 9, 0.0, "late")
    memory = memory_of(claim_record(5), failure_record(7, 5, newer), claim_record(4), failure_record(7, 4, late))
    assert (memory.epoch, memory.failures) == (5, {7: (5, newer)})
    assert memory.void == {"claim/4", "message/4/7"}


def test_a_place_that_a_member_without_the_partition_wrote_does_not_count():
    memory = memory_of(claim_record(2), replay_record("query/0", 2, (1, 0)), replay_record("query/0", 1, (9, 9)))
    assert memory.replays == {"query/0": (2, (1, 0))}


def test_what_was_deleted_is_not_deleted_again():
    records = [claim_record(1), claim_record(2), failure_record(7, 1, FAILED)]
    deleted = [claim_record(1, is_claimed=False), failure_record(7, 1, None)]
    assert memory_of(*records, *deleted).void == set()


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([None, 7, 8])), max_size=12), st.data())
def test_compaction_changes_nothing_when_every_member_writes_down_again_what_it_inherits(steps, data):
    """Members with rising epochs claim the partition; each may write again later, when it has lost it."""
    log, highest = list[StateRecord](), 0
    for number, (epoch, offset) in enumerate(steps):
        if epoch > highest:
            inherited = memory_of(*log, claim_record(epoch))
            log.append(claim_record(epoch))
            log += [failure_record(known, epoch, failure) for known, (_, failure) in inherited.failures.items()]
            log += [failure_record(known, old, None) for known, (old, _) in inherited.failures.items()]
            log += [StateRecord(name, None) for name in sorted(inherited.void)]
            highest = epoch
        if offset is not None:
            log.append(failure_record(offset, epoch, Failure("k", number, 0.0, None)))
    places: dict[str, list[int]] = {}
    for place, record in enumerate(log):
        places.setdefault(record.key, []).append(place)
    # Of a key, Kafka's cleaner drops the oldest records first, and never the last one.
    dropped = {place for known in places.values() for place in known[: data.draw(st.integers(0, len(known) - 1))]}
    compacted = [record for place, record in enumerate(log) if place not in dropped]
    assert memory_of(*compacted).failures == memory_of(*log).failures


def test_the_failure_of_the_newer_member_counts_and_an_older_deletion_does_not_remove_it():
    newer = Failure("k", 3, 6.0, "again")
    memory = memory_of(
        claim_record(1),
        failure_record(7, 1, FAILED),
        claim_record(2),
        failure_record(7, 2, newer),
        failure_record(7, 1, None),
    )
    assert memory.failures == {7: (2, newer)}


def test_pauses_commands_and_redriven_dead_letters():
    command = Command("pause", "k\udcff", "why")
    memory = memory_of(
        pause_record("a/b", 3, "because", is_paused=True),
        pause_record(None, 3, None, is_paused=True),
        pause_record("c", 3, None, is_paused=True),
        pause_record("c", 3, None, is_paused=False),
        command_record("1", command),
        command_record("2", command),
        command_record("2", None),
        gone_record("0-3"),
    )
    assert memory.paused == {"a/b": (3, "because"), None: (3, None)}
    assert memory.commands == {"1": command}
    assert memory.gone == {"0-3"}


def test_a_pause_and_a_resumption_that_a_member_without_the_partition_wrote_do_not_count():
    memory = memory_of(
        claim_record(1),
        pause_record("a", 1, "why", is_paused=True),
        claim_record(2),
        pause_record("a", 2, "why", is_paused=True),
        pause_record("a", 1, None, is_paused=False),
        pause_record("b", 1, "late", is_paused=True),
    )
    assert memory.paused == {"a": (2, "why")}
    assert memory.void == {"claim/1", "pause/1/b"}


def test_what_nobody_of_us_wrote_is_ignored():
    foreign = [(None, b"{}"), (b"claim/1", b"no json"), (b"claim/1", b"[]"), (b"claim", b"{}"), (b"message/x", b"{}")]
    foreign += [(b"command/1", b'{"other": 1}'), (b"message/1/2", b'{"key": 1}'), (b"\xff", b"{}"), (b"pause/x", b"{}")]
    endless = b'{"key": "k", "failures": Infinity, "not_before": 0, "error": null}'
    foreign += [(b"message/1/2", endless), (b"command/1", b"[" * 100_000), (b"pause/1/x", b"{}")]
    memory = PartitionMemory()
    for key, value in foreign:
        if (record := StateRecord.decoded(key, value)) is not None:
            memory.take(record)
    assert memory == PartitionMemory()


def test_a_state_topic_names_its_subscription():
    assert subscription_of(state_topic("a.b")) == "a.b"
    assert [subscription_of(name) for name in ("orders", "seriatim..state", "seriatim.x.dead-letters")] == [None] * 3
