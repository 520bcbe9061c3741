"""Runs a subject on a forgetful disk once, and judges images of what the disk may hold afterwards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.conftest import fast_folder
from tests.power_loss.file_system import mounted
from tests.power_loss.images import CHOICES, Choice, Disk
from tests.power_loss.subjects import READY, Subject
from tests.power_loss.syncs import MARK, announced
from tests.power_loss.trace import Event, Rename, Resize, Said, Trace, Write

SHARED_MEMORY = "-shm"
"""SQLite's shared memory is made anew by whoever opens a store first. What is written to it is no business of the
disk."""


class Moment(NamedTuple):
    """An image: the power fails after so many events of a trace, and of what is pending a choice survives."""

    point: int
    choice: Choice
    seed: int

    def __str__(self) -> str:
        return f"after event {self.point}, {self.choice.__name__} survives (seed {self.seed})"


class Objection(AssertionError):
    """An image that must not be."""


def record(subject: Subject) -> Trace:
    """Let a subject work on a forgetful disk."""
    with TemporaryDirectory(dir=fast_folder()) as scratch:
        with mounted(Path(scratch)) as disk, announced(disk.say):
            subject.work(disk.folder, disk.say)
        return list(_without_shared_memory(disk.trace))


def _without_shared_memory(trace: Trace) -> Iterator[Event]:
    nodes = {
        entry.node
        for event in trace
        if isinstance(event, Rename)
        for entry in event.entries
        if entry.name.endswith(SHARED_MEMORY)
    }
    return (event for event in trace if not (isinstance(event, Write | Resize) and event.node in nodes))


def moments(trace: Trace, images: int, random: Random) -> list[Moment]:
    """So many images: each point of the trace once, then each point with each choice, then any again. Where there are fewer
    images than that, they are drawn."""
    begin = trace.index(Said(READY)) if Said(READY) in trace else 0
    points = [number for number, event in enumerate(trace) if number >= begin and not isinstance(event, Said)]
    points.append(len(trace))
    once = {point: random.choice(CHOICES) for point in points}
    others = [(point, choice) for point in points for choice in dict.fromkeys(CHOICES) if choice != once[point]]
    found = [*random.sample(list(once.items()), len(once)), *random.sample(others, len(others))]
    while len(found) < images:
        found.append((random.choice(points), random.choice(CHOICES)))
    chosen = [Moment(point, choice, random.getrandbits(32)) for point, choice in found[:images]]
    return sorted(chosen, key=lambda moment: moment.point)


def judge(subject: Subject, trace: Trace, chosen: Sequence[Moment]) -> Iterator[Objection | None]:
    """What is wrong with each image; None when nothing is. Moments must be in order."""
    said = [(number, event.text) for number, event in enumerate(trace) if isinstance(event, Said)]
    words = [(number, text) for number, text in said if text != READY and not text.startswith(MARK)]
    disk, done = Disk(), 0
    with TemporaryDirectory(dir=fast_folder()) as scratch:
        for moment in chosen:
            for event in islice(trace, done, moment.point):
                disk.apply(event)
            done = moment.point
            image = Path(scratch) / "image"
            image.mkdir()
            disk.image(moment.choice(disk.pending, Random(moment.seed)), image)
            before = [text for number, text in words if number < moment.point]
            after = [text for number, text in words if number >= moment.point]
            try:
                subject.judge(image, before, after)
            except Exception as error:  # noqa: BLE001 - whatever it is, the power failed and this came of it
                yield Objection(f"{subject.name}, {moment}: {type(error).__name__}: {error}")
            else:
                yield None
            shutil.rmtree(image)


class Outcome(NamedTuple):
    subject: str
    events: int
    images: int
    objections: list[str]
    seconds: float


def run(subject: Subject, images: int, seed: int) -> Outcome:
    began = time.monotonic()
    trace = record(subject)
    found = list(judge(subject, trace, moments(trace, images, Random(seed))))
    objections = [str(one) for one in found if one is not None]
    return Outcome(subject.name, len(trace), len(found), objections, time.monotonic() - began)
