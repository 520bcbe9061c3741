from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seriatim.engine.connect import open_broker
from seriatim.engine.reported_status import AuditStatus, left_statuses

CALLS = """\
call,n
a,1
b,1
a,3
a,2
b,2
b,2
b,4
c,7
"""


@pytest.fixture
def audit(seriatim, tmp_path):
    """Write a trace and judge it by the columns ``call`` and ``n``."""

    def run(content: str | bytes, *options: str, name: str = "calls.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return seriatim("trace", "audit", name, "--key", "call", "--seq", "n", *options)

    return run


def report(result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def parquet(path: Path, columns: dict[str, list]) -> bytes:
    pq.write_table(pa.table(columns), path)
    return path.read_bytes()


def test_the_table_lists_the_worst_keys_first_and_then_the_totals(audit):
    lines = [" ".join(line.split()) for line in audit(CALLS).stdout.splitlines()]
    assert lines == [
        "key rows distinct duplicates lost reordered furthest guarantee first witness",
        "a 3 3 0 0 1 1 none (no duplicate, no loss) 2 at index 2 was received after 3, which was sent later",
        "b 4 3 1 1 0 0 monotonic 2 at index 2 was received before",
        "c 1 1 0 0 0 0 absolute",
        "total: rows 8, keys 3, distinct 7, duplicates 1, lost 1, reordered 1, furthest 1",
        "held for every key: none",
    ]


def test_json_has_the_same_facts_and_every_witness(audit):
    found = report(audit(CALLS, "--json"))
    assert {name: found[name] for name in ("rows", "keys", "distinct", "duplicates", "lost", "reordered", "level")} == {
        "rows": 8,
        "keys": 3,
        "distinct": 7,
        "duplicates": 1,
        "lost": 1,
        "reordered": 1,
        "level": "none",
    }
    b = found["worst"][1]
    assert (b["key"], b["level"], b["no_inversion"], b["no_duplicate"], b["no_loss"]) == (
        "b",
        "monotonic",
        True,
        False,
        False,
    )
    assert [witness["kind"] for witness in b["witnesses"]] == ["duplicate", "loss"]


def test_a_verdict_is_left_in_the_store_for_the_console(audit, seriatim, tmp_path):
    result = audit("call,n\n", "--leave", "calls")
    assert (result.exit_code, result.stdout) == (1, ""), "there is no store, which is said before the work"
    assert seriatim("topics", "create", "calls").exit_code == 0
    assert audit(CALLS, "--leave", "calls").exit_code == 0

    async def left():
        broker = await open_broker(f"sqlite:///{tmp_path / 'seriatim.db'}")
        try:
            return await left_statuses(broker, AuditStatus)
        finally:
            await broker.close()

    (status,) = asyncio.run(left())
    (side,) = status.sides
    assert (status.name, side.title, side.keys, side.guarantee) == ("calls", "calls.csv", 3, "none")


def test_top_limits_the_list_but_not_the_totals(audit):
    lines = audit(CALLS, "--top", "1").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["key", "a", "and", "total:", "held"]
    assert lines[2] == "and 2 more keys (--top)"
    assert "rows 8, keys 3" in lines[3]


def test_top_0_shows_the_totals_only(audit):
    assert audit(CALLS, "--top", "0").stdout.startswith("and 3 more keys (--top)\ntotal: rows 8")


def test_among_equal_levels_the_key_with_most_faults_comes_first(audit):
    found = report(audit("call,n\na,1\na,1\nb,1\nb,1\nb,1\n", "--json"))
    assert [key["key"] for key in found["worst"]] == ["b", "a"]


@pytest.mark.parametrize(
    ("sequences", "expected", "holds"),
    [
        ([1, 2, 3], "absolute", True),
        ([1, 3], "absolute", False),
        ([1, 3], "strict", True),
        ([1, 1, 2], "strict", False),
        ([1, 1, 2], "continuous", True),
        ([1, 1, 3], "continuous", False),
        ([1, 1, 3], "monotonic", True),
        ([2, 1], "monotonic", False),
        ([2, 1], "none", True),
    ],
)
def test_expect_decides_the_exit_status(audit, sequences, expected, holds):
    content = "call,n\n" + "".join(f"a,{sequence}\n" for sequence in sequences)
    assert audit(content, "--expect", expected).exit_code == (0 if holds else 1)


def test_an_unmet_expectation_names_a_witness_against_it_and_no_other(audit):
    result = audit("call,n\na,1\na,1\na,3\n", "--expect", "continuous")
    assert result.stderr == "error: continuous was expected but did not hold for 1 key; key a: 2 is missing before 3\n"
    assert "held for every key: monotonic" in result.stdout


def test_the_number_of_keys_that_fail_is_named(audit):
    assert "did not hold for 2 keys; key a: " in audit(CALLS, "--expect", "strict").stderr


def test_wrap_counts_on_a_circle(audit):
    content = "call,n\na,254\na,255\na,0\na,1\n"
    assert report(audit(content, "--json"))["level"] == "none"
    assert report(audit(content, "--json", "--wrap", "256"))["level"] == "absolute"


def test_a_sequence_outside_the_circle_names_its_line(audit):
    result = audit("call,n\na,1\na,256\n", "--wrap", "256")
    assert (result.exit_code, result.stderr[:41]) == (2, "error: line 3: sequence 256 is outside 0 ")


def test_json_lines_are_read(audit):
    content = '{"call": "a", "n": 1}\n\n{"n": "3", "call": "a", "more": []}\n{"call": 7, "n": 1}\n'
    found = report(audit(content, "--json", name="calls.jsonl"))
    assert (found["rows"], found["keys"], found["lost"]) == (3, 2, 1)


def test_standard_input_is_read(seriatim):
    for content in (CALLS, '{"call": "a", "n": 1}\n'):
        assert seriatim("trace", "audit", "-", "--key", "call", "--seq", "n", stdin=content).exit_code == 0


def test_a_byte_order_mark_and_quoted_line_breaks_are_understood(audit):
    found = report(audit('\ufeffcall,n\r\n"a\nb",1\r\n"a\nb",2\r\n', "--json"))
    assert [key["key"] for key in found["worst"]] == ["a\nb"]


def test_an_unprintable_key_is_shown_escaped(audit):
    assert r"'a\x1b[2Jb'" in audit("call,n\na\x1b[2Jb,1\n").stdout


def test_a_key_that_looks_like_markup_is_shown_as_it_is(audit):
    assert "[red]a" in audit("call,n\n[red]a,1\n").stdout


def test_an_empty_trace_breaks_no_promise(audit):
    result = audit("call,n\n", "--expect", "absolute", "--allow-empty")
    assert result.exit_code == 0
    assert result.stdout.startswith("total: rows 0, keys 0")


def test_an_expectation_of_an_empty_trace_fails_unless_that_is_allowed(audit):
    result = audit("call,n\n", "--expect", "monotonic")
    assert result.exit_code == 1
    assert "monotonic was expected but there is nothing to judge: there are no rows; --allow-empty" in result.stderr
    assert audit("call,n\n", "--expect", "none").exit_code == 0


def test_parquet_is_read(audit, tmp_path):
    content = parquet(tmp_path / "x.parquet", {"call": ["a", "a", "b"], "other": [0, 0, 0], "n": [1, 3, 1]})
    found = report(audit(content, "--json", name="calls.parquet"))
    assert (found["rows"], found["keys"], found["lost"]) == (3, 2, 1)


def test_keys_of_bytes_are_read_as_text(audit, tmp_path):
    content = parquet(tmp_path / "x.parquet", {"call": [b"caf\xc3\xa9", b"\xff"], "n": [1, 1]})
    found = report(audit(content, "--json", name="calls.parquet"))
    assert {key["key"] for key in found["worst"]} == {"café", "\\xff"}


def test_parquet_without_pyarrow_names_the_extra(audit, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = audit(b"", name="calls.parquet")
    message = "error: audit of a parquet file needs the extra 'spark': pip install 'seriatim[spark]'\n"
    assert (result.exit_code, result.stderr) == (1, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("call,n\na,1\n,2\n", "line 3: the key 'call' must be a text or an integer, not nothing"),
        ("call,n\na,1\na,x\n", "line 3: the sequence 'n' must be an integer, not 'x'"),
        ("call,n\na,1\na,1.0\n", "line 3: the sequence 'n' must be an integer, not '1.0'"),
        ("call,n\na,\n", "line 2: the sequence 'n' must be an integer, not nothing"),
        ("call,n\na\n", "line 2: has 1 fields where the heading has 2"),
        ('call,n\na,"1\n', "line 2: not valid CSV: unexpected end of data"),
        ("call,no\na,1\n", "there is no column 'n'; did you mean 'no'?"),
        ("x,y\n", "there is no column 'call'; columns are: x, y"),
        ("", "there is no column 'call'; columns are: none"),
        ('{"call": "a", "n": 1}\n{"n": 1}\n', "line 2: the key 'call' must be a text or an integer, not nothing"),
        ('{"call": true, "n": 1}\n', "line 1: the key 'call' must be a text or an integer, not True"),
        ('{"call": "a", "n": false}\n', "line 1: the sequence 'n' must be an integer, not False"),
        ('{"call": "a"}\n', "line 1: the sequence 'n' must be an integer, not nothing"),
        ('{"call": "a", "n": 1}\n[1]\n', "line 2: must be a JSON object, not [1]"),
        ('{"call": "a", "n": 1}\n{"call"\n', "line 2: not valid JSON: "),
        (b"call,n\n\xff,1\n", "'calls.csv' is not UTF-8 text: "),
    ],
)
def test_a_bad_row_is_an_error_that_names_its_line(audit, content, message):
    result = audit(content)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {message}")


def test_a_bad_row_of_parquet_is_named_by_its_number(audit, tmp_path):
    content = parquet(tmp_path / "x.parquet", {"call": ["a", None], "n": [1, 2]})
    assert audit(content, name="calls.parquet").stderr.startswith("error: row 2: the key 'call' must be ")


def test_a_column_that_parquet_lacks_is_named(audit, tmp_path):
    content = parquet(tmp_path / "x.parquet", {"caller": ["a"], "n": [1]})
    assert "there is no column 'call'; did you mean 'caller'?" in audit(content, name="calls.parquet").stderr


def test_a_file_that_is_no_parquet_is_refused(audit):
    result = audit("call,n\n", name="calls.parquet")
    assert result.exit_code == 2
    assert "'calls.parquet' is not a parquet file" in result.stderr


def test_a_file_that_does_not_exist_is_named(seriatim):
    result = seriatim("trace", "audit", "absent.csv", "--key", "k", "--seq", "s")
    assert (result.exit_code, result.stderr) == (1, "error: there is no file 'absent.csv'\n")


def stderr_on_a_terminal(tmp_path: Path, rows: int, **environ: str) -> bytes:
    trace = tmp_path / "trace.csv"
    trace.write_text("key,seq\n" + "".join(f"a,{row}\n" for row in range(rows)))
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "seriatim", "trace", "audit", str(trace), "--key", "key", "--seq", "seq"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=end, check=True, env=os.environ | environ, cwd=tmp_path)
    os.write(end, b"END")
    os.close(end)
    shown = b""
    while not shown.endswith(b"END"):
        shown += os.read(terminal, 65536)
    os.close(terminal)
    return shown


def test_progress_is_shown_on_a_terminal(tmp_path):
    assert b"reading" in stderr_on_a_terminal(tmp_path, rows=20_000, TERM="xterm")


def test_progress_can_be_switched_off(tmp_path):
    assert stderr_on_a_terminal(tmp_path, rows=20_000, TERM="xterm", SERIATIM_PROGRESS="false") == b"END"


def test_progress_is_not_written_to_a_pipe(audit):
    rows = "".join(f"a,{row}\n" for row in range(20_000))
    assert audit("call,n\n" + rows).stderr == ""
