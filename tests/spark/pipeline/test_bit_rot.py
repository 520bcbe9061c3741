"""A parquet file of a table that a disk has changed: Spark notices, by the checksum that it keeps beside the file."""

from __future__ import annotations

import pytest

from seriatim.spark.pipeline.parquet_table import write_batch


def test_spark_refuses_a_file_of_a_table_in_which_a_bit_was_flipped(spark, tmp_path):
    frame = spark.createDataFrame([(number,) for number in range(1_000)], "n int").coalesce(1)
    write_batch(frame, tmp_path / "table", 0, writer="q")
    read = spark.read.parquet(str(tmp_path / "table"))
    assert read.count() == 1_000
    (file,) = (tmp_path / "table").glob("batch=*/*.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(Exception, match=r"(?i)checksum"):
        spark.read.parquet(str(tmp_path / "table")).collect()
