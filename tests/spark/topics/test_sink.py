"""Topics as a sink: a batch is written whole and once, beside whoever else uses the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import IntegerType, MapType, StringType, StructType

from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, OutcomeUnknown, StoreBusy
from seriatim.spark import register
from seriatim.spark.compatibility import SPARK
from seriatim.spark.topics.address import TopicAddress
from seriatim.spark.topics.datasource import SCHEMA
from seriatim.spark.topics.sink import StagedRows, Staging, TopicStreamWriter, TopicWriter
from tests.engine.conftest import Collector
from tests.spark.topics.stored_topics import live_engine, make_topics, numbers, outgoing, publish, stored
from tests.store.postgres.test_staging import waiting


@pytest.fixture
def url(tmp_path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    make_topics(url, "raw", "ordered")
    return url


def options(url: str, **more: str) -> dict[str, str]:
    return {"url": url, "topic": "ordered", **more}


def rows(data: range) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"key": ["k"] * len(data), "data": [b"%d" % one for one in data]})


def write(writer: TopicWriter, *tasks: range) -> None:
    writer.commit([writer.write(rows(task)) for task in tasks])


def staged(url: str) -> list[Path]:
    return list(Path(f"{url.removeprefix('sqlite:///')}.staging").iterdir())


# -- as Spark would ask ------------------------------------------------------------------------------------------------


def test_a_job_is_appended_task_after_task_and_nothing_stays_staged(url):
    writer = TopicWriter(options(url), SCHEMA, overwrite=False)
    write(writer, range(3), range(0), range(3, 2000))
    assert numbers(stored(url, "ordered")) == list(range(2000))
    assert staged(url) == []


def test_two_jobs_are_two_writers_unless_they_say_that_they_are_one(url):
    for _ in range(2):
        write(TopicWriter(options(url), SCHEMA, overwrite=False), range(2))
    assert numbers(stored(url, "ordered")) == [0, 1, 0, 1]
    for batch in ("0", "0", "1"):
        named = options(url, writerName="pipeline", batchId=batch)
        write(TopicWriter(named, SCHEMA, overwrite=False), range(7, 9))
    assert numbers(stored(url, "ordered")) == [0, 1, 0, 1, 7, 8, 7, 8]


def test_one_writer_may_write_the_same_batch_to_two_topics(url):
    for topic in ("raw", "ordered"):
        named = options(url, writerName="pipeline", batchId="0") | {"topic": topic}
        write(TopicWriter(named, SCHEMA, overwrite=False), range(2))
    assert numbers(stored(url, "raw")) == numbers(stored(url, "ordered")) == [0, 1]


def test_attempts_that_do_not_count_are_not_written_and_do_not_stay(url):
    writer = TopicWriter(options(url), SCHEMA, overwrite=False)
    writer.write(rows(range(5)))  # a speculative attempt, say
    counts = writer.write(rows(range(5)))
    writer.commit([counts])
    assert numbers(stored(url, "ordered")) == list(range(5))
    assert staged(url) == []


def test_an_aborted_job_writes_nothing_and_leaves_nothing(url):
    writer = TopicWriter(options(url), SCHEMA, overwrite=False)
    message = writer.write(rows(range(5)))
    assert staged(url)
    writer.abort([message, None])
    assert staged(url) == []
    assert stored(url, "ordered") == []


def test_staged_rows_that_the_driver_can_not_see_are_an_error_that_names_the_option(url, tmp_path):
    writer = TopicWriter(options(url, staging=str(tmp_path / "elsewhere")), SCHEMA, overwrite=False)
    message = writer.write(rows(range(5)))
    assert isinstance(message, StagedRows)
    assert message.file is not None
    Path(message.file.path).unlink()
    with pytest.raises(FailedPrecondition, match="set the option 'staging' to a folder that every machine sees"):
        writer.commit([message])


def test_rows_of_another_machine_are_not_written_to_a_file(url, monkeypatch):
    writer = TopicWriter(options(url), SCHEMA, overwrite=False)
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "elsewhere")
        message = writer.write(rows(range(5)))
    with pytest.raises(FailedPrecondition, match="is on one machine, and Spark runs on elsewhere and on"):
        writer.commit([message])
    assert stored(url, "ordered") == []


@pytest.mark.parametrize("place", ["database", "folder"])
def test_rows_for_postgresql_wait_in_its_database_unless_there_is_a_folder(postgres_url, tmp_path, place):
    make_topics(postgres_url, "ordered")
    named = options(postgres_url, writerName="pipeline", batchId="3")
    if place == "folder":
        named["staging"] = str(tmp_path)
    for _ in range(2):
        writer = TopicWriter(named, SCHEMA, overwrite=False)
        staged_by_tasks: list[WriterCommitMessage | None] = [
            writer.write(rows(task)) for task in (range(3), range(0), range(3, 2000))
        ]
        assert bool(list(tmp_path.iterdir())) == (place == "folder")
        writer.write(rows(range(5)))  # an attempt that does not count
        writer.commit(staged_by_tasks)
    assert numbers(stored(postgres_url, "ordered")) == list(range(2000))
    assert waiting(postgres_url) == list(tmp_path.iterdir()) == []


def test_rows_of_another_machine_are_written_to_postgresql(postgres_url, monkeypatch):
    make_topics(postgres_url, "ordered")
    writer = TopicWriter(options(postgres_url), SCHEMA, overwrite=False)
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "elsewhere")
        message = writer.write(rows(range(5)))
    writer.commit([message])
    assert numbers(stored(postgres_url, "ordered")) == list(range(5))
    writer.write(rows(range(5)))
    writer.abort([])
    assert waiting(postgres_url) == []


def test_nothing_is_written_to_postgresql_beside_its_owner(postgres_url):
    make_topics(postgres_url, "ordered")
    with live_engine(postgres_url):
        writer = TopicWriter(options(postgres_url), SCHEMA, overwrite=False)
        with pytest.raises(StoreBusy, match="the store is owned by process"):
            write(writer, range(3))
    assert stored(postgres_url, "ordered") == []


def test_a_batch_of_unknown_outcome_is_asked_for_again(url, monkeypatch):
    asked = []

    class LostAnswers(TopicAddress):
        def ask(self, question):
            answer = super().ask(question)
            asked.append(answer)
            if len(asked) == 1:
                raise OutcomeUnknown("the owner went away before it answered")
            return answer

    writer = TopicWriter(options(url), SCHEMA, overwrite=False)
    place = writer._staging.address
    monkeypatch.setattr(writer, "_staging", Staging(LostAnswers(place.url, place.topic), writer._staging.place))
    write(writer, range(3))
    assert asked == [["0", "1", "2"], None]
    assert numbers(stored(url, "ordered")) == [0, 1, 2]


STRING = StringType()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (StructType().add("key", STRING), "column 'data' is missing: .* there are key"),
        (StructType().add("data", IntegerType()), "column 'data' must be binary or string, not int"),
        (StructType().add("data", STRING).add("key", IntegerType()), "column 'key' must be string, not int"),
        (StructType().add("data", STRING).add("attributes", STRING), "column 'attributes' must be map<string,string>"),
        (
            StructType().add("data", STRING).add("attributes", MapType(STRING, IntegerType())),
            "column 'attributes' must be map<string,string>, not int",
        ),
    ],
)
def test_rows_that_can_be_no_messages_are_refused_before_anything_is_read(url, schema, text):
    for kind in (TopicWriter, TopicStreamWriter):
        with pytest.raises(InvalidArgument, match=text):
            kind(options(url), schema, overwrite=False)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"batchId": "1"}, "belong together"),
        ({"writerName": "w", "batchId": "x"}, "'batchId' must be a whole number"),
        ({"startingOffsets": "earliest"}, "no option 'startingOffsets' here"),
    ],
)
def test_a_wrong_option_is_refused(url, more, text):
    with pytest.raises(InvalidArgument, match=text):
        TopicWriter(options(url, **more), SCHEMA, overwrite=False)


def test_a_topic_is_never_overwritten_and_never_made_by_mistake(url):
    with pytest.raises(InvalidArgument, match="can't be overwritten"):
        TopicWriter(options(url), SCHEMA, overwrite=True)
    with pytest.raises(NotFound, match="topic 'orderd' does not exist"):
        TopicWriter(options(url) | {"topic": "orderd"}, SCHEMA, overwrite=False)


# -- on Spark ----------------------------------------------------------------------------------------------------------


def test_a_spark_job_wakes_the_subscriber_of_a_live_engine(spark, url):
    register(spark)
    frame = spark.createDataFrame([("k", "first"), ("k", "second"), (None, "third")], "key string, data string")
    with live_engine(url) as engine:

        async def subscribe(broker):
            await broker.create_subscription("ordered", "s")
            got = Collector()
            broker.attach("s", got.consumer)
            return got

        got = engine(subscribe)
        frame.coalesce(1).write.format("seriatim").options(**options(url)).mode("append").save()
        engine(lambda _: got.wait(3))
        assert got.data == [b"first", b"second", b"third"]


def test_a_null_among_the_data_fails_the_job_naming_the_column_and_nothing_is_written(spark, url):
    register(spark)
    frame = spark.createDataFrame([("k", "first"), ("k", None)], "key string, data string").coalesce(1)
    with pytest.raises(Exception, match="column 'data' is null"):
        frame.write.format("seriatim").options(**options(url)).mode("append").save()
    assert stored(url, "ordered") == []


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_replayed_batch_adds_nothing(spark, store, request, tmp_path):
    register(spark)
    url = request.getfixturevalue("postgres_url") if store == "postgres" else f"sqlite:///{tmp_path}/store.db"
    make_topics(url, "raw", "ordered")
    publish(url, "raw", range(25))
    checkpoint, staging = tmp_path / "checkpoint", tmp_path / "staging"
    limit = {"maxRowsPerTrigger": 20} if SPARK >= (4, 2) else {}

    def run_once() -> None:
        rows = spark.readStream.format("seriatim").options(url=url, topic="raw", **limit).load()
        sink = rows.writeStream.format("seriatim").options(**options(url, staging=str(staging)))
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        assert query.start().awaitTermination(60)

    run_once()
    assert numbers(stored(url, "ordered")) == list(range(25))
    last = max(int(done.name) for done in (checkpoint / "commits").glob("[0-9]*"))
    for done in (checkpoint / "commits").glob(f"*{last}*"):  # the driver died before Spark knew that it was done
        done.unlink()
    publish(url, "raw", range(25, 30))
    run_once()
    if not limit:  # available-now is one batch there, and that one was run again
        run_once()
    assert [(one.key, one.data, one.attributes) for one in stored(url, "ordered")] == [
        (one.key, one.data, one.attributes) for one in outgoing(range(30))
    ]
    assert list(staging.iterdir()) == []
