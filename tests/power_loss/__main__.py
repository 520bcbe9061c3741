"""Fail the power at many moments of everything that we keep on disks, and judge what is left.

python -m tests.power_loss --images 20000 --record
python -m tests.power_loss --take-outs --spark --record
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random

from tests.command_line import at_least_one, exit_with
from tests.power_loss import syncs
from tests.power_loss.run import judge, moments, record, run
from tests.power_loss.sites import REDUNDANT, places_of
from tests.power_loss.spark_subjects import WITHOUT_SESSION, ParquetTables
from tests.power_loss.subjects import WITHOUT_SPARK, Subject, share
from tests.proof import Figure, write_record

MOST_SHOWN = 5
IMAGES_OF_A_TAKE_OUT = 1_000
"""At most: the first objection is enough."""

LEFT_OUT = "tables, which need Spark: `--spark`"

Rows = list[dict[str, Figure]]
Figures = Mapping[str, Figure]


@contextmanager
def _subjects(*, with_tables: bool) -> Iterator[Sequence[Subject]]:
    """Those that need no Spark session, and tables, which need one while they work."""
    if not with_tables:
        yield [*WITHOUT_SPARK, *WITHOUT_SESSION]
        return
    from seriatim.spark.local.session import local_session

    session = local_session("power-loss")
    try:
        yield [*WITHOUT_SPARK, *WITHOUT_SESSION, ParquetTables(session)]
    finally:
        session.stop()


def _fail(subjects: Sequence[Subject], images: int, seed: int) -> tuple[Figures, list[str], Rows]:
    """The power fails at ``images`` moments of all subjects together."""
    rows, found = Rows(), list[str]()
    for subject in subjects:
        outcome = run(subject, share(subject, images), seed)
        found += outcome.objections
        rows.append(
            {
                "subject": outcome.subject,
                "events": outcome.events,
                "images": outcome.images,
                "objections": len(outcome.objections),
                "seconds": round(outcome.seconds, 1),
            }
        )
        _print(rows[-1])
        print("".join(f"  {objection}\n" for objection in outcome.objections[:MOST_SHOWN]), end="", flush=True)
    return {"images": sum(int(row["images"]) for row in rows), "objections": len(found)}, found, rows


def _take_out(subjects: Sequence[Subject], images: int, seed: int) -> tuple[Figures, list[str], Rows]:
    """Each of our syncs is left out in turn: those that are needed must be missed."""
    rows, found = Rows(), list[str]()
    for subject in subjects:
        trace = record(subject)
        for site in places_of(subject.name):
            shorter, why = syncs.without(trace, site), REDUNDANT.get((subject.name, site))
            judged = judge(subject, shorter, moments(shorter, images, Random(seed)))
            tried = next((number for number, objection in enumerate(judged, 1) if objection is not None), None)
            is_missed = tried is not None
            rows.append(
                {
                    "left out": site.replace(" > ", " → "),
                    "subject": subject.name,
                    "syncs": len(trace) - len(shorter),
                    "images": tried or images,
                    "outcome": "objected to" if is_missed else f"not missed: {why}",
                }
            )
            _print(rows[-1])
            if is_missed is (why is not None) or len(trace) == len(shorter):
                found.append(f"{site}: {rows[-1]['outcome']}, which is not as listed in tests/power_loss/sites.py")
    missed = sum(row["outcome"] == "objected to" for row in rows)
    return {"places left out": len(rows), "places objected to": missed}, found, rows


def _print(row: Mapping[str, Figure]) -> None:
    print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.power_loss", description=__doc__)
    parser.add_argument("--images", type=at_least_one, default=20_000, help="how many in all (20000)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="chooses moments and what survives")
    parser.add_argument("--spark", action="store_true", help="tables too, which are made with a Spark session")
    parser.add_argument("--take-outs", action="store_true", help="leave out each of our syncs in turn instead")
    parser.add_argument("--record", action="store_true", help="write a record of this run to docs/proof")
    arguments = parser.parse_args()
    began = time.monotonic()
    work: Callable[..., tuple[Figures, list[str], Rows]] = _take_out if arguments.take_outs else _fail
    images = IMAGES_OF_A_TAKE_OUT if arguments.take_outs else arguments.images
    with _subjects(with_tables=arguments.spark) as subjects:
        figures, found, rows = work(subjects, images, arguments.seed)
    if arguments.record:
        options = [word for word in sys.argv[1:] if word in {"--spark", "--take-outs"}]
        given = options if arguments.take_outs else [f"--images {images}", *options]
        path = write_record(
            "powerloss",
            command=" ".join(["python -m tests.power_loss", *given, f"--seed {arguments.seed}"]),
            seconds=time.monotonic() - began,
            figures=figures,
            found=found[:MOST_SHOWN],
            left_out=[] if arguments.spark else [LEFT_OUT],
            table=rows,
        )
        print(f"recorded in {path}")
    print("\n".join(found[:MOST_SHOWN]))
    return 1 if found else 0


if __name__ == "__main__":
    exit_with(main)
