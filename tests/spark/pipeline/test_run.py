"""Declared pipelines at work, in the session of the tests."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from seriatim.cli.main import cli
from seriatim.engine.connect import open_broker
from seriatim.engine.reported_status import PipelineStatus, left_statuses
from seriatim.errors import FailedPrecondition, GuaranteeNotMet
from seriatim.spark import resequence
from seriatim.spark.pipeline import load
from seriatim.spark.pipeline import run as runner
from seriatim.spark.pipeline import status as pipeline_status
from seriatim.spark.pipeline.declaration import order_options, parse
from seriatim.spark.pipeline.exactly_once import SinkBatch, write
from seriatim.spark.topics.datasource import SCHEMA as SOURCE
from tests.spark.pipeline.pipelines import (
    DECLARATION,
    DEVICES,
    TOPIC,
    prepare,
    publish,
    rows_of,
    traffic,
    url_in,
    written,
)
from tests.spark.topics.stored_topics import make_topics, stored


def test_the_order_of_a_pipeline_has_exactly_the_options_of_resequence():
    options = order_options()
    assert list(options) == list(inspect.signature(resequence).parameters)
    assert [name for name, option in options.items() if option.is_required] == ["key", "sequence"]


# -- what is written ----------------------------------------------------------------------------------------------------


class Computed:
    """Whether a batch is computed again while a sink is written: then it writes its state again, where that is gone."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.versions: set[str] = set()
        self.again: set[str] = set()
        self.progress: list[Any] = []

    @contextmanager
    def watch(self, batch: int) -> Iterator[None]:
        files = {file: file.read_bytes() for file in self._state.rglob(f"batch-{batch:012d}.state")}
        for file in files:
            file.unlink()
        yield
        self.versions |= {f"{file.parent.name}/{file.name}" for file in files}
        self.again |= {str(file) for file in files if file.exists()}
        for file, content in files.items():
            file.write_bytes(content)


@pytest.fixture(scope="module")
def done(spark, tmp_path_factory):
    """A pipeline that ran to its end, what it counted, and how often it was computed."""
    folder = tmp_path_factory.mktemp("pipeline")
    path, computed = prepare(folder, batches=4), Computed(folder / "work/telemetry-state")

    def watched(batch: SinkBatch, *sink: Any) -> None:
        with computed.watch(batch.number):
            write(batch, *sink)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "write", watched)
        patch.setattr(pipeline_status, "LOOKS", 0)  # look at what waits after every batch,
        patch.setattr(pipeline_status, "SCAN_S", 120.0)  # however slow this machine is
        run = load(path).begin(spark)
        assert run.wait(120)
    computed.progress = run.query.recentProgress
    return folder, run.totals(), computed


def test_every_device_is_in_order_and_every_row_is_accounted_for(done):
    folder, totals, _ = done
    out = written(folder)
    for device in (f"device-{number}" for number in range(DEVICES)):
        numbers = [json.loads(data)["n"] for key, data in out["ordered"] if key == device]
        assert numbers == sorted(set(numbers))
        assert [row["_position"] for row in out["table"] if row["device"] == device] == list(range(len(numbers)))
    assert out["ordered"] == [(row["device"], row["data"]) for row in out["table"]]
    assert totals.rows["ordered"] == len(out["ordered"])
    entries = Counter(row["_reason"] for row in out["ledger"])
    assert {"duplicate", "lost", "late"} <= entries.keys()
    assert totals.ledger["late"] == entries["late"] == len(out["late"])
    assert totals.ledger["lost"] == sum(row["_size"] for row in out["ledger"] if row["_reason"] == "lost")
    assert (totals.rows_in, totals.batches, totals.last_batch) == (160, 4, 3)
    assert totals.held == totals.rows_in - len(out["ordered"]) - entries["late"] - entries["duplicate"]


def test_every_batch_tells_listeners_its_figures_once(done):
    folder, totals, computed = done
    counted = Counter[str]()
    for batch in computed.progress:
        counted.update(batch.observedMetrics[f"seriatim:{folder / 'work/telemetry-state'}"]["metrics"])
    assert counted["rows"] == totals.rows_in == 160
    assert {name: counted[name] for name in ("ordered", "late")} == {
        name: totals.rows[name] for name in ("ordered", "late")
    }


def test_it_leaves_its_status_in_the_store_for_operators(done):
    folder, totals, _ = done
    (status,) = asyncio.run(_statuses(url_in(folder)))
    assert (status.name, [batch.batch for batch in status.batches]) == ("telemetry", [0, 1, 2, 3])
    assert status.ledger == {reason: count for reason, count in totals.ledger.items() if count}
    assert sum(batch.ordered for batch in status.batches) == totals.rows["ordered"]
    assert sum(batch.lost for batch in status.batches) == totals.ledger["lost"]
    assert sum(one.lost for one in status.keys) == totals.ledger["lost"]
    assert all(sum(batch.lost for batch in one.batches) == one.lost for one in status.keys)
    assert status.held == totals.held
    assert all(one.rows and one.first is not None for one in status.waiting)
    assert sum(one.rows for one in status.waiting) == totals.held


