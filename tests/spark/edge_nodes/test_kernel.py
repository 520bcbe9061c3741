"""The kernel for edge nodes gives out what the service gives out, however its input is cut and its state is carried."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from seriatim.core.sparkplug.messages import BeforeBirth, NodeOrdering, OnTimeout
from seriatim.errors import InvalidArgument, InvalidSequence, StateMismatch
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.edge_nodes.kernel import MessageColumns, NodeKernel
from seriatim.spark.edge_nodes.state import NodePartition
from seriatim.spark.frames.table_by_kernel import END_OF_TIME
from seriatim.spark.kernel.arrival_order import ArrivalOrder, by_arrival
from seriatim.spark.kernel.intake import TOO_FAR_AHEAD, OnInvalid
from seriatim.spark.kernel.partition_state import Tally
from seriatim.spark.state.batch_versions import StateFolder
from seriatim.spark.state.repartition import repartition
from seriatim.spark.state_admin import KINDS
from tests.core.sparkplug.edge_traces import ORDERINGS
from tests.spark.edge_nodes.captures import END, Captured, capture, places_to_cut, service_tells, told_in
from tests.spark.state.memory_files import MemoryFiles
from tests.spark.state.repartitioning import by_function

SCHEMA = pa.schema(
    {
        "node": pa.string(),
        "kind": pa.string(),
        "seq": pa.int64(),
        "bd_seq": pa.int64(),
        "timestamp": pa.int64(),
        "device": pa.string(),
        "arrival": pa.float64(),
        "body": pa.string(),
    }
)
TICKS = (None, 0.001, 1.0)
KERNEL = NodeKernel(
    NodeOrdering(),
    ColumnRoles("node", "seq", "arrival"),
    MessageColumns("kind", "bd_seq", "timestamp", "device", ("arrival",)),
)


def table(rows: list[Captured]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.Table.from_arrays(
        [pa.array(values, kind.type) for values, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def by_arrival_of(rows: pa.Table) -> Any:
    """The order that a stream gives its rows: by arrival, and otherwise one that is nothing to edge nodes."""
    others = set(rows.schema.names) - {"arrival", "seq", "node"}
    return by_arrival(rows, ArrivalOrder(("arrival", "seq"), "node", tuple(sorted(others))))


class Query:
    """Batches over a state folder, each read from the bytes that the one before left."""

    def __init__(self, kernel: NodeKernel, files: MemoryFiles | None = None, partitions: int = 1) -> None:
        self.kernel, self.files, self.partitions = kernel, files or MemoryFiles(), partitions

    def folder(self) -> StateFolder:
        meaning = self.kernel.meaning()
        waits, count = self.kernel.waits, self.partitions
        return StateFolder(self.files, query="q", partitions=count, meaning=meaning, kinds=KINDS, waits=waits)

    def run(self, batch: int, rows: list[Captured], now: float, partition: int = 0) -> list[dict[str, Any]]:
        folder = self.folder()
        known = folder.open(partition, batch, lambda: self.kernel.new_partition(SCHEMA))
        outcome = self.kernel.run(known.partition, table(rows), now, by_arrival_of(table(rows)))
        folder.commit(known, partition, batch, outcome)
        return list(outcome.table.to_pylist())

    def known(self, batch: int, partition: int = 0) -> NodePartition:
        found = self.folder().read(partition, batch).partition
        assert isinstance(found, NodePartition)
        return found


def cut(random: Random, rows: list[Captured]) -> Iterator[list[Captured]]:
    """The rows in up to ten batches, some of them empty."""
    places = sorted([0, len(rows), *(random.choice(places_to_cut(rows)) for _ in range(random.randrange(10)))])
    return (rows[begin:end] for begin, end in pairwise(places))


# -- the same as the service --------------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False), ORDERINGS)
def test_batches_cut_anywhere_and_state_through_bytes_come_out_as_the_service_gives_them_out(random: Random, options):
    rows = capture(random, nodes=3, sessions=3, tick=random.choice(TICKS))
    query, out, batch, now = Query(replace(KERNEL, options=options)), [], 0, -inf
    for batch, part in enumerate(cut(random, rows)):
        now = max((row.arrival or 0 for row in part), default=now)
        out += query.run(batch, random.sample(part, len(part)), now)
    out += query.run(batch + 1, [], END)
    told, expected = told_in(out), service_tells(rows, options, is_whole=False)
    assert told.ordered == expected.ordered
    assert told.ledger == expected.ledger
    waiting = query.known(batch + 1).waiting().num_rows
    assert waiting == 0 or options.on_timeout is OnTimeout.HOLD


@given(st.randoms(use_true_random=False), ORDERINGS)
def test_a_whole_table_comes_out_as_the_service_gives_it_out_and_nothing_is_left(random: Random, options):
    rows = capture(random, nodes=3, sessions=3, tick=random.choice(TICKS))
    kernel = replace(KERNEL, options=options, is_whole=True)
    shuffled = table(random.sample(rows, len(rows)))
    outcome = kernel.run(kernel.new_partition(SCHEMA), shuffled, END_OF_TIME, by_arrival_of(shuffled))
    out = [{**row, "_time": None if row["_time"] == END_OF_TIME else row["_time"]} for row in outcome.table.to_pylist()]
    told, expected = told_in(out), service_tells(rows, options, is_whole=True)
    assert told.ordered == expected.ordered
    assert told.ledger == expected.ledger
    assert sorted(row["body"] for row in out if row["body"] is not None) == sorted(row.body for row in rows)


def test_the_traces_have_every_race_in_them():
    """A test that compares is worth what its input is."""
    rows = capture(Random(1), nodes=30, sessions=4)
    told = service_tells(rows, NodeOrdering(reorder_timeout=4.0), is_whole=True)
    entries = [entry for ledger in told.ledger.values() for entry in ledger]
    assert {entry[0] for entry in entries} >= {"late", "duplicate", "lost", "ignored", "sync-lost"}
    assert {entry[6] for entry in entries} >= {
        "stamped before the birth of the session",
        "this birth was seen before",
        "its session has already ended",
        "it carries no bdSeq, so it is unknown which session ended",
    }
    ordered = [row for rows in told.ordered.values() for row in rows]
    assert {row[2] for row in ordered} == {None, "before-birth", "stale"}
    assert max(row[1] for row in ordered) > 3
    held = service_tells(rows, NodeOrdering(before_birth=BeforeBirth.HOLD, on_timeout=OnTimeout.HOLD), is_whole=True)
    assert "cleared" in {entry[6] for ledger in held.ledger.values() for entry in ledger}


def test_messages_of_one_instant_are_taken_session_by_session():
    """All of it in the same millisecond: the end of session 6, session 7, which was short, and its device."""

    def of(kind: str, body: str, seq: int | None, bd_seq: int | None, stamp: int | None) -> Captured:
        return Captured("n", kind, seq, bd_seq, stamp, "d" if kind[0] == "D" else None, 5.0, body)

    taken = [
        of("NDATA", "last of 6", 254, None, 140),
        of("NDEATH", "death of 6", None, 6, None),
        of("NBIRTH", "birth of 7", 255, 7, 150),
        of("DBIRTH", "device", 0, None, 150),
        of("DDATA", "copy 1", 1, None, 151),
        of("DDATA", "copy 2", 1, None, 151),
        of("NDEATH", "death of 7", None, 7, None),
    ]
    before = [Captured("n", "NBIRTH", 253, 6, 100, None, 1.0, "birth of 6")]
    for number in range(20):
        query = Query(KERNEL)
        out = query.run(0, before, 1.0) + query.run(1, Random(number).sample(taken, len(taken)), 5.0)
        assert [row["body"] for row in out if row["_tag"] == "ordered"] == [
            row.body for row in [*before, *taken] if row.body != "copy 2"
        ]
        assert [(row["body"], row["_reason"]) for row in out if row["_tag"] == "ledger"] == [("copy 2", "duplicate")]


def test_without_a_birth_a_death_comes_behind_what_arrived_with_it():
    rows = [data(1, 2.0), BIRTH, Captured("n", "NDEATH", None, 0, None, None, 2.0, "death"), data(2, 2.0)]
    assert [row["body"] for row in Query(KERNEL).run(0, rows, 2.0)] == ["birth", "data 1", "data 2", "death"]


# -- rows and time ------------------------------------------------------------------------------------------------------

BIRTH = Captured("n", "NBIRTH", 0, 0, 100, None, 1.0, "birth")


def data(seq: int, at: float, node: str = "n") -> Captured:
    return Captured(node, "NDATA", seq, None, 100 + seq, None, at, f"data {seq}")


def brief(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["_tag"], row["body"] or (row["_first"], row["_last"]), row["_reason"], row["_time"]) for row in rows]


INVALID = [
    (BIRTH._replace(node=None), "it has no key"),  # type: ignore[arg-type]
    (BIRTH._replace(arrival=None), "it has no time"),
    (BIRTH._replace(arrival=inf), "its time is not a finite number"),
    (BIRTH._replace(kind=None), "the kind of a message must be one of .*, not None"),
    (BIRTH._replace(kind="STATE"), "the kind of a message must be one of .*, not 'STATE'"),
    (BIRTH._replace(seq=None), "a sequence must be an integer"),
    (BIRTH._replace(seq=256), "sequence 256 is outside 0 to 255"),
    (BIRTH._replace(bd_seq=None), "bdSeq must be a whole number"),
    (BIRTH._replace(timestamp=-1), "timestamp must be a whole number"),
    (BIRTH._replace(kind="DDATA"), "DDATA with device None: D messages name a device"),
    (BIRTH._replace(device="d"), "NBIRTH with device 'd'"),
]


def test_rows_that_nobody_can_judge_are_in_the_ledger_and_take_part_in_nothing():
    rows = [
        BIRTH,
        data(2, 2.0),
        *(row._replace(body=str(place)) for place, (row, _) in enumerate(INVALID)),
        data(1, 3.0),
    ]
    outcome = KERNEL.run(KERNEL.new_partition(SCHEMA), table(rows), 3.0)
    out = outcome.table.to_pylist()
    assert [row["body"] for row in out[:3]] == ["birth", "data 1", "data 2"]
    assert [(row["_tag"], row["_reason"], row["_epoch"], row["_first"]) for row in out[3:]] == [
        ("ledger", "invalid", None, None)
    ] * len(INVALID)
    assert [row["body"] for row in out[3:]] == [str(place) for place in range(len(INVALID))]
    for row, (_, complaint) in zip(out[3:], INVALID, strict=True):
        assert re.match(complaint, row["_detail"])


def test_rows_that_nobody_can_judge_fail_the_batch_where_that_is_chosen():
    kernel = replace(KERNEL, on_invalid=OnInvalid.RAISE)
    with pytest.raises(InvalidSequence, match="1 of 2 rows are invalid, first message 256 of key 'n': sequence 256"):
        kernel.run(kernel.new_partition(SCHEMA), table([BIRTH, BIRTH._replace(seq=256)]), 1.0)


def test_a_time_in_the_far_future_is_invalid_and_moves_no_clock():
    rows = [BIRTH, data(2, 2.0), data(0, 4.92e9, "other")]
    outcome = KERNEL.run(KERNEL.new_partition(SCHEMA), table(rows), None, latest=3_600.0)
    assert [row["body"] for row in outcome.table.to_pylist() if row["_detail"] == TOO_FAR_AHEAD] == ["data 0"]
    assert outcome.change.times.clock == 2.0


def test_messages_of_one_instant_are_taken_by_their_offsets_where_they_have_any():
    """Number 2 was stamped with the birth, and came before it."""
    rows = table([BIRTH, data(2, BIRTH.arrival or 0.0)._replace(timestamp=BIRTH.timestamp)])
    early = rows.append_column("offset", pa.array([11, 10]))
    for columns, first in ((("arrival",), "birth"), (("arrival", "offset"), "data 2")):
        kernel = replace(KERNEL, columns=replace(KERNEL.columns, arrival=columns))
        order = np.argsort(early["offset"].to_numpy())
        found = kernel._settled(order.tolist(), early["node"].to_pylist(), kernel._messages(early, 0), early)
        assert early["body"][found[0]].as_py() == first


def test_time_passes_for_nodes_without_rows_and_never_backwards():
    query = Query(KERNEL)
    assert brief(query.run(0, [BIRTH, data(2, 2.0)], 2.0)) == [("ordered", "birth", None, None)]
    assert brief(query.run(1, [data(0, 10.0, "other")], 10.0))[1:] == [
        ("ordered", "data 0", None, None),
        ("ledger", (1, 1), "lost", 4.0),
    ]
    late = query.run(2, [data(4, 5.0)], 5.0)  # stamped by a clock that is behind: it counts from now on
    assert late == []
    assert query.known(2).next_due() == 12.0


# -- state --------------------------------------------------------------------------------------------------------------


def test_a_batch_writes_the_nodes_that_it_touched_and_not_all():
    query = Query(KERNEL)
    query.run(0, [BIRTH._replace(node=f"n{number}") for number in range(2_000)], 1.0)
    query.run(1, [data(2, 2.0, "n7")], 2.0)
    full, delta = (len(query.files.content[f"of-00001/part-00000/batch-{batch:012d}.state"]) for batch in (0, 1))
    assert delta < full / 5
    assert query.known(1).tally.held == 1


def test_what_is_written_is_the_same_when_it_is_written_again():
    rows = capture(Random(4), nodes=5, sessions=3)
    queries = [Query(KERNEL), Query(KERNEL)]
    for batch, part in enumerate(cut(Random(5), rows)):
        for query, attempts in zip(queries, (1, 2), strict=True):
            outs = [
                query.run(batch, part, max((row.arrival or 0 for row in part), default=-inf)) for _ in range(attempts)
            ]
            assert outs[1:] == outs[:-1]
    assert queries[0].files.content == queries[1].files.content


def test_what_waits_can_be_seen():
    query = Query(replace(KERNEL, options=NodeOrdering(before_birth=BeforeBirth.HOLD)))
    query.run(0, [BIRTH, data(3, 2.0), data(9, 2.5, "unborn")], 2.5)
    known = query.known(0)
    waits = known.waiting().select(["node", "body", "_since", "_first", "_last", "_due"]).to_pylist()
    assert [tuple(row.values()) for row in waits] == [
        ("n", "data 3", 2.0, 1, 2, 4.0),
        ("unborn", "data 9", 2.5, None, None, 4.5),
    ]
    assert (known.tally, known.next_due()) == (Tally(keys=2, held=2, gaps=1), 4.0)


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), ORDERINGS)
def test_state_that_was_divided_anew_goes_on_as_if_nothing_had_been(random: Random, options):
    kernel = replace(KERNEL, options=options)
    rows = capture(random, nodes=4, sessions=2)
    half = random.randrange(len(rows)) if rows else 0
    now = max((row.arrival or 0 for row in rows[:half]), default=0.0)
    divided = Query(kernel)
    out = divided.run(0, rows[:half], now)

    def by_number(keys: pa.Array) -> Any:
        return np.array([int(key[-1]) % 2 for key in keys.to_pylist()], np.int64)

    repartition(divided.files, 2, by_function(by_number), KINDS)
    divided.partitions = 2
    for number in (0, 1):
        out += divided.run(1, [row for row in rows[half:] if int(row.node[-1]) % 2 == number], END, number)
    told, expected = told_in(out), service_tells(rows, options, is_whole=False)
    assert (told.ordered, told.ledger) == (expected.ordered, expected.ledger)


def test_state_of_other_columns_or_of_numbered_rows_is_refused():
    query = Query(KERNEL)
    query.run(0, [BIRTH], 1.0)
    other = Query(replace(KERNEL, columns=replace(KERNEL.columns, bd_seq="seq")), query.files)
    with pytest.raises(StateMismatch, match=r"was made with bd_seq='bd_seq', .* and the query runs with bd_seq='seq'"):
        other.run(1, [], 2.0)
    numbered = StateFolder(query.files, query="q", partitions=1, meaning={"key": "'node'"})
    with pytest.raises(StateMismatch, match="machine=edge nodes"):
        numbered.open(0, 1, lambda: KERNEL.new_partition(SCHEMA))
    strange = StateFolder(query.files, query="q", partitions=1, meaning={"machine": "steam"})
    with pytest.raises(
        StateMismatch, match="is of steam, which this version of Seriatim does not know: use a newer one"
    ):
        strange.read(0, 0)


@pytest.mark.parametrize(
    ("tampered", "complaint"),
    [
        (lambda node: node.pop("newest"), "it lacks newest and has nothing that is not known here"),
        (lambda node: node.update(mood="good"), "it lacks nothing and has mood that is not known here"),
        (lambda node: node["queue"].pop("gaps"), "it lacks gaps and has nothing"),
    ],
)
def test_a_node_of_another_version_is_refused(tampered, complaint):
    known = KERNEL.new_partition(SCHEMA)
    outcome = KERNEL.run(known, table([BIRTH, data(2, 2.0)]), 2.0)
    (text,) = outcome.change.texts["machine"].to_pylist()
    tampered(node := json.loads(text))
    outcome.change.texts["machine"] = pa.array([json.dumps(node).encode()], pa.large_binary())
    known.apply(outcome.change, outcome.tally)
    with pytest.raises(
        StateMismatch, match=f"written by another version of Seriatim: {complaint}.* continue with that"
    ):
        KERNEL.run(known, table([data(1, 3.0)]), 3.0)


def test_a_batch_without_rows_has_the_columns_that_the_stream_has_now():
    more = table([]).append_column("more", pa.array([], pa.string()))
    partition = KERNEL.new_partition(SCHEMA)
    assert "more" in KERNEL.run(partition, more, 2.0).table.schema.names


def test_keys_of_another_type_and_messages_with_other_columns_are_refused():
    partition = KERNEL.new_partition(SCHEMA)
    outcome = KERNEL.run(partition, table([BIRTH, data(2, 2.0)]), 2.0)
    partition.apply(outcome.change, outcome.tally)
    numbers = table([]).set_column(0, "node", pa.array([], pa.int64()))
    with pytest.raises(InvalidArgument, match="keys are of type int64 now, and were string before"):
        KERNEL.run(partition, numbers, 3.0)
    fewer = table([data(1, 3.0)]).drop_columns(["body"])
    with pytest.raises(InvalidArgument, match="keep the columns of a stream as they are"):
        KERNEL.run(partition, fewer.append_column("other", pa.array(["x"])), 3.0)


@pytest.mark.parametrize("waiting", ["a gap", "a birth"])
def test_what_was_held_until_a_birth_is_released_when_that_is_chosen(waiting):
    """Also where no message of its node comes."""
    query = Query(replace(KERNEL, options=NodeOrdering(on_timeout=OnTimeout.HOLD, before_birth=BeforeBirth.HOLD)))
    query.run(0, [BIRTH, data(2, 2.0)] if waiting == "a gap" else [data(2, 2.0)], 3.0)
    query.run(1, [BIRTH._replace(node="other", arrival=50.0)], 50.0)
    assert query.known(1).tally.held == 1
    query.kernel = KERNEL
    told = query.run(2, [], 51.0)
    assert [row["body"] for row in told if row["_tag"] == "ordered"] == ["data 2"]
    assert query.known(2).tally.held == 0
