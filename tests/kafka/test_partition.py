"""One assigned partition: what is queued, finished, committed and remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seriatim.engine.consumer import Record
from seriatim.engine.options import SubscriptionOptions
from seriatim.kafka.partition import MAX_RECORDS, Flow, Partition
from seriatim.kafka.records import Origin
from seriatim.kafka.state import Failure, PartitionMemory, StateRecord, failure_record

NOW = 1000.0


def partition(flow: Flow | None = None, *, offset: int = 0, memory: PartitionMemory | None = None) -> Partition:
    made = Partition(0, flow or Flow(1), 4, SubscriptionOptions(), lambda _: True, offset, frozenset(), NOW)
    made.begin(memory or PartitionMemory(), NOW)
    return made


def records(*offsets: int, origins: dict[int, Origin] | None = None) -> list[tuple[Record, Origin | None]]:
    return [(Record(offset, f"key-{offset}", b"12345", None, NOW), (origins or {}).get(offset)) for offset in offsets]


def handle(made: Partition, *, limit: int = 100) -> list[int]:
    leases, settled = made.lanes.take(NOW, 10, limit), list[int]()
    for lease in leases:
        made.lanes.settle_into(settled, lease.token)
    made.finish(settled)
    return settled


def keys(some: list[StateRecord]) -> list[str]:
    return [record.key for record in some]


def test_a_record_that_comes_again_is_not_handled_again():
    made = partition()
    for offset in (0, 1, 1, 0, 2):
        made.add(records(offset), NOW)
    assert handle(made) == [0, 1, 2]


def test_what_is_in_memory_is_counted_until_it_is_finished():
    flow = Flow(1)
    made = partition(flow)
    flow.fetched, flow.fetched_bytes = MAX_RECORDS + 1, 5 * (MAX_RECORDS + 1)
    assert flow.exceeds(1)
    made.add(records(*range(MAX_RECORDS + 1)), NOW)
    assert flow.exceeds(1)
    handle(made, limit=MAX_RECORDS // 2 + 2)
    assert not flow.exceeds(0.5)
    handle(made, limit=MAX_RECORDS)
    assert (flow.released, flow.released_bytes) == (flow.fetched, flow.fetched_bytes)


def test_repeats_and_records_that_came_before_are_released_from_memory():
    flow = Flow(1)
    made = partition(flow)
    flow.fetched, flow.fetched_bytes = 4, 20
    row = Origin("query/0", (1, 0))
    made.add(records(0, 1, origins={0: row, 1: row}), NOW)
    made.add(records(0, 1), NOW)
    assert handle(made) == [0]
    assert (flow.released, flow.released_bytes) == (4, 20)


def test_how_often_a_message_failed_is_forgotten_when_a_commit_covers_it_and_not_before():
    made = partition()
    made.add(records(0), NOW)
    assert keys(made.note(0, Failure("key-0", 1, 0.0, "boom"), NOW)) == ["message/4/0"]
    handle(made)
    assert 0 in made.memory.failures
    commit = made.to_commit()
    assert commit is not None
    assert keys(made.committed(commit)) == ["message/4/0"]
    assert 0 not in made.memory.failures


def test_a_message_that_was_given_back_untried_leaves_nothing_to_remember():
    made = partition()
    made.add(records(0), NOW)
    assert made.note(0, Failure("key-0", 0, NOW, None), NOW) == []
    assert keys(made.note(0, Failure("key-0", 0, NOW + 5, None), NOW)) == ["message/4/0"]


def test_places_of_rows_are_written_when_everything_below_them_is_finished():
    made = partition(memory=PartitionMemory(epoch=3, replays={"query/0": (3, (1, 7))}))
    rows = {offset: Origin("query/0", (2, offset)) for offset in range(3)}
    made.add(records(0, 1, 2, origins=rows), NOW)
    assert made.passed(0) == []
    assert made.passed(2) == [StateRecord("replay/4/query/0", {"place": (2, 1)})]
    assert keys(made.passed(3)) == ["replay/4/query/0"]


def test_a_member_that_takes_over_writes_down_what_it_inherits_and_deletes_what_is_void():
    failure = Failure("key-6", 2, 0.0, "boom")
    memory = PartitionMemory(
        failures={3: (2, failure), 6: (2, failure)}, replays={"query/0": (3, (1, 7))}, void={"claim/2"}
    )
    made = Partition(0, Flow(1), 4, SubscriptionOptions(), lambda _: True, 5, frozenset(), NOW)
    made.add(records(5, 6), NOW)
    assert made.begin(memory, NOW) == [
        StateRecord("claim/2", None),
        StateRecord("message/2/3", None),  # finished before
        failure_record(6, 4, failure),
        StateRecord("message/2/6", None),
        StateRecord("replay/4/query/0", {"place": (1, 7)}),
        StateRecord("replay/3/query/0", None),
    ]
    attempts = {lease.offset: lease.attempt for lease in made.lanes.take(NOW, 10, 9)}
    assert attempts == {5: 1, 6: 3}


def test_a_member_that_takes_over_drops_what_the_one_before_finished_and_did_not_commit():
    made = partition(memory=PartitionMemory(epoch=1, replays={"query/0": (1, (1, 1))}))
    rows = {offset: Origin("query/0", (1, offset % 2)) for offset in range(4)} | {4: Origin("query/0", (1, 2))}
    made.add(records(*range(5), origins=rows), NOW)
    assert handle(made) == [4]


def test_the_end_of_the_log_is_committed_when_there_are_only_markers_behind_the_last_record():
    made = partition()
    made.add(records(0, 1), NOW)
    made.skip_to(3)
    assert not made.is_dirty
    handle(made)
    commit = made.to_commit()
    assert commit is not None
    assert commit.offset == 3


Place = tuple[int, int]


def handled_rows(log: list[Place], start: int, end: int, durable: dict[str, Place]) -> list[Place]:
    """A member handles the rows of a log from ``start`` to ``end``; what it writes down about them is durable."""
    places = {writer: (1, place) for writer, place in durable.items()}
    made = partition(offset=start, memory=PartitionMemory(replays=places))
    made.add(records(*range(start, end), origins={row: Origin("query/0", log[row]) for row in range(start, end)}), NOW)
    handled = [log[row] for row in handle(made)]
    for record in made.passed(end):
        durable["query/0"] = (record.value or {})["place"]
    return handled


def test_a_batch_that_ran_again_is_passed_over_and_what_it_had_not_written_is_not():
    log = [(1, 0), (1, 1), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert handled_rows(log, 0, 6, {}) == [(1, 0), (1, 1), (1, 2), (2, 0)]


def test_writers_don_t_disturb_each_other():
    made = partition(memory=PartitionMemory(replays={"query/1": (1, (5, 0))}))
    rows = {0: Origin("query/0", (1, 0)), 1: Origin("query/1", (5, 0)), 2: Origin("query/1", (5, 1))}
    made.add(records(0, 1, 2, origins=rows), NOW)
    assert handle(made) == [0, 2]


@st.composite
def logs(draw: st.DrawFn) -> list[Place]:
    """Batches of rows. Each is written in part any number of times, and at last entirely."""
    log: list[Place] = []
    for batch, rows in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))):
        for attempt in [*draw(st.lists(st.integers(0, rows), max_size=2)), rows]:
            log += [(batch, position) for position in range(attempt)]
    return log


LIVES = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=6)


@given(logs(), LIVES)
def test_every_row_is_handled_once_and_in_order_whenever_a_member_crashes(log, lives):
    handled: list[Place] = []
    committed, durable = 0, dict[str, Place]()
    for rows, commits in [*lives, (len(log), True)]:
        end = min(committed + rows, len(log))
        handled += handled_rows(log, committed, end, durable)
        if commits:  # a crash may prevent it
            committed = end
    assert handled == sorted(set(log))