async def _statuses(url: str) -> list[PipelineStatus]:
    broker = await open_broker(url)
    try:
        return await left_statuses(broker, PipelineStatus)
    finally:
        await broker.close()


def test_a_batch_is_computed_once_for_all_sinks(done):
    _, _, computed = done
    assert len(computed.versions) == 4 * 2
    assert computed.again == set()


def test_run_again_it_goes_on_and_knows_what_is_held(done, spark):
    folder, before, _ = done
    publish(folder, traffic(240, 1)[160:])
    run = load(folder / "pipeline.toml").begin(spark)
    assert run.wait(120)
    totals = run.totals()
    assert (totals.rows_in, totals.last_batch) == (80, 5)
    gone = totals.rows["ordered"] + totals.ledger["late"] + totals.ledger["duplicate"]
    assert totals.held == before.held + totals.rows_in - gone
    numbers = [json.loads(data)["n"] for key, data in written(folder)["ordered"] if key == "device-0"]
    assert numbers == sorted(set(numbers))


def test_a_batch_that_failed_behind_its_sinks_adds_nothing_when_it_comes_again(spark, tmp_path, monkeypatch):
    path, plain = prepare(tmp_path, batches=2), runner.Run._write_all

    def write_and_fail(self, tagged, number) -> None:
        plain(self, tagged, number)
        if number == 1:
            raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(runner.Run, "_write_all", write_and_fail)
        with pytest.raises(FailedPrecondition, match="on purpose"):
            load(path).begin(spark).wait(120)
    before = written(tmp_path)
    again = load(path).begin(spark)
    assert again.wait(120)
    assert (again.totals().batches, again.totals().last_batch) == (1, 1)
    assert written(tmp_path) == before


def test_one_topic_gets_its_rows_from_the_tasks_that_put_them_in_order(done, spark, tmp_path, monkeypatch):
    """Not by way of Spark: a batch has none of them. After a failure behind the sinks nothing is there twice."""
    path, plain = prepare(tmp_path, batches=4), runner.Run._write_all
    head, *sinks = path.read_text().split("[[sink]]")
    path.write_text("[[sink]]".join([head, sinks[0], sinks[2]]))  # the topic, and the ledger in files

    def write_and_fail(self, tagged, number) -> None:
        assert tagged.filter("_tag = 'ordered'").isEmpty()
        plain(self, tagged, number)
        if number == 2:
            raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(runner.Run, "_write_all", write_and_fail)
        with pytest.raises(FailedPrecondition, match="on purpose"):
            load(path).begin(spark).wait(120)
    run = load(path).begin(spark)
    assert run.wait(120)
    as_usual = written(done[0])
    records = [(record.key, record.data) for record in stored(url_in(tmp_path), "ordered")]
    assert records == as_usual["ordered"][: len(records)]
    assert rows_of(tmp_path / "ledger") == as_usual["ledger"][: len(rows_of(tmp_path / "ledger"))]
    assert run.totals().held == done[1].held
    assert len(records) == done[1].rows["ordered"]
    assert not list(tmp_path.glob("store.db.staging/*"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"data",\n', '"upper(CAST(data AS STRING)) AS text",\n'),  # no message as it came: JSON is made of the row
        ('topic = "ordered" }}', 'topic = "ordered" }}\ncolumns = {{ data = "upper(string(data))" }}'),
        ('"key AS device"', '"length(key) AS device"'),
    ],
)
def test_rows_that_spark_must_change_go_through_spark(spark, tmp_path, old, new):
    declaration = DECLARATION.replace("{source}", TOPIC).partition('[[sink]]\nformat = "parquet"')[0]
    assert old in declaration
    declared = parse(declaration.replace(old, new).format(limit=""), tmp_path)
    frame = spark.createDataFrame([], SOURCE).selectExpr(*declared.source.select)
    assert runner.task_staging(frame, declared) is None


FILES = """
[pipeline]
name = "calls"
checkpoint = "work/calls"
trigger = "available-now"

[source]
format = "json"
schema = "caller STRING, n INT, at TIMESTAMP, event STRING"
options = { path = "calls" }

[order]
key = "caller"
sequence = "n"
arrival = "at"
start = 1

[[sink]]
format = "csv"
options = { path = "out", header = true }

[[sink]]
format = "seriatim"
options = { url = "sqlite:///store.db", topic = "calls" }
columns = { key = "upper(caller)", data = "event", attributes = "map('position', string(_position))" }

[[sink]]
format = "seriatim"
options = { url = "sqlite:///store.db", topic = "everything" }
"""


