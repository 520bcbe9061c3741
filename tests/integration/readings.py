"""Readings of some devices, disordered on their way, and what is to come of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from random import Random
from typing import Any

DEVICES, READINGS = 5, 60
IN_ORDER = {f"device-{device}": list(range(1, READINGS + 1)) for device in range(DEVICES)}
REPEATED = DEVICES * READINGS // 10


def disordered() -> list[dict[str, Any]]:
    """What every device sent, a little shuffled, some of it twice."""
    random = Random(5)
    sent = [(device, n) for device, numbers in IN_ORDER.items() for n in numbers]
    sent += random.sample(sent, REPEATED)
    sent.sort(key=lambda one: one[1] + random.uniform(0, 10))
    return [{"device": device, "n": n, "at": at} for at, (device, n) in enumerate(sent)]


def as_files(count: int) -> list[str]:
    """The content of so many files with JSON, one after the other."""
    lines = [json.dumps(reading) for reading in disordered()]
    bounds = [number * len(lines) // count for number in range(count + 1)]
    return ["\n".join(lines[first:end]) for first, end in pairwise(bounds)]


def numbers_by_device(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["device"], []).append(row["n"])
    return found
