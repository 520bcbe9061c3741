"""Epochs of a pipe's ends: numbers that are higher after every restart.

They distinguish the sessions of an end. If an epoch went back, the other end would ignore all frames, because they seem to
come from an earlier session.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from zlib import crc32

from seriatim.engine.broker import Broker, WriterMove
from seriatim.errors import AlreadyExists, DamagedStore, FailedPrecondition


class Epochs(Protocol):
    """Where an end of a pipe gets its epoch."""

    async def next(self) -> int:
        """A number that is higher than every earlier one, even after crashes."""


class ClockEpochs:
    """The time in microseconds: for ends that exist only within one process, or on a clock that is never set back."""

    async def next(self) -> int:
        """The current time in microseconds."""
        return time.time_ns() // 1_000


class FileEpochs:
    """A number in a file, on disk before it is used. The file belongs to one end of one pipe."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    async def next(self) -> int:
        """The number after the one in the file, which is on disk when this returns."""
        return await asyncio.get_running_loop().run_in_executor(None, self._raise)

    def _raise(self) -> int:
        epoch = self._read() + 1
        temporary = self._path.with_name(f"{self._path.name}.new")
        with temporary.open("w") as file:
            file.write(f"{epoch} {_checksum(epoch)}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        _sync_folder(self._path.parent)
        return epoch

    def _read(self) -> int:
        try:
            text = self._path.read_text()
            epoch, *checksum = text.split()
            if not text.endswith("\n") or checksum not in ([], [_checksum(int(epoch))]):  # none: written by hand
                raise ValueError
            return int(epoch)
        except FileNotFoundError:
            return 0
        except ValueError:
            raise DamagedStore(
                f"{self._path} is damaged or contains no epoch: restore it, or write a line into it with a number that is "
                "higher than any used before"
            ) from None


class StoreEpochs:
    """A number in a store, beside what the end keeps there."""

    def __init__(self, broker: Broker, topic: str, name: str) -> None:
        self._broker, self._topic, self._writer = broker, topic, f"pipe {name} epoch"

    async def next(self) -> int:
        """The number after the one in the store, which is durable when this returns."""
        with suppress(AlreadyExists):
            await self._broker.create_topic(self._topic)
        while True:
            epoch = await self._broker.position_of(self._writer)
            try:
                await self._broker.publish_once(self._topic, [WriterMove(self._writer, epoch, epoch + 1)], [])
            except FailedPrecondition:
                continue  # another life took it at the same moment
            return epoch + 1


def _checksum(epoch: int) -> str:
    return f"{crc32(b'%d' % epoch):08x}"


def _sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
