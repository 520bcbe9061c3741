"""Topics as a source: batch reads, and streaming reads that lose and repeat nothing."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.engine.broker import ReaderInfo
from seriatim.engine.options import TopicOptions
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound
from seriatim.spark import compatibility
from seriatim.spark.compatibility import SPARK, ReadAllAvailable, ReadMaxRows
from seriatim.spark.topics.datasource import register
from seriatim.spark.topics.source import TopicReader, TopicStreamReader
from tests.spark.topics.stored_topics import ask, live_engine, make_topics, numbers, outgoing, publish, stored

SHORT = TopicOptions(retention=0.0)
"""Messages that nobody follows go with the next clean-up."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path) -> str:
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def raw(url) -> str:
    """A store with 20 messages in topic raw, in packs of 8, 8 and 4."""
    make_topics(url, "raw", "ordered")
    publish(url, "raw", range(8), range(8, 16), range(16, 20))
    return url


def options(url: str, **more: object) -> dict[str, str]:
    return {"url": url, "topic": "raw", **{name: str(value) for name, value in more.items()}}


def read(reader: Any, partitions) -> list[int]:
    """What tasks would read, one after the other."""
    return [int(data) for one in partitions for batch in reader.read(one) for data in batch["data"].to_pylist()]


def clean_up(url: str) -> None:
    ask(url, lambda broker: broker.clean_up())


def empty(url: str) -> None:
    """Let clean-up remove everything that nobody needs."""
    ask(url, lambda broker: broker.update_topic("raw", SHORT))
    clean_up(url)


def readers(url: str) -> list[ReaderInfo]:
    return ask(url, lambda broker: broker.list_readers())


# -- batch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, range(20)),
        ({"startingOffsets": 5, "endingOffsets": 17}, range(5, 17)),
        ({"startingOffsets": "Earliest", "endingOffsets": 0}, []),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": 20}, []),
        ({"startingOffsets": 9, "endingOffsets": 4}, []),
    ],
)
def test_a_batch_reads_its_range_and_no_more(raw, more, expected):
    reader = TopicReader(options(raw, rowsPerPartition=3, **more))
    partitions = reader.partitions()
    assert partitions
    assert read(reader, partitions) == list(expected)


def test_what_is_published_after_a_batch_was_planned_is_not_read(raw):
    reader = TopicReader(options(raw))
    partitions = reader.partitions()
    publish(raw, "raw", [20])
    assert read(reader, partitions) == list(range(20))


def test_a_range_is_divided_into_as_many_tasks_as_asked_for(raw):
    assert len(TopicReader(options(raw)).partitions()) == 1
    assert len(TopicReader(options(raw, rowsPerPartition=5)).partitions()) == 3  # packs of 8 stay whole
    assert len(TopicReader(options(raw, rowsPerPartition=1, maxPartitions=2)).partitions()) == 2


def test_offsets_that_were_removed_are_an_error_that_names_the_earliest(raw):
    empty(raw)
    publish(raw, "raw", [20])
    with pytest.raises(FailedPrecondition, match="from offset 3 on are no longer kept: the earliest offset is 20"):
        TopicReader(options(raw, startingOffsets=3)).partitions()
    lenient = TopicReader(options(raw, startingOffsets=3, failOnDataLoss="false"))
    assert read(lenient, lenient.partitions()) == [20]


def test_what_is_removed_between_planning_and_reading_is_an_error(raw):
    reader = TopicReader(options(raw))
    partitions = reader.partitions()
    empty(raw)
    with pytest.raises(FailedPrecondition, match=r"20 of 20 messages .* were removed while they were being read"):
        read(reader, partitions)


