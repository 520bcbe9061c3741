"""Records of runs, and the page that is written from them."""

from __future__ import annotations

from docs.proof_page import BLOCK, PAGE, rewrite
from tests.proof import Figure, read_records, write_record


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
    assert page.count("- A hang.") == 1
    assert "No run of this kind is on record yet." in page
    assert "old" not in page


def test_a_run_with_a_table_shows_its_rows(tmp_path):
    rows: list[dict[str, Figure]] = [{"module": "lane", "killed": 1096}, {"module": "a | b", "killed": 3}]
    path = write_record("mutation", command="c", seconds=1, figures={"killed": 1099}, table=rows, folder=tmp_path)
    page = rewrite(_page_of("mutation"), read_records(path.parent))
    assert "| lane | 1,096 |" in page
    assert "| a ¦ b | 3 |" in page
