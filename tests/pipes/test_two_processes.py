"""Two processes over UDP on loopback: killed and restarted in the middle, and every message arrives once and in order."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from seriatim.core.traces import classify
from seriatim.store import open_store
from tests.conftest import fast_folder
from tests.ports import free_port

CHILD = Path(__file__).with_name("pipe_child.py")
COUNT = 2_000


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as name:
        yield Path(name)


class Ends:
    """A sender and a receiver, each a process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.kills = 0

    def start(self, role: str) -> None:
        arguments = [role, str(self._folder / f"{role}.db"), str(self._port), str(COUNT)]
        self.processes[role] = subprocess.Popen(
            [sys.executable, CHILD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def kill(self, role: str) -> None:
        process = self.processes.pop(role)
        process.kill()
        process.communicate()
        self.kills += process.returncode < 0

    def restart(self, *roles: str) -> None:
        for role in roles:
            self.kill(role)
        for role in roles:
            self.start(role)

    def wait_until_sender_took(self, count: int) -> None:
        output = self.processes["sender"].stdout
        assert output is not None
        for line in output:
            if line.strip() == "drained" or int(line) >= count:
                return
        raise AssertionError("the sender ended")

    def finish(self) -> None:
        """Wait until everything is confirmed, and let the receiver end in peace."""
        sender, receiver = self.processes["sender"], self.processes["receiver"]
        assert sender.communicate(timeout=60)[0].endswith("drained\n")
        receiver.communicate("", timeout=60)
        assert (sender.returncode, receiver.returncode) == (0, 0)

    def received(self) -> list[int]:
        store = open_store(f"sqlite:///{self._folder / 'receiver.db'}")
        try:
            (topic,) = [row for row in store.catalog().topics if row.name == "out"]
            return [int(record.data) for record in store.read(topic.id, 0, 10 * COUNT)]
        finally:
            store.close()


@pytest.fixture
def ends(folder: Path) -> Iterator[Ends]:
    ends = Ends(folder)
    yield ends
    for process in ends.processes.values():
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "crashes",
    [[("receiver",)], [("sender",)], [("sender",), ("receiver",), ("sender", "receiver")]],
    ids=["receiver", "sender", "each, and both at once"],
)
def test_an_end_that_is_killed_and_restarted_in_the_middle_loses_and_repeats_nothing(ends, crashes):
    for role in ("receiver", "sender"):
        ends.start(role)
    for number, roles in enumerate(crashes, start=1):
        ends.wait_until_sender_took(number * COUNT // (len(crashes) + 1))
        ends.restart(*roles)
    ends.finish()
    assert ends.kills == sum(map(len, crashes))
    verdict = classify(ends.received(), sent=range(COUNT))
    assert verdict.witness is None
    assert verdict.received == COUNT
