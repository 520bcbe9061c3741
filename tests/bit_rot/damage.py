"""Ways in which a disk returns something else than what was written to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

SECTOR = 512


def flip(content: bytearray, random: Random) -> None:
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def zero(content: bytearray, random: Random) -> None:
    begin = random.randrange(len(content))
    end = min(begin + random.choice([1, 8, SECTOR]), len(content))
    content[begin:end] = bytes(end - begin)


def zero_sector(content: bytearray, random: Random) -> None:
    begin = random.randrange(len(content)) // SECTOR * SECTOR
    end = min(begin + SECTOR, len(content))
    content[begin:end] = bytes(end - begin)


def cut(content: bytearray, random: Random) -> None:
    del content[random.randrange(len(content)) :]


KINDS: Mapping[str, Callable[[bytearray, Random], None]] = {
    "a flipped bit": flip,
    "zeroed bytes": zero,
    "a zeroed sector": zero_sector,
    "the end cut off": cut,
}


def damaged(whole: Path, folder: Path, file: str, kind: str, seed: int) -> Path:
    """A copy of a folder in which one file has been damaged; again with the same seed it is damaged in the same way."""
    copied(whole, folder)
    path = folder / file
    content = bytearray(path.read_bytes())
    KINDS[kind](content, Random(seed))
    path.write_bytes(content)
    return folder


def copied(whole: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder, ignore=lambda _, names: [name for name in names if name.endswith(("-shm", ".lock"))])
    return folder
