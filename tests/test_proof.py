"""Records of runs, and the page that is written from them."""

from __future__ import annotations

import pytest

from bench.record import runs
from docs.proof_page import BLOCK, PAGE, SHOWN_RUNS, rewrite
from tests.proof import ROOT, Figure, counted, git, is_joined, read_records, tree_at_work, write_record
from tests.simulation.take_outs import read_entries


def _page_of(*kinds: str) -> str:
    return "".join(f"<!-- records: {kind} -->\nold\n<!-- end of records -->\n" for kind in kinds)


def test_the_page_shows_the_records_that_are_there():
    text = PAGE.read_text()
    assert rewrite(text, read_records()) == text, "stale figures: run 'make docs'"


def test_every_kind_of_run_has_its_place():
    assert [match["kind"] for match in BLOCK.finditer(PAGE.read_text())] == [
        "simulation",
        "exhaustive",
        "nemesis",
        "mutation",
        "powerloss",
        "bitrot",
        "fuzz",
        "soak",
        "kafka",
    ]


def test_figures_of_one_kind_are_added_up_and_findings_are_listed_once(tmp_path):
    write_record(
        "nemesis",
        command="a",
        seconds=1800,
        figures={"rounds, sqlite": 3, "kills": 7},
        found=["A hang."],
        folder=tmp_path / "1",
    )
    write_record(
        "nemesis",
        command="b",
        seconds=1800,
        figures={"kills": 5, "mode": "x"},
        found=["A hang."],
        folder=tmp_path / "2",
    )
    records = [*read_records(tmp_path / "1"), *read_records(tmp_path / "2")]
    page = rewrite(_page_of("nemesis", "mutation"), records)
    assert "2 runs, 1.0 hours; 3 rounds (sqlite), 12 kills." in page
    assert "Left out" not in page
    assert page.count("- A hang.") == 1
    assert "No run of this kind is on record yet." in page
    assert "old" not in page


def test_that_nothing_was_objected_to_is_said(tmp_path):
    write_record("kafka", command="a", seconds=60, figures={"kills": 7, "anomalies": 0, "cuts": 0}, folder=tmp_path)
    assert "**In all**: 1 run, 0.0 hours; 7 kills, 0 anomalies." in rewrite(_page_of("kafka"), read_records(tmp_path))


def test_only_the_latest_runs_and_the_latest_table_of_a_command_are_shown(tmp_path):
    for number in range(SHOWN_RUNS + 2):
        table: list[dict[str, Figure]] = [{"module": f"row {number}", "mutants": number}]
        write_record(
            "mutation", command="a", seconds=1, figures={"mutants": 1}, table=table, folder=tmp_path / f"{number:02}"
        )
    records = [record for folder in sorted(tmp_path.iterdir()) for record in read_records(folder)]
    page = rewrite(_page_of("mutation"), records)
    assert f"{SHOWN_RUNS + 2} runs, " in page
    assert page.count("| `a` |") == SHOWN_RUNS
    assert page.count("| row ") == 1
    assert f"| row {SHOWN_RUNS + 1} |" in page


def test_mutants_are_counted_as_the_latest_run_of_each_command_found_them(tmp_path):
    for number, (command, mutants) in enumerate([("core", 100), ("core", 7), ("engine", 5)]):
        write_record(
            "mutation", command=command, seconds=3600, figures={"mutants": mutants}, folder=tmp_path / str(number)
        )
    records = [record for folder in sorted(tmp_path.iterdir()) for record in read_records(folder)]
    assert "3 runs, 2.0 hours; 12 mutants." in rewrite(_page_of("mutation"), records)


