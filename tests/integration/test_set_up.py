"""The parts are there, and go together."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import functions as F  # noqa: N812


def test_the_session_runs_on_the_locked_spark(spark):
    assert spark.version == pyspark.__version__ == "4.1.3"


def test_kafka_takes_rows_and_gives_them_back(spark, kafka):
    rows = [(f"key-{number}".encode(), b"%d" % number) for number in range(10)]
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "set-up"}
    spark.createDataFrame(rows, "key BINARY, value BINARY").write.format("kafka").options(**options).save()
    read = spark.read.format("kafka").options(subscribe="set-up", **options).load()
    assert sorted((bytes(row.key), bytes(row.value)) for row in read.collect()) == rows


def test_kafka_keeps_what_it_acknowledged_when_it_is_killed(spark, kafka):
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "kept"}
    spark.createDataFrame([(b"a",)], "value BINARY").write.format("kafka").options(**options).save()
    kafka.kill()
    kafka.start()
    assert spark.read.format("kafka").options(subscribe="kept", **options).load().count() == 1


def test_avro_values_are_read_and_written(spark):
    from pyspark.sql.avro.functions import from_avro, to_avro

    schema = '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}'
    rows = spark.range(3).select(to_avro(F.struct(F.col("id").alias("n")), schema).alias("value"))
    assert [row.n for row in rows.select(from_avro("value", schema).alias("r")).select("r.n").collect()] == [0, 1, 2]


@pytest.mark.parametrize("table", ["delta_table", "lake.db.iceberg_table"])
def test_delta_and_iceberg_tables_are_written_and_read(spark, table):
    spark.range(3).writeTo(table).using("iceberg" if table.startswith("lake") else "delta").createOrReplace()
    assert sorted(row.id for row in spark.table(table).collect()) == [0, 1, 2]
