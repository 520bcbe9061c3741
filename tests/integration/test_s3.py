"""Checkpoint and state in a real S3 server: what is asked of it, what it turns away, and a driver that is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from seriatim.spark import held, repartition_state
from seriatim.spark.state.binding import read_binding
from seriatim.spark.state.files import ArrowFiles, files_at, location_for_tasks
from seriatim.spark.state.repartition import repartition
from tests.integration import connectors
from tests.integration.readings import IN_ORDER, REPEATED, as_files, numbers_by_device
from tests.maven import jars, spark_jars
from tests.s3_server import CHECKSUMS, KEY, REGION, SECRET, S3Server
from tests.spark.pipeline.crash_points import DRIVER, Blow
from tests.spark.pipeline.pipelines import rows_of
from tests.spark.pipeline.test_crash import Patient
from tests.spark.state.repartitioning import by_function
from tests.spark.state.test_batch_versions import Query, rows, state_path
from tests.test_docs import ROOT, blocks_of

PAGE = ROOT / "docs/how-to/use-an-object-store.md"
BUCKET = "plant"
MULTIPART_BYTES = 10 * 1024 * 1024
"""From this size on, pyarrow uploads an object in parts."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch, S3Server(tmp_path_factory.mktemp("s3")).running() as server:
        for name, value in CHECKSUMS.items():
            patch.setenv(name, value)
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(autouse=True)
def nothing_is_turned_away(s3: S3Server) -> Iterator[None]:
    yield
    s3.turn_away = 0


def spark_settings(s3: S3Server) -> dict[str, str]:
    """As the page has them, with the jars fetched."""
    return {
        "spark.jars": ",".join([spark_jars(*connectors.S3), *jars(*connectors.AWS)]),
        "spark.hadoop.fs.s3a.endpoint": f"http://{s3.endpoint}",
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
    }


def state_files(s3: S3Server, path: str) -> tuple[str, ArrowFiles]:
    """The address of a state as tasks get it, and its files."""
    location = location_for_tasks(f"s3a://{BUCKET}/{path}", spark_settings(s3).get)
    files = files_at(location)
    assert isinstance(files, ArrowFiles)
    return location, files


# -- state -------------------------------------------------------------------------------------------------------------


def test_files_are_objects_and_large_ones_arrive_whole(s3):
    _, files = state_files(s3, "files")
    large = Random(1).randbytes(3 * MULTIPART_BYTES)
    files.write("folder/small", b"0123456789")
    files.write("folder/large", large)
    files.write_new("folder/small", b"of an attempt that comes late")
    assert files.read("folder/small") == b"0123456789"
    assert files.read("folder/large") == large
    assert files.read_ends("folder/large", 3, 4) == large[:3] + large[-4:]
    assert files.read("folder/none") is None
    assert (files.names("folder"), files.names("none")) == (["large", "small"], [])
    files.delete("folder/small")
    assert files.names("folder") == ["large"]
    files.delete_folder("folder")
    assert files.names("folder") == []
    assert s3.count("PUT", f"{BUCKET}/files/folder/small") == 1
    assert s3.count("COPY", BUCKET) == 0


def test_a_large_state_goes_on_is_written_once_and_can_be_divided_anew(s3):
    location, files = state_files(s3, "large-state")
    keys = [Random(number).randbytes(32).hex() for number in range(100_000)]
    query, s3.turn_away = Query(files), 10
    query.run(0, [row for key in keys for row in rows(1, key=key)])
    version = files.read(state_path(0))
    assert version is not None
    assert len(version) > MULTIPART_BYTES
    before = len(s3.requests)
    assert query.run(1, rows(0, key=keys[7])) == [(keys[7], 0), (keys[7], 1)]
    asked = s3.requests[before:]
    assert query.run(1, rows(0, key=keys[7])) == [(keys[7], 0), (keys[7], 1)]  # the batch comes again
    again = s3.requests[before + len(asked) :]
    assert {one.method for one in again} == {"HEAD", "GET"}  # and its content is there
    assert {one.method for one in asked} == {"HEAD", "GET", "PUT"}
    assert s3.turned_away > 0

    repartition(location, 2, by_function(lambda found: np.arange(len(found)) % 2))
    parts = [Query(files, partitions=2).folder().read(number, 1).partition for number in range(2)]
    assert sum(part.tally.held for part in parts) == len(keys) - 1


