"""A day of work in a few minutes, judged by the audit.

python -m tests.day --record
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.command_line import at_least_one, exit_with
from tests.day.picture import svg
from tests.day.work import Day, Hour, grown
from tests.proof import ROOT, write_record

PICTURE = ROOT / "docs" / "images" / "day.svg"


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.day", description=__doc__)
    parser.add_argument("--hours", type=at_least_one, default=24, help="how many (24)")
    parser.add_argument("--messages", type=at_least_one, default=10_000, help="of each hour (10000)")
    parser.add_argument("--seed", type=int, default=1, help="chooses keys, failures and sizes (1)")
    parser.add_argument("--record", action="store_true", help="write a record to docs/proof, and the picture")
    arguments = parser.parse_args()
    logging.getLogger("seriatim").setLevel(logging.CRITICAL)  # failures are on purpose
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        day = Day(Path(folder), arguments.messages, arguments.seed)
        hours = asyncio.run(day.work(arguments.hours, _show))
    objections, higher = day.objections(), grown(hours)
    found = [*objections, *higher]
    sent = arguments.hours * arguments.messages
    print(
        f"{sent:,} messages, {day.handled:,} handled, {day.failed:,} failures; {len(objections)} objections of the audit"
    )
    print("\n".join(found[:20]) or "nothing grew")
    if arguments.record:
        PICTURE.write_text(svg(hours, f"{arguments.hours} hours of {arguments.messages:,} messages each"))
        figures = {
            "messages": sent,
            "handled": day.handled,
            "failures": day.failed,
            "objections of the audit": len(objections),
        }
        command = (
            f"python -m tests.day --hours {arguments.hours} --messages {arguments.messages} --seed {arguments.seed}"
        )
        table = [asdict(hour) for hour in hours]
        seconds = time.monotonic() - began
        print(write_record("soak", command=command, seconds=seconds, figures=figures, found=found, table=table))
    return 1 if found else 0


def _show(hour: Hour) -> None:
    print(", ".join(f"{name} {value}" for name, value in asdict(hour).items()), flush=True)


if __name__ == "__main__":
    exit_with(main)
