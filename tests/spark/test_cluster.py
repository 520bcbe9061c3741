"""On a real cluster, of a master and two workers: one of them is killed in the middle of a batch, and then the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from seriatim.engine.broker import Outgoing
from seriatim.spark import register
from seriatim.spark.compatibility import SPARK
from tests.spark.cluster import Cluster, running_cluster, wait_for
from tests.spark.cluster_child import ROWS_A_BATCH, put_stream_in_order
from tests.spark.topics.stored_topics import ask, make_topics, stored

KEYS, MESSAGES = 6, 100


def disordered() -> list[tuple[str, int]]:
    """What every key sent, a little shuffled, some of it twice."""
    random = Random(7)
    sent = [(f"key-{key}", number) for number in range(MESSAGES) for key in range(KEYS)]
    sent += random.sample(sent, len(sent) // 20)
    return sorted(sent, key=lambda one: one[1] + random.uniform(0, 20))


def by_key(url: str, topic: str) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = defaultdict(list)
    for record in stored(url, topic):
        found[record.key].append(int(record.data))
    return dict(found)


def test_nothing_is_lost_or_repeated_when_a_worker_and_then_the_driver_are_killed(spark, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    make_topics(url, "raw", "repaired", "ordered")
    rows = [Outgoing(key, b"%d" % number, None) for key, number in disordered()]
    ask(url, lambda broker: broker.publish("raw", rows))
    in_order = {f"key-{key}": list(range(MESSAGES)) for key in range(KEYS)}

    with running_cluster(tmp_path, workers=2) as cluster, running_driver(cluster, url) as driver:
        at_work = wait_for(lambda: where_it_paused(tmp_path, driver))
        assert by_key(url, "repaired") == in_order
        assert all(cluster.executors(name) for name in cluster.workers)
        before = len(stored(url, "ordered"))
        (struck,) = [name for name in cluster.workers if Path(at_work).is_relative_to(tmp_path / name)]
        cluster.workers[struck].kill()
        (tmp_path / "go").touch()
        wait_for(lambda: is_longer(url, before + ROWS_A_BATCH, driver))
    after = len(stored(url, "ordered"))  # the driver was killed right after an append: Spark does not know of it yet
    if SPARK >= (4, 2):  # before, everything is one batch
        assert 0 < before < after < KEYS * MESSAGES

    register(spark)
    put_stream_in_order(spark, url, str(tmp_path))
    assert by_key(url, "ordered") == in_order
    assert list(tmp_path.glob("store.db.staging/*")) == []


@contextmanager
def running_driver(cluster: Cluster, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that is killed in the end."""
    command = [sys.executable, "-m", "tests.spark.cluster_child", cluster.master, url, str(cluster.folder)]
    driver = subprocess.Popen(command, start_new_session=True)
    try:
        yield driver
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def where_it_paused(folder: Path, driver: subprocess.Popen[bytes]) -> str | None:
    assert driver.poll() is None
    paused = folder / "paused"
    return paused.read_text() if paused.exists() else None


def is_longer(url: str, messages: int, driver: subprocess.Popen[bytes]) -> bool | None:
    assert driver.poll() is None
    return len(stored(url, "ordered")) > messages or None