def test_operations_on_a_state_use_the_keys_of_the_session(s3, spark, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_") and name not in CHECKSUMS]:
        monkeypatch.delenv(name)
    session, address = spark.newSession(), f"s3a://{BUCKET}/operated"
    for name, value in spark_settings(s3).items():
        if name.startswith("spark.hadoop."):
            session.conf.set(name, value)
    _, files = state_files(s3, "operated")
    Query(files).run(0, [row for key in "abc" for row in rows(2, key=key)])
    assert repartition_state(session, address, 3) == [0]
    found = held(session, address)
    assert {(row.key, row.seq, row["_first"], row["_last"]) for row in found.collect()} == {(k, 2, 0, 1) for k in "abc"}
    assert read_binding(files).partitions == 3  # type: ignore[union-attr]


# -- pipelines ---------------------------------------------------------------------------------------------------------

FILES = 8
LEDGER = """
[[sink]]
what = "ledger"
format = "parquet"
options = { path = "ledger" }
"""


@pytest.fixture(scope="module")
def readings(s3) -> None:
    """They are in the folder that the page reads, in several files."""
    for number, content in enumerate(as_files(FILES)):
        with s3.files().open_output_stream(f"{BUCKET}/raw/{number}.json") as file:
            file.write(content.encode())


def declare(s3: S3Server, folder: Path, *, checkpoint: str, more: str = "") -> Path:
    """The declaration of the page, without its settings, which differ in the jars."""
    (declaration,) = [block.body for block in blocks_of(PAGE) if block.file]
    text = declaration.partition("[spark]")[0] + more
    assert "checkpoints/readings" in text
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pipeline.toml"
    path.write_text(text.replace("checkpoints/readings", checkpoint))
    return path


@pytest.mark.timeout(400)
def test_the_page_about_object_stores_is_true_also_when_requests_are_turned_away(s3, readings, tmp_path, monkeypatch):
    """As the page has it, with the settings in the file and secrets in the environment."""
    (declaration,) = [block.body for block in blocks_of(PAGE) if block.file]
    packages = '"spark.jars.packages" = "org.apache.hadoop:hadoop-aws:3.4.2"'
    assert packages in declaration
    fetched = declaration.replace(packages, f'"spark.jars" = "{spark_settings(s3)["spark.jars"]}"')
    (tmp_path / "pipeline.toml").write_text(fetched)
    for name, value in {
        "S3_ENDPOINT": f"http://{s3.endpoint}",
        "S3_ACCESS_KEY": KEY,
        "S3_SECRET_KEY": SECRET,
        "AWS_ENDPOINT_URL": f"http://{s3.endpoint}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
    }.items():
        monkeypatch.setenv(name, value)
    s3.turn_away = 9
    command(tmp_path, "pipeline", "run", "pipeline.toml")
    s3.turn_away = 0
    assert numbers_by_device(rows_of(tmp_path / "ordered")) == IN_ORDER

    state = f"{BUCKET}/checkpoints/readings-state"
    versions = [info for info in s3.files().get_file_info(under(state)) if info.base_name.endswith(".state")]
    puts = s3.count("PUT", state)
    assert len(versions) == 2 * FILES
    assert len(versions) <= puts <= len(versions) + 3 + s3.turned_away  # the binding, perhaps by both tasks
    assert s3.count("COPY", state) == s3.count("DELETE", state) == 0
    shown = json.loads(command(tmp_path, "pipeline", "state", "info", f"s3://{state}", "--json"))
    assert len(shown["partitions"]) == 2


def under(path: str) -> Any:
    from pyarrow import fs

    return fs.FileSelector(path, recursive=True)


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "seriatim", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


KILLED_AT = (
    "before-state-write",
    "after-state-write",
    "before-first-sink",
    "between-sinks",
    "after-sinks",
    "after-commit",
)


@pytest.mark.timeout(900)
def test_a_driver_killed_at_the_named_points_writes_what_an_undisturbed_one_writes(s3, readings, tmp_path):
    settings = spark_settings(s3)
    killed = Patient(declare(s3, tmp_path / "killed", checkpoint="killed", more=LEDGER), settings)
    for batch, point in enumerate(KILLED_AT, 1):
        killed.live(Blow(DRIVER, point, batch))
    killed.live_to_the_end()
    Patient(declare(s3, tmp_path / "undisturbed", checkpoint="undisturbed", more=LEDGER), settings).live_to_the_end()
    out, expected = (
        {table: rows_of(tmp_path / name / table) for table in ("ordered", "ledger")}
        for name in ("killed", "undisturbed")
    )
    assert out == expected
    assert numbers_by_device(out["ordered"]) == IN_ORDER
    assert len(out["ledger"]) == REPEATED
