"""What those who look after a stream see and do."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from click.testing import CliRunner

from seriatim.cli.main import cli
from seriatim.errors import FailedPrecondition, InvalidArgument, SeriatimError, StateMismatch
from seriatim.spark import held, repartition_state, unwrapped
from tests.spark.frames.streams import Stream
from tests.spark.frames.test_stream import RANDOM, as_tuples, random_rows


@pytest.fixture
def waiting(spark, tmp_path) -> Stream:
    """Key a waits for 1 and has 2 and 5; b waits for 0 and has 1; c waits for nothing."""
    stream = Stream(spark, tmp_path, {"gap_timeout": "1m"})
    stream.add([("a", 0, 1.0, "a0"), ("a", 2, 2.0, "a2"), ("c", 0, 2.0, "c0")])
    return stream.add([("a", 5, 3.0, "a5"), ("b", 1, 4.0, "b1")]).run()


def test_rows_that_wait_can_be_seen(spark, waiting):
    frame = held(spark, str(waiting.state))
    assert frame.columns == ["key", "seq", "at", "body", "_since", "_first", "_last", "_due"]
    assert sorted(tuple(row) for row in frame.collect()) == [
        ("a", 2, 2.0, "a2", 2.0, 1, 1, 62.0),
        ("a", 5, 3.0, "a5", 3.0, 1, 1, 62.0),
        ("b", 1, 4.0, "b1", 4.0, 0, 0, 64.0),
    ]
    waiting.add([("a", 1, 5.0, "a1")]).run()
    assert {(row.body, row["_first"], row["_last"]) for row in held(spark, str(waiting.state)).collect()} == {
        ("a5", 3, 4),
        ("b1", 0, 0),
    }


def test_rows_that_are_gathered_for_a_start_wait_for_no_number(spark, tmp_path):
    stream = Stream(spark, tmp_path, {"start": "lowest", "gap_timeout": 10})
    stream.add([("a", 7, 1.0, "a7")]).run()
    (row,) = held(spark, str(stream.state)).collect()
    assert (row.body, row["_since"], row["_first"], row["_due"]) == ("a7", 1.0, None, 11.0)


def test_a_stream_goes_on_after_a_repartition_as_if_nothing_had_been(spark, tmp_path):
    rows = random_rows(5, 40, epochs=1)
    cuts = [0, 200, 400, len(rows)]
    streams = [Stream(spark, tmp_path / name, {}, RANDOM) for name in ("changed", "unchanged")]
    for stream in streams:
        stream.root.mkdir()
        for begin, end in pairwise(cuts[:3]):
            stream.add(as_tuples(rows[begin:end]))
        stream.run()
    changed, unchanged = streams
    assert repartition_state(spark, str(changed.state), 5) == [0, 1]
    assert {name.split("/")[0] for name in changed.versions()} == {"of-00005"}
    for stream in streams:
        stream.add(as_tuples(rows[cuts[2] :]))
    changed.run(partitions=5)
    unchanged.run()
    assert changed.ordered() == unchanged.ordered()
    assert sorted(changed.ledger()) == sorted(unchanged.ledger())


def test_a_batch_that_is_run_again_after_a_repartition_is_the_same(spark, waiting):
    told = sorted(map(str, waiting.batches[1]))
    repartition_state(spark, str(waiting.state), 2)
    waiting.forget_commit(1)
    assert sorted(map(str, waiting.run(partitions=None).batches[1])) == told


def test_a_repartition_that_makes_no_sense_is_refused(spark, waiting):
    with pytest.raises(InvalidArgument, match="has 3 partitions already"):
        repartition_state(spark, str(waiting.state), 3)
    with pytest.raises(StateMismatch, match="there is no state in"):
        repartition_state(spark, str(waiting.root), 2)
    query = waiting.start()
    try:
        with pytest.raises(FailedPrecondition, match=f"query {query.id} is running: stop it"):
            repartition_state(spark, str(waiting.state), 2)
    finally:
        query.stop()


def test_the_state_is_shown_and_divided_by_commands(waiting, monkeypatch, logger_as_it_was):
    monkeypatch.setenv("HOME", str(waiting.root))
    state = str(waiting.state)

    def run(*args: str) -> str:
        result = CliRunner().invoke(cli, ["pipeline", "state", *args], prog_name="seriatim")
        assert result.exit_code == 0, result.output
        return result.stdout

    found = json.loads(run("info", state, "--json"))
    assert (found["batch"], found["versions"], len(found["partitions"])) == (1, 2, 3)
    assert [sum(part[name] for part in found["partitions"]) for name in ("keys", "held", "gaps")] == [3, 3, 3]
    assert min(part["due"] for part in found["partitions"] if part["due"]) == 62.0
    assert f"query {found['query']}\nbatch 1" in run("info", state)
    assert [row["body"] for row in json.loads(run("held", state, "--json", "--limit", "2"))] != []
    assert "a5" in run("held", state)
    assert "the query continues after batch 1" in run("repartition", state, "--partitions", "2")
    assert len(json.loads(run("info", state, "--json"))["partitions"]) == 2


def test_commands_say_where_there_is_no_state(tmp_path, monkeypatch, logger_as_it_was):
    monkeypatch.setenv("HOME", str(tmp_path))
    for args in (["info"], ["held"]):
        result = CliRunner().invoke(cli, ["pipeline", "state", *args, str(tmp_path)], prog_name="seriatim")
        assert result.exit_code != 0
        assert isinstance(result.exception, SystemExit)
        assert "there is no state in" in result.stderr


def test_an_error_of_a_task_is_found_in_what_spark_says():
    said = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure\n"
        "Traceback (most recent call last):\n  File 'x', line 1\n"
        "seriatim.errors.StateMismatch: there is no state in /x: begin anew\n\n\tat org.apache.spark\n"
    )
    error = unwrapped(RuntimeError(said))
    assert type(error) is StateMismatch
    assert str(error) == "there is no state in /x: begin anew"
    assert str(unwrapped(RuntimeError("[OTHER] something\nelse"))) == "Spark: [OTHER] something"
    assert type(unwrapped(RuntimeError("seriatim.errors.Status: 3"))) is FailedPrecondition
    ours = SeriatimError("as it is")
    assert unwrapped(ours) is ours
