"""The mode of a pipeline: a producer, ``seriatim pipeline run`` on Spark between topics and tables, and a reader of the topics.

The whole driver is killed (Python, Java and its workers), often between a sink and the commit of a batch, or one of these
processes alone; it is stopped, and ended politely.
So are the producer and the reader, one of which owns the store. Spark needs many seconds to start, so a driver is mostly left
alone until it has done a batch. Afterwards an undisturbed run finishes what is left, and ``pipeline_checker`` judges the
sinks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from seriatim.spark.local.session import LOG4J
from tests.nemesis.checker import Anomaly
from tests.nemesis.disk import Disk, FullDisk
from tests.nemesis.fault import Fault
from tests.nemesis.history import Event, read_history
from tests.nemesis.mode import Arena, Mode, python
from tests.nemesis.own import check_store, store_folder
from tests.nemesis.pipeline_checker import Entry, Id, Row, Written, check_pipeline
from tests.nemesis.producer import RAW, WHO, ProducerLife
from tests.nemesis.program import WITH_ITS_PARENT, Program
from tests.nemesis.reader import Reading, check_same, make_topics, messages_read, subscription_of
from tests.spark.pipeline.pipelines import rows_of

ORDERED, LATE = "ordered", "late"
LIVE, AUDIT = "live", "audit"
GAP_TIMEOUT = 20.5
"""In blocks of the producer. No time lies between two blocks, so nothing falls due in the middle of one."""
LONGEST_WORK_S = 10.0
LONGEST_START_S = 12.0
LONGEST_BATCH_S = 20.0
FINISH_S = 400.0
DRAIN_S = 120.0

DECLARATION = """
[pipeline]
name = "telemetry"
checkpoint = "work/telemetry"
require = "strict"
{trigger}

[source]
format = "seriatim"
options = {{ url = "sqlite:///store.db", topic = "raw", maxRowsPerTrigger = 400 }}
select = [
    "key AS device",
    "CAST(get_json_object(CAST(data AS STRING), '$.n') AS BIGINT) AS n",
    "CAST(get_json_object(CAST(data AS STRING), '$.at') AS DOUBLE) AS at",
    "data",
]

[order]
key = "device"
sequence = "n"
arrival = "at"
start = 1
gap_timeout = {gap_timeout}
on_late = "side-output"
remember = 1000000
partitions = 2

[[sink]]
format = "seriatim"
options = {{ url = "sqlite:///store.db", topic = "ordered" }}

[[sink]]
format = "parquet"
options = {{ path = "ordered" }}

[[sink]]
what = "ledger"
format = "parquet"
options = {{ path = "ledger" }}

[[sink]]
what = "late"
format = "seriatim"
options = {{ url = "sqlite:///store.db", topic = "late" }}

[spark]
spark.master = "local[2,4]"  # a task may fail so often
spark.local.dir = "{folder}/local"
# A driver that is soon killed had better start quickly.
spark.driver.extraJavaOptions = "-Dlog4j2.configurationFile={log4j} -Djava.io.tmpdir={folder}/local -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""  # noqa: E501 - an option of Java


class Driver(Program):
    """``seriatim pipeline run`` with all its processes. Signals reach each of them, except for the polite one."""

    def __init__(self, folder: Path, declaration: Path, random: Random, disk: Sequence[Disk]) -> None:
        command = python("seriatim", "pipeline", "run", str(declaration))
        super().__init__("driver", folder, lambda _: command, surroundings=disk)
        self._commits = declaration.parent / "work" / "telemetry" / "commits"
        self._table = declaration.parent / ORDERED
        self._random = random
        self._waits_for_work, self._patience, self._begun, self._done = True, 0.0, 0.0, 0

    def start(self) -> None:
        self._waits_for_work = self._random.random() < 0.75
        self._patience = self._random.uniform(0, LONGEST_WORK_S if self._waits_for_work else LONGEST_START_S)
        self._begun, self._done = time.monotonic(), self._batches()
        super().start()

    def _batches(self) -> int:
        return sum(1 for name in self._commits.glob("[0-9]*")) if self._commits.exists() else 0

    @property
    def is_before_a_commit(self) -> bool:
        """Whether a batch is in the first topic and the first table, and not committed yet: if it dies now, it comes again."""
        written = max((int(path.name.partition("=")[2]) for path in self._table.glob("batch=*")), default=-1)
        return not (self._commits / str(written)).exists() if written >= 0 else False

    @property
    def may_be_disturbed(self) -> bool:
        """Most lives end some time after their first batch, and some while Spark still starts."""
        if self._waits_for_work and self._batches() > self._done:
            self._waits_for_work, self._begun = False, time.monotonic()
        return not self._waits_for_work and time.monotonic() - self._begun > self._patience

    def parts(self) -> list[int]:
        """The processes that it started, and those that they started: Java, and workers in Python."""
        return _below(self.pid) if self.is_running else []

    def send(self, what: signal.Signals) -> None:
        parts = [] if what == signal.SIGTERM else self.parts()
        super().send(what)
        for pid in parts:
            with suppress(ProcessLookupError):
                os.kill(pid, what)


