"""Run simulated worlds.

    make simulate SEEDS=20000                 many seeds, on all cores
    make simulate ARGS="--seed 17 --trace"    one seed, and everything that happened

A seed that fails is shrunk to a short script, printed with the command that replays it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator

from tests.command_line import at_least_one, exit_with
from tests.proof import write_record
from tests.simulation.run import Outcome, draw, run, run_seed
from tests.simulation.shrink import report

CHUNK = 20
MOST_REPORTS = 5
PROGRESS_S = 5.0


def run_many(first: int, seeds: int, jobs: int, record: bool) -> int:
    counts, failed, began = Counter[str](), list[tuple[int, list[str]]](), time.monotonic()
    virtual, shown = 0.0, began
    for done, (seed, findings, seen, seconds) in enumerate(_outcomes(range(first, first + seeds), jobs), start=1):
        counts += seen
        virtual += seconds
        if findings:
            failed.append((seed, findings))
            print(f"  seed {seed}: {findings[0][:200]}", flush=True)
        if time.monotonic() - shown >= PROGRESS_S:
            shown = time.monotonic()
            print(
                f"  {done:,} of {seeds:,} seeds, {len(failed)} failed, {done / (shown - began):.0f} a second",
                flush=True,
            )
    elapsed = time.monotonic() - began
    reports = [report(draw(seed), findings) for seed, findings in sorted(failed)[:MOST_REPORTS]]
    if reports:
        print("\n\n".join(one.script for one in reports))
    figures = _figures(seeds, counts, virtual, len(failed))
    print(f"{', '.join(f'{value:,} {name}' for name, value in figures.items())}; {elapsed:.0f} s with {jobs} jobs")
    if record:
        command = f"make simulate SEEDS={seeds} FIRST={first}"
        found = [one.sentence for one in reports]
        path = write_record("simulation", command=command, seconds=elapsed, figures=figures, found=found)
        print(f"recorded in {path}")
    return 1 if failed else 0


def _outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap_unordered(run_seed, seeds, CHUNK)


def _figures(seeds: int, counts: Counter[str], virtual: float, failed: int) -> dict[str, float]:
    return {
        "seeds": seeds,
        "failed seeds": failed,
        "steps": counts["steps"],
        "messages published": counts["published"],
        "deliveries": counts["delivered"],
        "processes": counts["lives"],
        "kills": counts["kills"],
        "stops": counts["stops"],
        "cuts": counts["cuts"],
        "disk faults": counts["disk faults"],
        "cancelled steps": counts["cancelled"],
        "virtual hours": round(virtual / 3600, 1),
    }


def run_one(arguments: argparse.Namespace) -> int:
    program = original = draw(arguments.seed)
    if arguments.keep is not None:
        program = program.only(arguments.keep)
    program = program.calm(arguments.calm or [])
    result = run(program)
    if arguments.trace:
        print("\n".join(result.trace))
    if not result.findings:
        print(f"{program.script()}\nseed {program.seed}: nothing found; digest {result.digest[:16]}")
        return 0
    is_whole = program == original
    print(report(program, result.findings).script if is_whole else "\n".join([program.script(), *result.findings]))
    return 1


def _numbers(text: str) -> list[int]:
    parts = [] if text == "none" else text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"must be numbers of steps, such as 3,5,9, or none: {text!r}")
    return [int(part) for part in parts]


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=at_least_one, default=2000, help="how many seeds (2000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--jobs", type=at_least_one, default=os.cpu_count() or 1, help="how many run at a time")
    parser.add_argument("--record", action="store_true", help="write a record of this run to docs/proof")
    parser.add_argument("--seed", type=int, help="run this one only, and show its steps")
    parser.add_argument("--keep", type=_numbers, help="of its steps only these, such as 3,5,9")
    parser.add_argument("--calm", type=_numbers, help="do not cancel these steps")
    parser.add_argument("--trace", action="store_true", help="show everything that happened")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        if arguments.record:
            parser.error("--record is for a run of many seeds")
        return run_one(arguments)
    if arguments.keep is not None or arguments.calm is not None or arguments.trace:
        parser.error("--keep, --calm and --trace need --seed")
    return run_many(arguments.first, arguments.seeds, arguments.jobs, arguments.record)


if __name__ == "__main__":
    exit_with(main)
