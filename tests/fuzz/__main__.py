"""Fuzz every target for a while. An input that is a finding is added to the corpus, where ``make test`` runs it.

python -m tests.fuzz --seconds 60 --record
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.command_line import at_least_one, exit_with
from tests.fuzz.seeds import CORPUS
from tests.fuzz.targets import MAX_INPUT, MAX_SECONDS, TARGETS
from tests.proof import Figure, write_record

RSS_LIMIT_MB = 2048
LAST_LINES = 25
KEPT_FILES, KEPT_BYTES = 120, 2048
"""So many inputs of a target, and none longer, are kept in the corpus."""


def fuzz(target: str, seconds: int, keep: bool) -> tuple[dict[str, Figure], list[str]]:
    corpus = CORPUS / target
    with TemporaryDirectory() as scratch:
        found, new = Path(scratch) / "found", Path(scratch) / "new"
        found.mkdir()
        new.mkdir()
        command = [
            *(sys.executable, "-m", "tests.fuzz.one", target, f"-max_total_time={seconds}", f"-max_len={MAX_INPUT}"),
            *(f"-timeout={MAX_SECONDS:.0f}", f"-rss_limit_mb={RSS_LIMIT_MB}", "-print_final_stats=1"),
            *(f"-artifact_prefix={found}/", str(new), str(corpus)),
        ]
        began = time.monotonic()
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=seconds + 120, errors="replace"
        )
        said = ended.stdout + ended.stderr
        findings = [_adopt(path, corpus) for path in sorted(found.iterdir())]
        if ended.returncode and not findings:
            findings = [f"ended with status {ended.returncode}"]
        if findings:
            print("\n".join(said.splitlines()[-LAST_LINES:]))
        if keep:
            _keep(new, corpus)
        inputs = len(list(new.iterdir()))
    executed = re.search(r"number_of_executed_units:\s*(\d+)", said)
    covered = re.findall(r"\bcov: (\d+)", said)
    row: dict[str, Figure] = {
        "target": target,
        "executions": int(executed[1]) if executed else 0,
        "branches reached": int(covered[-1]) if covered else 0,
        "inputs that reached more": inputs,
        "findings": len(findings),
        "seconds": round(time.monotonic() - began, 1),
    }
    return row, [f"{target}: {finding}" for finding in findings]


def _adopt(path: Path, corpus: Path) -> str:
    """Keep a finding for the regression tests."""
    (corpus / path.name[:40]).write_bytes(path.read_bytes())
    return path.name


def _keep(new: Path, corpus: Path) -> None:
    small = sorted((path for path in new.iterdir() if path.stat().st_size <= KEPT_BYTES), key=lambda path: path.name)
    for path in small[: max(0, KEPT_FILES - len(list(corpus.iterdir())))]:
        (corpus / path.name[:16]).write_bytes(path.read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=at_least_one, default=60, help="for each target (60)")
    parser.add_argument("--only", choices=TARGETS, action="append", help="this target, and others that are named")
    parser.add_argument("--keep", action="store_true", help="add inputs that reached more code to the corpus")
    parser.add_argument("--record", action="store_true", help="write a record of this run to docs/proof")
    arguments = parser.parse_args()
    began, rows, found = time.monotonic(), list[dict[str, Figure]](), list[str]()
    for target in arguments.only or TARGETS:
        row, findings = fuzz(target, arguments.seconds, arguments.keep)
        rows.append(row)
        found += findings
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if arguments.record:
        figures = {"executions": sum(int(row["executions"]) for row in rows), "findings": len(found)}
        command = f"python -m tests.fuzz --seconds {arguments.seconds}"
        path = write_record(
            "fuzz", command=command, seconds=time.monotonic() - began, figures=figures, found=found, table=rows
        )
        print(f"recorded in {path}")
    return 1 if found else 0


if __name__ == "__main__":
    exit_with(main)
