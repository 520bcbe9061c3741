"""Input that is read in chunks, in bounded memory, without blocking the event loop or the end of the program."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

from seriatim.errors import InvalidArgument

CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = 16 * 1024 * 1024
"""A longer line can't be a message, in whatever form."""

T = TypeVar("T")


class Source:
    """A file, or standard input. Use it as a context manager."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stream: BinaryIO | None = None
        self.size = path.stat().st_size if path is not None and path.is_file() else None

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is not None and self._stream is not None:
            self._stream.close()

    async def read_all(self, limit: int) -> bytes:
        """The whole input, or a little more than ``limit`` bytes of it."""
        data = b""
        async for chunk in self._chunks():
            data += chunk
            if len(data) > limit:
                break
        return data

    async def line_batches(self) -> AsyncIterator[list[bytes]]:
        """Lines without their ends, as many at a time as one read returns."""
        rest = b""
        async for chunk in self._chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise InvalidArgument(f"a line is longer than {MAX_LINE_BYTES} bytes: put one message on each line")
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]
        if rest:
            yield [rest]

    async def _chunks(self) -> AsyncIterator[bytes]:
        while chunk := await _in_thread(self._read):
            yield chunk

    def _read(self) -> bytes:
        if self._stream is None:
            self._stream = self._open()
        return self._stream.read(CHUNK_BYTES)

    def _open(self) -> BinaryIO:
        if self._path is not None:
            return self._path.open("rb", buffering=0)
        stdin = sys.stdin.buffer
        # Unbuffered: a read returns what there is, and a reader that is left behind at the end holds no lock.
        raw: BinaryIO | None = getattr(stdin, "raw", None)
        return raw or stdin


async def _in_thread(work: Callable[[], T]) -> T:
    """Wait for work that may block forever. When the wait is cancelled its thread is left behind, and ends with the process.

    Threads of an executor would not do: the end of the program waits for them.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # without an error there is a result
        else:
            future.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except OSError as error:
            failure = InvalidArgument(f"the input can't be read: {error.strerror}")
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=run, daemon=True).start()
    return await future
