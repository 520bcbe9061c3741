"""Real processes, tormented: killed, stopped, cut off, out of disk, out of time; then judge what everybody saw.

    make nemesis MINUTES=10 ARGS="--mode sqlite --seed 7"

Each round has everything of its own. It lasts half a minute, or less where the time would not reach for a round of each mode;
starting and draining take from ten seconds to more than a minute (pipeline). When it is over everything is healed, what is left
is drained undisturbed, and the checker reads all histories. The folder of a round with findings is kept and named. A run that
is too short for all modes names those that it has not reached; the next one begins with another mode.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

from tests.command_line import above_zero, exit_with
from tests.nemesis.leftovers import remove_leftovers
from tests.nemesis.mode import Mode
from tests.nemesis.official import Official
from tests.nemesis.own import Linked, Served, ServedStandby, Standby
from tests.nemesis.pipeline import Pipeline
from tests.nemesis.round import Report, Round
from tests.nemesis.sparkplug import SparkplugHost
from tests.proof import counted, write_record

MODES: dict[str, type[Mode]] = {
    mode.name: mode for mode in (Linked, Standby, Served, ServedStandby, Official, SparkplugHost, Pipeline)
}
LONGEST_ROUND_S, SHORTEST_ROUND_S = 30.0, 8.0
AROUND_S = 12.0
"""What most modes need before and after the faults of a round."""
AROUND_ON_AVERAGE_S = 21.0
"""The same over all modes: those with databases, brokers and Spark need more."""


def round_seconds(minutes: float, modes: int) -> float:
    """How long a round lasts if each mode is to have one."""
    return min(LONGEST_ROUND_S, max(SHORTEST_ROUND_S, 60 * minutes / modes - AROUND_S))


def announce(modes: Sequence[type[Mode]], minutes: float, round_s: float) -> str:
    """How many of the modes a run is going to reach."""
    reached = modes_reached(minutes, round_s)
    if reached >= len(modes):
        return f"Rounds of {round_s:g} s, in {counted(len(modes), 'modes')} in turn."
    enough = next(more for more in count(1) if modes_reached(more, round_seconds(more, len(modes))) >= len(modes))
    return (
        f"Rounds of {round_s:g} s: {minutes:g} minutes reach about {reached} of {len(modes)} modes, and the next run begins "
        f'with another one. MINUTES={enough} reaches all of them, ARGS="--mode {modes[0].name}" chooses one.'
    )


def modes_reached(minutes: float, round_s: float) -> int:
    return max(1, int(60 * minutes / (round_s + AROUND_ON_AVERAGE_S)))


def run(modes: Sequence[type[Mode]], seconds: float, round_s: float, seed: int) -> Iterator[Report]:
    """Rounds of each mode in turn until the time is over; a round that has begun is finished."""
    remove_leftovers()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        mode = modes[seed % len(modes)]
        print(f"{time.strftime('%H:%M:%S')} seed {seed}, {mode.name}", flush=True)
        report = Round(mode, seed, round_s).run()
        _show(report)
        yield report
        seed += 1


def _show(report: Report) -> None:
    events = ", ".join(f"{count} {what}" for what, count in sorted(report.events.items()))
    faults = ", ".join(counted(count, name) for name, count in report.faults.items())
    print(f"  {counted(report.events.total(), 'events')}: {events}; {faults}")
    for finding in report.found:
        print(f"  FOUND {finding}")
    if report.found:
        print(f"  kept: {report.folder}")
    sys.stdout.flush()


def summarize(reports: Sequence[Report]) -> dict[str, int]:
    """The figures of a run."""
    rounds = Counter(report.mode for report in reports)
    faults = sum((report.faults for report in reports), Counter[str]())
    return {
        **{f"rounds, {mode}": count for mode, count in rounds.items()},
        "minutes": round(sum(report.seconds for report in reports) / 60),
        "events": sum(report.events.total() for report in reports),
        "confirmed publishes": sum(report.events["published"] for report in reports),
        **faults,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.nemesis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=list(MODES), action="append", help="may be given several times; default: all")
    parser.add_argument("--minutes", type=above_zero, default=2.0, help="begin no round after so many (2)")
    parser.add_argument(
        "--round",
        type=above_zero,
        help="seconds of a round (30, or less so that each mode can have a round; at least 8)",
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the first round, then one more each (from the time)"
    )
    parser.add_argument("--record", action="store_true", help="write a record of this run to docs/proof")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that everything is cleaned up
    modes = [MODES[name] for name in arguments.mode or MODES]
    arguments.round = arguments.round or round_seconds(arguments.minutes, len(modes))
    print(announce(modes, arguments.minutes, arguments.round))
    reports = list(run(modes, 60 * arguments.minutes, arguments.round, arguments.seed))
    figures = summarize(reports)
    found = [f"{report.mode}, seed {report.seed}: {one}" for report in reports for one in report.found]
    left_out = sorted({f"{name}: {why}" for report in reports for name, why in report.missing.items()})
    reached = {report.mode for report in reports}
    left_out += [f"mode {mode.name}: not reached in this time" for mode in modes if mode.name not in reached]
    for line in [*(f"{name}: {value}" for name, value in figures.items()), *(f"left out: {what}" for what in left_out)]:
        print(line)
    if arguments.record:
        command = f"make nemesis MINUTES={arguments.minutes:g} ARGS='{_arguments(arguments)}'"
        seconds = sum(report.seconds for report in reports)
        path = write_record(
            "nemesis", command=command, seconds=seconds, figures=figures, found=found, left_out=left_out
        )
        print(f"recorded in {path}")
    print(counted(len(found), "findings") if found else "no anomalies")
    return 1 if found else 0


def _arguments(given: argparse.Namespace) -> str:
    modes = [f"--mode {mode}" for mode in given.mode or ()]
    return " ".join([*modes, f"--round {given.round:g}", f"--seed {given.seed}"])


if __name__ == "__main__":
    exit_with(main)