def _below(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has just ended
            for child in map(int, children.read_text().split()):
                found += [child, *_below(child)]
    return found


class KillPart(Fault):
    """One process of a driver dies: Java, or a worker."""

    name, counted_as, weight = "kill a part", "killed parts", 4

    def fits(self, program: Program) -> bool:
        return isinstance(program, Driver)

    def apply(self, program: Program, random: Random) -> float:
        assert isinstance(program, Driver)
        parts = program.parts()
        if parts:
            with suppress(ProcessLookupError):
                os.kill(random.choice(parts), signal.SIGKILL)
        return 0


class KillBeforeCommit(Fault):
    """The whole driver dies after it has written a batch to some of its sinks, and before it has committed the batch.

    The next one does that batch again. Whoever has it already must not take it twice.
    """

    name, counted_as, weight = "kill before a commit", "drivers killed before a commit", 8

    def fits(self, program: Program) -> bool:
        return isinstance(program, Driver)

    def apply(self, program: Program, random: Random) -> float | None:
        assert isinstance(program, Driver)
        end = time.monotonic() + LONGEST_BATCH_S
        while program.is_running and time.monotonic() < end:
            if program.is_before_a_commit:
                program.kill()
                return 0
            time.sleep(0.005)
        return None


class Pipeline(Mode):
    """A pipeline on Spark, its producer and its reader."""

    name = "pipeline"
    is_cheap = False

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self._folder = arena.folder
        self._place, *disk = store_folder(arena)
        self._store = f"sqlite:///{self._place / 'store.db'}"
        make_topics(self._store, [RAW, ORDERED, LATE], [LIVE, AUDIT])
        self._producing = ProducerLife(self._store, str(self._folder), arena.seed, 0)
        live = [subscription_of(LIVE, topic) for topic in (ORDERED, LATE)]
        self._reading = Reading(self._store, "reader", str(self._folder), live)
        self.programs = [
            Program(WHO, self._folder, lambda life: replace(self._producing, life=life).command(), surroundings=disk),
            Program("reader", self._folder, lambda _: self._reading.command(), surroundings=disk),
            Driver(self._folder, self._declare("pipeline", ""), arena.random, disk),
        ]
        self.faults += [KillPart(), KillBeforeCommit(), FullDisk()]
        self._tables: dict[str, list[dict[str, Any]]] = {}

    def _declare(self, name: str, trigger: str) -> Path:
        (self._folder / "local").mkdir(exist_ok=True)
        path = self._place / f"{name}.toml"
        path.write_text(
            DECLARATION.format(trigger=trigger, gap_timeout=GAP_TIMEOUT, folder=self._folder, log4j=LOG4J.as_uri())
        )
        return path

    def has_begun(self) -> bool:
        """Whether a first batch has come through."""
        return any(read_history(self._folder / "reader.jsonl"))

    def drain(self) -> None:
        closing = Program("last-producer", self._folder, lambda _: replace(self._producing, is_last=True).command())
        self.programs.append(closing)
        closing.start()
        if not closing.wait(DRAIN_S):
            self.arena.troubles.append(f"nothing could be published within {DRAIN_S:.0f} s without any fault")
        self._run_to_the_end()
        self._read_the_rest()
        self._tables = {name: rows_of(self._place / name) for name in ("ordered", "ledger")}
        self.arena.troubles += check_store(self._store)

    def _run_to_the_end(self) -> None:
        """The pipeline, undisturbed, until everything is done."""
        path = self._declare("finish", 'trigger = "available-now"')
        command = [*WITH_ITS_PARENT, *python("seriatim", "pipeline", "run", str(path))]
        try:
            done = subprocess.run(command, capture_output=True, timeout=FINISH_S, check=False)
        except subprocess.TimeoutExpired:
            self.arena.troubles.append(f"the pipeline did not end within {FINISH_S:.0f} s without any fault")
            return
        if done.returncode != 0:
            self.arena.troubles.append(f"the pipeline failed without any fault: {done.stderr.decode()[-1000:]}")

    def _read_the_rest(self) -> None:
        topics = [subscription_of(LIVE, topic) for topic in (ORDERED, LATE)]
        topics += [subscription_of(AUDIT, topic) for topic in (RAW, ORDERED, LATE)]
        reading = replace(self._reading, who="last-reader", subscriptions=topics, is_last=True)
        last = Program("last-reader", self._folder, lambda _: reading.command())
        self.programs.append(last)
        last.start()
        if not last.wait(DRAIN_S):
            self.arena.troubles.append(f"the topics were not read within {DRAIN_S:.0f} s")

    # -- judging --------------------------------------------------------------------------------------------------------

    def judge(self, events: Sequence[Event]) -> list[Anomaly]:
        raw, ordered, late = (messages_read(events, AUDIT, topic) for topic in (RAW, ORDERED, LATE))
        published = [_as_row(event) for event in raw]
        written = Written(
            [_as_row(event) for event in ordered],
            [(Row(row["device"], row["n"], row["at"]), row["_position"]) for row in self._tables["ordered"]],
            [_as_entry(row) for row in self._tables["ledger"]],
            [_as_late(event) for event in late],
        )
        return [
            *check_same(messages_read(events, LIVE, ORDERED), ordered, ORDERED),
            *check_same(messages_read(events, LIVE, LATE), late, LATE),
            *_check_published(events, published),
            *check_pipeline(published, written, GAP_TIMEOUT),
        ]


def _check_published(events: Sequence[Event], published: Sequence[Row]) -> list[Anomaly]:
    """The log has every row whose publish was confirmed, and none that nobody published."""
    log = {row.id for row in published}
    begun, confirmed = (
        {(event.key, float(event.body)) for event in events if event.what == what} for what in ("publish", "published")
    )
    return [
        *(Anomaly("lost", RAW, key, -1, f"row of {at}: its publish was confirmed") for key, at in confirmed - log),
        *(Anomaly("ghost", RAW, key, -1, f"row of {at}: nobody published it") for key, at in log - begun),
    ]


def _said(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.loads(event.body)["data"])
    return found


def _as_row(event: Event) -> Row:
    said = _said(event)
    return Row(event.key, said["n"], said["at"])


def _as_late(event: Event) -> Id:
    return event.key, _said(event)["at"]


def _as_entry(row: dict[str, Any]) -> Entry:
    return Entry(row["device"], row["_reason"], row["at"], row["_first"] or 0, row["_last"] or 0)
