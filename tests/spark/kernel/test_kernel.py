"""What the kernel gives out, which keys take the slow path and why, and what it does with rows that can't be judged."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.kernel import OPTIONS as MIX_OPTIONS
from bench.kernel import ROLES as MIX_ROLES
from bench.kernel import mix
from seriatim.core.resequencing.options import OnDuplicate, OnGap, OnLate, OnOverflow, ResequenceOptions, Start
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import InvalidArgument, InvalidSequence, LateMessage
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel import intake
from seriatim.spark.kernel.intake import MAX_NUMBER, OnInvalid
from seriatim.spark.kernel.kernel import Kernel
from seriatim.spark.kernel.keys import hash_keys
from seriatim.spark.kernel.partition_state import Partition
from tests.spark.kernel.traces import ROLES, SCHEMA, Core, Row, known_to, known_to_core, table, told_by

FROM_0 = ResequenceOptions(start=Start.at(0))


class Stream:
    """One partition, batch after batch."""

    def __init__(self, options: ResequenceOptions = FROM_0, **settings) -> None:
        self.kernel = Kernel(options, ROLES, **settings)
        self.partition = self.kernel.new_partition(SCHEMA)
        self.core = Core(options)
        self.sent = 0

    def rows(
        self, *numbers: int, key: str = "k", at: float = 0, epoch: int = 0, digest: int | None = None
    ) -> list[Row]:
        bodies = range(self.sent, self.sent + len(numbers))
        self.sent += len(numbers)
        return [Row(key, seq, at, body, epoch, digest) for seq, body in zip(numbers, bodies, strict=True)]

    def run(self, rows: list[Row], now: float = 0):
        """Decide a batch, and see that the core decides the same."""
        outcome = self.run_alone(table(rows), now)
        assert told_by(outcome) == self.core.run(rows, now)
        assert known_to(self.partition) == known_to_core(self.core)
        return outcome

    def run_alone(self, rows: pa.Table, now: float = 0):
        outcome = self.kernel.run(self.partition, rows, now)
        self.partition.apply(outcome.change, outcome.tally)
        return outcome


def column(outcome, name: str, tag: str) -> list:
    return [row[name] for row in outcome.table.to_pylist() if row["_tag"] == tag]


# -- what comes out -----------------------------------------------------------------------------------------------------


def test_ordered_rows_carry_all_columns_and_a_position_that_goes_on_from_batch_to_batch():
    stream = Stream()
    first = stream.run(stream.rows(1, 0, 2))
    second = stream.run(stream.rows(4, 3))
    assert column(first, "seq", "ordered") == [0, 1, 2]
    assert column(first, "body", "ordered") == [1, 0, 2]
    assert column(first, "_position", "ordered") == [0, 1, 2]
    assert column(second, "seq", "ordered") == [3, 4]
    assert column(second, "_position", "ordered") == [3, 4]


def test_held_rows_come_out_in_a_later_batch_with_their_own_columns():
    stream = Stream()
    assert column(stream.run(stream.rows(1, 2)), "seq", "ordered") == []
    outcome = stream.run(stream.rows(0))
    assert column(outcome, "body", "ordered") == [2, 0, 1]
    assert stream.partition.tally.held == 0


def test_a_ledger_entry_about_a_message_has_its_columns_and_one_about_numbers_has_the_key():
    stream = Stream(replace(FROM_0, gap_timeout=2))
    outcome = stream.run([*stream.rows(0, 0), *stream.rows(3)], now=5)
    entries = [row for row in outcome.table.to_pylist() if row["_tag"] == "ledger"]
    duplicate, lost = entries
    assert (duplicate["_reason"], duplicate["body"], duplicate["_first"], duplicate["_last"]) == ("duplicate", 1, 0, 0)
    assert (lost["_reason"], lost["key"], lost["body"], lost["seq"]) == ("lost", "k", None, None)
    assert (lost["_first"], lost["_last"], lost["_size"], lost["_time"]) == (1, 2, 2, 2.0)


def test_a_gap_falls_due_in_a_batch_without_rows_of_its_key():
    stream = Stream(replace(FROM_0, gap_timeout=2))
    stream.run(stream.rows(1))
    assert stream.run(stream.rows(0, key="other", at=1), now=1).table.num_rows == 1
    outcome = stream.run([], now=2)
    assert column(outcome, "seq", "ordered") == [1]
    assert column(outcome, "_reason", "ledger") == ["lost"]
    assert outcome.counters.slow_keys == 0


def test_time_never_runs_backwards_for_a_key_that_is_known_even_if_it_was_idle():
    stream = Stream(replace(FROM_0, gap_timeout=2))
    stream.run(stream.rows(0))
    stream.run(stream.rows(0, key="other", at=9), now=10)
    outcome = stream.run(
        [*stream.rows(0, 2, at=3), *stream.rows(0, key="new", at=3), *stream.rows(0, key="new", at=3)], now=10
    )
    assert column(outcome, "_time", "ledger") == [10.0, 3.0]
    assert stream.partition.whole().lists["gaps"].deadline.tolist() == [12.0]


def test_late_messages_go_to_the_side_output_too_if_it_is_chosen():
    stream = Stream(replace(FROM_0, gap_timeout=1, on_late=OnLate.SIDE_OUTPUT))
    outcome = stream.run([*stream.rows(1), *stream.rows(0, at=2)], now=2)
    assert column(outcome, "body", "late") == [1]
    assert column(outcome, "_detail", "ledger") == ["gap timeout", "its gap was given up"]
    assert outcome.counters.slow_keys == 0


def test_equal_input_gives_equal_bytes():
    def run() -> pa.Buffer:
        stream = Stream(replace(FROM_0, gap_timeout=2))
        stream.run(stream.rows(2, 1, 1))
        sink = pa.BufferOutputStream()
        outcome = stream.run([*stream.rows(4, 0, at=1), *stream.rows(3, 0, key="a", at=1)], now=3)
        with pa.ipc.new_stream(sink, outcome.table.schema) as writer:
            writer.write_table(outcome.table)
        return sink.getvalue()

    assert run() == run()


def test_the_output_has_one_schema_whatever_is_in_it():
    stream = Stream(replace(FROM_0, gap_timeout=2))
    nothing = stream.run([])
    ordered = stream.run(stream.rows(0, 2))
    ledger = stream.run([], now=9)
    assert nothing.table.schema == ordered.table.schema == ledger.table.schema


def test_rows_in_several_chunks_are_one_batch():
    stream = Stream()
    whole = table(stream.rows(1, 0, 3, 2))
    outcome = stream.run_alone(pa.concat_tables([whole.slice(0, 1), whole.slice(1, 2), whole.slice(3)]))
    assert column(outcome, "seq", "ordered") == [0, 1, 2, 3]


def test_rows_whose_keys_do_not_lie_together_are_put_together_in_order_of_arrival():
    stream = Stream()
    rows = [Row("b", 1, 0, 0), Row("a", 1, 0, 1), Row("b", 0, 0, 2), Row("a", 0, 0, 3)]
    outcome = stream.run_alone(pa.table({name: [getattr(row, name) for row in rows] for name in SCHEMA.names}, SCHEMA))
    released = column(outcome, "body", "ordered")
    assert sorted([released[:2], released[2:]]) == [[2, 0], [3, 1]]


def test_rows_of_keys_that_share_a_hash_are_kept_apart(monkeypatch):
    monkeypatch.setattr(intake, "hash_keys", lambda keys: np.zeros(len(keys), np.uint64))
    stream = Stream()
    rows = [Row("b", 1, 0, 0), Row("a", 1, 0, 1), Row("b", 0, 0, 2), Row("a", 0, 0, 3)]
    outcome = stream.run_alone(pa.table({name: [getattr(row, name) for row in rows] for name in SCHEMA.names}, SCHEMA))
    assert column(outcome, "body", "ordered") == [2, 0, 3, 1]


def test_the_order_of_the_keys_does_not_depend_on_the_order_of_the_rows():
    """State is compared by its content when a batch is run again, and its rows may come in another order."""
    count = 70_000  # more than 16 bits can tell apart
    numbers = np.arange(count)
    rows = pa.table({"key": [f"key {n}" for n in numbers], "seq": numbers * 0, "at": numbers * 1.0})
    places = np.random.default_rng(1).permutation(count)
    kernel = Kernel(FROM_0, MIX_ROLES)
    partition = kernel.new_partition(rows.schema)
    outcome = kernel.run(partition, rows, None)
    again = kernel.run(partition, rows.take(pa.array(places)), None, np.argsort(places)[::-1])
    assert again.table["key"].equals(outcome.table["key"])
    keys = hash_keys(outcome.table["key"].combine_chunks()).tolist()
    assert keys == sorted(keys)


def test_an_order_of_arrival_beside_the_rows_decides_as_if_they_lay_in_it():
    rows = [Row("ab"[n % 2], n // 3, n / 10, n) for n in range(20)]
    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
    columns["key"][7] = None
    whole = pa.table(columns, SCHEMA)
    places = np.random.default_rng(1).permutation(20)
    in_place, elsewhere = Stream(), Stream()
    outcome = in_place.run_alone(whole, 2.0)
    beside = elsewhere.kernel.run(elsewhere.partition, whole.take(pa.array(places)), 2.0, np.argsort(places))
    assert "invalid" in column(outcome, "_reason", "ledger")
    assert beside.table.equals(outcome.table)
    assert beside.change.rows.equals(outcome.change.rows)


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        (1, 2, pa.int64()),
        (-5, 250, pa.int16()),
        (False, True, pa.bool_()),
        (b"", b"\x00", pa.binary()),
        ("a", "a" * 50, pa.large_string()),
        (Decimal("1.10"), Decimal("1.20"), pa.decimal128(5, 2)),
        (dt.date(2020, 1, 1), dt.date(2020, 1, 2), pa.date32()),
    ],
)
def test_keys_of_any_scalar_type_are_kept_apart(low, high, kind):
    kernel = Kernel(FROM_0, ColumnRoles("key", "seq", "at"))
    schema = pa.schema({"key": kind, "seq": pa.int64(), "at": pa.float64()})
    partition = kernel.new_partition(schema)
    for seq in (0, 1):
        rows = pa.table({"key": [low, high, high], "seq": [seq, seq, seq], "at": [0.0] * 3}, schema=schema)
        outcome = kernel.run(partition, rows, 0)
        partition.apply(outcome.change, outcome.tally)
        assert outcome.table["_tag"].to_pylist() == ["ordered", "ordered", "ledger"]
        assert outcome.table["key"].to_pylist() == [low, high, high]
    assert partition.tally.keys == 2


# -- which path ---------------------------------------------------------------------------------------------------------


def test_the_mix_of_the_benchmark_takes_the_fast_path():
    kernel = Kernel(MIX_OPTIONS, MIX_ROLES)
    partition: Partition | None = None
    for number, batch in enumerate(mix(keys=50, rows=20_000)):
        partition = partition or kernel.new_partition(batch.schema)
        outcome = kernel.run(partition, batch, number + 1.0)
        partition.apply(outcome.change, outcome.tally)
        assert {"duplicate"} <= set(outcome.table["_reason"].to_pylist())
        assert outcome.counters.slow_rows == 0
        assert outcome.counters.fast_rows == batch.num_rows


TRIGGERS = {
    "gathering": (ResequenceOptions(start=Start.lowest_within(3)), [(1, 0, 0)], 0),
    "epoch": (FROM_0, [(0, 0, 0), (0, 0, 1)], 0),
    "grid": (ResequenceOptions(SequenceSpace(increment=3), Start.at(0)), [(0, 0, 0), (1, 0, 0)], 0),
    "jump": (FROM_0, [(0, 0, 0), (2**41, 0, 0)], 0),
    "due": (ResequenceOptions(start=Start.at(0), gap_timeout=2, on_gap=OnGap.DEAD_LETTER), [(1, 0, 0)], 3),
    "room": (replace(FROM_0, capacity=1), [(1, 0, 0), (2, 0, 0)], 0),
    "circle": (ResequenceOptions(SequenceSpace(16), Start.at(0)), [(4, 0, 0), (9, 0, 0)], 0),
    "sync": (replace(FROM_0, resync_after=2), [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 0, 0), (1, 0, 0)], 0),
    "memory": (
        replace(FROM_0, gap_timeout=1, remember=1),
        [(1, 0, 0), (3, 0, 0), (4, 2, 0), (0, 2, 0)],
        2,
    ),
}


@pytest.mark.parametrize("cause", TRIGGERS)
def test_a_key_takes_the_slow_path_for_one_cause_and_its_neighbours_do_not(cause):
    options, trouble, now = TRIGGERS[cause]
    stream = Stream(options)
    rows = [Row("k", seq, at, body, epoch) for body, (seq, at, epoch) in enumerate(trouble)]
    quiet = [Row(key, 0, 0, 100 + body) for body, key in enumerate("ax")]
    outcome = stream.run(rows + quiet, now=now)
    neighbours = 2 if cause == "gathering" else 0
    assert outcome.counters.causes == {cause: 1 + neighbours}
    assert outcome.counters.slow_rows == len(rows) + neighbours
    assert outcome.counters.fast_keys == 2 - neighbours


def test_a_key_that_holds_a_number_far_away_stays_on_the_slow_path():
    stream = Stream()
    for key in "abcdefgh":
        stream.run(stream.rows(2**61, key=key))
    outcome = stream.run([row for key in "abcdefgh" for row in stream.rows(1, 0, key=key)])
    assert outcome.counters.causes == {"jump": 8}


def test_a_circle_that_does_not_fit_on_the_line_takes_the_slow_path():
    stream = Stream(ResequenceOptions(SequenceSpace(2**62), Start.at(0)))
    outcome = stream.run(stream.rows(1, 2**61, 2**62 - 1, 0))
    assert outcome.counters.causes == {"jump": 1}


def test_late_messages_that_are_to_be_raised_are_raised_by_the_core():
    stream = Stream(replace(FROM_0, gap_timeout=1, on_late=OnLate.RAISE))
    with pytest.raises(LateMessage, match="message 0 of key 'k' came too late"):
        stream.run_alone(table([*stream.rows(1), *stream.rows(0, at=2)]), now=2)


def test_a_wrapping_source_takes_the_fast_path_around_the_circle_many_times():
    stream = Stream(ResequenceOptions(SequenceSpace(16), Start.at(0), gap_timeout=2))
    numbers = [number ^ 1 for number in range(200) if number not in (50, 130)]  # neighbours swapped, two lost
    rows = [Row("k", number % 16, index * 0.5, index) for index, number in enumerate(numbers)]
    for begin in range(0, len(rows), 40):
        assert stream.run(rows[begin : begin + 40], now=begin * 0.5).counters.slow_keys == 0


def test_of_several_copies_that_wait_the_last_is_released_if_that_is_chosen():
    stream = Stream(replace(FROM_0, on_duplicate=OnDuplicate.LAST))
    stream.run(stream.rows(1, 2, 2))
    outcome = stream.run(stream.rows(2, 2, 0, 2))
    assert column(outcome, "body", "ordered") == [5, 0, 4]
    assert column(outcome, "body", "ledger") == [2, 3, 6]
    assert outcome.counters.slow_keys == 0


def test_copies_of_what_waits_with_another_digest_are_conflicts():
    stream = Stream(replace(FROM_0, on_duplicate=OnDuplicate.CONFLICT))
    stream.run([*stream.rows(1, digest=7), *stream.rows(2)])
    rows = [
        *stream.rows(1, digest=7),
        *stream.rows(1, digest=8),
        *stream.rows(1),
        *stream.rows(2),
        *stream.rows(2, digest=7),
    ]
    outcome = stream.run(rows)
    assert column(outcome, "_reason", "ledger") == ["duplicate", "conflict", "conflict", "duplicate", "conflict"]
    assert outcome.counters.slow_keys == 0


def test_a_busy_key_that_holds_few_at_a_time_needs_no_slow_path_for_its_capacity():
    stream = Stream(replace(FROM_0, capacity=2, on_overflow=OnOverflow.DROP))
    numbers = [number for begin in range(0, 300, 3) for number in (begin + 2, begin + 1, begin)]
    assert stream.run(stream.rows(*numbers)).counters.slow_keys == 0


# -- rows that can't be judged -----------------------------------------------------------------------------------------

INVALID: dict[str, dict[str, Any]] = {
    "it has no key": {"key": None},
    "it has no number": {"seq": None},
    "it has no time": {"at": None},
    "it has no epoch": {"epoch": None},
    "its time is not a finite number": {"at": float("nan")},
    f"its number is outside {-MAX_NUMBER} to {MAX_NUMBER}": {"seq": MAX_NUMBER + 1},
}


@pytest.mark.parametrize("complaint", INVALID)
def test_an_invalid_row_gets_a_ledger_entry_and_disturbs_nobody(complaint):
    stream = Stream()
    good = {"key": "k", "seq": 0, "at": 1.0, "epoch": 0, "digest": None, "body": 7}
    outcome = stream.run_alone(pa.Table.from_pylist([good, {**good, "body": 8, **INVALID[complaint]}], SCHEMA), now=1)
    assert column(outcome, "body", "ordered") == [7]
    (entry,) = [row for row in outcome.table.to_pylist() if row["_tag"] == "ledger"]
    assert (entry["_reason"], entry["_detail"], entry["body"]) == ("invalid", complaint, 8)
    assert entry["_first"] is None
    assert outcome.counters.invalid_rows == 1


def test_numbers_outside_the_circle_are_invalid():
    stream = Stream(ResequenceOptions(SequenceSpace(256), Start.at(0)))
    outcome = stream.run_alone(table(stream.rows(-1, 256, 0, 255)))
    details = column(outcome, "_detail", "ledger")
    assert details[-2:] == ["its number is outside 0 to 255"] * 2


@pytest.mark.parametrize("complaint", INVALID)
def test_an_invalid_row_fails_the_batch_if_that_is_chosen(complaint):
    stream = Stream(on_invalid=OnInvalid.RAISE)
    good = {"key": "k", "seq": 0, "at": 1.0, "epoch": 0, "digest": None, "body": 7}
    with pytest.raises(InvalidSequence, match=rf"1 of 2 rows are invalid.*{complaint}; repair the source"):
        stream.run_alone(pa.Table.from_pylist([good, {**good, **INVALID[complaint]}], SCHEMA))


def test_a_row_off_the_grid_fails_the_batch_if_that_is_chosen():
    stream = Stream(ResequenceOptions(SequenceSpace(increment=2), Start.at(0)), on_invalid=OnInvalid.RAISE)
    with pytest.raises(InvalidSequence, match="off the grid"):
        stream.run_alone(table(stream.rows(0, 1)))


def test_a_key_without_one_valid_row_is_not_remembered():
    stream = Stream(ResequenceOptions(SequenceSpace(increment=2), Start.at(0)))
    stream.run(stream.rows(1, 3))
    assert stream.partition.tally.keys == 0
    assert len(stream.partition.keys) == 0


# -- tables that can't be judged at all ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (replace(ROLES, key="nobody"), "there is no column 'nobody' for the key; there are key, seq"),
        (replace(ROLES, epoch="nobody"), "there is no column 'nobody' for the epoch"),
        (replace(ROLES, key="at"), "a key can't be of type double"),
        (replace(ROLES, sequence="at"), "column 'at' must hold whole numbers"),
        (replace(ROLES, arrival="key"), "column 'key' must hold numbers, not string: turn timestamps into seconds"),
    ],
)
def test_a_table_without_the_columns_for_its_roles_is_refused_at_the_start(roles, message):
    with pytest.raises(InvalidArgument, match=message):
        Kernel(FROM_0, roles).new_partition(SCHEMA)


def test_a_column_that_the_kernel_adds_itself_is_refused():
    schema = SCHEMA.append(pa.field("_reason", pa.string()))
    with pytest.raises(InvalidArgument, match="the columns _reason are added by the kernel: rename yours"):
        Kernel(FROM_0, ROLES).new_partition(schema)


def test_a_batch_without_rows_has_the_columns_that_the_stream_has_now():
    stream = Stream()
    more = table([]).append_column("more", pa.array([], pa.string()))
    assert "more" in stream.run_alone(more).table.schema.names


def test_other_columns_than_those_of_the_messages_held_are_refused():
    stream = Stream()
    stream.run(stream.rows(1))
    rows = table(stream.rows(0)).set_column(5, "body", pa.array(["a text"]))
    with pytest.raises(InvalidArgument, match="keep the columns of a stream as they are"):
        stream.run_alone(rows)


def test_messages_held_get_the_columns_that_were_added():
    stream = Stream()
    stream.run(stream.rows(1))
    rows = table(stream.rows(0)).append_column("more", pa.array([1]))
    assert column(stream.run_alone(rows), "more", "ordered") == [1, None]


def test_keys_of_another_type_than_before_are_refused():
    stream = Stream()
    stream.run(stream.rows(0))
    rows = table(stream.rows(1)).set_column(0, "key", pa.array([5]))
    with pytest.raises(InvalidArgument, match="keys are of type int64 now, and were string before: cast them"):
        stream.run_alone(rows)


# -- keys that nobody hears of ------------------------------------------------------------------------------------------


def test_an_idle_key_expires_with_a_ledger_entry_and_starts_anew_when_it_comes_back():
    stream = Stream(idle_after=10)
    stream.run_alone(table([*stream.rows(0, 1), *stream.rows(0, key="busy")]))
    stream.run_alone(table(stream.rows(1, key="busy", at=9)), now=9)
    outcome = stream.run_alone(table([]), now=10)
    (entry,) = outcome.table.to_pylist()
    assert (entry["_tag"], entry["_reason"], entry["key"], entry["_first"], entry["_size"]) == (
        "ledger",
        "expired",
        "k",
        2,
        0,
    )
    assert stream.partition.keys.to_pylist() == ["busy"]
    again = stream.run_alone(table([*stream.rows(0, at=11), *stream.rows(2, key="busy", at=11)]), now=11)
    assert column(again, "_position", "ordered") == [2, 0]


def test_a_key_never_expires_while_it_holds_messages():
    stream = Stream(idle_after=10)
    stream.run_alone(table(stream.rows(1)))
    assert stream.run_alone(table([]), now=1000).table.num_rows == 0
    assert column(stream.run_alone(table(stream.rows(0, at=1001)), now=1001), "seq", "ordered") == [0, 1]


def test_what_a_neighbour_owns_survives_the_expiry_of_a_key():
    stream = Stream(replace(FROM_0, gap_timeout=3), idle_after=10)
    stream.run_alone(table(stream.rows(0, key="a")))
    stream.run_alone(table([*stream.rows(1, key="b", at=5), *stream.rows(0, key="c", at=5)]), now=5)
    stream.run_alone(table(stream.rows(3, 4, key="b", at=9)), now=10)
    assert sorted(stream.partition.keys.to_pylist()) == ["b", "c"]
    assert column(stream.run_alone(table(stream.rows(2, key="b", at=11)), now=11), "seq", "ordered") == [2, 3, 4]
    content = stream.partition.whole()
    (owner,) = set(content.lists["given_up"].owner.tolist())
    assert content.texts["key"][owner].as_py() == b"b"
