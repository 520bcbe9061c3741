"""Spark Connect: what works with a real server, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.connect_child import SCENARIOS
from tests.integration.connect_server import ROOT, running_server
from tests.integration.readings import IN_ORDER, as_files, numbers_by_device
from tests.spark.pipeline.pipelines import rows_of
from tests.test_docs import blocks_of

PAGE = ROOT / "docs/how-to/use-spark-connect.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", [one.__name__ for one in SCENARIOS])
def test_on_spark_connect(scenario, server, tmp_path):
    command = [sys.executable, "-m", "tests.integration.connect_child", scenario, server, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.timeout(300)
def test_the_program_of_the_page_puts_readings_in_order(server, tmp_path):
    (program,) = [block for block in blocks_of(PAGE) if block.file]
    assert program.file == "readings.py"
    path = tmp_path / program.file
    path.write_text(program.body)
    (tmp_path / "raw").mkdir()
    for number, content in enumerate(as_files(2), 1):
        file = tmp_path / "raw" / f"{number}.json"
        file.write_text(content)
        os.utime(file, (number, number))
        done = subprocess.run(
            [sys.executable, str(path), server, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-6000:]
    by_batch = sorted(rows_of(tmp_path / "readings"), key=lambda row: (row["batch"], row["_position"]))
    assert {row["batch"] for row in by_batch} == {"batch=0", "batch=1"}
    assert numbers_by_device(by_batch) == IN_ORDER
