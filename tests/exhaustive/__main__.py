"""Explore the large worlds of every machine: all reachable states, and every command in each.

    make exhaustive ARGS="--only lanes --only edge-nodes --record"

Prints how far each world is while it runs, and its states, transitions and time when it is exhausted. Exits with 1 when
something does not hold, with a shortest script that shows it, or when a machine's table of transitions is not exact. All of it
takes about an hour on two processors. With ``--minutes`` no world is begun after that time, and the record names the
machines of which some worlds were left out; whether their tables are exact is not known then.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import inf
from multiprocessing import get_context

from tests.command_line import above_zero, at_least_one, exit_with
from tests.exhaustive.explorer import Exploration, Row, Violation, assert_table_is_exact, explore
from tests.exhaustive.scopes import SCOPES
from tests.proof import counted, write_record

PROGRESS_S = 10.0


class ProgressPrinter:
    """Prints now and then how far an exploration is."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, found: Exploration) -> None:
        if time.monotonic() - self._last >= PROGRESS_S:
            self._last = time.monotonic()
            print(f"  … {found}", flush=True)


def explore_one(world_of: tuple[str, int]) -> Exploration | str:
    """What was seen of one large world, or what does not hold in it."""
    machine, index = world_of
    world = SCOPES[machine].large[index]
    try:
        found = explore(world, progress=ProgressPrinter())
    except Violation as violation:
        return f"{machine}, {violation}"
    print(f"{machine}, {found}", flush=True)
    return found


def explore_all(
    machines: Sequence[str], jobs: int, seconds: float = inf
) -> tuple[dict[str, list[Exploration]], list[str], dict[str, int]]:
    """What was seen, by machine, what does not hold, and how many worlds of a machine there was no time for."""
    worlds = [(machine, index) for machine in machines for index in range(len(SCOPES[machine].large))]
    seen: dict[str, list[Exploration]] = {machine: [] for machine in machines}
    failures: list[str] = []
    left_out: Counter[str] = Counter()
    end = time.monotonic() + seconds
    end_at_ctrl_c = (signal.SIGINT, signal.SIG_DFL)  # or a worker would go on with the next world
    with ProcessPoolExecutor(jobs, get_context("fork"), signal.signal, end_at_ctrl_c) as pool:
        futures = [pool.submit(explore_one, world) for world in worlds]
        for (machine, _), future in zip(worlds, futures, strict=True):
            if time.monotonic() > end and future.cancel():
                left_out[machine] += 1
                continue
            outcome = future.result()
            if isinstance(outcome, str):
                print(outcome, flush=True)
                failures.append(outcome)
            else:
                seen[machine].append(outcome)
    return seen, failures, left_out


def table_faults(seen: dict[str, list[Exploration]]) -> Iterator[str]:
    for machine, explorations in seen.items():
        scope = SCOPES[machine]
        if scope.table is None or len(explorations) < len(scope.large):
            continue
        rows: set[Row] = set().union(*(found.rows for found in explorations))
        try:
            assert_table_is_exact(scope.table, rows, scope.out_of_scope)
        except AssertionError as fault:
            yield f"{machine}: {fault}"
        else:
            print(f"{machine}: the table is exact, {len(rows)} rows")


def record(
    seen: dict[str, list[Exploration]],
    failures: Sequence[str],
    left_out: Mapping[str, int],
    seconds: float,
    command: str,
) -> None:
    explorations = [found for each in seen.values() for found in each]
    path = write_record(
        "exhaustive",
        command=command,
        seconds=seconds,
        figures={
            "worlds": len(explorations),
            "states": sum(found.states for found in explorations),
            "transitions": sum(found.transitions for found in explorations),
            "commands refused": sum(found.refused for found in explorations),
        },
        found=failures,
        left_out=[f"{machine}: {counted(worlds, 'worlds')}, for lack of time" for machine, worlds in left_out.items()],
        table=[
            {
                "machine": machine,
                "world": found.name,
                "states": found.states,
                "transitions": found.transitions,
                "refused": found.refused,
                "depth": found.depth,
                "seconds": round(found.seconds, 1),
            }
            for machine, each in seen.items()
            for found in each
        ],
    )
    print(f"recorded in {path}")


def main(arguments: Iterable[str] | None = None) -> int:
    names = {machine.replace(" ", "-"): machine for machine in sorted(SCOPES)}
    parser = argparse.ArgumentParser(
        "python -m tests.exhaustive", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", choices=names, action="append", help="a machine (may be given several times); default: all"
    )
    parser.add_argument("--jobs", type=at_least_one, default=2, help="how many worlds are explored at a time (2)")
    parser.add_argument("--minutes", type=above_zero, default=inf, help="begin no world after so many (no limit)")
    parser.add_argument("--record", action="store_true", help="write a record of this run to docs/proof")
    options = parser.parse_args(None if arguments is None else list(arguments))
    began = time.monotonic()
    machines = [names[only] for only in options.only or names]
    seen, failures, left_out = explore_all(machines, options.jobs, 60 * options.minutes)
    if not failures:
        failures += table_faults(seen)
    seconds = time.monotonic() - began
    states = sum(found.states for each in seen.values() for found in each)
    print(f"{states:,} states in {seconds:.0f} s; " + ("\n".join(failures) or "everything holds"))
    for machine, worlds in left_out.items():
        print(f"left out: {counted(worlds, 'worlds')} of {machine}, for lack of time")
    if options.record:
        only = [f"--only {name}" for name in options.only or ()]
        only += [f"--minutes {options.minutes:g}"] if options.minutes < inf else []
        command = "make exhaustive" + (f' ARGS="{" ".join(only)}"' if only else "")
        record(seen, failures, left_out, seconds, command)
    return 1 if failures else 0


if __name__ == "__main__":
    exit_with(main)
