"""What the disk can do: bare fsyncs, and commits of one small pack by the store, one after another and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.ordered_drain.workload import PAYLOAD
from seriatim.store import open_store
from seriatim.store.base import Cursor, Record

COMMITS = 3_000
PAGE = 4096


def fsyncs_per_second(commits: int = COMMITS) -> float:
    """Append a few pages to a file and fsync it, again and again: about what a commit writes."""
    with TemporaryDirectory(prefix="ordered-drain-") as folder, (Path(folder) / "file").open("wb", buffering=0) as file:
        begin = perf_counter()
        for _ in range(commits):
            file.write(b"." * PAGE * 4)
            os.fdatasync(file.fileno())
        return commits / (perf_counter() - begin)


def commits_per_second(messages: int, commits: int = COMMITS) -> float:
    """Append and settle so many messages in each transaction of a SQLite store."""
    with TemporaryDirectory(prefix="ordered-drain-") as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'store.db'}")
        with store.transaction() as work:
            topic = work.create_topic("events", {})
            subscription = work.create_subscription(topic.id, "worker", {}, Cursor(0))
        begin = perf_counter()
        for first in range(0, commits * messages, messages):
            offsets = range(first, first + messages)
            with store.transaction() as work:
                work.append(topic.id, [Record(offset, "key-1", b"." * PAYLOAD) for offset in offsets])
                work.settle(subscription.id, offsets)
        seconds = perf_counter() - begin
        store.close()
    return commits / seconds