def test_worlds_are_added_up_for_each_machine_as_it_was_run_last(tmp_path):
    def world(machine: str, name: str, states: int) -> dict[str, Figure]:
        figures = {"states": states, "transitions": 2 * states, "refused": 1, "depth": 9, "seconds": 30.0}
        return {"machine": machine, "world": name, **figures}

    tables = [[world("lanes", "old", 1), world("pipes", "p", 5)], [world("lanes", "a", 10), world("lanes", "b", 20)]]
    for number, table in enumerate(tables):
        write_record(
            "exhaustive", command=f"{number}", seconds=1, figures={}, table=table, folder=tmp_path / str(number)
        )
    page = rewrite(_page_of("exhaustive"), [*read_records(tmp_path / "0"), *read_records(tmp_path / "1")])
    assert "The latest run of each machine: 3 worlds, 35 states, 70 transitions, 3 commands refused." in page
    lanes, pipes = [
        [cell.strip() for cell in line.split("|")] for line in page.splitlines() if " 1 | " in line or "lanes" in line
    ]
    assert [lanes[1], *lanes[3:-1]] == ["lanes", "2", "30", "60", "2", "1", "20", "b"]
    assert [pipes[1], *pipes[3:-1]] == ["pipes", "1", "5", "10", "1", "0.5", "5", "p"]


def test_mends_are_shown_as_they_were_run_last_and_counted_once(tmp_path):
    def mend(name: str, seed: Figure) -> dict[str, Figure]:
        return {"mend or planted fault": name, "seed": seed, "steps": 1, "seen": "hangs"}

    tables = [[mend("A1", "-"), mend("A2", "-")], [mend("A1", 7), mend("A3", "test")]]
    for number, table in enumerate(tables):
        figures = {"planted faults": len(table)}
        write_record(
            "simulation", command=f"{number}", seconds=1, figures=figures, table=table, folder=tmp_path / str(number)
        )
    page = rewrite(_page_of("simulation"), [*read_records(tmp_path / "0"), *read_records(tmp_path / "1")])
    assert (
        "planted faults**: 3. The simulation found 1; 1 are out of its reach and found by a test; 1 were missed."
        in page
    )
    entries = read_entries()
    assert f"{len(entries)} more have no run on record yet: {entries[0]['name']}; " in page
    assert page.count("| A1 | 7 | 1 | hangs |") == page.count("| A1 |") == 1


def test_what_a_run_left_out_is_no_finding(tmp_path):
    write_record(
        "nemesis", command="a", seconds=1, figures={}, left_out=["slow disk: strace is missing"], folder=tmp_path
    )
    page = rewrite(_page_of("nemesis"), read_records(tmp_path))
    assert "**Found**: nothing.\n\n**Left out** of some of these runs:\n\n- slow disk: strace is missing\n" in page


@pytest.mark.parametrize(
    ("count", "things", "said"),
    [
        (2, "stops", "2 stops"),
        (1, "stops", "1 stop"),
        (1, "rounds (pipeline)", "1 round (pipeline)"),
        (1, "confirmed publishes", "1 confirmed publish"),
        (1, "processes", "1 process"),
        (1, "deliveries", "1 delivery"),
        (1, "slow disks", "1 slow disk"),
        (1, "survivors not explained", "1 survivor not explained"),
        (1.0, "virtual hours", "1 virtual hour"),
        (1200, "events", "1,200 events"),
    ],
)
def test_one_thing_is_named_in_the_singular(count, things, said):
    assert counted(count, things) == said


def test_a_run_with_a_table_shows_its_rows(tmp_path):
    rows: list[dict[str, Figure]] = [{"module": "lane", "killed": 1096}, {"module": "a | b", "killed": 3}]
    path = write_record("mutation", command="c", seconds=1, figures={"killed": 1099}, table=rows, folder=tmp_path)
    page = rewrite(_page_of("mutation"), read_records(path.parent))
    assert "| lane | 1,096 |" in page
    assert "| a ¦ b | 3 |" in page


def test_what_pages_say_about_joined_commits_is_true():
    if (ROOT / "PKG-INFO").exists() or git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("needs the whole history")
    history = git("log", "--format=%h", "--abbrev=7").splitlines()
    named = [(record.date, record.commit) for record in read_records()] + [(run.date, run.commit) for run in runs()]
    assert [(date, commit) for date, commit in named if is_joined(date, commit) == (commit[:7] in history)] == []


def test_a_record_names_the_tree_of_the_source(tmp_path):
    write_record("fuzz", command="a", seconds=1, figures={}, folder=tmp_path)
    (record,) = read_records(tmp_path)
    assert record.tree == tree_at_work()
