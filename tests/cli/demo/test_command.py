"""``seriatim demo``, as it runs where Spark is not installed. The whole of it is in tests/e2e/test_demo.py."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest

from seriatim.core.traces import TraceChecker

SMALL = ["demo", "--without-spark", "--quick", "--devices", "7", "--messages", "60", "--drop", "0.05"]


def test_disordered_readings_become_strict_and_everything_is_accounted_for(seriatim):
    report = json.loads(seriatim(*SMALL, "--json").stdout)
    before, after, ledger = report["before"], report["after"], report["ledger"]
    assert before["guarantee"] == "none"
    assert before["reordered"] > 0
    assert after["guarantee"] == "strict"
    assert (after["duplicates"], after["reordered"]) == (0, 0)
    assert report["published"] == report["delivered"] + ledger["duplicate"]
    assert report["sent"] == 420 == report["delivered"] + ledger["lost"]
    assert report["most_in_flight_per_device"] == 1
    assert report["redeliveries"] > 0
    assert report["discrepancies"] == []


def test_a_perfect_network_gives_absolute_order_and_an_empty_ledger(seriatim):
    report = json.loads(seriatim(*SMALL, "--drop", "0", "--duplicate", "0", "--shuffle", "0", "--json").stdout)
    assert report["before"] == report["after"]
    assert report["after"]["guarantee"] == "absolute"
    assert report["ledger"] == {}


def test_the_same_seed_gives_the_same_report_and_another_seed_another(seriatim):
    reports = [json.loads(seriatim(*SMALL, "--json", "--seed", seed).stdout) for seed in ("5", "5", "6")]
    folders = [report.pop("folder") for report in reports]
    assert folders == ["seriatim-demo", "seriatim-demo-2", "seriatim-demo-3"]
    assert reports[0] == reports[1] != reports[2]


def test_the_story_shows_both_sides_the_sums_and_where_the_store_is(seriatim, tmp_path):
    result = seriatim(*SMALL, "--folder", "here")
    lines = result.stdout.splitlines()
    assert [line.split()[-2:] for line in lines if line.startswith("order per device")] == [["none", "strict"]]
    assert sum(line.startswith("✓") for line in lines) == 3
    assert "here/demo.db" in lines[-1]
    assert (tmp_path / "here" / "demo.db").is_file()


def test_where_nobody_looks_each_step_is_a_line(seriatim):
    lines = seriatim(*SMALL).stderr.splitlines()
    assert "devices send to raw ..." in lines
    assert any(line.startswith("put in order: done, 420, ") for line in lines)


def test_what_does_not_add_up_is_a_failure_that_says_what(seriatim, monkeypatch):
    class Blind(TraceChecker):
        def observe(self, sequence):
            super().observe(1)

    monkeypatch.setattr("seriatim.demo.subscribers.TraceChecker", Blind)
    result = seriatim(*SMALL)
    assert result.exit_code == 1
    assert "✗ by number, the subscribers saw no strict order" in result.stdout
    assert "✗ 420 sent" not in result.stdout
    assert "the accounts don't add up" in result.stderr


def test_without_the_extra_it_runs_all_the_same_and_says_what_is_missing(seriatim, monkeypatch):
    monkeypatch.setattr("seriatim.cli.demo.command.is_installed", lambda module: module != "pyspark")
    result = seriatim(*(option for option in SMALL if option != "--without-spark"))
    assert result.exit_code == 0
    assert "pip install 'seriatim[spark]'" in result.stderr


@pytest.mark.parametrize("wrong", [["--drop", "1.5"], ["--devices", "0"], ["--shuffle", "-1"], ["--messages", "2"]])
def test_a_wrong_value_is_a_usage_error(seriatim, wrong):
    assert seriatim("demo", *wrong).exit_code == 2


def test_a_folder_with_something_in_it_is_left_alone(seriatim, tmp_path):
    result = seriatim(*SMALL, "--folder", str(tmp_path.parent))
    assert result.exit_code == 1
    assert "already exists" in result.stderr


def test_ctrl_c_ends_it_says_so_and_leaves_the_store_to_others(start, told):
    process = start("demo", "--without-spark", "--messages", "4000")
    assert process.stderr is not None
    while b"..." not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"stopped; the results so far are in 'seriatim-demo'" in said
    assert b"Traceback" not in said
    topics = told("topics", "list", "--store", "sqlite:///seriatim-demo/demo.db")
    assert {topic["topic"] for topic in topics} == {"raw", "ordered"}


def test_the_console_shows_the_demo_until_ctrl_c(start):
    process = start(*SMALL, "--console")
    assert process.stderr is not None
    said: list[str] = []
    while not said or "stays open" not in said[-1]:
        said.append(process.stderr.readline().decode())
        assert said[-1], said
    url = next(line for line in said if line.startswith("Console at ")).split()[-1]
    address, _, token = url.partition("/login?token=")
    asked = urllib.request.Request(f"{address}/api/v1/overview", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert json.load(answer)["deliveries"]["acked"] > 300
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
