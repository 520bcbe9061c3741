"""Figures of benchmarks come from runs on record, with their date, commit, machine and every reading."""

from __future__ import annotations

import json
import re
import sys
from types import FrameType

import pytest

from bench import profiles, record
from bench.record import Recorder, Run
from tests.proof import tree_at_work

RUN = Run(
    name="core",
    date="2026-11-18T01:02:03+00:00",
    commit="abc1234",
    command="python -m bench.core --record",
    machine="2 × a processor",
    load=[0.1, 0.9],
    rows=[{"work": "a | b", "rate": 1234.5678, "count": 1000}],
    readings={"a": [1.0, 2.0]},
)
PAGE = "before\n<!-- benchmark: core -->\nold\n<!-- end of benchmark -->\nafter"


@pytest.mark.parametrize("page", record.PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_newest_run_on_record(page):
    text = page.read_text(encoding="utf-8")
    assert record.rewrite(text, record.runs()) == text, "stale figures: run 'make docs'"


def test_every_benchmark_with_a_block_is_made_by_a_command_and_has_one_block():
    blocks = [
        match["name"] for page in record.PAGES for match in record.BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]
    targets = re.findall(
        r"^bench(?:-ordering)?:.*\n((?:\t.*\n)+)", (record.ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert sorted(blocks) == sorted(re.findall(r"-m bench\.(\w+)", "".join(targets)))


def test_a_page_says_what_was_run_when_where_and_shows_its_rows():
    later = Run(**{**vars(RUN), "date": "2026-11-19T00:00:00+00:00", "commit": "def5678"})
    shown = record.rewrite(PAGE, [RUN, later])
    assert shown.startswith("before\n")
    assert shown.endswith("\nafter")
    assert (
        "2026-11-19 00:00 UTC at commit def5678: 2 × a processor; load 0.1 at the beginning and 0.9 at the end" in shown
    )
    assert "docs/benchmarks/core-20261119T000000.json" in shown
    assert "| work | rate | count |\n|---|--:|--:|\n| a \\| b | 1,234.57 | 1,000 |" in shown


def test_a_page_says_when_a_commit_was_joined_into_a_later_one_and_names_the_tree():
    assert "at commit abc1234 (joined): 2 ×" in record.rewrite(PAGE, [RUN])
    assert "it was joined into a later one or rebased" in record.rewrite(PAGE, [RUN])
    later = Run(**{**vars(RUN), "date": "2026-11-18T23:30:00+00:00", "tree": "fed9876"})
    shown = record.rewrite(PAGE, [RUN, later])
    assert "at commit abc1234, `src` fed9876: 2 ×" in shown
    assert "joined" not in shown


def test_what_a_page_works_out_comes_from_the_newest_run():
    page = "<!-- worked out: spark_state -->\nold\n<!-- end of worked out -->\nafter"
    assert "`python -m bench.spark_state --record` writes one" in record.rewrite(page, [])
    of_many = {"keys": 1_000_000, "batch_rows": 1_000, "median_batch_ms": 31.2, "median_pages_read": 5_000}
    of_many |= {"first_version_seconds": 2.87, "bytes_per_key": 25.0, "bytes_per_changed_key": 122.0}
    run = Run(**{**vars(RUN), "name": "spark_state", "rows": [{**of_many, "keys": 10, "bytes_per_key": 99.0}, of_many]})
    shown = record.rewrite(page, [run])
    assert shown.endswith("<!-- end of worked out -->\nafter")
    assert "| disk, one full version | 25 bytes | 2.5 GB |" in shown
    assert "| 5.0 pages of 4 KiB | mapped pages, which the system may drop: 20 MB of one partition |" in shown
    assert "| 122 bytes | 100,000 keys per batch: 12 MB |" in shown


def test_what_was_not_measured_is_a_dash():
    run = Run(**{**vars(RUN), "rows": [{"work": "a nan", "server": "nan + nan", "banana": "1.00 + 2.00"}]})
    assert "| a – | – | 1.00 + 2.00 |" in record.rewrite(PAGE, [run])


def test_a_page_shows_the_picture_of_a_run_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "IMAGES", tmp_path)
    assert "![" not in record.rewrite(PAGE, [RUN])
    (tmp_path / "core.svg").write_text("<svg/>")
    assert record.rewrite(PAGE, [RUN]).endswith("(../images/core.svg)\n<!-- end of benchmark -->\nafter")


def test_without_a_run_a_page_says_how_to_make_one():
    assert "`python -m bench.core --record` writes one" in record.rewrite(PAGE, [])


def test_a_run_is_written_with_its_machine_load_and_readings(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench", "--rounds", "5", "--record"])
    path = Recorder("core").write([{"work": "a", "rate": 1.5}], {"a": [1.5, 2.5]}, tmp_path)
    (run,) = record.runs(tmp_path)
    assert json.loads(path.read_text())["readings"] == {"a": [1.5, 2.5]}
    assert run.command == "python -m bench.core --rounds 5 --record"
    assert "Python 3." in run.machine
    assert len(run.load) == 2
    assert run.tree == tree_at_work()
    assert record._file(run) == path.name


def test_figures_of_a_quick_run_are_not_recorded(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--record"])
    with pytest.raises(SystemExit, match="not for a record"):
        Recorder("core")


@pytest.mark.parametrize(
    ("place", "layer"),
    [
        ("/x/src/seriatim/engine/outcomes.py", "engine"),
        ("/x/src/seriatim/core/lanes/lanes.py", "core"),
        ("/x/src/seriatim/log.py", "other"),
        ("/lib/python3.11/asyncio/base_events.py", "asyncio"),
        ("/x/bench/profiles.py", "the benchmark"),
        ("/lib/python3.11/selectors.py", None),
        ("/lib/python3.11/queue.py", None),
    ],
)
def test_a_sample_of_a_profile_belongs_to_the_layer_that_the_thread_is_in(place, layer):
    found: dict[str, FrameType] = {}
    exec(compile("import sys; frame = sys._getframe()", place, "exec"), found)
    assert profiles.layer_of(found["frame"]) == layer


def test_what_a_layer_calls_in_the_standard_library_is_its_own():
    found: dict[str, FrameType] = {}
    inner = compile("import sys; frame = sys._getframe()", "/lib/python3.11/json/encoder.py", "exec")
    exec(compile("exec(inner, found)", "/x/src/seriatim/store/sql/rows.py", "exec"), {"inner": inner, "found": found})
    assert profiles.layer_of(found["frame"]) == "store"