def test_files_go_to_files_and_to_topics_with_chosen_columns(spark, tmp_path):
    (tmp_path / "calls").mkdir()
    calls = [("ann", 2, "answer"), ("ann", 1, "ring"), ("bob", 1, "ring")]
    lines = [
        {"caller": who, "n": n, "at": f"2026-01-01T00:00:0{at}Z", "event": e} for at, (who, n, e) in enumerate(calls)
    ]
    (tmp_path / "calls/one.json").write_text("\n".join(map(json.dumps, lines)))
    make_topics(url_in(tmp_path), "calls", "everything")
    (tmp_path / "p.toml").write_text(FILES)
    query = load(tmp_path / "p.toml").start(spark)
    assert query.awaitTermination(60)
    assert query.name == "calls"
    found = sorted(line for file in (tmp_path / "out").glob("*.csv") for line in file.read_text().splitlines()[1:])
    assert [line.split(",")[:2] for line in found] == [["ann", "1"], ["ann", "2"], ["bob", "1"]]
    messages = sorted((one.key, one.data, one.attributes) for one in stored(url_in(tmp_path), "calls"))
    assert messages == [
        ("ANN", b"answer", {"position": "1"}),
        ("ANN", b"ring", {"position": "0"}),
        ("BOB", b"ring", {"position": "0"}),
    ]
    whole = [json.loads(one.data) for one in stored(url_in(tmp_path), "everything") if one.key == "bob"]
    assert whole == [{"caller": "bob", "n": 1, "at": "2026-01-01T00:00:02.000Z", "event": "ring", "_position": 0}]


# -- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(spark, tmp_path, monkeypatch, logger_as_it_was):
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(path: Path, *options: str) -> Result:
        return CliRunner().invoke(cli, ["pipeline", "run", str(path), *options], prog_name="seriatim")

    return run


def changed(path: Path, old: str, new: str) -> Path:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return path


def test_run_ends_with_a_summary(command, tmp_path):
    path = prepare(tmp_path, batches=1)
    found = json.loads(command(path, "--json").stdout)
    assert (found["pipeline"], found["batches"], found["rows"]) == ("telemetry", 1, 40)
    assert found["ordered"] == len(written(tmp_path)["ordered"])
    assert command(
        path
    ).stdout == "pipeline 'telemetry': 0 batches, 0 rows in, 0 ordered, {} held\nledger: nothing\n".format(
        found["held"]
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_batch_under_way_end(command, tmp_path, monkeypatch, number):
    path = changed(prepare(tmp_path, batches=4), 'trigger = "available-now"', "")
    plain = runner.reports_of

    told: list[int] = []

    def compute_and_be_told_to_stop(tagged) -> list[dict[str, Any]]:
        if not told:
            told.append(number)
            os.kill(os.getpid(), number)
        return plain(tagged)

    monkeypatch.setattr(runner, "reports_of", compute_and_be_told_to_stop)
    result = command(path, "--json")
    assert result.exit_code == 128 + number
    assert "finishing the current batch\n" in result.stderr
    batches = len(list((tmp_path / "work/telemetry/commits").glob("[0-9]*")))
    assert json.loads(result.stdout)["batches"] == batches > 0
    assert len(list((tmp_path / "ordered").glob("batch=*"))) == batches


def test_a_pipeline_that_promises_too_much_is_not_started(command, spark, tmp_path):
    path = changed(prepare(tmp_path, batches=1), 'require = "strict"', 'require = "absolute"')
    result = command(path)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: pipeline 'telemetry' can't provide what it requires")
    assert not (tmp_path / "work").exists()
    with pytest.raises(GuaranteeNotMet):
        load(path).start(spark)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('topic = "ordered" }', 'topic = "nowhere", staging = "${SECRET}/x" }', "topic 'nowhere' does not exist in"),
        ("'$.n'", "'$.none'", "rows are invalid, first message None of key"),
        ('format = "seriatim"\noptions = { url = "sqlite:///store.db", topic = "raw"', 'format = "kafka"\noptions = { x = "y"',
         "add its package to spark.jars.packages, org.apache.spark:spark-sql-kafka-0-10_2.13:4."),
        ('"key AS device"', '"nokey AS device"', "Spark: [UNRESOLVED_COLUMN"),
        ('sequence = "n"', 'sequence = "m"', "there is no column 'm'"),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_that_names_the_log(command, tmp_path, monkeypatch, old, new, said):
    monkeypatch.setenv("SECRET", "/xyzzy")
    monkeypatch.setenv("SERIATIM_PROGRESS", "false")  # a machine that is slow shows a line of progress first
    path = changed(prepare(tmp_path, batches=2), "partitions = 2", 'partitions = 2\non_invalid = "raise"')
    result = command(changed(path, old, new))
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith("error: pipeline 'telemetry': ")
    assert said in result.stderr
    log = tmp_path / "work" / "telemetry.log"
    assert result.stderr.endswith(f"(Spark's log: {log})\n")
    assert result.stderr.count("\n") == 1
    assert "xyzzy" not in result.output
