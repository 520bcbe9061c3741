"""Each fault does what it says, and heals."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import psycopg
import pytest

from tests.needs import lacking
from tests.nemesis import clock, network
from tests.nemesis.clock import Clock
from tests.nemesis.database import LEASE_S, Database, KillBackend, OutlastLease, Restart
from tests.nemesis.disk import Disk, SlowDisk, why_no_mounts, why_no_tracing
from tests.nemesis.leftovers import remove_leftovers
from tests.nemesis.network import PREFIX, Link, Network, ip
from tests.nemesis.pipeline import Driver
from tests.nemesis.program import Program
from tests.ports import free_port

SECONDS = 60.0


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as cleanup:
        yield cleanup


@pytest.fixture
def start(tmp_path: Path, cleanup: ExitStack) -> Callable[..., Program]:
    """Start a program that writes lines to the file ``said`` in the test's folder."""

    def start(code: str, *surroundings) -> Program:
        program = Program("p", tmp_path, lambda _: [sys.executable, "-c", code], surroundings=surroundings)
        cleanup.callback(program.kill)
        program.start()
        return program

    return start


def eventually(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


ECHO = """
import socket
with socket.create_server(("0.0.0.0", 5000)) as server:
    client, _ = server.accept()
    while data := client.recv(100):
        client.sendall(data)
"""
ASK = """
import socket, time
while True:
    try:
        client = socket.create_connection(("{address}", 5000), timeout=5)
        break
    except OSError:
        time.sleep(0.05)
client.settimeout(None)
with open("{said}", "a", buffering=1) as said:
    while True:
        client.sendall(b"x")
        client.recv(100)
        said.write("x")
        said.flush()
        time.sleep(0.02)
"""


@pytest.mark.parametrize("cut", [Link.cut, Link.lose_what_is_sent, Link.lose_what_comes])
def test_nothing_passes_a_link_that_is_cut_until_it_is_mended(cut, tmp_path: Path, cleanup: ExitStack, start):
    if (why := network.why_not()) is not None:
        lacking(why)
    net, said = Network(cleanup), tmp_path / "said"
    server, client = net.join("s"), net.join("c")
    start(ECHO, server)
    start(ASK.format(address=server.address, said=said), client)
    eventually(lambda: said.exists() and said.stat().st_size > 3)
    cut(client)
    before = said.stat().st_size
    time.sleep(0.5)
    assert said.stat().st_size <= before + 1, "one answer may have been there already"
    client.mend()
    eventually(lambda: said.stat().st_size > before + 3)


def test_namespaces_of_a_run_that_was_killed_are_removed_by_the_next_one():
    if (why := network.why_not()) is not None:
        lacking(why)
    with subprocess.Popen(["true"]) as gone:
        pass
    left = f"{PREFIX}{gone.pid}-hub"
    ip("netns", "add", left)
    remove_leftovers()
    assert left not in ip("netns", "list")


def test_a_full_disk_takes_nothing_until_it_is_freed(tmp_path: Path, cleanup: ExitStack):
    if (why := why_no_mounts()) is not None:
        lacking(why)
    disk = Disk(tmp_path / "disk", 1, cleanup)
    disk.fill(0)
    with pytest.raises(OSError, match="No space left"):
        (disk.folder / "more").write_bytes(b"x" * 5000)
    disk.free()
    (disk.folder / "more").write_bytes(b"x" * 5000)


SYNC = """
import os, time
file = os.open("{said}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
while True:
    begun = time.monotonic()
    os.fsync(file)
    os.write(file, f"{{time.monotonic() - begun:.3f}}\\n".encode())
    time.sleep(0.01)
"""


def test_a_slow_disk_holds_up_each_sync_until_it_is_healed(tmp_path: Path, start):
    if (why := why_no_tracing()) is not None:
        lacking(why)
    said, slow = Path("/dev/shm") / f"seriatim-{time.time_ns()}", SlowDisk()
    program = start(SYNC.format(said=said))
    eventually(lambda: said.exists() and said.stat().st_size > 0)

    def last() -> float:
        return float(said.read_text().split()[-1])

    class Always(Random):
        def choice(self, seq):
            return 0.3

    slow.apply(program, Always())
    eventually(lambda: last() >= 0.3)
    slow.heal(program)
    eventually(lambda: last() < 0.3)
    program.kill()
    said.unlink()


TIME = """
import os, threading, time
while True:
    with open("{said}.new", "w") as said:
        said.write(f"{{time.time()}} {{time.monotonic()}}")
    os.rename("{said}.new", "{said}")
    threading.Event().wait(0.05)
"""


def test_a_clock_jumps_while_its_program_runs_and_the_monotonic_clock_does_not(tmp_path: Path, start):
    if (why := clock.why_not()) is not None:
        lacking(why)
    said, jumping = tmp_path / "said", Clock(tmp_path / "clock")

    def ahead() -> float:
        wall, monotonic = map(float, said.read_text().split())
        assert abs(monotonic - time.monotonic()) < SECONDS
        return wall - time.time()

    start(TIME.format(said=said), jumping)
    eventually(said.exists)
    assert abs(ahead()) < SECONDS
    jumping.jump(3600)
    eventually(lambda: abs(ahead() - 3600) < SECONDS)
    jumping.jump(-7200)
    eventually(lambda: abs(ahead() + 3600) < SECONDS)


def test_a_database_is_restarted_and_recovers_from_a_killed_backend(cleanup: ExitStack):
    folder = cleanup.enter_context(TemporaryDirectory())  # not pytest's own, which nobody else can enter
    database = Database(Path(folder), cleanup, free_port(), None)
    cleanup.callback(database.kill)
    database.start()
    database.wait_until_ready()
    with database.asked() as connection:
        connection.execute("CREATE TABLE t (x int)")

        def is_ended() -> bool:  # the victim may have been on its way out, and its death is noticed a moment later
            KillBackend().apply(database, Random(1))
            try:
                connection.execute("SELECT 1")
            except psycopg.OperationalError:
                return True
            return False

        eventually(is_ended)
    database.wait_until_ready()
    Restart().apply(database, Random(1))
    assert not database.is_running
    database.start()
    database.wait_until_ready()
    with database.asked() as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_the_owner_of_a_store_is_found_and_stopped_for_longer_than_its_lease(cleanup: ExitStack, start):
    folder = cleanup.enter_context(TemporaryDirectory())
    database = Database(Path(folder), cleanup, free_port(), None)
    cleanup.callback(database.kill)
    outlast = OutlastLease(database, "nemesis")
    assert database.owner("nemesis") is None, "it does not run"
    database.start()
    database.wait_until_ready()
    assert database.owner("nemesis") is None, "there is no store"
    code = "import time, seriatim\nwith seriatim.PubSub.blocking({url!r}):\n    time.sleep(600)"
    owner = start(code.format(url=database.url("nemesis")))
    bystander = start("import time; time.sleep(600)")
    eventually(lambda: outlast.fits(owner))
    assert not outlast.fits(bystander)
    assert outlast.apply(owner, Random(1)) > LEASE_S
    eventually(lambda: _state_of(owner) == "T")
    outlast.heal(owner)
    eventually(lambda: _state_of(owner) in "SR")


def _state_of(program: Program) -> str:
    return Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("written", "committed", "is_before"),
    [([], [], False), ([2], [], True), ([2], [1, 2], False), ([2], [1, 2, 3], False), ([2, 10], [1, 2, 3], True)],
)
def test_a_driver_is_before_a_commit_while_a_batch_is_in_a_sink_and_not_committed(
    tmp_path: Path, written: list[int], committed: list[int], is_before: bool
):
    """A batch without rows is committed, and in no table."""
    commits = tmp_path / "work" / "telemetry" / "commits"
    commits.mkdir(parents=True)
    for batch in committed:
        (commits / str(batch)).touch()
    for batch in written:
        (tmp_path / "ordered" / f"batch={batch:012d}").mkdir(parents=True)
    assert Driver(tmp_path, tmp_path / "pipeline.toml", Random(1), []).is_before_a_commit is is_before
