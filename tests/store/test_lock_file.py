"""One process owns a store, and nobody can be fooled about who."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from seriatim.errors import NotAStore, StoreBusy, StoreFailed, StoreLost
from seriatim.store import lock_file as ownership
from seriatim.store.lock_file import (
    NETWORK_FILE_SYSTEMS,
    Owner,
    OwnerLock,
    file_system,
    owner_of,
    refuse_network_file_system,
)
from seriatim.store.sqlite.store import SqliteStore
from tests.store.contract.kit import nothing_masked, topic_with_subscription

ROOT = Path(__file__).parents[2]
OPEN = "import sys; from seriatim.store import open_store; store = open_store('sqlite:///' + sys.argv[1]); "


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def start(program: str, path: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", OPEN + program, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def finish(process: subprocess.Popen) -> str:
    _, errors = process.communicate(timeout=30)
    return errors


def test_a_second_process_is_told_who_owns_the_store(path):
    with closing(SqliteStore(path)):
        errors = finish(start("", path))
    assert f"StoreOwned: the store is owned by process {os.getpid()} on {socket.gethostname()}" in errors


def test_a_second_handle_in_the_same_process_is_refused_too(path):
    with closing(SqliteStore(path)), pytest.raises(StoreBusy, match=f"process {os.getpid()}"):
        SqliteStore(path)
    SqliteStore(path).close()


def test_the_store_is_free_as_soon_as_its_owner_is_killed(path):
    with start("print('open', flush=True); sys.stdin.read()", path) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(StoreBusy, match=f"process {owner.pid}"):
            SqliteStore(path)
        owner.kill()
        owner.wait()
    with closing(SqliteStore(path)) as store:
        assert store.epoch == 2


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_owner(path):
    program = "import os; os.fork(); os.write(1, b'open\\n'); sys.stdin.read()"
    with start(program, path) as owner:
        assert owner.stdout is not None
        assert [owner.stdout.readline(), owner.stdout.readline()] == ["open\n", "open\n"]
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        SqliteStore(path).close()  # the child is still there: it waits for the end of its input


def test_a_lock_file_that_says_nothing_still_counts(path):
    lock = path.with_name("store.db.lock")
    holder = OwnerLock(lock)
    lock.write_text("")
    with pytest.raises(StoreBusy, match="owned by another process"):
        SqliteStore(path)
    holder.release()
    SqliteStore(path).close()


class TestAskingWhoTheOwnerIs:
    @pytest.fixture(params=["by asking about the lock", "by trying to take it"], autouse=True)
    def _both_ways(self, request, monkeypatch):
        """Linux can be asked about a lock; elsewhere an opening waits a moment for those who try."""
        monkeypatch.setattr(ownership, "CAN_ASK", request.param.startswith("by asking"))

    def test_it_is_told_while_the_store_is_open_and_to_its_own_process_too(self, path):
        assert owner_of(path) is None
        with closing(SqliteStore(path)):
            assert owner_of(path) == Owner(os.getpid(), socket.gethostname())
        assert owner_of(path) is None

    def test_it_never_keeps_anybody_from_opening_the_store(self, path):
        lock, done = path.with_name("store.db.lock"), threading.Event()
        OwnerLock(lock).release()
        asked = [0, 0]

        def ask(who: int) -> None:
            while not done.is_set():
                owner_of(path)
                asked[who] += 1

        threads = [threading.Thread(target=ask, args=(who,)) for who in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(200):
                OwnerLock(lock).release()
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert min(asked) > 0

    def test_the_store_can_be_opened_while_somebody_asks(self, path):
        lock = path.with_name("store.db.lock")
        OwnerLock(lock).release()
        asking = os.open(lock, os.O_RDONLY)
        assert not ownership._is_locked(asking)
        answered = threading.Timer(0.1, os.close, [asking])
        answered.start()
        try:
            OwnerLock(lock).release()
        finally:
            answered.join()

    def test_a_link_in_place_of_the_lock_file_is_nobodys_lock(self, path, tmp_path):
        with closing(SqliteStore(tmp_path / "other.db")):
            path.with_name("store.db.lock").symlink_to(tmp_path / "other.db.lock")
            assert owner_of(path) is None


class TestTheLockFile:
    def test_a_link_in_its_place_is_refused_and_what_it_points_to_is_left_alone(self, path, tmp_path):
        precious = tmp_path / "precious"
        precious.write_text("keep me")
        path.with_name("store.db.lock").symlink_to(precious)
        with pytest.raises(StoreFailed, match=r"store\.db\.lock' is a symbolic link: remove it"):
            SqliteStore(path)
        assert precious.read_text() == "keep me"
        assert not path.exists()

    def test_what_is_not_a_plain_file_is_refused(self, path):
        os.mkfifo(path.with_name("store.db.lock"))
        with pytest.raises(StoreFailed, match="is not a plain file and is in the way"):
            SqliteStore(path)

    def test_it_is_for_its_user_only(self, path):
        with nothing_masked(), closing(SqliteStore(path)):
            assert path.with_name("store.db.lock").stat().st_mode & 0o777 == 0o600


def test_the_epoch_rises_with_every_opening(path):
    epochs = []
    for _ in range(3):
        with closing(SqliteStore(path)) as store:
            epochs.append(store.epoch)
    assert epochs == [1, 2, 3]


def test_a_former_owner_can_change_nothing(path):
    with closing(SqliteStore(path)) as former:
        topic_with_subscription(former)
        path.with_name("store.db.lock").unlink()  # somebody tidied up what they should not have
        with closing(SqliteStore(path)) as present:
            with pytest.raises(StoreLost, match="taken it over"), former.transaction() as work:
                work.create_topic("stale", {})
            with pytest.raises(StoreLost, match="open it again"):
                former.upkeep(0.0)
            assert [topic.name for topic in present.catalog().topics] == ["orders"]


def refusals_in_child(store) -> int:
    """How many of three uses are refused."""
    refused = 0
    for use in (store.catalog, lambda: store.upkeep(0.0), lambda: store.transaction().__enter__()):
        try:
            use()
        except StoreLost as error:
            refused += "fork" in str(error)
    store.close()
    return refused


def fork_and_go_on(path: str) -> None:
    """Run in a process of its own, because a fork of a process with threads may hang."""
    with closing(SqliteStore(path)) as store:
        topic_with_subscription(store)
        child = os.fork()
        if child == 0:
            os._exit(refusals_in_child(store))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        with store.transaction() as work:
            work.create_topic("after", {})
        with pytest.raises(StoreBusy):
            SqliteStore(path)


def test_use_after_fork_is_refused_and_does_the_parent_no_harm(path):
    program = "from tests.store.test_lock_file import fork_and_go_on; store.close(); fork_and_go_on(sys.argv[1])"
    assert finish(start(program, path)) == ""
    with closing(SqliteStore(path)) as store:
        assert [topic.name for topic in store.catalog().topics] == ["orders", "after"]


MOUNTS = """\
/dev/vda1 / ext4 rw,relatime 0 0
tmpfs /tmp tmpfs rw 0 0
server:/export /mnt/nfs nfs4 rw,vers=4.2 0 0
/dev/sdb1 /mnt/nfs/local xfs rw 0 0
//nas/share /mnt/with\\040space cifs rw 0 0
ann@host: /mnt/ssh fuse.sshfs rw 0 0
C:\\134 /mnt/c 9p rw 0 0
/dev/fuse /mnt/appimage fuse.squashfuse ro 0 0
/dev/sdc1 /mnt/twice ext4 rw 0 0
server:/x /mnt/twice nfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/store.db", None),
        ("/tmp/store.db", None),
        ("/mnt/nfs/store.db", "nfs4"),
        ("/mnt/nfs", "nfs4"),
        ("/mnt/nfsish/store.db", None),
        ("/mnt/nfs/local/store.db", None),
        ("/mnt/with space/store.db", "cifs"),
        ("/mnt/ssh/deep/er/store.db", "fuse.sshfs"),
        ("/mnt/c/store.db", "9p"),
        ("/mnt/appimage/store.db", None),
        ("/mnt/twice/store.db", "nfs"),
    ],
)
def test_a_network_file_system_is_told_from_a_local_one(path, kind, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    found = file_system(Path(path), mounts)
    assert (found if found in NETWORK_FILE_SYSTEMS else None) == kind


def test_no_list_of_mounts_means_that_it_can_not_be_told(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text("")
    assert file_system(Path("/x"), mounts) is None


def test_a_store_on_a_network_file_system_is_refused(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs rw 0 0\n")
    with pytest.raises(NotAStore, match=r"network file system \(nfs\).*use a local disk"):
        refuse_network_file_system(tmp_path / "store.db", mounts)
    refuse_network_file_system(tmp_path / "store.db", tmp_path / "missing")
