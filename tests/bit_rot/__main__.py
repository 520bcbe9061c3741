"""Damage a store, its write-ahead log, backups and our own files in many ways, and count what became of it.

python -m tests.bit_rot --damages 4000 --record
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from seriatim.errors import SeriatimError
from seriatim.store.sqlite.restore import restore_backup
from seriatim.store.sqlite.store import SqliteStore
from tests.bit_rot.damage import KINDS, copied, damaged
from tests.bit_rot.rows import TABLES, Rows
from tests.bit_rot.stores import content_of, fill, reading
from tests.bit_rot.swaps import SWAPS, is_noticed
from tests.bit_rot.test_files import SUBJECTS
from tests.command_line import at_least_one, exit_with
from tests.conftest import fast_folder
from tests.proof import Figure, write_record

AS_WRITTEN, OTHER = "read as it was written", "other content, not noticed"
LAST_LOST, EARLIER = "without the last commit, not noticed", "without several commits, not noticed"
Outcomes = Iterator[tuple[str, str]]


def store_outcomes(scratch: Path, damages: int, random: Random) -> Outcomes:
    """A closed store, and one whose owner was killed."""
    with closing(SqliteStore(scratch / "empty.db")) as fresh:
        empty = content_of(fresh)  # a log that is cut off early has not even the first commit
    for what, file, transactions in (("database", "store.db", 40), ("write-ahead log", "store.db-wal", 15)):
        whole = scratch / what
        whole.mkdir()
        store, held = fill(scratch / "running.db", transactions)
        if file == "store.db":
            store.close()
        for part in ("", "-wal"):
            if (found := scratch / f"running.db{part}").exists():
                shutil.copy(found, whole / f"store.db{part}")
        store.close()
        (scratch / "running.db").unlink()
        for number in range(damages):
            kind = list(KINDS)[number % len(KINDS)]
            path = damaged(whole, scratch / "damaged", file, kind, random.getrandbits(32)) / "store.db"
            outcome, content = reading(path)
            if content is not None:
                outcome = AS_WRITTEN if content == held[-1] else LAST_LOST if content in held[-2:] else OTHER
                outcome = EARLIER if outcome == OTHER and content in [empty, *held] else outcome
            yield f"{what}, {kind}", outcome


def row_outcomes(scratch: Path, damages: int, random: Random) -> Outcomes:
    """Flipped bits where rows decide what is delivered, and when."""
    rows = Rows(scratch / "rows.db")
    for table in TABLES:
        bits = rows.bits(table)
        for _, outcome, content in rows.outcomes(random.sample(bits, min(damages, len(bits)))):
            unsaid = AS_WRITTEN if content == rows.written else OTHER
            yield f"rows of {table}, a flipped bit", outcome if content is None else unsaid


def file_outcomes(scratch: Path, damages: int, random: Random) -> Outcomes:
    for name, (make, read, file) in SUBJECTS.items():
        whole = scratch / name
        whole.mkdir()
        make(whole)
        written = read(copied(whole, scratch / "copy"))
        for number in range(damages):
            kind = list(KINDS)[number % len(KINDS)]
            try:
                found = read(damaged(whole, scratch / "damaged", file, kind, random.getrandbits(32)))
            except SeriatimError:
                yield name, "refused when read"
            else:
                yield name, AS_WRITTEN if found == written else OTHER


def backup_outcomes(scratch: Path, damages: int, random: Random) -> Outcomes:
    """A damaged backup is restored; what is restored may differ in what has no checksum."""
    whole = scratch / "whole backup"
    whole.mkdir()
    store, held = fill(scratch / "backed-up.db", 40)
    store.backup(str(whole / "backup.db"))
    store.close()
    for number in range(damages):
        kind = list(KINDS)[number % len(KINDS)]
        folder = damaged(whole, scratch / "damaged", "backup.db", kind, random.getrandbits(32))
        try:
            restore_backup(folder / "backup.db", folder / "restored.db")
        except SeriatimError:
            yield "backup", "refused when restored"
        else:
            outcome, content = reading(folder / "restored.db")
            if content is not None:
                is_same = (content.messages, content.settled) == (held[-1].messages, held[-1].settled)
                outcome = AS_WRITTEN if is_same else OTHER
            yield "backup", outcome


def swap_outcomes(scratch: Path, damages: int, random: Random) -> Outcomes:
    """Once each: there is nothing to draw."""
    for name, swap in SWAPS.items():
        found = is_noticed(scratch / f"swapped {name}", swap)
        yield f"swapped: {name}", "refused when read" if found else "the other's, not noticed"


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.bit_rot", description=__doc__)
    parser.add_argument("--damages", type=at_least_one, default=4000, help="of each file (4000)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--record", action="store_true", help="write a record of this run to docs/proof")
    arguments = parser.parse_args()
    began, random, counts = time.monotonic(), Random(arguments.seed), dict[str, Counter[str]]()
    with TemporaryDirectory(dir=fast_folder()) as scratch:
        for outcomes in (store_outcomes, row_outcomes, file_outcomes, backup_outcomes, swap_outcomes):
            for what, outcome in outcomes(Path(scratch), arguments.damages, random):
                counts.setdefault(what, Counter())[outcome] += 1
    columns = sorted({outcome for found in counts.values() for outcome in found})
    table: list[dict[str, Figure]] = [
        {"damaged": what, "times": found.total(), **{name: found[name] for name in columns}}
        for what, found in counts.items()
    ]
    for row in table:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    if arguments.record:
        figures: dict[str, Figure] = {
            "damages": sum(found.total() for found in counts.values()),
            **{name: sum(found[name] for found in counts.values()) for name in columns},
        }
        command = f"python -m tests.bit_rot --damages {arguments.damages} --seed {arguments.seed}"
        print(write_record("bitrot", command=command, seconds=time.monotonic() - began, figures=figures, table=table))
    return 0


if __name__ == "__main__":
    exit_with(main)
