"""A store and a backup as an earlier version left them, and a store in PostgreSQL.

``written_before.tar.gz`` was made by ``python -m tests.store.sqlite.written_before`` with the code as it was before the
engine got its owners of state (e35d911). Its writer was killed while it held a lease on ``a2``, so there is a WAL to
recover; the backup was taken a moment earlier. ``written_before.sql.gz`` is a dump of what the same writer left in PostgreSQL.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from seriatim import PubSub, RetryPolicy
from tests import postgres

ARCHIVE = Path(__file__).with_suffix(".tar.gz")
DUMP = Path(__file__).with_suffix(".sql.gz")
MESSAGES = [("a", "a1"), ("b", "b1"), ("a", "a2"), (None, "free"), ("c", "c1"), ("b", "b2"), ("a", "a3")]
HUNDRED_YEARS_S = 3_000_000_000.0


def unpack(folder: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def load(server: postgres.Server) -> str:
    """The address of a new database with what was dumped."""
    address = server.new_database()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(gzip.decompress(DUMP.read_bytes()))
    return address


def make() -> None:
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        subprocess.run([sys.executable, "-m", __spec__.name, "write", url, folder], check=False)  # it kills itself
        with tarfile.open(ARCHIVE, "w:gz") as archive:
            for name in ("store.db", "store.db-wal", "backup.db"):
                archive.add(Path(folder) / name, name)
    address = postgres.server().new_database()
    subprocess.run([sys.executable, "-m", __spec__.name, "write", address], check=False)
    dump = [str(postgres.programs() / "pg_dump"), "--inserts", "--no-owner", "--schema=seriatim", address]
    lines = subprocess.run(dump, check=True, stdout=subprocess.PIPE).stdout.splitlines(keepends=True)
    commands = b"".join(line for line in lines if not line.startswith(b"\\"))  # psql's own are left out
    DUMP.write_bytes(gzip.compress(commands, mtime=0))


async def write(url: str, folder: str | None = None) -> None:
    async with PubSub(url) as pubsub:
        await pubsub.topic("dead").create()
        topic = await pubsub.topic("orders").create()
        ship = await topic.subscription("ship").create(
            enable_message_ordering=True, retry=RetryPolicy(max_attempts=5), dead_letter_topic="dead"
        )
        await topic.subscription("red").create(enable_message_ordering=True, filter='attributes.colour = "red"')
        await ship.pause_key("c", "waits for a decision")
        for key, text in MESSAGES:
            await topic.publish(
                text.encode(), ordering_key=key, attributes={"colour": "red" if text == "a3" else "blue"}
            )
        await ship.snapshot("at the start", lasts=HUNDRED_YEARS_S)
        acked, a2_failed = 0, False
        async for message in ship.messages(max_messages=10):
            if message.data == b"b1":
                message.nack(error="no such address")
                await ship.dead_letter("b", "no such address")
            elif message.data == b"a2" and not a2_failed:
                message.nack(delay=0.1, error="the printer is out of paper")
                a2_failed = True
            elif message.data == b"a2":
                break
            else:
                await message.ack_durable()
                acked += 1
        assert acked == 3, "a1, free and b2"
        if folder is not None:
            await pubsub.backup(Path(folder) / "backup.db")
        os.kill(os.getpid(), 9)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        asyncio.run(write(*sys.argv[2:]))
    else:
        make()
