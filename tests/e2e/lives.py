"""Programs that say what they were told, line by line, until they are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

NUMBERS_A_LIFE = 1_000_000


def live(child: str, *arguments: str, seconds: float | None) -> list[list[str]]:
    """What a program of this folder said until it was killed, so many seconds after its first word, or ended."""
    path = Path(__file__).with_name(child)
    process = subprocess.Popen([sys.executable, str(path), *arguments], stdout=subprocess.PIPE, cwd=path.parents[2])
    assert process.stdout is not None
    with process.stdout as pipe:
        heard = pipe.readline() if seconds is not None else b""
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        heard += pipe.read()
    assert process.wait(60) == (0 if seconds is None else -9)
    return [line.split() for line in heard.decode().split("\n")[:-1]]


def lives(child: str, *arguments: str, kills: int, seed: int) -> Iterator[list[list[str]]]:
    """What a program said in each of several lives. All but the last are ended by SIGKILL, and begin with a number of their
    own; the last one, which gets -1, ends by itself."""
    random = Random(seed)
    for number in range(kills):
        yield live(child, *arguments, str(number * NUMBERS_A_LIFE), seconds=random.uniform(0.05, 0.3))
    yield live(child, *arguments, "-1", seconds=None)
