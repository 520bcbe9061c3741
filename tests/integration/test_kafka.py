"""Declared pipelines from Kafka to Kafka, with a real broker and Spark's own connector."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from seriatim import Message, PubSub
from seriatim.errors import FailedPrecondition, GuaranteeNotMet
from seriatim.spark.pipeline import load
from tests.integration import connectors
from tests.integration.kafka_topics import Record, Topics, by_key
from tests.maven import spark_jars
from tests.spark.pipeline.crash_points import DRIVER, Blow
from tests.spark.pipeline.test_crash import Patient
from tests.test_docs import ROOT, blocks_of

PAGE = ROOT / "docs/how-to/use-kafka-in-a-pipeline.md"
DEVICES = [b"\xff\x00pump", b"fan", "Pumpe № 3".encode()]
MESSAGES = 40
DECLARATION = """
[pipeline]
name = "readings"
checkpoint = "work/readings"
trigger = "available-now"

[source]
format = "kafka"
select = ["key AS device", "{number} AS n", "offset", "value", "headers"]

[source.options]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "{source}"
includeHeaders = true
{options}

[order]
key = "device"
sequence = "n"
start = 1
partitions = 2

[[sink]]
format = "kafka"
options = {{ kafka.bootstrap.servers = "{bootstrap}", topic = "{target}" }}

