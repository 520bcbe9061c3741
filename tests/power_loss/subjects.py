"""What is done on a forgetful disk, and what must be true of whatever is left of it when the power fails.

A subject works in an empty folder and says what was acknowledged, when it was. Its judge gets an image, what was said
before the power failed, and what would have been said after it. It opens what it finds as the next program would.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Protocol
from unittest.mock import patch

import seriatim.engine.upkeep as upkeep_module
from seriatim.console.remote import ApiBroker, open_api
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.pipes import FileEpochs, InProcess, Outbox, Pipe, TopicOutput
from seriatim.store.base import Cursor, DocumentRow, StoreReader
from seriatim.store.sqlite.restore import OFFSETS_SKIPPED, restore_backup
from seriatim.store.sqlite.store import SqliteReader, SqliteStore
from tests.fire import MAX_DELIVERY_ATTEMPTS, Worker, prepare
from tests.store.contract.kit import letter, records, trouble
from tests.store.script import STEPS, look_at
from tests.store.sqlite import written_before
from tests.witness import KEYLESS, Witness, what_waits

Say = Callable[[str], None]


class Subject(Protocol):
    @property
    def name(self) -> str: ...

    def work(self, folder: Path, say: Say) -> None: ...

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None: ...


READY = "ready"


def make_durable(folder: Path, say: Say) -> None:
    """Sync everything in a folder: it was there before the work began. The power does not fail before that."""
    for path in [*sorted(folder.rglob("*")), folder]:
        if path.is_file() or path.is_dir():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)
    say(READY)


def digest(store: StoreReader) -> str:
    """Everything that a sound store holds, in short."""
    found = [*look_at(store), repr(store.documents("count")), repr(store.writers(""))]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def digest_of_file(path: Path) -> str:
    with closing(SqliteStore(path)) as store:
        return digest(store)


# -- stores
# -------------------------------------------------------------------------------------------------------------


class StoreVerbs:
    """Every verb of a store, with checkpoints, clean-up and clean closings. Each image is the store after one of its
    transactions, not earlier than the last that was acknowledged."""

    name = "SQLite store"

    def __init__(self, transactions: int = 50) -> None:
        self._transactions = transactions

    def work(self, folder: Path, say: Say) -> None:
        path = folder / "store.db"
        store = self.open(path)
        say(f"state {digest(store)}")
        for step in STEPS:
            step(store)
            say(f"state {digest(store)}")
        with store.transaction() as work:
            topic = work.create_topic("more", {"retention": None})
            subscription = work.create_subscription(topic.id, "s", {}, Cursor(0))
        say(f"state {digest(store)}")
        for number in range(self._transactions):
            with store.transaction() as work:
                work.append(topic.id, records([2 * number, 2 * number + 1], size=10_000, published=0.0))
                if number % 3 == 0:
                    work.note_troubles(subscription.id, [trouble(2 * number)])
                    work.bury(subscription.id, [letter(2 * number + 1)])
                else:
                    work.settle(subscription.id, [2 * number, 2 * number + 1])
                work.put_document(DocumentRow("count", "number", str(number)))
                work.claim_batch("w", number)
            say(f"state {digest(store)}")
            if number % 7 == 6:
                store.upkeep(10.0)
                say(f"state {digest(store)}")
            if number % 20 == 19:
                store.close()
                store = self.open(path)
        store.close()

    def open(self, path: Path) -> SqliteStore:
        return SqliteStore(path)

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        if not before and not (image / "store.db").exists():
            return
        found = f"state {digest_of_file(image / 'store.db')}"
        allowed = [*before[-1:], *after[:1], *([] if before else [EMPTY])]
        assert found in allowed, "the store is not as it was after the last transaction that was acknowledged"


EMPTY = "state of a store that nothing was written to"


class UnsyncedStore(StoreVerbs):
    """A store that does not wait for its disk: the judge must object to it."""

    name = "SQLite store, synchronous=OFF"

    def open(self, path: Path) -> SqliteStore:
        store = super().open(path)
        store._writer.execute("PRAGMA synchronous = OFF")
        return store


class EngineUnderFire:
    """Publishing, acks, nacks, dead letters and clean-up. After the loss of power everything that was confirmed is
    there, once and in order, and the rest is delivered."""

    name = "engine"

    def __init__(self, batches: int = 25) -> None:
        self._batches = batches

    def work(self, folder: Path, say: Say) -> None:
        pause, upkeep_module.PAUSE_S = upkeep_module.PAUSE_S, 0.02
        try:
            asyncio.run(self._live(f"sqlite:///{folder}/store.db", _voice(say), 7, self._batches))
        finally:
            upkeep_module.PAUSE_S = pause

    async def _live(self, url: str, say: Callable[[str, str, int, int], None], seed: int, batches: int) -> None:
        random, numbers = Random(seed), dict.fromkeys(["a", "b", None], 0)
        engine = await Engine.open(url)
        try:
            await prepare(engine)
            worker = Worker(engine, say, random)
            for _ in range(batches):
                key = random.choice(list(numbers))
                batch = range(numbers[key], numbers[key] + random.randint(1, 9))
                numbers[key] = batch.stop
                await engine.publish("t", [Outgoing(key, str(number).encode()) for number in batch])
                for number in batch:
                    say("P", key or KEYLESS, number, 0)
            await worker.at_most(0)
        finally:
            await engine.close()

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        witness = Witness(MAX_DELIVERY_ATTEMPTS)
        for line in before:
            _hear(witness, line)
        witness.hear_kill()
        url = f"sqlite:///{image}/store.db"
        with closing(SqliteStore(image / "store.db")) as store:
            assert list(store.check()) == []
        witness.judge_store(what_waits(url))
        asyncio.run(self._live(url, witness.hear, 8, 0))
        witness.judge_end()


def _voice(say: Say) -> Callable[[str, str, int, int], None]:
    return lambda *words: say(" ".join(map(str, words)))


def _hear(witness: Witness, line: str) -> None:
    what, key, number, attempt = line.split()
    witness.hear(what, key, int(number), int(attempt))


class Migration:
    """A store of an earlier version, left by a killed owner, is opened. Whenever the power fails, what it held is
    there."""

    name = "migration"

    def work(self, folder: Path, say: Say) -> None:
        written_before.unpack(folder)
        make_durable(folder, say)
        say("old")
        say(f"state {digest_of_file(folder / 'store.db')}")

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        if before:
            (state,) = [line for line in [*before, *after] if line.startswith("state")]
            assert f"state {digest_of_file(image / 'store.db')}" == state


class Backup:
    """A backup is there as a whole or not at all; there, once it was said so."""

    name = "backup"

    def work(self, folder: Path, say: Say) -> None:
        store = _filled(folder / "store.db")
        make_durable(folder, say)
        say(f"state {digest(store)}")
        store.backup(str(folder / "backup.db"))
        say("backed up")
        store.close()

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        if not before:
            return
        backup = image / "backup.db"
        assert backup.exists() or "backed up" not in before, "the backup is gone"
        for path in (backup, image / "store.db"):
            if path.exists():
                with closing(SqliteReader(path)) as reader:
                    assert f"state {digest(reader)}" == before[0], f"{path.name} is not what was backed up"


class DownloadedBackup(Backup):
    """The same of a backup that comes over the admin API."""

    name = "downloaded backup"

    def work(self, folder: Path, say: Say) -> None:
        store = _filled(folder / "store.db")
        with TemporaryDirectory() as server:
            store.backup(f"{server}/backup.db")
            content = Path(server, "backup.db").read_bytes()
        make_durable(folder, say)
        say(f"state {digest(store)}")
        store.close()
        with patch.object(ApiBroker, "_request", lambda *asked: asked[-1].write(content)):
            asyncio.run(open_api("http://127.0.0.1", "token").backup(str(folder / "backup.db")))
        say("backed up")


class Restore:
    """A restored store is there as a whole or not at all; there, once it was said so."""

    name = "restore"

    def work(self, folder: Path, say: Say) -> None:
        store = _filled(folder / "store.db")
        store.backup(str(folder / "backup.db"))
        messages = _messages(store)
        store.close()
        make_durable(folder, say)
        say(f"messages {messages}")
        restore_backup(folder / "backup.db", folder / "restored.db")
        say("restored")

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        if before:
            path = image / "restored.db"
            assert path.exists() or "restored" not in before, "the restored store is gone"
            if path.exists():
                with closing(SqliteStore(path)) as store:
                    assert list(store.check()) == []
                    assert f"messages {_messages(store)}" == before[0]
                    assert all(topic.next_offset >= OFFSETS_SKIPPED for topic in store.catalog().topics)


class RestoreReplacing:
    """``store restore --replace``, in place of a store whose owner was killed. What it held is never lost: it is under
    its own name or under that of the replaced store. And there is never less of it under either name."""

    name = "restore, replacing"

    def work(self, folder: Path, say: Say) -> None:
        from seriatim.cli.store.restore import _restore

        written_before.unpack(folder)
        make_durable(folder, say)
        say("old")
        _restore(folder / "backup.db", folder / "store.db", folder / "store.db.replaced")
        say("restored")

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        if not before:
            return
        names = (image / "store.db", image / "store.db.replaced")
        kept = [path for path in names if path.exists()]
        old = [path for path in kept if _is_old(path)]
        assert old, "the replaced store is not whole under either name"
        for path in kept:
            assert path in old or _is_restored(path), f"{path.name} lacks a part of what the replaced store held"
        assert "restored" not in before or (names[0] in kept and names[0] not in old), "the restored store is gone"


def _is_old(path: Path) -> bool:
    """Whether a store holds what ``written_before`` has beyond its backup: the lease that was under way in its last
    commits."""
    with closing(SqliteStore(path)) as store:
        assert list(store.check()) == []
        known = store.catalog().subscriptions
        return any(row.failures == 2 for subscription in known for row in store.troubles(subscription.id))


def _is_restored(path: Path) -> bool:
    with closing(SqliteStore(path)) as store:
        assert list(store.check()) == []
        topics = store.catalog().topics
        return bool(topics) and all(topic.next_offset >= OFFSETS_SKIPPED for topic in topics)


def _filled(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    for step in STEPS[:5]:
        step(store)
    return store


def _messages(store: StoreReader) -> str:
    return json.dumps([[record.offset, record.data.decode()] for record in store.read(1, 0, 1_000)])


# -- pipes
# --------------------------------------------------------------------------------------------------------------


class PipeWithOutbox:
    """A pipe with an outbox and a topic behind it. What was taken in arrives once and in order, however often it
    restarts."""

    name = "pipe with outbox"

    def __init__(self, messages: int = 24) -> None:
        self._messages = messages

    def work(self, folder: Path, say: Say) -> None:
        asyncio.run(self._send(folder, say))

    async def _send(self, folder: Path, say: Say) -> None:
        for first in range(0, self._messages, 8):  # both ends restart in between
            engine = await Engine.open(f"sqlite:///{folder}/store.db")
            try:
                pipe = _pipe(engine)
                async with pipe.receiving(), pipe.sending() as out:
                    for number in range(first, first + 8):
                        await out.send(b"%d" % number)
                        say(f"{number}")
                    await out.drain()
            finally:
                await engine.close()

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        asyncio.run(self._go_on(image, len(before)))

    async def _go_on(self, image: Path, acknowledged: int) -> None:
        with closing(SqliteStore(image / "store.db")) as store:
            assert list(store.check()) == []
        engine = await Engine.open(f"sqlite:///{image}/store.db")
        try:
            pipe = _pipe(engine)
            async with pipe.receiving(), pipe.sending() as out:
                await out.drain()
            topic = engine.get_topic("out")
            arrived = [int(record.data) for record in await engine.load(lambda store: store.read(topic.id, 0, 1_000))]
        finally:
            await engine.close()
        assert arrived in [list(range(acknowledged)), list(range(acknowledged + 1))]


def _pipe(engine: Engine) -> Pipe:
    return Pipe(InProcess(), outbox=Outbox(engine, "outbox"), output=TopicOutput(engine, "out", key="k"))


class EpochsInAFile:
    """An epoch that was given out is never given out again."""

    name = "epochs in a file"

    def work(self, folder: Path, say: Say) -> None:
        for _ in range(6):
            say(str(asyncio.run(FileEpochs(folder / "epoch").next())))

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        epoch = asyncio.run(FileEpochs(image / "epoch").next())
        assert epoch > max([0, *map(int, before)]), "an epoch is given out again"


WITHOUT_SPARK: Sequence[Subject] = (
    StoreVerbs(),
    EngineUnderFire(),
    Migration(),
    Backup(),
    DownloadedBackup(),
    Restore(),
    RestoreReplacing(),
    PipeWithOutbox(),
    EpochsInAFile(),
)
SHARES = {StoreVerbs.name: 0.3, EngineUnderFire.name: 0.15, PipeWithOutbox.name: 0.15}
"""How much of all images a subject gets; those with short traces get 6 % each."""


def share(subject: Subject, images: int) -> int:
    return max(1, round(images * SHARES.get(subject.name, 0.06)))
