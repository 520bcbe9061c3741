"""State, checkpoints and a table as an earlier version left them, and the rows with which their queries go on.

``written_before.tar.gz`` was made by ``make``, with the code as it was before Spark's modules were put into folders. It
has a declared pipeline (its checkpoint, its state and its two tables) and a stream of edge nodes (checkpoint and state). Both
were stopped while they waited for a message. A checkpoint names the files that were read by their whole paths, so the
folder in which it was made is written as ``ROOT`` there.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seriatim.spark import order_nodes
from seriatim.spark.pipeline import load
from tests.spark.edge_nodes.captures import SCHEMA, Captured
from tests.spark.frames.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path(__file__).with_suffix(".tar.gz")
ROOT = "/ROOT/OF/THE/SAMPLE"

DECLARATION = """
[pipeline]
name = "telemetry"
checkpoint = "work/telemetry"
trigger = "available-now"

[source]
format = "json"
schema = "device string, n bigint, at double"
options = { path = "in", maxFilesPerTrigger = 1 }

[order]
key = "device"
sequence = "n"
arrival = "at"
start = 1
gap_timeout = "60s"
partitions = 2

[[sink]]
format = "parquet"
options = { path = "ordered" }

[[sink]]
what = "ledger"
format = "parquet"
options = { path = "ledger" }
"""
DEVICE_ROWS = [("a", 1, 1.0), ("b", 1, 1.0)], [("a", 3, 2.0), ("a", 1, 3.0), ("b", 2, 3.0)]
DEVICE_ROWS_AFTER = [("a", 2, 4.0), ("b", 3, 4.0)]

NODE_ROWS = (
    [
        Captured("pump", "NBIRTH", 0, 7, 100, None, 1.0, "birth"),
        Captured("fan", "NBIRTH", 0, 3, 100, None, 1.0, "fan birth"),
    ],
    [Captured("pump", "NDATA", 2, None, 102, None, 2.0, "data 2")],
)
NODE_ROWS_AFTER = [Captured("pump", "NDATA", 1, None, 101, None, 3.0, "data 1")]


def devices(spark: SparkSession, root: Path) -> Stream:
    """The pipeline's input; the pipeline itself is in the file beside it."""
    return Stream(spark, root / "devices", schema="device string, n bigint, at double")


def run_pipeline(spark: SparkSession, root: Path) -> None:
    assert load(root / "devices" / "pipeline.toml").begin(spark).wait(120)


def nodes(spark: SparkSession, root: Path) -> Stream:
    options: dict[str, Any] = {"partitions": 2, "reorder_timeout": "60s"}
    return Stream(spark, root / "nodes", options, SCHEMA, orders=order_nodes, defaults={})


def make(spark: SparkSession, root: Path) -> None:
    """Run both queries as far as the sample has them, and pack what they left."""
    for name in ("devices", "nodes"):
        (root / name).mkdir(parents=True)
    (root / "devices" / "pipeline.toml").write_text(DECLARATION)
    source = devices(spark, root)
    for rows in DEVICE_ROWS:
        source.add(rows)
    run_pipeline(spark, root)
    stream = nodes(spark, root)
    for messages in NODE_ROWS:
        stream.add(messages)
    stream.run()
    for path in _checkpoint_files(root):
        path.write_text(path.read_text().replace(str(root), ROOT))
    with tarfile.open(ARCHIVE, "w:gz") as archive:
        archive.add(root, arcname="", filter=_anonymous)


def unpack(root: Path) -> None:
    """The folder as it was left, as if it had always been here."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(root, filter="data")
    for path in _checkpoint_files(root):
        path.write_text(path.read_text().replace(ROOT, str(root)))
    for folder in ("devices", "nodes"):  # files are read in the order of their times
        for number, path in enumerate(sorted((root / folder / "in").iterdir()), 1):
            os.utime(path, (number, number))


def _checkpoint_files(root: Path) -> list[Path]:
    """The logs of Spark's file sources, without the checksums beside them, which are no longer right."""
    folders = [root / "devices/work/telemetry/sources", root / "nodes/checkpoint/sources"]
    for folder in folders:
        for checksum in folder.rglob(".*.crc"):
            checksum.unlink()
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.name.endswith(".crc") or entry.name.endswith("/lock"):
        return None
    entry.uname = entry.gname = ""
    entry.uid = entry.gid = entry.mtime = 0
    return entry