[[sink]]
what = "ledger"
format = "kafka"
options = {{ kafka.bootstrap.servers = "{bootstrap}", topic = "{target}-ledger" }}
"""
JSON_NUMBER = "CAST(get_json_object(CAST(value AS STRING), '$.n') AS BIGINT)"


@pytest.fixture(scope="module")
def topics(spark, kafka) -> Topics:
    return Topics(spark, kafka.bootstrap)


def declare(folder: Path, **words: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pipeline.toml"
    path.write_text(DECLARATION.format_map({"number": JSON_NUMBER, "options": "", **words}), encoding="utf-8")
    return path


def run(spark, path: Path) -> None:
    assert load(path).begin(spark).wait(300)


def disordered(random: Random) -> list[tuple[bytes, bytes]]:
    """What every device sent, a little shuffled, some of it twice."""
    sent = [(device, number) for number in range(1, MESSAGES + 1) for device in DEVICES]
    sent += random.sample(sent, len(sent) // 10)
    sent.sort(key=lambda one: one[1] + random.uniform(0, 10))
    return [(device, reading(number)) for device, number in sent]


def reading(number: int) -> bytes:
    return json.dumps({"n": number}).encode()


IN_ORDER = {device: [reading(number) for number in range(1, MESSAGES + 1)] for device in DEVICES}


def only_new(records: list[Record]) -> Iterator[Record]:
    """The records as the reader of the how-to sees them."""
    (source,) = [block.body for block in blocks_of(PAGE) if block.language == "python"]
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return (record for record in records if namespace["is_new"](record.partition, record.headers))


def test_readings_of_several_topics_and_partitions_leave_in_order_with_their_bytes_and_headers(
    spark, topics, kafka, tmp_path
):
    topics.make(3, "two-a", "two-b", "two", "two-ledger")
    sent = disordered(Random(1))
    topics.publish("two-a", sent[::2], colour=b"red")
    topics.publish("two-b", sent[1::2], colour=b"blue")
    path = declare(tmp_path, source="two-a,two-b", target="two", bootstrap=kafka.bootstrap)
    run(spark, path)
    written = topics.read("two")
    assert by_key(written) == IN_ORDER
    assert {record.headers["colour"] for record in written} == {"red", "blue"}
    assert len({(record.writer, record.place) for record in written}) == len(written)
    assert {record.writer[0].rpartition(":")[2] for record in written} == {"ordered"}
    ledger = [json.loads(record.value) for record in topics.read("two-ledger")]
    assert [entry["_reason"] for entry in ledger] == ["duplicate"] * (len(sent) - len(DEVICES) * MESSAGES)

    topics.publish("two-b", [(device, reading(MESSAGES + 1)) for device in DEVICES])
    run(spark, path)
    assert [len(values) for values in by_key(topics.read("two")).values()] == [MESSAGES + 1] * len(DEVICES)


def test_the_page_about_kafka_is_true(spark, topics, kafka, tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA", kafka.bootstrap)
    topics.make(2, "readings", "readings-retried", "readings-ordered", "readings-ledger")
    sent = disordered(Random(2))
    topics.publish("readings", sent[10:])
    topics.publish("readings-retried", sent[:10])
    (declaration,) = [block for block in blocks_of(PAGE) if block.file]
    (tmp_path / "kafka.toml").write_text(declaration.body)
    run(spark, tmp_path / "kafka.toml")
    assert by_key(list(only_new(topics.read("readings-ordered")))) == IN_ORDER


def test_avro_values_are_read_and_written_as_the_page_says(spark, topics, kafka, tmp_path, monkeypatch):
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.avro.functions import from_avro, to_avro

    monkeypatch.setenv("KAFKA", kafka.bootstrap)
    topics.make(2, "avro", "avro-retried", "avro-ordered", "avro-ledger")
    schema = '{"type": "record", "name": "sample", "fields": [{"name": "n", "type": "long"}]}'
    numbers = spark.createDataFrame([(b"fan", n) for n in (3, 1, 2)], "key BINARY, n BIGINT")
    rows = numbers.select("key", to_avro(F.struct("n"), schema).alias("value")).collect()
    topics.publish("avro", [(bytes(row.key), bytes(row.value)) for row in rows])

    (declaration,) = [block.body for block in blocks_of(PAGE) if block.file]
    (fragment,) = [block.body for block in blocks_of(PAGE) if "from_avro" in block.body]
    read, written = fragment.removeprefix("[source]\n").split("[[sink]]\n")
    sink = 'options = { kafka.bootstrap.servers = "${KAFKA}", topic = "readings-ordered" }\n'
    assert schema in read
    assert sink in declaration
    path = tmp_path / "avro.toml"
    declaration = declaration.replace(sink, f"{sink}\n{written}\n")
    declaration = re.sub(r"select = \[.*?\n\]\n", lambda _: read, declaration, flags=re.DOTALL)
    path.write_text(declaration.replace("readings", "avro"))
    run(spark, path)
    out = spark.createDataFrame([(record.value,) for record in topics.read("avro-ordered")], "value BINARY")
    assert [row.n for row in out.select(from_avro("value", schema).alias("r")).select("r.n").collect()] == [1, 2, 3]


def test_offsets_that_are_gone_stop_a_pipeline_unless_it_is_told_to_go_on(spark, topics, kafka, tmp_path):
    topics.make(1, "gone", "gone-ordered", "gone-ordered-ledger")
    topics.publish("gone", [(b"fan", reading(number)) for number in (1, 2)])
    words = {"source": "gone", "target": "gone-ordered", "bootstrap": kafka.bootstrap}
    path = declare(tmp_path, **words)
    run(spark, path)
    topics.publish("gone", [(b"fan", reading(number)) for number in (3, 4, 5)])
    topics.remove_before("gone", 0, 4)
    with pytest.raises(FailedPrecondition, match="failOnDataLoss"):
        run(spark, path)
    declare(tmp_path, options="failOnDataLoss = false", **words)
    assert "goes on without what was removed unread" in "\n".join(load(path).explain().describe())
    run(spark, path)
    assert by_key(topics.read("gone-ordered")) == {b"fan": [reading(1), reading(2)]}  # 5 waits for 3 and 4

    topics.publish("gone", [(b"fan", reading(number)) for number in (3, 4)])
    run(spark, path)
    assert by_key(topics.read("gone-ordered")) == {b"fan": [reading(number) for number in range(1, 6)]}


def test_a_pipeline_into_kafka_promises_no_order(tmp_path):
    path = declare(tmp_path, source="a", target="b", bootstrap="nowhere")
    path.write_text(path.read_text().replace("[pipeline]", '[pipeline]\nrequire = "strict"'))
    with pytest.raises(GuaranteeNotMet, match="-partition, -batch and -position"):
        load(path).explain().require()


def by_task(records: list[Record]) -> dict[tuple[int, str], list[tuple[bytes, tuple[int, int]]]]:
    """What each partition of the state has written to each partition of Kafka; several write at the same time."""
    found: dict[tuple[int, str], list[tuple[bytes, tuple[int, int]]]] = {}
    for record in records:
        found.setdefault((record.partition, record.writer[1]), []).append((record.value, record.place))
    return found


KILLED_AT = (
    "before-state-write",
    "after-state-write",
    "before-first-sink",
    "between-sinks",
    "after-sinks",
    "after-commit",
)


@pytest.mark.timeout(900)
def test_a_driver_killed_at_the_named_points_leaves_repeats_that_are_told_and_nothing_else(
    spark, topics, kafka, tmp_path
):
    topics.make(2, "kill", "killed", "killed-ledger", "undisturbed", "undisturbed-ledger")
    asyncio.run(handled_by_a_subscription(kafka.bootstrap, "killed", is_new=True))
    topics.publish("kill", disordered(Random(3)))
    rows_a_batch = 16  # nine batches
    words = {"source": "kill", "bootstrap": kafka.bootstrap, "options": f"maxOffsetsPerTrigger = {rows_a_batch}"}
    patient = Patient(
        declare(tmp_path / "killed", target="killed", **words), {"spark.jars": spark_jars(*connectors.KAFKA)}
    )
    for batch, point in enumerate(KILLED_AT, 1):
        patient.live(Blow(DRIVER, point, batch))
    run(spark, tmp_path / "killed" / "pipeline.toml")
    run(spark, declare(tmp_path / "undisturbed", target="undisturbed", **words))

    killed, undisturbed = topics.read("killed"), topics.read("undisturbed")
    unrepeated = list(only_new(killed))
    assert by_key(unrepeated) == by_key(undisturbed) == IN_ORDER
    assert by_task(unrepeated) == by_task(undisturbed)
    repeated = {record.place[0] for record in killed if killed.count(record) > 1}
    assert repeated == {4, 5}  # what was written when the driver died between the sinks, and after them
    assert len(killed) == len(undisturbed) + sum(record.place[0] in repeated for record in undisturbed)
    ledgers = [list(only_new(topics.read(f"{topic}-ledger"))) for topic in ("killed", "undisturbed")]
    assert [len(ledger) for ledger in ledgers] == [len(DEVICES) * MESSAGES // 10] * 2
    assert asyncio.run(handled_by_a_subscription(kafka.bootstrap, "killed")) == IN_ORDER


async def handled_by_a_subscription(bootstrap: str, topic: str, *, is_new: bool = False) -> dict[bytes, list[bytes]]:
    """What a subscription of ours handles of a topic, by key."""
    handled: dict[bytes, list[bytes]] = {}

    def handle(message: Message) -> None:
        key = (message.ordering_key or "").encode("utf-8", "surrogateescape")
        handled.setdefault(key, []).append(message.data)
        message.ack()

    async with asyncio.timeout(120), PubSub(f"kafka://{bootstrap}") as pubsub:
        subscription = await pubsub.topic(topic).subscription("reader").ensure()
        if not is_new:
            subscription.on("message", handle)
            subscription.open()
            await subscription.wait_until_empty()
    return handled
