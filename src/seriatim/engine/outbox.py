"""The outbox: messages that other programs committed in transactions of their own are appended to their topics.

Rules
    - What is visible in the outbox is committed. Within a key, ids rise in the order of the commits, because a transaction that
      publishes a key holds its lock to the end: everything that is visible of a key comes before what is not visible yet.
    - Messages get their offsets here, and leave the outbox in the transaction that appends them, which holds the owner's epoch.
      Whatever fails is looked up again, so a message is appended once, also by an owner that was killed.
    - Transactions that publish nothing are nobody's business: nothing here waits for them.
    - In PostgreSQL, a message whose topic was deleted stays in the outbox, until there is a topic of that name again.
    - SQLite files that somebody registered have an outbox, too. How far a file was read is committed together with the messages
      (``publish_once``). A message that can't be appended stops its file: nothing may pass it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from seriatim.engine.broker import Outgoing, WriterMove
from seriatim.errors import FailedPrecondition, NotFound, SeriatimError
from seriatim.log import logger
from seriatim.store import outbox_file
from seriatim.store.base import DocumentRow, OutboxRow, Record, Transaction

if TYPE_CHECKING:
    from seriatim.engine.commit import Log
    from seriatim.engine.engine import Engine

PAUSE_S = 0.1
"""How long an outbox without messages is left alone."""

KIND = "outbox"
"""The documents that name registered files, with the names under which they are read."""


class Outbox:
    """Empties every outbox of an engine while it is open."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None
        self._files: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._files_lock = asyncio.Lock()  # held while a file is read, added or removed
        self._has_table = False

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="seriatim-outbox")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def add_file(self, path: str) -> None:
        if self._engine.is_volatile:
            raise FailedPrecondition(
                "a store in memory forgets how far an outbox was read: use one in a file or a database"
            )
        async with self._files_lock:
            known = await self._known_files()
            reader = known.get(path) or uuid4().hex
            await self._engine.put_document(
                DocumentRow(KIND, path, reader)
            )  # first: a file without it would belong to nobody
            try:
                await asyncio.to_thread(outbox_file(path, reader).prepare)
            except SeriatimError:
                if path not in known:
                    await self._engine.delete_document(KIND, path)
                raise
            self._files[path] = reader
        self.start()

    async def remove_file(self, path: str) -> None:
        async with self._files_lock:
            reader = (await self._known_files()).get(path, "")
            end = await self._engine.position_of(f"outbox {reader}")
            await self._engine.delete_document(KIND, path)
            self._files.pop(path, None)
            with suppress(NotFound):
                await asyncio.to_thread(outbox_file(path, reader).release, end)

    async def _known_files(self) -> dict[str, str]:
        return {row.name: row.text for row in await self._engine.list_documents(KIND)}

    async def _run(self) -> None:
        sources: list[str] | None = None  # the files, and "" for the outbox of the store itself
        while self._engine.recovery.down is None and sources != []:
            is_busy = False
            try:
                if sources is None:
                    self._files |= await self._known_files()
                    self._has_table = await self._engine.load(lambda store: store.outbox()) is not None
                sources = [*([""] if self._has_table else ()), *self._files]
            except SeriatimError as error:
                self._report("", error)
            for path in sources or ():
                try:
                    is_busy |= bool(await (self._from_file(path) if path else self._from_store()))
                    self._failures.pop(path, None)
                except Exception as error:  # noqa: BLE001 - whatever is in an outbox, the others go on
                    self._report(path, error)
            if not is_busy and sources != []:
                await asyncio.sleep(PAUSE_S)

    def _report(self, path: str, error: Exception) -> None:
        """Log a failure when it is another one than before."""
        if self._failures.get(path) != str(error):
            self._failures[path] = str(error)
            logger.error("outbox %s could not be emptied, which is tried again and again: %s", path, error)

    async def _from_store(self) -> int:
        """How many messages were appended."""
        rows = await self._engine.load(lambda store: store.outbox())
        if not rows:
            return 0
        commit, now = self._engine.commit(), self._engine.now()
        together: dict[Log, Sequence[Record]] = {}
        for name, messages in _by_topic(rows).items():
            log = self._engine.get_topic(name)
            together[log] = log.number(messages, now)[1]

        def take(work: Transaction) -> None:
            for log in together:
                work.append(log.id, ())  # before anything is taken: the topic may have been deleted
            work.take_from_outbox([row.id for row in rows])

        await commit.request(take, together)
        return len(rows)

    async def _from_file(self, path: str) -> int:
        async with self._files_lock:
            if (reader := self._files.get(path)) is None:
                return 0
            writer, file = f"outbox {reader}", outbox_file(path, reader)
            start = await self._engine.position_of(writer)
            rows = await asyncio.to_thread(file.read, start)
            if rows:
                (topic, messages), *more = _by_topic(rows).items()
                end = rows[-1].id + 1
                await self._engine.publish_once(topic, [WriterMove(writer, start, end)], messages, dict(more))
                await asyncio.to_thread(file.forget, end)
            return len(rows)


def _by_topic(rows: Sequence[OutboxRow]) -> dict[str, list[Outgoing]]:
    found: dict[str, list[Outgoing]] = {}
    for row in rows:
        found.setdefault(row.topic, []).append(Outgoing(row.key, row.data, row.attributes))
    return found
