"""Real processes, tormented: killed, stopped, cut off, out of disk, out of time; then judge what everybody saw.

    make nemesis MINUTES=10 ARGS="--mode sqlite --seed 7"

Each round has everything of its own and lasts half a minute. When it is over everything is healed, what is left is drained
undisturbed, and the checker reads all histories. The folder of a round with findings is kept and named.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.command_line import above_zero, exit_with
from tests.nemesis.leftovers import remove_leftovers
from tests.nemesis.mode import Mode
from tests.nemesis.official import Official
from tests.nemesis.own import Linked, Served, ServedStandby, Standby
from tests.nemesis.pipeline import Pipeline
from tests.nemesis.round import Report, Round
from tests.nemesis.sparkplug import SparkplugHost
from tests.proof import write_record

MODES: dict[str, type[Mode]] = {
    mode.name: mode for mode in (Linked, Standby, Served, ServedStandby, Official, SparkplugHost, Pipeline)
}
ROUND_S = 30.0


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
    print(f"  {report.events.total()} events: {events}; {dict(report.faults)}")
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
    parser.add_argument("--round", type=above_zero, default=ROUND_S, help="seconds of a round (30)")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the first round, then one more each (from the time)"
    )
    parser.add_argument("--record", action="store_true", help="write a record of this run to docs/proof")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that everything is cleaned up
    modes = [MODES[name] for name in arguments.mode or MODES]
    reports = list(run(modes, 60 * arguments.minutes, arguments.round, arguments.seed))
    figures = summarize(reports)
    found = [f"{report.mode}, seed {report.seed}: {one}" for report in reports for one in report.found]
    left_out = {f"left out: {name} ({why})" for report in reports for name, why in report.missing.items()}
    for line in [*(f"{name}: {value}" for name, value in figures.items()), *sorted(left_out)]:
        print(line)
    if arguments.record:
        command = f"make nemesis MINUTES={arguments.minutes:g} ARGS='{_arguments(arguments)}'"
        seconds = sum(report.seconds for report in reports)
        path = write_record(
            "nemesis", command=command, seconds=seconds, figures=figures, found=[*found, *sorted(left_out)]
        )
        print(f"recorded in {path}")
    print(f"{len(found)} findings" if found else "no anomalies")
    return 1 if found else 0


def _arguments(given: argparse.Namespace) -> str:
    modes = [f"--mode {mode}" for mode in given.mode or ()]
    return " ".join([*modes, f"--round {given.round:g}", f"--seed {given.seed}"])


if __name__ == "__main__":
    exit_with(main)