def test_a_task_on_another_machine_reads_from_postgresql_but_not_from_a_file(raw, monkeypatch):
    reader = TopicReader(options(raw))
    partitions = reader.partitions()
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    if raw.startswith("sqlite"):
        with pytest.raises(FailedPrecondition, match=r"is on one machine, and Spark runs on .* and on elsewhere"):
            read(reader, partitions)
    else:
        assert read(reader, partitions) == list(range(20))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"startingOffsets": "first"}, "must be earliest, latest or an offset, not 'first'"),
        ({"startingOffsets": "-1"}, "must be earliest, latest or an offset"),
        ({"endingOffsets": 21}, "offset 21 was not given .* the next one is 20"),
        ({"rowsPerPartition": 0}, "'rowsPerPartition' must be a whole number of 1 or more"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"maxRowsPerTriger": 5}, "no option 'maxRowsPerTriger' here: there are url, topic, startingOffsets"),
        ({"url": ""}, "needs the option 'url'"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_right(raw, more, text):
    with pytest.raises(InvalidArgument, match=text):
        TopicReader({**options(raw), **{name: str(value) for name, value in more.items()}}).partitions()


def test_a_topic_or_a_store_that_is_not_there_is_named(raw, tmp_path):
    with pytest.raises(NotFound, match="topic 'other' does not exist"):
        TopicReader(options(raw) | {"topic": "other"}).partitions()
    with pytest.raises(NotFound, match="there is no store at"):
        TopicReader(options(f"sqlite:///{tmp_path}/nothing.db")).partitions()
    assert not (tmp_path / "nothing.db").exists()


# -- streaming, as Spark would ask -------------------------------------------------------------------------------------


def batches(reader: TopicStreamReader, start, limit) -> tuple[list[list[int]], Any]:
    """Batch after batch until there is nothing more, each committed; and where that is."""
    found = []
    while (end := reader.latestOffset(start, limit)) != start:
        found.append(read(reader, reader.partitions(start, end)))
        reader.commit(end)
        start = end
    return found, start


@pytest.mark.skipif(SPARK < (4, 2), reason="before Spark 4.2 a batch has no limit")
def test_a_stream_takes_no_more_rows_than_it_may_and_every_row_once(raw):
    reader = TopicStreamReader(options(raw, maxRowsPerTrigger=7))
    assert reader.getDefaultReadLimit() == ReadMaxRows(7)
    found, end = batches(reader, reader.initialOffset(), reader.getDefaultReadLimit())
    assert found == [list(range(7)), list(range(7, 14)), list(range(14, 20))]
    publish(raw, "raw", [20])
    assert batches(reader, end, ReadAllAvailable())[0] == [[20]]
    assert TopicStreamReader(options(raw)).getDefaultReadLimit() == ReadMaxRows(1_000_000)


def test_a_limit_is_refused_where_spark_would_not_keep_it(raw, monkeypatch):
    monkeypatch.setattr(compatibility, "SPARK", (4, 1))
    with pytest.raises(FailedPrecondition, match=r"option 'maxRowsPerTrigger' needs Spark 4.2 or newer"):
        TopicStreamReader(options(raw, maxRowsPerTrigger=7))


def test_a_range_that_ends_as_another_reader_is_refused_and_that_reader_is_removed(raw):
    """So it is when Spark asks for the end before it tells where the query stands."""
    query, too_early = TopicStreamReader(options(raw)), TopicStreamReader(options(raw))
    start, end = query.initialOffset(), too_early.latestOffset(too_early.initialOffset(), ReadAllAvailable())
    with pytest.raises(FailedPrecondition, match=f"unset {compatibility.AVAILABLE_NOW_WRAPPER}"):
        too_early.partitions(start, end)
    assert [reader.name for reader in readers(raw)] == [start["reader"]]


def test_the_first_batch_is_read_again_by_a_query_that_had_not_noted_it_as_done(raw):
    """Spark asks for the start once more then, and has the end in its checkpoint."""
    first = TopicStreamReader(options(raw))
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    again = TopicStreamReader(options(raw))
    assert read(again, again.partitions(again.initialOffset(), end)) == list(range(20))


def test_a_first_batch_that_comes_again_begins_where_it_began_and_leaves_one_reader(raw):
    """Also where its start has moved on since, as the end of the topic does."""
    first = TopicStreamReader(options(raw, startingOffsets="latest"))
    start = first.initialOffset()
    publish(raw, "raw", [20, 21])
    end = first.latestOffset(start, ReadAllAvailable())
    publish(raw, "raw", [22])
    again = TopicStreamReader(options(raw, startingOffsets="latest"))
    for _ in range(2):  # Spark may plan a batch twice
        assert read(again, again.partitions(again.initialOffset(), end)) == [20, 21]
    again.commit(end)
    assert [(reader.name, reader.position) for reader in readers(raw)] == [(start["reader"], end["offset"])]
    assert batches(again, end, ReadAllAvailable())[0] == [[22]]


@pytest.mark.parametrize(("start", "expected"), [("earliest", range(21)), ("latest", [20]), (11, range(11, 21))])
def test_a_stream_begins_where_it_is_told(raw, start, expected):
    reader = TopicStreamReader(options(raw, startingOffsets=start))
    initial = reader.initialOffset()
    assert reader.initialOffset() == initial
    publish(raw, "raw", [20])
    found, _ = batches(reader, initial, ReadAllAvailable())
    assert found == [list(expected)]


def test_available_now_ends_with_what_was_there_at_the_beginning(raw):
    reader = TopicStreamReader(options(raw))
    reader.prepareForTriggerAvailableNow()
    publish(raw, "raw", [20])
    found, end = batches(reader, reader.initialOffset(), ReadMaxRows(15))
    assert [row for batch in found for row in batch] == list(range(20))
    assert reader.reportLatestOffset()["offset"] == 21
    assert TopicStreamReader(options(raw)).latestOffset(end, ReadAllAvailable())["offset"] == 21


def test_clean_up_waits_for_a_stream_and_goes_on_behind_it(raw):
    reader = TopicStreamReader(options(raw, readerName="pipeline"))
    start = reader.initialOffset()
    assert readers(raw) == [ReaderInfo("pipeline", "raw", 0)]
    empty(raw)
    assert len(stored(raw, "raw")) == 20
    end = reader.latestOffset(start, ReadMaxRows(16))
    assert read(reader, reader.partitions(start, end)) == list(range(16))
    reader.commit(end)
    reader.commit(end)
    assert readers(raw) == [ReaderInfo("pipeline", "raw", 16)]
    clean_up(raw)
    assert numbers(stored(raw, "raw")) == [16, 17, 18, 19]
    again = TopicStreamReader(options(raw, readerName="pipeline"))
    assert batches(again, end, ReadAllAvailable())[0] == [[16, 17, 18, 19]]
    assert readers(raw) == [ReaderInfo("pipeline", "raw", 20)]


def test_a_query_that_comes_back_to_its_checkpoint_is_the_same_reader(raw):
    first = TopicStreamReader(options(raw))
    start = first.initialOffset()
    (known,) = readers(raw)
    end = first.latestOffset(start, ReadMaxRows(8))
    again = TopicStreamReader(options(raw))  # the process was killed before the batch was done
    assert read(again, again.partitions(start, end)) == list(range(8))
    again.commit(end)
    assert readers(raw) == [ReaderInfo(known.name, "raw", 8)]


def test_two_queries_under_one_name_are_noticed(raw):
    one, two = (TopicStreamReader(options(raw, readerName="same")) for _ in range(2))
    start = one.initialOffset()
    assert two.initialOffset() == start
    end = two.latestOffset(start, ReadMaxRows(4))
    one.commit(one.latestOffset(start, ReadMaxRows(8)))
    with pytest.raises(FailedPrecondition, match="another program moves it"):
        two.commit(end)
    late = TopicStreamReader(options(raw))  # a copy of a checkpoint
    with pytest.raises(FailedPrecondition, match="has passed offset 0 and stands at 8"):
        late.latestOffset(start, ReadAllAvailable())


def test_a_reader_that_was_deleted_is_an_error_unless_loss_is_allowed(raw):
    start = TopicStreamReader(options(raw, readerName="gone")).initialOffset()
    ask(raw, lambda broker: broker.delete_reader("gone"))
    with pytest.raises(FailedPrecondition, match="reader 'gone' of this query was deleted"):
        TopicStreamReader(options(raw)).latestOffset(start, ReadAllAvailable())
    lenient = TopicStreamReader(options(raw, failOnDataLoss="false"))
    assert batches(lenient, start, ReadAllAvailable())[0] == [list(range(20))]
    assert readers(raw) == [ReaderInfo("gone", "raw", 20)]


def test_without_a_registered_reader_what_is_gone_is_an_error(raw):
    reader = TopicStreamReader(options(raw, registerReader="false"))
    start = reader.initialOffset()
    assert readers(raw) == []
    empty(raw)
    with pytest.raises(FailedPrecondition, match="from offset 0 on are no longer kept: the earliest offset is 20"):
        TopicStreamReader(options(raw)).latestOffset(start, ReadAllAvailable())


def test_a_start_that_is_gone_is_refused_and_leaves_no_reader_behind(raw):
    empty(raw)
    with pytest.raises(FailedPrecondition, match="the earliest offset is 20"):
        TopicStreamReader(options(raw, startingOffsets=3)).initialOffset()
    assert readers(raw) == []


def test_a_checkpoint_of_another_topic_or_of_a_topic_made_anew_is_refused(raw):
    start = TopicStreamReader(options(raw)).initialOffset()
    with pytest.raises(FailedPrecondition, match="belongs to another topic 'raw'"):
        TopicStreamReader(options(raw) | {"topic": "ordered"}).latestOffset(start, ReadAllAvailable())
    ask(raw, lambda broker: broker.delete_topic("raw"))
    make_topics(raw, "raw")
    with pytest.raises(FailedPrecondition, match="begin with a new checkpoint"):
        TopicStreamReader(options(raw)).latestOffset(start, ReadAllAvailable())


def test_a_store_older_than_the_checkpoint_is_refused(raw):
    start = TopicStreamReader(options(raw)).initialOffset() | {"offset": 21}
    with pytest.raises(FailedPrecondition, match="stands at offset 21 and topic 'raw' ends at 20"):
        TopicStreamReader(options(raw)).latestOffset(start, ReadAllAvailable())


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def file_url(tmp_path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    make_topics(url, "raw", "ordered")
    publish(url, "raw", range(8), range(8, 16), range(16, 20))
    return url


def test_spark_reads_a_topic_with_all_its_columns(spark, file_url):
    register(spark)
    frame = spark.read.format("seriatim").options(**options(file_url, rowsPerPartition=5)).load()
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.orderBy("offset").collect()
    assert [(row.key, bytes(row.data), row.attributes) for row in rows] == [
        tuple(one)[:3] for one in outgoing(range(20))
    ]
    assert [row.offset for row in rows] == list(range(20))
    assert {row.not_before for row in rows} == {None}
    assert [row.published.timestamp() for row in rows] == pytest.approx([r.published for r in stored(file_url, "raw")])
    assert frame.where("offset >= 15 AND key IS NULL").count() == 2


def test_a_stream_beside_a_live_engine_sees_what_it_publishes_and_goes_on_after_a_restart(spark, file_url, tmp_path):
    register(spark)
    got: list[list[int]] = []
    limit = {"maxRowsPerTrigger": 15} if SPARK >= (4, 2) else {}

    def run_once() -> None:
        stream = spark.readStream.format("seriatim").options(**options(file_url, **limit)).load()
        query = (
            stream.writeStream.foreachBatch(lambda frame, _: got.append([int(row.data) for row in frame.collect()]))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    with live_engine(file_url) as engine:
        run_once()
        assert got == ([list(range(15)), list(range(15, 20))] if limit else [list(range(20))])
        got.clear()
        engine(lambda broker: broker.publish("raw", outgoing(range(20, 30))))
        run_once()
        assert got == [list(range(20, 30))]
        (reader,) = engine(lambda broker: broker.list_readers())
    assert reader.position >= 20
