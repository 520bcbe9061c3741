"""The commands that work with Spark. They use the session of the tests: one command after another, in this process."""

from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from seriatim.cli.common.spark import format_of
from seriatim.cli.main import cli

HOW_TO = Path(__file__).parents[2] / "docs/how-to/audit-a-stream.md"
CALLS = """\
call,n,at,event
ann,1,10,ring
bob,1,11,ring
ann,3,12,hang up
ann,2,13,answer
bob,2,14,answer
bob,2,15,hang up
bob,4,16,hang up
"""


@pytest.fixture
def run(spark, tmp_path, monkeypatch, logger_as_it_was):
    """Run ``seriatim`` in a folder with the calls, as a file and as a folder of parquet in which nothing is in order."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calls.csv").write_text(CALLS)
    rows = list(csv.DictReader(CALLS.splitlines()))
    table = pa.table({name: [int(row[name]) if name in ("n", "at") else row[name] for row in rows] for name in rows[0]})
    (tmp_path / "calls").mkdir()
    for part in range(2):
        pq.write_table(
            table.sort_by([("event", "ascending")]).slice(4 * part, 4), tmp_path / f"calls/part-{part}.parquet"
        )

    def command(*args: str) -> Result:
        return CliRunner().invoke(cli, args, prog_name="seriatim")

    return command


BY = ("--key", "call", "--seq", "n")


def lines(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines()]


def test_a_folder_is_audited_like_a_file(run):
    in_order = json.loads(run("trace", "audit", "calls.csv", *BY, "--json").stdout)
    by_arrival = json.loads(
        run("trace", "audit", "calls", *BY, "--arrival", "at", "--payload", "event", "--json").stdout
    )
    worst, spark_worst = in_order.pop("worst"), by_arrival.pop("worst")
    assert by_arrival == in_order | {"conflicts": 1, "invalid": 0}
    (conflict,) = [one for key in spark_worst for one in key["witnesses"] if one["kind"] == "conflict"]
    assert conflict["text"] == "2 at index 2 was received before, with another payload"
    for key in spark_worst:
        key["witnesses"] = [one for one in key["witnesses"] if one != conflict]
    assert [key | {"conflicts": 0, "invalid": 0} for key in worst] == [key | {"conflicts": 0} for key in spark_worst]
    assert [key["conflicts"] for key in spark_worst] == [0, 1]


def test_the_commands_of_the_how_to_find_repair_and_compare(run, tmp_path):
    blocks = re.findall(r"^```sh\n(.*?)^```$", HOW_TO.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    audit, resequence, compare = (shlex.split(line)[1:] for block in blocks for line in block.splitlines())
    (tmp_path / "received").mkdir()
    readings = {
        "device": ["a", "a", "a", "b"],
        "n": [1, 3, 2, 1],
        "received_at": [10, 11, 12, 13],
        "reading": [7, 7, 8, 9],
    }
    pq.write_table(pa.table(readings), tmp_path / "received/part.parquet")
    assert "held for every key: none" in run(*audit).stdout
    assert run(*resequence).exit_code == 0
    assert pq.read_table(tmp_path / "ordered").num_rows == 4
    compared = run(*compare)
    assert compared.exit_code == 0, compared.output
    assert "arrival order" in (tmp_path / "report.html").read_text(encoding="utf-8").lower()


def test_the_format_of_a_table_of_ours_is_that_of_its_rows(tmp_path):
    (tmp_path / "_batches").mkdir()
    for name in ("part.parquet", "_batches/0.json", ".part.json"):
        (tmp_path / name).touch()
    assert format_of(str(tmp_path)) == "parquet"


def test_spark_reads_a_file_too_and_its_table_tells_conflicts_and_how_far_rows_were_behind(run):
    table = lines(run("trace", "audit", "calls.csv", *BY, "--spark", "--arrival", "at", "--payload", "event"))
    assert table[0][:9] == [
        "key",
        "rows",
        "distinct",
        "duplicates",
        "lost",
        "reordered",
        "furthest",
        "conflicts",
        "invalid",
    ]
    assert table[1][:9] == ["ann", "3", "3", "0", "0", "1", "1", "0", "0"]
    assert table[2][:9] == ["bob", "4", "3", "1", "1", "0", "0", "1", "0"]
    assert " ".join(table[3]).endswith("lost 1, reordered 1, furthest 1, conflicts 1, invalid 0")


def test_the_verdicts_are_written_as_parquet_and_nothing_is_overwritten(run, tmp_path):
    by = (*BY, "--arrival", "at")
    assert run("trace", "audit", "calls", *by, "--verdicts", "verdicts").exit_code == 0
    rows = {row["call"]: row for row in pq.read_table(tmp_path / "verdicts").to_pylist()}
    assert (rows["ann"]["guarantee"], rows["bob"]["guarantee"], rows["bob"]["lost"]) == ("none", "monotonic", 1)
    assert rows["ann"]["witnesses"][0]["text"] == "2 at index 2 was received after 3, which was sent later"
    again = run("trace", "audit", "calls", *by, "--verdicts", "verdicts")
    assert (again.exit_code, again.stderr.split(":")[1]) == (1, " 'verdicts' already exists")


def test_without_an_arrival_it_says_that_order_could_not_be_judged(run, tmp_path):
    result = run("trace", "audit", "calls", *BY, "--expect", "monotonic", "--report", "report.html")
    assert result.stdout.splitlines()[-2].endswith("lost 1, reordered -, furthest -, conflicts 0, invalid 0")
    assert result.stdout.splitlines()[-1] == "held for every key: order not judged"
    assert result.exit_code == 1
    assert "order could not be judged: name its column, --arrival" in result.stderr
    page = (tmp_path / "report.html").read_text()  # there is still something to see
    assert "order could not be judged" in page
    assert "Worst keys" in page
    assert "Displacement" not in page
    assert run("trace", "audit", "calls", *BY, "--expect", "none").exit_code == 0


def test_an_expectation_that_did_not_hold_is_told_as_without_spark(run):
    without = run("trace", "audit", "calls.csv", *BY, "--expect", "strict")
    result = run("trace", "audit", "calls", *BY, "--arrival", "at", "--expect", "strict")
    assert (result.exit_code, result.stderr) == (without.exit_code, without.stderr) == (1, without.stderr)
    assert "did not hold for 2 keys; key ann: 2 at index 2" in result.stderr


# -- exactly one anomaly in 100,000 rows ----------------------------------------------------------------------------------

DEVICES, MESSAGES = 100, 1_000
PLACE = MESSAGES // 2 * DEVICES + 42
"""Where the row with number 500 of device 42 is. Row by row, every device says its next number."""


def sent() -> list[list]:
    return [
        [f"d{place % DEVICES}", place // DEVICES, 10 * place, f"payload {place}"] for place in range(DEVICES * MESSAGES)
    ]


def with_anomaly(kind: str) -> list[list]:
    rows = sent()
    number, at = rows[PLACE][1:3]
    extra = {
        "duplicate": ["d42", number, at + 1, rows[PLACE][3]],
        "conflict": ["d42", number, at + 1, None],
        "null key": [None, number, at + 1, "x"],
        "null number": ["d42", None, at + 1, "x"],
        "negative": ["d42", -1, at + 1, "x"],
    }
    match kind:
        case "loss":
            del rows[PLACE]
        case "swap":
            rows[PLACE][2], rows[PLACE + DEVICES][2] = rows[PLACE + DEVICES][2], rows[PLACE][2]
        case "nothing":
            pass
        case _:
            rows.append(extra[kind])
    return rows


ANOMALIES: dict[str, tuple[dict[str, int], str]] = {
    "duplicate": ({"duplicates": 1}, "key d42: 500 at index 501 was received before"),
    "loss": ({"lost": 1}, "key d42: 500 is missing before 501"),
    "swap": (
        {"reordered": 1, "max_displacement": 1},
        "key d42: 500 at index 501 was received after 501, which was sent later",
    ),
    "conflict": (
        {"duplicates": 1, "conflicts": 1},
        "key d42: 500 at index 501 was received before, with another payload",
    ),
    "null key": (
        {"invalid": 1},
        "(no key): a row with number 500 that arrived at 500421 can't be judged: it has no key",
    ),
    "null number": ({"invalid": 1}, "key d42: a row that arrived at 500421 can't be judged: it has no number"),
    "negative": (
        {"reordered": 1, "max_displacement": 501},
        "key d42: -1 at index 501 was received after 500, which was sent later",
    ),
    "nothing": ({}, ""),
}


@pytest.mark.parametrize("kind", ANOMALIES)
def test_one_anomaly_in_a_hundred_thousand_rows_is_named_and_nothing_else(run, tmp_path, kind):
    counts, witness = ANOMALIES[kind]
    columns = zip(*with_anomaly(kind), strict=True)
    types = {"device": pa.string(), "n": pa.int64(), "at": pa.int64(), "body": pa.string()}
    pq.write_table(pa.table(list(columns), schema=pa.schema(types)), tmp_path / "trace.parquet")
    by = ("--key", "device", "--seq", "n", "--arrival", "at", "--payload", "body", "--expect", "absolute")
    result = run("trace", "audit", "trace.parquet", *by, "--top", "2", "--json")
    found = json.loads(result.stdout)
    counted = ("duplicates", "conflicts", "lost", "reordered", "max_displacement", "invalid")
    assert {count: found[count] for count in counted if found[count]} == counts
    worst, next_worst = found["worst"]
    assert {count: worst[count] for count in counted if worst[count]} == counts
    assert not any(next_worst[count] for count in counted)
    assert result.exit_code == (1 if counts else 0)
    told = f"error: absolute was expected but did not hold for 1 key; {witness}\n"
    assert result.stderr == (told if counts else "")


def test_where_nothing_is_there_nothing_is_promised(run, tmp_path):
    empty = pa.table({"call": pa.array([], pa.string()), "n": pa.array([], pa.int64()), "at": pa.array([], pa.int64())})
    pq.write_table(empty, tmp_path / "empty.parquet")
    by = ("trace", "audit", "empty.parquet", *BY, "--arrival", "at", "--expect")
    result = run(*by, "absolute")
    assert result.exit_code == 1
    assert "absolute was expected but there is nothing to judge: there are no rows" in result.stderr
    assert run(*by, "absolute", "--allow-empty").exit_code == 0
    assert run(*by, "none").exit_code == 0


def test_the_report_is_one_page_that_needs_no_network(run, tmp_path):
    assert run("trace", "audit", "calls", *BY, "--arrival", "at", "--report", "report.html").exit_code == 0
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    for title in (
        "Audit of calls",
        "key ann: 2 at index 2 was received after 3",
        "Arrival order against sequence",
        "Displacement",
        "Gaps over time",
        "Worst keys",
    ):
        assert title in page
    assert "http" not in page
    assert "<script" not in page


def test_repair_writes_the_rows_in_order_and_a_ledger_of_the_others(run, tmp_path):
    by = (*BY, "--arrival", "at", "--payload", "event")
    result = run("trace", "resequence", "calls", "ordered", *by, "--json")
    assert json.loads(result.stdout) == {
        "out": "ordered",
        "rows": 6,
        "ledger": "ordered-ledger",
        "entries": {"conflict": 1, "lost": 1},
    }
    rows = pq.read_table(tmp_path / "ordered").to_pylist()
    assert {(row["call"], row["n"], row["_position"], row["at"]) for row in rows} == {
        *(("ann", 1, 0, 10), ("ann", 2, 1, 13), ("ann", 3, 2, 12)),
        *(("bob", 1, 0, 11), ("bob", 2, 1, 14), ("bob", 4, 2, 16)),
    }
    entries = pq.read_table(tmp_path / "ordered-ledger").to_pylist()
    assert {(row["_reason"], row["call"], row["_first"]) for row in entries} == {
        ("conflict", "bob", 2),
        ("lost", "bob", 3),
    }
    # What was written passes the audit, by its numbers and by its positions.
    assert run("trace", "audit", "ordered", *BY, "--arrival", "_position", "--expect", "strict").exit_code == 0
    by_position = ("--key", "call", "--seq", "_position", "--arrival", "_position")
    assert run("trace", "audit", "ordered", *by_position, "--expect", "absolute").exit_code == 0


def test_before_and_after_are_shown_side_by_side(run, tmp_path):
    kept = {"call": ["ann"] * 3 + ["bob"] * 3, "n": [1, 2, 3, 1, 2, 4], "at": [10, 13, 12, 11, 14, 16]}
    (tmp_path / "ordered").mkdir()
    pq.write_table(pa.table(kept | {"_position": [0, 1, 2] * 2}), tmp_path / "ordered/part.parquet")
    together = ("trace", "audit", "calls", *BY, "--arrival", "at", "--compare", "ordered")
    result = run(*together, "--report", "report.html", "--expect", "strict")
    assert result.exit_code == 0  # of what was after
    assert lines(result)[-4:] == [
        ["furthest", "1", "0"],
        ["conflicts", "0", "0"],
        ["invalid", "0", "0"],
        ["held", "for", "every", "key", "none", "strict"],
    ]
    page = (tmp_path / "report.html").read_text()
    witnesses = ("key ann: 2 at index 2 was received after 3", "key bob: 3 is missing before 4")
    for text in ("Before and after", "<h3>calls</h3>", "<h3>ordered</h3>", *witnesses):
        assert text in page
    found = json.loads(run(*together, "--compare-arrival", "at", "--json").stdout)
    assert (found["before"]["level"], found["after"]["level"]) == ("none", "none")  # by arrival it is as it was


def test_repair_counts_missing_numbers_as_an_audit_does(run, tmp_path):
    rows = {"call": ["ann"] * 3, "n": [1, 5, 5], "at": [1, 2, 3], "tags": [[("a", "b")], None, []]}
    schema = {"call": pa.string(), "n": pa.int64(), "at": pa.int64(), "tags": pa.map_(pa.string(), pa.string())}
    pq.write_table(pa.table(rows, schema=pa.schema(schema)), tmp_path / "few.parquet")
    by = (*BY, "--arrival", "at", "--payload", "tags", "--json")
    found = json.loads(run("trace", "audit", "few.parquet", *by).stdout)
    repaired = json.loads(run("trace", "resequence", "few.parquet", "ordered", *by).stdout)
    assert (found["lost"], found["conflicts"]) == (3, 1)
    assert repaired["entries"] == {"conflict": 1, "lost": 3}


def test_repair_writes_another_format(run, tmp_path):
    result = run("trace", "resequence", "calls", "as-json", *BY, "--to", "json", "--start", "0")
    assert result.stdout.splitlines()[1] == "ledger 'as-json-ledger': duplicate 1, lost 3"
    assert any((tmp_path / "as-json").glob("*.json"))


def test_repair_writes_to_any_address_that_spark_knows_and_overwrites_nothing_there(run, tmp_path):
    address = f"file://{tmp_path}/ordered/"
    assert run("trace", "resequence", f"file://{tmp_path}/calls", address, *BY, "--format", "parquet").exit_code == 0
    assert pq.read_table(tmp_path / "ordered").num_rows == 6
    again = run("trace", "resequence", "calls", address, *BY)
    assert (again.exit_code, again.stderr) == (
        1,
        f"error: '{address[:-1]}' already exists: choose another path, or remove it\n",
    )


@pytest.mark.parametrize("there", ["ordered", "ordered-ledger"])
def test_repair_overwrites_nothing(run, tmp_path, there):
    (tmp_path / there).mkdir()
    result = run("trace", "resequence", "calls", "ordered", *BY)
    assert result.exit_code == 1
    assert f"'{there}' already exists" in result.stderr
    assert not any((tmp_path / there).iterdir())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("trace", "audit", "absent", "--spark"), "there is no file or folder 'absent'"),
        (("trace", "audit", "mixed"), "'mixed' has files of several formats: name the format with --format"),
        (("trace", "audit", "empty"), "'empty' has no known file extension: name the format with --format"),
        (("trace", "audit", "calls", "--format", "nonsense"), "Spark has no format 'nonsense': correct it"),
        (("trace", "audit", "calls", "--wrap", "256"), "with Spark sequences can't wrap yet"),
        (
            ("trace", "audit", "calls", "--arrival", "event"),
            "column 'event' must hold numbers or timestamps, not string",
        ),
        (("trace", "audit", "calls", "--compare-arrival", "at"), "--compare-arrival is about the table of --compare"),
        (("trace", "audit", "calls", "--compare", "absent"), "there is no file or folder 'absent'"),
        (("trace", "resequence", "calls", "no/where"), "there is no folder 'no' to write to"),
        (
            ("trace", "resequence", "calls", "s3a://bucket/calls"),
            "Spark has no connector for that address (org.apache.hadoop.fs.s3a.",
        ),
        (
            ("trace", "audit", "s3a://bucket/calls", "--format", "parquet", "--spark"),
            "Spark has no connector for that address",
        ),
        (("trace", "resequence", "calls", "ordered", "--epoch", "epok"), "there is no column 'epok'"),
    ],
)
def test_a_users_mistake_is_one_line(run, tmp_path, args, message):
    for folder, files in {"mixed": ("a.csv", "b.parquet"), "empty": ("_SUCCESS", "x.txt")}.items():
        (tmp_path / folder).mkdir()
        for name in files:
            (tmp_path / folder / name).touch()
    result = run(*args, *BY)
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


def test_without_the_extra_it_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "an audit with Spark needs the extra 'spark'" in run("trace", "audit", "calls", *BY).stderr
    assert (
        "'seriatim trace resequence' needs the extra 'spark'"
        in run("trace", "resequence", "calls", "ordered", *BY).stderr
    )
